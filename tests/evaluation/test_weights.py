"""What is scored is defined once: every use of a checkpoint of a training with `ema_decay` reads the same weights."""

import json
import shutil

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from kinds_support import write_kind
from run_support import argv, assert_same_run, metric_lines, run_main, train, trained_folder
from training_support import identical, small_config

from transformer_jax.checkpoints.checksums import by_path, tree_of
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.config_file import read_config
from transformer_jax.convert.folder import open_folder, save_pretrained, write_workdir
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.evaluation import comparison, loading
from transformer_jax.evaluation.loading import load, load_generator, load_language_model, load_predictor, of_training
from transformer_jax.evaluation.scoring import Scorer, evaluate
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.parallel.rules import shardings
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.extras import AVERAGE
from transformer_jax.training.hyper import split
from transformer_jax.training.set_up import find_start, open_store
from transformer_jax.training.state import state_shapes, state_template

DECAY = "--config.training.ema_decay=0.6"
GPT2 = {"position_encoding": "learned", "activation": "gelu_tanh", "scale_embeddings": False, "norm_epsilon": 1e-5}
FLAGS = [f"--config.model.{name}={value}" for name, value in GPT2.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a corpus with a trained language model that GPT-2 can express; checkpoints 5 and 8."""
    folder = write_kind(tmp_path_factory.mktemp("averaged"), "language_model")
    assert train(folder, DECAY, *FLAGS) == 0
    return folder


def stored(folder, step, place):
    """Return the arrays of a checkpoint below a path, as a tree."""
    store = CheckpointStore(folder / "run" / "checkpoints", read_only=True)
    leaves = {path: leaf for path, leaf in store.open(step).leaves.items() if path.startswith(f"{place}/")}
    template = tree_of({path: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for path, leaf in leaves.items()})
    found = by_path(store.restore_parts(template, step, partial=True).state)
    return tree_of({path.removeprefix(f"{place}/"): array for path, array in found.items()})


def state_of(folder, tmp_path, **fields):
    """Return the first state of a run that starts from the trained one."""
    values = {"data.dir": str(folder), "training.init_from": str(folder / "run"), "seed": 3}
    values |= {f"model.{name}": str(value) for name, value in GPT2.items()} | fields
    config = read_config(str(folder / "tiny.py"), values)
    parts, device = split(config), jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with open_workdir(tmp_path, config.to_dict()) as directory, open_store(config, directory) as store:
        return find_start(config, directory, store, state_template(*parts, device)).first_state(*parts, device)


def test_nine_uses_of_one_checkpoint_read_the_average(folder, tmp_path, monkeypatch, capsys):
    run = folder / "run"
    average, raw = stored(folder, 8, "extra/average"), stored(folder, 8, "params")
    assert by_path(average).keys() == by_path(raw).keys()
    assert not identical(average, raw)
    capsys.readouterr()

    # Validations of the training, and the best checkpoint by them; `evaluate`.
    [line] = [line for line in metric_lines(run) if line["split"] == "valid" and line["step"] == 8]
    scores = evaluate(run, ["valid"], generate=False)["valid"]
    assert scores["loss"] == line["loss"]
    assert scores["weights"] == "averaged"
    assert "step 8, averaged weights" in capsys.readouterr().err
    best = load(run / "checkpoints" / "best")
    assert identical(best.params, stored(folder, best.steps[0], "extra/average"))
    with monkeypatch.context() as patched:
        patched.setattr(TASKS["language_model"], "predictor", lambda config, params, *others: params, raising=False)
        uses = {
            "evaluate": Scorer.from_checkpoint(run).loaded.params,
            "generate": load_generator(run).params,
            "score": load_language_model(run).params,
            "predict": load_predictor(run),
            "ensemble": load_generator(run, ensemble=[run / "checkpoints" / "8"]).others[0].params,
            "convert": converted(run, tmp_path / "gpt2"),
            "compare": compared(run, patched),
            "init_from": state_of(folder, tmp_path / "new").params,
        }
    assert {name: identical(params, average) for name, params in uses.items()} == dict.fromkeys(uses, True)

    # The mean over checkpoints is that of the averages.
    mean = load(run, {"evaluation.average_checkpoints": 2})
    assert mean.steps == (5, 8)
    trees = mean.params, stored(folder, 5, "extra/average"), average
    for found, *both in zip(*map(jax.tree.leaves, trees), strict=True):
        np.testing.assert_array_equal(found, np.mean(np.asarray(both, np.float64), axis=0).astype(np.float32))


def converted(run, target):
    """Return the parameters of a Hugging Face folder that `convert` writes from a checkpoint."""
    loaded = load(run)
    save_pretrained(target, loaded.config.model, loaded.params, task=loaded.config.task)
    return open_folder(target, "language_model").load(lambda nbytes: None).params


def compared(run, monkeypatch):
    """Return the parameters that `compare` scores."""
    seen = []

    def statistics(evaluator, params, split):
        seen.append(params)
        raise _SeenError

    monkeypatch.setattr(TASKS["language_model"], "statistics", statistics)
    with pytest.raises(_SeenError):
        comparison.compare([run, run], ["valid"])
    return seen[0]


class _SeenError(Exception):
    pass


def test_both_scores_in_one_evaluation(folder, tmp_path, capsys):
    run = shutil.copytree(folder / "run", tmp_path / "run")
    flags = [f"--data.dir={folder}", "--splits=valid", "--nogenerate"]
    assert run_main(["evaluate", f"--checkpoint={run}", "--weights=both", *flags]) == 0
    text = capsys.readouterr().out
    assert "valid, raw weights" in text
    files = {place: run / "evaluation" / place / "valid.json" for place in ("", "raw_weights")}
    scores = {place: json.loads(file.read_text()) for place, file in files.items()}
    assert {place: of["weights"] for place, of in scores.items()} == {"": "averaged", "raw_weights": "raw"}
    assert scores[""]["loss"] != scores["raw_weights"]["loss"]
    assert scores[""]["fingerprint"] != scores["raw_weights"]["fingerprint"]
    # One of them alone has the same file.
    before = files["raw_weights"].read_bytes()
    files["raw_weights"].unlink()
    files[""].unlink()
    assert run_main(["evaluate", f"--checkpoint={run}", "--weights=raw", *flags]) == 0
    assert files["raw_weights"].read_bytes() == before
    assert not files[""].exists()
    # And of a checkpoint by its step.
    assert run_main(["evaluate", f"--checkpoint={run / 'checkpoints' / '5'}", "--weights=both", *flags]) == 0
    assert (run / "evaluation" / "step_5" / "raw_weights" / "valid.json").exists()
    assert identical(load(run, raw_weights=True).params, stored(folder, 8, "params"))


def test_raw_weights_of_a_training_without_an_average_are_refused(capsys):
    folder = trained_folder()
    assert run_main(argv("evaluate", folder, "--weights=both")) == 2
    message = "has only one set of weights, since it was trained without training.ema_decay"
    assert message in capsys.readouterr().err
    with pytest.raises(ConfigError, match=message):
        load(folder / "run", raw_weights=True)
    with pytest.raises(ConfigError, match="weights='mean': expected scored, raw, both"):
        evaluate(folder / "run", weights="mean")
    assert load(folder / "run").weights == ""


def test_a_checkpoint_that_training_saves_between_the_two_weights_is_refused(folder, monkeypatch):
    scorer = Scorer.from_checkpoint(folder / "run")
    newer = load(folder / "run", raw_weights=True)._replace(steps=(9,))
    monkeypatch.setattr("transformer_jax.evaluation.scoring.load", lambda *args, **kwargs: newer)
    with pytest.raises(CheckpointError, match="training has saved step 9 since step 8 was read; name one checkpoint"):
        scorer.with_raw_weights(folder / "run", None)


def test_a_trained_model_in_memory_is_that_of_its_last_checkpoint(folder):
    loaded = load(folder / "run")
    scorer = Scorer.from_checkpoint(folder / "run")
    same = of_training(loaded.config, loaded.params, scorer.evaluator.data, 8, folder / "run")
    assert same.weights == loaded.weights == "averaged"


@pytest.mark.parametrize("decay", ["0.0", "0.9"])
def test_a_new_run_starts_from_the_average_and_so_does_its_own(folder, tmp_path, capsys, decay):
    state = state_of(folder, tmp_path, **{"training.ema_decay": decay})
    average = stored(folder, 8, "extra/average")
    assert identical(state.params, average)
    assert "loaded from step 8, averaged weights: " in capsys.readouterr().err
    assert state.extra.keys() == ({AVERAGE} if decay == "0.9" else set())
    assert identical(state.evaluated, average)
    # The step donates the state, so no array may be in it twice.
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(places) == len(set(places))


def test_a_new_run_with_an_average_starts_it_at_the_weights_of_a_run_without(tmp_path):
    folder = trained_folder()
    values = {"data.dir": str(folder), "training.init_from": str(folder / "run"), "training.ema_decay": "0.9"}
    config = read_config(str(folder / "tiny.py"), values)
    parts, device = split(config), jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with open_workdir(tmp_path, config.to_dict()) as directory, open_store(config, directory) as store:
        state = find_start(config, directory, store, state_template(*parts, device)).first_state(*parts, device)
    assert identical(state.params, load(folder / "run").params)
    assert identical(state.extra[AVERAGE], state.params)


def cut(folder, target):
    """Return a copy of the trained run in a folder as it was after step 5."""
    copy = shutil.copytree(folder, target)
    shutil.rmtree(copy / "run" / "checkpoints" / "8")
    return copy


def resume(copy, folder, *flags):
    """Resume the copy of a run on the corpus of the original."""
    files = [f"--config={folder / 'tiny.py'}", f"--config.data.dir={folder}"]
    return run_main(["train", *files, f"--workdir={copy / 'run'}", *flags])


def test_a_run_that_was_cut_at_a_checkpoint_ends_bit_for_bit_as_the_whole_one(folder, tmp_path):
    copy = cut(folder, tmp_path / "copy")
    assert resume(copy, folder, DECAY, *FLAGS) == 0
    assert_same_run(copy, folder)
    assert identical(load(copy / "run").params, load(folder / "run").params)


def test_an_average_cannot_be_turned_on_or_off_at_a_resume(folder, tmp_path, capsys):
    copy = cut(folder, tmp_path / "copy")
    assert resume(copy, folder, *FLAGS) == 2
    assert "training.ema_decay: 0.6 in run, 0.0 now" in capsys.readouterr().err
    assert resume(copy, folder, *FLAGS, "--allow_config_change") == 2
    message = capsys.readouterr().err
    assert (
        "checkpoints/5: was trained with training.ema_decay, so it has the arrays of `extra/average`; "
        "training.ema_decay cannot be turned on or off at a resume. Resume with its value in config.json, or start a "
        f"new run in another --workdir from these weights, with --config.training.init_from={copy}/run/checkpoints/5"
    ) in message
    assert "arrays differ" not in message
    # Another value of the decay is a change like that of any other number.
    assert resume(copy, folder, *FLAGS, "--config.training.ema_decay=0.5", "--allow_config_change") == 0
    plain = cut(trained_folder(), tmp_path / "plain")
    assert resume(plain, trained_folder(), DECAY, "--allow_config_change") == 2
    assert (
        "checkpoints/5: was trained without training.ema_decay, so it lacks the arrays of `extra/average`"
        in capsys.readouterr().err
    )


def test_a_converted_model_has_one_set_of_weights_whatever_the_config(folder, tmp_path):
    run = folder / "run"
    loaded = load(run)
    assert loaded.config.training.ema_decay == 0.6
    save_pretrained(tmp_path / "gpt2", loaded.config.model, loaded.params, loaded.tokenizer, task=loaded.config.task)
    write_workdir(open_folder(tmp_path / "gpt2"), tmp_path / "run", loaded.config)
    again = load(tmp_path / "run")
    assert again.config.training.ema_decay == 0.6
    assert again.weights == ""
    assert identical(again.params, loaded.params)


def test_the_average_is_divided_among_devices_as_the_weights():
    config = small_config({"model.vocab_size": 18})
    shapes = state_shapes(*split(config))
    mesh = AbstractMesh((2, 2, 2), ("data", "fsdp", "tensor"))
    places = shardings(shapes, parameter_axes(config.model), mesh)
    assert places.extra[AVERAGE] == places.params
    assert any("fsdp" in str(place.spec) for place in jax.tree.leaves(places.params))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "generate", "score", "compare", "convert", "embeddings", "attention"])
def test_every_command_loads_the_average(folder, tmp_path, monkeypatch, command):
    loaded = []

    def load_step(*arguments):
        loaded.append(original(*arguments))
        return loaded[-1]

    original = loading._load_step
    monkeypatch.setattr(loading, "_load_step", load_step)
    run = shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "in.txt").write_text("the cat saw\n")
    flags = {
        "evaluate": [f"--checkpoint={run}", f"--data.dir={folder}"],
        "generate": [
            f"--checkpoint={run}",
            f"--ensemble={run}",
            f"--input={tmp_path / 'in.txt'}",
            "--decode.max_new_tokens=5",
        ],
        "score": [f"--checkpoint={run}", f"--input={tmp_path / 'in.txt'}"],
        "compare": [str(run), str(run / "checkpoints" / "8"), f"--data.dir={folder}", "--splits=valid"],
        "convert": [f"--checkpoint={run}", f"--to={tmp_path / 'gpt2'}"],
        "embeddings": [f"--checkpoint={run}", f"--output={tmp_path / 'picture'}"],
        "attention": [f"--checkpoint={run}", "--text=the cat saw", f"--output={tmp_path / 'picture'}"],
    }
    assert run_main([command, *flags[command]]) == 0
    average = stored(folder, 8, "extra/average")
    assert len(loaded) == (2 if command in ("generate", "compare") else 1)
    assert all(identical(each.params, average) for each in loaded)
