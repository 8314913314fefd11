"""`training.init_from`: a run starts from the parameters of another, or refuses a checkpoint that does not fit."""

import contextlib
import dataclasses
import os
import re
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_support import (
    argv,
    assert_same_run,
    at,
    metric_lines,
    run_main,
    subprocess_main,
    train,
    trained_config,
    trained_folder,
    write_corpus,
)
from support import tiny
from training_support import identical

from transformer_jax.checkpoints.manifest import Leaf
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.config_file import read_config
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.models.architecture import init_params, parameter_axes
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.sweeps import vmap_training
from transformer_jax.training import init_from, loop
from transformer_jax.training.hyper import split
from transformer_jax.training.init_from import OtherRun, open_other_run
from transformer_jax.training.set_up import find_start, open_store
from transformer_jax.training.state import TrainState, placed_state, state_shapes, state_template


def test_numbers_that_change_the_function_are_differences_and_those_of_training_are_none():
    """Such as a cap; rates of dropout and first values are not."""
    model = ModelConfig(
        output_logit_cap=30.0, logits_multiplier=0.5, dropout_rate=0.3, tie_output=False, zero_head=True
    )
    source = dataclasses.asdict(ModelConfig(tie_output=False).resolved())
    found = init_from._differences(source, ExperimentConfig(model=model).resolved())
    assert found == ["logits_multiplier=1.0, here 0.5", "output_logit_cap=None, here 30.0"]


def test_fields_of_initial_parameters_are_no_differences():
    """The range of the uniform distribution is one of them, like the standard deviation of the normal one."""
    before = ModelConfig(init="uniform", residual_scale="vector")
    after = dataclasses.replace(before, init_range=0.5, residual_scale_init=0.1)
    source = dataclasses.asdict(before.resolved())
    assert init_from._differences(source, ExperimentConfig(model=after).resolved()) == []


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Return the work directory of a trained run."""
    return shutil.copytree(trained_folder() / "run", tmp_path_factory.mktemp("source") / "run")


def device():
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def config_from(path, **fields):
    values = {"data.dir": str(trained_folder()), "training.init_from": str(path), "seed": 3}
    return read_config(
        str(trained_folder() / "tiny.py"), values | {name.replace("__", "."): v for name, v in fields.items()}
    )


def start_of(config, folder, shardings=None):
    with open_workdir(folder / "new", config.to_dict()) as directory, open_store(config, directory) as store:
        parts = split(config)
        start = find_start(config, directory, store, state_template(*parts, shardings or device()))
        return start, start.first_state(*parts, shardings or device())


def load(pretrained, params):
    """Return parameters after those of the checkpoint are put in their place."""
    return pretrained.load(TrainState(jnp.int32(0), params, ())).params


def stored_params(source, step):
    template = state_template(*split(trained_config()), device()).params
    return CheckpointStore(source / "checkpoints", read_only=True).restore_params(template, step).state


@pytest.mark.parametrize(("name", "step"), [("", 8), ("checkpoints/5", 5), ("checkpoints/best", 8)])
def test_only_parameters_come_from_the_checkpoint(source, tmp_path, capsys, name, step):
    config = config_from(source / name)
    start, state = start_of(config, tmp_path)
    assert identical(state.params, stored_params(source, step))
    new = placed_state(*split(config), device())
    assert not identical(state.params, new.params)
    assert identical(state._replace(params=new.params), new)
    assert start.tokenizer.model_bytes == (source / "tokenizer.model").read_bytes()
    message = capsys.readouterr().err
    count, size = len(jax.tree.leaves(new.params)), sum(leaf.size for leaf in jax.tree.leaves(new.params))
    assert f"loaded from step {step}: {count} arrays with {size:,} parameters: decoder " in message
    assert "uses the tokenizer of the checkpoint" in message
    assert "not loaded" not in message


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["jit", "shard_map", "pmap"])
def test_parameters_have_the_launcher_s_shardings(source, tmp_path, launcher):
    config = config_from(source, parallel__launcher=launcher, parallel__num_devices="1")
    static, hyper = split(config)
    shardings = make_launcher(config, lambda *arguments: arguments, parameter_axes(config.model)).shardings(
        state_shapes(static, hyper)
    )
    _, state = start_of(config, tmp_path, shardings)
    new = placed_state(static, hyper, shardings)
    assert [x.sharding for x in jax.tree.leaves(state)] == [x.sharding for x in jax.tree.leaves(new)]
    assert identical(state.params, stored_params(source, 8))


@pytest.mark.slow
def test_every_trial_of_a_group_starts_from_the_checkpoint(source, tmp_path):
    configs = [config_from(source), config_from(source, seed="4", optimizer__learning_rate="0.001")]
    with contextlib.ExitStack() as opened:
        members = [vmap_training._open(c, tmp_path / str(n), "map", opened) for n, c in enumerate(configs)]
        stepper = vmap_training._stepper(members, "map")
    for number in range(2):
        assert identical(stepper.state_of(number).params, stored_params(source, 8))
        assert stepper.state_of(number).step == 0


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_without_the_checkpoint_that_it_started_from(tmp_path, monkeypatch, capsys):
    """On another corpus, with the tokenizer of the first run, and with frozen parameters and rates by depth."""
    source = shutil.copytree(trained_folder() / "run", tmp_path / "source")
    flags = [f"--config.training.init_from={source}", "--config.optimizer.layer_decay=0.9"]
    flags.append("--config.optimizer.freeze=embedding,encoder")
    whole, stopped = write_corpus(tmp_path / "a", seed=1), write_corpus(tmp_path / "b", seed=1)
    capsys.readouterr()  # of the first run
    assert train(whole, *flags) == 0
    message = capsys.readouterr().err
    assert "training the tokenizer" not in message
    assert re.search(r"[\d,]+ parameters, [\d,]+ of them trained", message)
    assert (whole / "run" / "tokenizer.model").read_bytes() == (source / "tokenizer.model").read_bytes()
    stored = whole / "run" / "checkpoints" / "8" / "tokenizer.model"
    assert stored.read_bytes() == (source / "tokenizer.model").read_bytes()
    assert metric_lines(whole / "run")[0]["loss"] < metric_lines(source)[0]["loss"] - 0.2
    with monkeypatch.context() as patch:
        patch.setattr(loop, "kill_point", at("after_batch", 5, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        assert train(stopped, *flags) == 143
    shutil.rmtree(source)
    assert train(stopped, *flags) == 0
    assert_same_run(stopped, whole)


@pytest.mark.slow
def test_on_several_devices(source, tmp_path):
    """Parameters that were stored whole are divided among two devices."""
    flags = [f"--config.training.init_from={source}", "--config.training.num_train_steps=1"]
    one, two = write_corpus(tmp_path / "a"), write_corpus(tmp_path / "b")
    assert train(one, *flags) == 0
    xla_flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    words = argv("train", two, *flags, "--config.parallel.fsdp=2")
    result = subprocess_main(words, env={"XLA_FLAGS": xla_flags})
    assert result.returncode == 0, result.stderr
    expected, found = (metric_lines(folder / "run")[0] for folder in (one, two))
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


# Parts.


def opened(config, folder, template):
    with open_workdir(folder / "new", config.to_dict()) as directory:
        return open_other_run(config, directory, template)


def params_template():
    return state_template(*split(trained_config()), device()).params


def test_a_head_may_be_new(source, tmp_path, capsys):
    head = {"kernel": jnp.full((16, 3), 0.5)}
    pretrained = opened(config_from(source), tmp_path, params_template() | {"head": jax.eval_shape(lambda: head)})
    params = placed_state(*split(trained_config()), device()).params
    loaded = load(pretrained, params | {"head": head})
    assert identical({name: loaded[name] for name in params}, stored_params(source, 8))
    assert identical(loaded["head"], head)
    assert "not in the checkpoint, newly initialised: 1 arrays with 48 parameters: head 1" in capsys.readouterr().err


def test_parts_that_the_model_does_not_have_are_named(source, tmp_path, capsys):
    params = placed_state(*split(trained_config()), device()).params
    part = {"decoder": params["decoder"]}
    loaded = load(opened(config_from(source), tmp_path, jax.eval_shape(lambda: part)), part)
    assert identical(loaded, {"decoder": stored_params(source, 8)["decoder"]})
    assert re.search(r"in the checkpoint but not loaded: \d+ arrays .*encoder \d+", capsys.readouterr().err)


def save_without(source, folder, *paths, more=None, **fields):
    """Store the parameters of step 8 without some of them, as a checkpoint without a tokenizer.

    Args:
      more: other parameters to store. fields: other values of the stored config, with __ for the dot.
    """
    params = jax.tree.map(lambda x: x, stored_params(source, 8))
    for path in paths:
        *parents, name = path.split("/")
        parent = params
        for part in parents:
            parent = parent[part]
        del parent[name]
    config = trained_config().to_dict()
    for name, value in fields.items():
        section, _, field = name.partition("__")
        config[section][field] = value
    with CheckpointStore(folder / "checkpoints") as store:
        store.save(8, {"params": params | (more or {})}, {"config": config}, {})
    return folder


HEAD = {"output": {"kernel": np.full((16, 3), 0.5, np.float32)}}


@pytest.mark.parametrize(
    ("fields", "stored", "loaded"),
    [
        ({}, {}, True),
        ({"training__new_head": "True"}, {}, False),
        ({}, {"task__name": "language_model"}, False),  # the head of another task
    ],
)
def test_a_head_is_loaded_for_the_same_task_only(source, tmp_path, capsys, fields, stored, loaded):
    path, own = (
        save_without(source, tmp_path / "headed", more={"head": HEAD}, **stored),
        jax.tree.map(np.zeros_like, HEAD),
    )
    template = params_template() | {"head": jax.eval_shape(lambda: own)}
    pretrained = opened(config_from(path, **fields), tmp_path, template)
    params = placed_state(*split(trained_config()), device()).params
    result = load(pretrained, {**params, "head": jax.device_put(own, device())})
    assert identical(result["head"], HEAD if loaded else own)
    assert identical({name: result[name] for name in params}, stored_params(source, 8))
    message = capsys.readouterr().err
    assert ("not loaded: 1 arrays with 48 parameters: head 1" in message) != loaded
    assert ("newly initialised: 1 arrays with 48 parameters: head 1" in message) != loaded


def test_a_head_of_another_width(source, tmp_path):
    """Refused for the same task, whose labels may have been left out by mistake; a new head is one field away."""
    path = save_without(source, tmp_path / "headed", more={"head": HEAD})
    other = {"head": {"output": {"kernel": jax.ShapeDtypeStruct((16, 5), jnp.float32)}}}
    message = r"  - head/output/kernel: float32\[16, 3\] in .*float32\[16, 5\] expected; set training\.new_head=true"
    with pytest.raises(CheckpointError, match=message):
        opened(config_from(path), tmp_path, params_template() | other)
    new = opened(config_from(path, training__new_head="True"), tmp_path, params_template() | other).new
    assert list(new) == ["head/output/kernel"]


def test_only_the_tokenizer_comes_from_the_checkpoint(source, tmp_path, capsys):
    """Even if the parameters would not fit: those of another architecture, of other sizes."""
    config = config_from(source, training__new_parameters="True", model__emb_dim="32")
    start, state = start_of(config, tmp_path)
    assert identical(state, placed_state(*split(config), device()))
    assert start.tokenizer.model_bytes == (source / "tokenizer.model").read_bytes()
    message = capsys.readouterr().err
    assert "all parameters are new; only the tokenizer is that of step 8" in message
    assert "other fields" not in message
    fields = {"model__architecture": "decoder_only", "model__num_encoder_layers": "6", "model__num_decoder_layers": "1"}
    decoder = config_from(source, training__new_parameters="True", task__name="language_model", **fields)
    assert not opened(decoder, tmp_path / "decoder", params_template()).loaded
    with pytest.raises(CheckpointError, match="can only start from decoder_only"):
        opened(dataclasses.replace(decoder, training=config_from(source).training), tmp_path / "x", params_template())


@pytest.mark.parametrize("field", ["new_head", "new_parameters"])
def test_new_parts_without_a_checkpoint_are_refused(field):
    with pytest.raises(ConfigError, match=rf"training\.{field}=True has no effect without init_from"):
        read_config("quickstart", {f"training.{field}": "True"})


def test_a_new_head_beside_new_parameters_is_refused():
    values = dict.fromkeys(("training.new_head", "training.new_parameters"), "True") | {"training.init_from": "runs/x"}
    with pytest.raises(ConfigError, match=r"training\.new_head=True has no effect with new_parameters=True"):
        read_config("quickstart", values)


def with_architecture(config, architecture):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, architecture=architecture).resolved())


def shapes_of(config):
    return jax.eval_shape(lambda: init_params(config.model, 0))


def test_an_encoder_can_start_from_that_of_an_encoder_decoder(source, tmp_path, capsys):
    config = with_architecture(config_from(source), "encoder_only")
    pretrained = opened(config, tmp_path, shapes_of(config))
    params = load(pretrained, jax.device_put(init_params(config.model, 0), device()))
    expected = stored_params(source, 8)
    assert identical(params, {name: expected[name] for name in params})
    assert {"embedding", "encoder"} <= set(params)
    assert re.search(r"not loaded: \d+ arrays .*: decoder \d+$", capsys.readouterr().err, re.MULTILINE)


@pytest.mark.parametrize(
    ("theirs", "ours", "sources"),
    [
        ("encoder_decoder", "decoder_only", "decoder_only"),
        ("encoder_only", "decoder_only", "decoder_only"),
        ("encoder_only", "encoder_decoder", "encoder_decoder"),
        ("decoder_only", "encoder_only", "encoder_only or encoder_decoder"),
        ("encoder_decoder", "recurrent", "recurrent"),
        ("recurrent", "encoder_decoder", "encoder_decoder"),
    ],
)
def test_other_pairs_of_architectures_are_refused(source, tmp_path, theirs, ours, sources):
    path = save_without(source, tmp_path / "other", model__architecture=theirs)
    config = with_architecture(config_from(path), ours)
    message = rf"has model\.architecture='{theirs}'; model\.architecture='{ours}' can only start from {sources}$"
    with pytest.raises(CheckpointError, match=message):
        opened(config, tmp_path, shapes_of(config))


def test_a_recurrent_language_model_starts_from_no_encoder_decoder(source, tmp_path):
    path = save_without(source, tmp_path / "other", model__architecture="recurrent")
    config = with_architecture(config_from(path), "recurrent")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, num_encoder_layers=0))
    message = r"a recurrent model with the form='decoder_only' can only start from decoder_only$"
    with pytest.raises(CheckpointError, match=message):
        opened(config, tmp_path, shapes_of(config))


def test_a_recurrent_encoder_is_not_told_to_copy_fields_of_a_decoder(source, tmp_path):
    fields = {"model__architecture": "recurrent", "model__decoder_start_id": 7, "model__cell": "gru"}
    path = save_without(source, tmp_path / "other", **fields)
    config = with_architecture(config_from(path), "recurrent")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, num_decoder_layers=0))
    with pytest.raises(CheckpointError, match=r"does not fit this model\n") as error:
        opened(config, tmp_path, shapes_of(config))
    assert error.value.args[0].splitlines()[-1].endswith("the checkpoint's values: cell='gru', here 'lstm'")


def test_an_encoder_with_its_own_embeddings_is_refused(source, tmp_path):
    table = {"source_embedding": {"embedding": np.zeros((5, 16), np.float32)}}
    path = save_without(source, tmp_path / "other", more=table)
    config = with_architecture(config_from(path), "encoder_only")
    with pytest.raises(CheckpointError, match=r"share_embeddings=False, so its 'embedding' is that of the decoder"):
        opened(config, tmp_path, shapes_of(config))


@pytest.mark.parametrize(
    ("theirs", "ours", "problem"),
    [
        (("AG", 8), ("", 4), "its decoder/layers has the layers 0, 2, 4, 6 of the stack, here 0, 1, 2, 3"),
        (("AG", 4), ("GA", 4), "its decoder/layers_gated_delta has the layers 1, 3 of the stack, here 0, 2"),
        (("AG", 4), ("AG", 4), None),
        (("", 4), ("", 6), None),  # another depth has other shapes, which are compared
    ],
)
def test_layers_of_another_place_in_the_stack_are_refused(theirs, ours, problem):
    def model(pattern, depth):
        kinds = {"layer_pattern": pattern, "layer_kinds": "A:; G: mixer=gated_delta"} if pattern else {}
        return tiny(architecture="decoder_only", num_decoder_layers=depth, **kinds)

    source = dataclasses.asdict(model(*theirs))
    if problem is None:
        init_from._check_layers("x", source, model(*ours))
    else:
        with pytest.raises(CheckpointError, match=problem):
            init_from._check_layers("x", source, model(*ours))


def test_fields_that_give_the_same_arrays_another_meaning_are_named(source, tmp_path, capsys):
    config = config_from(source, model__activation="gelu", model__dropout_rate="0.3", model__scan_layers="True")
    opened(config, tmp_path, params_template())
    assert "other fields: activation='relu', here 'gelu'\n" in capsys.readouterr().err
    opened(config_from(source, model__attention_window="3"), tmp_path / "window", params_template())
    assert "other fields: attention_window=None, here 3\n" in capsys.readouterr().err
    opened(config_from(source), tmp_path / "same", params_template())
    assert "other fields" not in capsys.readouterr().err


def test_a_checkpoint_without_a_part(source, tmp_path):
    path = save_without(source, tmp_path / "encoder", "decoder", "encoder/final_norm/scale")
    message = (
        rf"^training\.init_from={path}: step 8 does not fit this model\n"
        r"  - decoder: absent in the checkpoint, \d+ arrays\n"
        r"  - encoder/final_norm/scale: float32\[16\] expected, absent in the checkpoint$"
    )
    with pytest.raises(CheckpointError, match=message):
        opened(config_from(path), tmp_path, params_template())


def test_a_checkpoint_without_a_tokenizer(source, tmp_path):
    path = save_without(source, tmp_path / "bare")
    assert opened(config_from(path), tmp_path, params_template()).tokenizer is None


# Errors.


def test_other_shapes(source, tmp_path):
    config = config_from(source, model__mlp_dim="20")
    with pytest.raises(CheckpointError) as raised:
        start_of(config, tmp_path)
    lines = str(raised.value).splitlines()
    assert lines[0] == f"training.init_from={source}: step 8 does not fit this model"
    assert lines.pop() == "Give these fields of model the checkpoint's values: mlp_dim=24, here 20"
    assert all(
        re.fullmatch(r"  - .*: float32\[.*24.*\] in the checkpoint, float32\[.*20.*\] expected", x) for x in lines[1:]
    )
    assert [line for line in lines if "decoder/" in line]


def test_other_token_types(source, tmp_path):
    with pytest.raises(CheckpointError) as raised:
        start_of(config_from(source, model__token_types="2"), tmp_path)
    assert str(raised.value).splitlines()[1:] == [
        "  - encoder/type_embedding/embedding: float32[2, 16] expected, absent in the checkpoint",
        "Give these fields of model the checkpoint's values: token_types=0, here 2",
    ]


def test_another_vocabulary(source, tmp_path):
    """In the work directory, or as a file that the config names."""
    words = tmp_path / "words.txt"
    words.write_text("".join(f"w{n}\n" for n in range(286)))
    config = config_from(source, data__tokenizer="words", data__vocabulary_file=str(words))
    message = rf"{words}' is not the vocabulary of training\.init_from={source}; leave out one of the two"
    with pytest.raises(CheckpointError, match=message):
        start_of(config, tmp_path)
    other = tmp_path / "new" / "tokenizer.model"
    other.write_bytes(b"transformer_jax words 1\n")
    with pytest.raises(CheckpointError, match=rf"{other}.*delete the file: the checkpoint contains its tokenizer"):
        start_of(config_from(source), tmp_path)
    shutil.copy(source / "tokenizer.model", other)
    start_of(config_from(source), tmp_path)


def test_another_kind_of_tokenizer(source, tmp_path):
    message = rf"training\.init_from={source}: .*data\.tokenizer='bpe', .* data\.tokenizer='byte_bpe'"
    with pytest.raises(CheckpointError, match=message):
        start_of(config_from(source, data__tokenizer="byte_bpe"), tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "checkpoints/6", "config.json", "checkpoints/8/state"])
def test_a_path_without_a_checkpoint(source, tmp_path, capsys, monkeypatch, name):
    """Nothing has been compiled, and the folder is free for another config."""
    monkeypatch.setattr(jax, "jit", None)
    path = source / name
    words = [w for w in argv("train", trained_folder()) if "workdir" not in w]
    assert run_main([*words, f"--workdir={tmp_path}", f"--config.training.init_from={path}"]) == 2
    assert f"error: training.init_from={path}: " in capsys.readouterr().err
    assert not (tmp_path / "config.json").exists()


def test_a_damaged_checkpoint(source, tmp_path):
    damaged = shutil.copytree(source, tmp_path / "damaged")
    largest = max((damaged / "checkpoints" / "8" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(np.random.default_rng(0).bytes(largest.stat().st_size))
    _, state = start_of(config_from(damaged), tmp_path)
    assert identical(state.params, stored_params(source, 5))  # the newest good checkpoint
    assert (damaged / "checkpoints" / "8").is_dir()  # in another run nothing is moved
    with pytest.raises(CheckpointError, match="does not match its sha256"):
        start_of(config_from(damaged / "checkpoints" / "8"), tmp_path / "again")


def test_a_head_for_other_labels_is_refused():
    """With as many labels the arrays fit, but their rows are those of other labels."""
    leaf = Leaf((4, 2), "float32")

    def check(path: str, labels: tuple[str, ...] | None, own: tuple[str, ...]) -> None:
        store = object.__new__(CheckpointStore)
        run = {
            "name": "training.init_from=other",
            "store": store,
            "stored_step": 3,
            "stored": {},
            "new": {},
            "unused": {},
        }
        OtherRun(**run, loaded={path: leaf}, predicted=labels).check_labels(own)

    with pytest.raises(CheckpointError, match=r"init_from=other: its head is for the labels bad, good, but the"):
        check("head/output/kernel", ("bad", "good"), ("cold", "warm"))
    with pytest.raises(CheckpointError, match=r"it has another order\. Give"):  # `open_data` gives it the same
        check("head/output/kernel", ("bad", "good"), ("good", "bad"))
    check("head/output/kernel", ("bad", "good"), ("bad", "good"))
    check("head/output/kernel", None, ("bad", "good"))
    check("encoder/layers", ("bad", "good"), ("cold", "warm"))


def test_every_process_raises_what_one_finds(monkeypatch):
    monkeypatch.setattr(init_from, "gathered", lambda text: [text, "run: step 5: parameters are not finite"])
    with pytest.raises(CheckpointError, match=r"^run: step 5: parameters are not finite$"):
        init_from._check_finite_everywhere({"kernel": np.ones(2, np.float32)}, "run: step 5")
