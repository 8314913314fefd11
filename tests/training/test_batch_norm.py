"""BatchNorm in training: running averages in the state, padding, launchers, trials, and whole runs."""

import dataclasses
import functools
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from image_support import LABELS, pictures
from kinds_support import trained_kind
from labelled_support import config as labelled_config
from PIL import Image
from run_support import TOTAL, run_main
from training_support import distance, identical, run_on_eight_devices, start

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.config import ExperimentConfig
from transformer_jax.config_file import read_config
from transformer_jax.convert.folder import save_pretrained
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.evaluation.loading import load, load_predictor
from transformer_jax.nn.batch_norm import MOMENTUM, STATISTICS, num_parameters
from transformer_jax.tasks.task import param_shapes
from transformer_jax.training.hyper import split
from transformer_jax.training.set_up import find_start, open_store
from transformer_jax.training.state import state_template
from transformer_jax.training.step import batch_gradient, make_train_step
from transformer_jax.training.stepper import over_trials, stacked

MODEL = {"norm": "batchnorm", "norm_position": "pre", "num_encoder_layers": 2, "embedding_norm": True}
LENGTHS = np.array([5, 2, 0, 4])


def config_of(**model):
    return labelled_config("tagging", model=MODEL | model)


def batch_of(width=6, lengths=LENGTHS, seed=0):
    """Return a batch of tagging; a row of length 0 is all padding."""
    rng = np.random.default_rng(seed)
    tokens = np.arange(width) < np.asarray(lengths)[:, None]
    ids, tags = (rng.integers(low, high, (len(LENGTHS), 5)) for low, high in ((4, 24), (0, 5)))
    ids, tags = (np.pad(x, ((0, 0), (0, width - 5)))[: len(lengths)].astype(np.int32) for x in (ids, tags))
    return {
        "inputs": np.where(tokens, ids, 0),
        "inputs_mask": tokens,
        "targets": tags,
        "weights": tokens.astype(np.float32),
        "row_ids": np.arange(len(lengths), dtype=np.int32),
    }


@functools.cache
def gradient(config):
    """Return (state, gradient(batch)) of a config."""
    static, hyper = split(config)
    state, compiled = start(static, hyper), jax.jit(functools.partial(batch_gradient, static))
    return state, lambda batch: compiled(state.params, batch, state.step, hyper)


def test_the_state_has_running_averages_and_a_step_updates_them():
    """The embedding norm comes first: its input is the sum of embeddings and sinusoids."""
    static, hyper = split(config_of(position_encoding="none"))
    state, batch = start(static, hyper), batch_of()
    first = state.extra[STATISTICS]["encoder"]["embedding_norm"]
    assert (first["running_mean"] == 0).all()
    assert (first["running_variance"] == 1).all()
    new, metrics = jax.jit(make_train_step(static))(state, batch, hyper)
    table = np.asarray(state.params["embedding"]["embedding"], np.float64)
    x = table[batch["inputs"][batch["inputs_mask"]]] * 4  # sqrt(emb_dim)
    found = new.extra[STATISTICS]["encoder"]["embedding_norm"]
    np.testing.assert_allclose(found["running_mean"], (1 - MOMENTUM) * x.mean(0), atol=1e-6)
    np.testing.assert_allclose(found["running_variance"], MOMENTUM + (1 - MOMENTUM) * x.var(0, ddof=1), rtol=1e-5)
    assert np.isfinite(metrics["loss"])
    assert jax.tree.structure(new) == jax.tree.structure(state)
    # They are not parameters: the optimizer has no moments of them.
    assert "running_mean" not in str(jax.tree.structure((new.params, new.opt_state)))
    assert new.evaluated["encoder"]["embedding_norm"].keys() == {"scale", "bias", "running_mean", "running_variance"}


def test_padding_changes_neither_gradients_nor_statistics():
    _, of = gradient(config_of())
    expected = of(batch_of(width=5, lengths=LENGTHS[:2]))
    padded = batch_of(width=8, lengths=[*LENGTHS[:2], 0, 0])
    padded["inputs"][~padded["inputs_mask"]] = 7
    actual = of(padded)
    assert float(actual.sums["loss"]) == pytest.approx(float(expected.sums["loss"]), rel=1e-5)
    assert distance(actual.grads, expected.grads) < 1e-5
    assert distance(actual.statistics, expected.statistics) < 1e-5
    # Another row does matter: it shares the statistics.
    other = of(batch_of(width=8, lengths=[5, 2, 0, 4]))
    assert distance(other.statistics, expected.statistics) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"scan_layers": True}, {"scan_layers": True, "remat": "full"}, {"remat": "dots"}])
def test_other_forms_of_the_loop_over_layers(fields):
    expected, actual = gradient(config_of())[1](batch_of()), gradient(config_of(**fields))[1](batch_of())
    assert distance(actual.grads, expected.grads) < 1e-5
    assert distance(actual.statistics, expected.statistics) < 1e-5


@pytest.mark.slow
def test_masked_language_models_have_the_statistics_of_their_head():
    model = {"architecture": "encoder_only", "norm": "batchnorm", "emb_dim": 16, "num_heads": 2, "vocab_size": 24}
    config = ExperimentConfig.from_config_dict(
        {"model": model | {"num_encoder_layers": 1}, "task": {"name": "masked_lm"}, "training": {"loss_chunks": 1}}
    )
    static, hyper = split(config)
    state, batch = start(static, hyper), batch_of()
    places = {"places": np.zeros((4, 1), np.int32), "targets": np.ones((4, 1), np.int32)}
    batch |= places | {"weights": np.array([[1], [1], [0], [1]], np.float32)}
    statistics = jax.jit(functools.partial(batch_gradient, static))(state.params, batch, state.step, hyper).statistics
    assert statistics["head"]["norm"]["weight"] == 3
    assert statistics["encoder"]["layers"]["feed_forward_residual"]["norm"]["weight"].tolist() == [11]


@pytest.mark.slow
def test_a_skipped_step_leaves_the_running_averages():
    config = config_of()
    training = dataclasses.replace(config.training, on_nonfinite="skip")
    static, hyper = split(dataclasses.replace(config, training=training))
    state, step = start(static, hyper), jax.jit(make_train_step(static))
    skipped, _ = step(state, batch_of() | {"weights": np.full((4, 6), np.nan, np.float32)}, hyper)
    assert identical(skipped.extra, state.extra)
    made, _ = step(state, batch_of(), hyper)
    assert not identical(made.extra, state.extra)


@pytest.mark.slow
def test_every_trial_has_its_own_statistics():
    static, hyper = split(config_of())
    hypers, batches = [hyper, hyper._replace(seed=5)], [batch_of(seed=0), batch_of(seed=1)]
    states = [start(static, h) for h in hypers]
    expected = [jax.jit(make_train_step(static))(*trial)[0] for trial in zip(states, batches, hypers, strict=True)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    new, _ = over_trials(make_train_step(static), "map")(together, stacked(batches), stacked(hypers))
    for number in range(2):
        assert distance(jax.tree.map(lambda x, n=number: x[n], new.extra), expected[number].extra) < 1e-5
    assert distance(expected[0].extra, expected[1].extra) > 0.01


CASES = {launcher: {"launcher": launcher, "parallel": {}} for launcher in ("jit", "shard_map", "pmap")}
CASES["2 x 2 x 2"] = {"launcher": "jit", "parallel": {"fsdp": 2, "tensor": 2}}


@pytest.mark.slow
def test_statistics_are_those_of_the_whole_batch_with_every_launcher():
    results = run_on_eight_devices({name: ("batch_norm", case) for name, case in CASES.items()})
    for name, result in results.items():
        assert "error" not in result, (name, result)
        assert result["extra"] < 1e-5, name
        assert result["moments"] < 1e-5, name
        assert result["loss"][0] == pytest.approx(result["loss"][1], rel=1e-5), name


# --- whole runs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    return trained_kind("augmented images") / "run"


def metrics_of(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines]


def test_a_checkpoint_is_evaluated_with_its_running_averages(trained, tmp_path, capsys):
    """As the validation at its step was, by any batch size; predictions of an image do not depend on the others."""
    leaves = CheckpointStore(trained / "checkpoints", read_only=True).open(TOTAL).leaves
    assert any(path.startswith(f"extra/{STATISTICS}/encoder/layers/") for path in leaves)
    loaded = load(trained)
    norm = loaded.params["encoder"]["final_norm"]
    assert norm.keys() == {"scale", "bias", "running_mean", "running_variance"}
    assert (norm["running_variance"] != 1).all()
    assert num_parameters(loaded.params) == sum(x.size for x in jax.tree.leaves(param_shapes(loaded.config)))
    copied = shutil.copytree(trained, tmp_path / "run")
    flags = ["--splits=valid", "--evaluation.tokens_per_batch=32"]
    assert run_main(["evaluate", f"--checkpoint={copied}", *flags]) == 0
    assert json.loads((copied / "evaluation" / "valid.json").read_text())["loss"] == pytest.approx(
        metrics_of(trained)[-1], rel=1e-6
    )
    predictor, images = load_predictor(trained), list(pictures(4)[0])
    alone = [predictor.predict([image])[0].probability for image in images]
    assert [label.probability for label in predictor.predict(images)] == pytest.approx(alone, rel=1e-5)
    Image.fromarray(images[0][..., 0]).save(tmp_path / "one.png")
    capsys.readouterr()
    words = ["attention", f"--checkpoint={copied}", f"--image={tmp_path / 'one.png'}", f"--output={tmp_path / 'maps'}"]
    assert run_main(words) == 0
    assert run_main(["inspect", f"--checkpoint={trained}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))
    assert report["num_parameters"] == num_parameters(loaded.params)
    with pytest.raises(ConfigError, match=r"average_checkpoints=2 with model\.norm='batchnorm'"):
        load(trained, {"evaluation.average_checkpoints": 2})
    with pytest.raises(ConfigError, match="batchnorm"):
        save_pretrained(tmp_path / "vit", loaded.config.model, loaded.params, task=loaded.config.task, labels=LABELS)


@pytest.mark.slow
def test_init_from_takes_the_running_averages(trained, tmp_path, capsys):
    def config_from(kind, norm):
        folder = trained_kind(kind)
        fields = {"data.dir": str(folder), "model.norm": norm, "training.init_from": str(folder / "run")}
        return read_config(str(folder / "tiny.py"), fields)

    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def first_state(kind, norm, place):
        config = config_from(kind, norm)
        with open_workdir(place, config.to_dict()) as directory, open_store(config, directory) as store:
            parts = split(config)
            return find_start(config, directory, store, state_template(*parts, device)).first_state(*parts, device)

    assert identical(first_state("augmented images", "batchnorm", tmp_path / "new").evaluated, load(trained).params)
    assert "; 6 running averages" in capsys.readouterr().err
    # A checkpoint without averages does not fit.
    with pytest.raises(CheckpointError) as error:
        first_state("images", "batchnorm", tmp_path / "third")
    message = str(error.value)
    assert re.search(r"encoder/final_norm/running_mean: .*16.* expected, absent in the checkpoint", message)
    assert "norm='layernorm', here 'batchnorm'" in message
