"""Loading parameters, config and tokenizer from a path."""

import json
import shutil

import jax
import numpy as np
import pytest
from run_support import copy_of_trained, trained_config, trained_folder

import transformer_jax
from transformer_jax.checkpoints.locate import open_checkpoint
from transformer_jax.checkpoints.manifest import RECORD, SUMS, VanishedCheckpointError, seal
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.evaluation.loading import apply_overrides, load
from transformer_jax.models.architecture import init_params
from transformer_jax.tasks.task import higher_is_better

AVERAGE = "evaluation.average_checkpoints"


def arrays(params):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)]


def stored(step):
    config = trained_config()
    template = jax.eval_shape(lambda: init_params(config.model, 0))
    store = CheckpointStore(trained_folder() / "run" / "checkpoints", read_only=True)
    return arrays(store.restore_params(template, step).state)


def test_a_work_directory_means_its_newest_checkpoint():
    loaded = load(trained_folder() / "run")
    assert loaded.config == trained_config()
    assert loaded.steps == (8,)
    for ours, theirs in zip(arrays(loaded.params), stored(8), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert loaded.tokenizer.model_bytes == (trained_folder() / "run" / "tokenizer.model").read_bytes()
    assert set(loaded.corpus) == {"sha256", "versions"}
    assert loaded.directory == trained_folder() / "run" / "checkpoints"


def test_a_path_may_be_text(tmp_path, monkeypatch):
    """In every public function; annotations are checked in tests."""
    run = trained_folder() / "run"
    config = transformer_jax.read_config(run / "config.json")
    assert config == transformer_jax.read_config(str(run / "config.json"))
    translator = transformer_jax.load_translator(str(run), ensemble=[str(run)])
    assert len(translator.members) == 2
    for function in (transformer_jax.load_language_model, transformer_jax.load_predictor):
        with pytest.raises(ConfigError, match=r"task\.name|predicts"):
            function(str(run))
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: transformer_jax.evaluate("missing"),
        lambda: transformer_jax.compare(["missing", "other"]),
        lambda: transformer_jax.from_pretrained("missing"),
        lambda: transformer_jax.read_study("missing"),
    ):
        with pytest.raises((CheckpointError, ConfigError), match="missing"):
            call()


def test_a_step_by_its_folder():
    loaded = load(trained_folder() / "run" / "checkpoints" / "5")
    assert loaded.steps == (5,)
    for ours, theirs, other in zip(arrays(loaded.params), stored(5), stored(8), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert (ours != other).any()


def test_the_average_of_the_newest():
    loaded = load(trained_folder() / "run", {AVERAGE: 2})
    assert loaded.steps == (5, 8)
    for ours, five, eight in zip(arrays(loaded.params), stored(5), stored(8), strict=True):
        np.testing.assert_array_equal(ours, ((five.astype(np.float64) + eight) / 2).astype(np.float32))


def test_an_average_with_a_checkpoint_of_another_run_is_named(averaging, tmp_path, caplog):
    """As after a folder was copied to the wrong place; the arrays have the same shapes."""
    folder = shutil.copytree(averaging, tmp_path / "run")
    load(folder, {AVERAGE: 2})
    assert caplog.text == ""
    five = folder / "checkpoints" / "5"
    record = json.loads((five / RECORD).read_text())
    record["record"]["config"]["seed"] = 3
    for name in (RECORD, SUMS):
        (five / name).unlink()
    seal(five, json.dumps(record).encode(), {})
    load(folder, {AVERAGE: 2})
    assert "checkpoint 5 was trained with another config than checkpoint 8, and is averaged with it" in caplog.text
    assert "\n  - seed: 3 in checkpoint 5, 0 now" in caplog.text


@pytest.mark.parametrize(("path", "count", "there"), [("run", 3, 2), ("run/checkpoints/5", 2, 1)])
def test_fewer_checkpoints_than_asked_for_are_averaged(caplog, path, count, there):
    loaded = load(trained_folder() / path, {AVERAGE: count})
    assert len(loaded.steps) == there
    same = load(trained_folder() / path, {AVERAGE: there})
    np.testing.assert_array_equal(arrays(loaded.params)[0], arrays(same.params)[0])
    assert f"{path}: {AVERAGE}={count}, but only {there} were saved up to step " in caplog.text


@pytest.fixture(scope="module")
def averaging(tmp_path_factory):
    """Return a run whose config averages five checkpoints but that has two, with losses that rank the older first."""
    folder = tmp_path_factory.mktemp("averaging")
    config = trained_config().to_dict()
    config["evaluation"]["average_checkpoints"] = config["training"]["keep_last"] = 5
    template = jax.eval_shape(lambda: init_params(trained_config().model, 0))
    original = CheckpointStore(trained_folder() / "run" / "checkpoints", read_only=True)
    with CheckpointStore(folder / "checkpoints") as store:
        for step, loss in ((5, 1.0), (8, 2.0)):
            state = {"params": original.restore_params(template, step).state}
            record = original.read_record(step) | {"config": config}
            side_files = {"tokenizer.model": original.open(step).side_files["tokenizer.model"]}
            store.save(step, state, record, side_files, {"loss": loss})
    return folder


def test_a_checkpoint_given_by_path_is_not_averaged(averaging, tmp_path):
    shutil.copytree(averaging / "checkpoints" / "5", tmp_path / "best_model")
    for path, name in ((averaging / "checkpoints" / "5", "step_5"), (tmp_path / "best_model", "best_model")):
        loaded = load(path)
        assert (loaded.steps, loaded.config.evaluation.average_checkpoints, loaded.name) == ((5,), 1, name)
        np.testing.assert_array_equal(arrays(loaded.params)[0], stored(5)[0])
    assert load(averaging / "checkpoints" / "8", {AVERAGE: 2}).steps == (5, 8)


def test_the_config_s_average_of_more_checkpoints_than_there_are(averaging, caplog):
    loaded = load(averaging)
    assert (loaded.steps, loaded.name) == ((5, 8), None)
    assert f"{AVERAGE}=5, but only 2 were saved up to step 8; averaging those" in caplog.text


def test_the_best_checkpoint(averaging):
    loaded = load(averaging / "checkpoints" / "best")
    assert (loaded.steps, loaded.name) == ((5,), "step_5")
    assert open_checkpoint(averaging / "checkpoints" / "8", higher_is_better).step == 8


@pytest.mark.parametrize(("metric", "expected"), [("loss", 2), ("accuracy", 1), ("chrf", 1)])
def test_the_newest_checkpoint_s_metric_decides_which_is_best(tmp_path, metric, expected):
    metrics = {1: {"loss": 3.0, "accuracy": 30.0, "chrf": 30.0}, 2: {"loss": 1.0, "accuracy": 20.0, "chrf": 20.0}}
    with CheckpointStore(tmp_path / "checkpoints") as store:
        for step in (1, 2, 3):
            config = {"training": {"best_metric": metric if step == 3 else "loss"}, "task": {"name": "translation"}}
            store.save(step, {"x": jax.numpy.ones(3)}, {"config": config}, {}, metrics.get(step))
    assert open_checkpoint(tmp_path / "checkpoints" / "best", higher_is_better).step == expected
    (tmp_path / "checkpoints" / "best").mkdir()  # a folder of this name takes precedence
    with pytest.raises(CheckpointError, match=r"best: neither a work directory nor a checkpoint folder$"):
        open_checkpoint(tmp_path / "checkpoints" / "best", higher_is_better)


def test_an_error_if_no_checkpoint_is_ranked(tmp_path):
    with CheckpointStore(tmp_path / "checkpoints") as store:
        store.save(3, {"x": jax.numpy.ones(3)}, {"config": trained_config().to_dict()}, {})
    with pytest.raises(CheckpointError, match=r"best: no checkpoint was saved with a value of .* by its step: 3"):
        load(tmp_path / "checkpoints" / "best")
    with pytest.raises(CheckpointError, match=r"best: no such folder; .* has no 'nowhere'"):
        load(tmp_path / "nowhere" / "best")


@pytest.mark.parametrize(("overrides", "vanishing", "used"), [({}, 8, (9,)), ({AVERAGE: 2}, 5, (8, 9))])
def test_a_checkpoint_deleted_by_a_running_training(tmp_path, monkeypatch, overrides, vanishing, used):
    """The checkpoint is listed but gone when it is opened; by then there is a newer one."""
    checkpoints = copy_of_trained(tmp_path / "copy") / "run" / "checkpoints"
    later = save_again(checkpoints, 8, tmp_path / "later", 9)
    restore_parts = CheckpointStore.restore_parts

    def restore(store, template, step=None):
        if later.exists():
            later.rename(checkpoints / "9")
            shutil.rmtree(checkpoints / str(vanishing))
        return restore_parts(store, template, step)

    monkeypatch.setattr(CheckpointStore, "restore_parts", restore)
    assert load(checkpoints.parent, overrides).steps == used


def save_again(checkpoints, step, target, new_step, tokenizer=None):
    """Copy a checkpoint to another step, with the bytes of another tokenizer if they are given; return its folder."""
    template = jax.eval_shape(lambda: init_params(trained_config().model, 0))
    original = CheckpointStore(checkpoints, read_only=True)
    state = {"params": original.restore_params(template, step).state}
    with CheckpointStore(target) as store:
        side_files = {"tokenizer.model": tokenizer or original.open(step).side_files["tokenizer.model"]}
        store.save(new_step, state, original.read_record(step), side_files)
    return target / str(new_step)


def test_checkpoints_that_keep_vanishing_end_in_an_error(monkeypatch):
    calls = []

    def vanished(store, step):
        calls.append(step)
        raise VanishedCheckpointError(f"{step}: was deleted meanwhile")

    monkeypatch.setattr(CheckpointStore, "open", vanished)
    with pytest.raises(CheckpointError, match="8: was deleted meanwhile"):
        load(trained_folder() / "run")
    assert calls == [8] * 5


def damage(folder, step, name):
    """Truncate a file: the record, or the largest file, which holds arrays."""
    checkpoint = folder / "run" / "checkpoints" / str(step)
    file = checkpoint / "record.json"
    if name == "arrays":
        file = max((checkpoint / "state").rglob("*"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-9])
    return file.relative_to(checkpoint).as_posix()


@pytest.mark.parametrize("name", ["record.json", "arrays"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(tmp_path, caplog, name):
    folder = copy_of_trained(tmp_path / "copy")
    problem = f"8: {damage(folder, 8, name)} does not match its sha256"
    assert load(folder / "run").steps == (5,)
    assert problem in caplog.text
    with pytest.raises(CheckpointError, match=problem):
        load(folder / "run" / "checkpoints" / "8")
    damage(folder, 5, name)
    with pytest.raises(CheckpointError, match=rf"checkpoints: no valid checkpoint in it\n  - .*{problem}\n  - .*5: "):
        load(folder / "run")


def test_an_average_is_over_the_requested_checkpoints(tmp_path):
    folder = copy_of_trained(tmp_path / "copy")
    problem = f"5: {damage(folder, 5, 'arrays')} does not match its sha256"
    with pytest.raises(CheckpointError, match=problem):
        load(folder / "run", {AVERAGE: 2})


CONFIG = ExperimentConfig().resolved()


def test_overrides_replace_fields_that_training_does_not_fix():
    config = apply_overrides(CONFIG.to_dict(), {"evaluation.tokens_per_batch": 99, "data.cache_dir": "x"})
    assert config.evaluation.tokens_per_batch == 99
    assert config.data.cache_dir == "x"
    assert config.model == CONFIG.model
    assert config.training == CONFIG.training
    assert apply_overrides(CONFIG.to_dict(), {}) == CONFIG
    text = CONFIG.to_dict()
    text["data"] |= {"source": "text", "dir": "here"}
    assert apply_overrides(text, {"data.dir": "there"}).data.dir == "there"
    rules = {"task.rouge_stemmer": False, "task.best_reference": "rouge1"}
    summaries = CONFIG.to_dict() | {"task": CONFIG.to_dict()["task"] | {"name": "text_to_text"}}
    task = apply_overrides(summaries, rules).task
    assert (task.rouge_stemmer, task.best_reference) == (False, "rouge1")
    with pytest.raises(ConfigError, match="best_reference='rouge1'"):
        apply_overrides(CONFIG.to_dict(), rules)
    with pytest.raises(ConfigError, match=r"data\.dir='x' has no effect with source='embedded'"):
        apply_overrides(CONFIG.to_dict(), {"data.dir": "x"})


def test_more_checkpoints_may_be_averaged_than_training_kept():
    assert apply_overrides(CONFIG.to_dict(), {AVERAGE: 9}).evaluation.average_checkpoints == 9


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("model.num_heads", ""),
        ("evaluation.tokens_per_bach", r" \(did you mean 'evaluation\.tokens_per_batch'\?\)"),
        ("data.source", ""),
        ("seed", ""),
    ],
)
def test_other_overrides_are_refused(name, hint):
    with pytest.raises(
        ConfigError, match=rf"^{name}: only evaluation\.\*, decode\.\*, data\.dir, data\.test_sets, .*{hint}"
    ):
        apply_overrides(CONFIG.to_dict(), {name: 1})


def test_a_bad_value_is_named():
    with pytest.raises(ConfigError, match=r"evaluation\.tokens_per_batch=3: expected at least 16"):
        apply_overrides(CONFIG.to_dict(), {"evaluation.tokens_per_batch": 3})


@pytest.fixture(scope="module")
def not_finite(tmp_path_factory):
    """Return a work directory like the trained one, with one parameter of the newest checkpoint NaN."""
    folder = copy_of_trained(tmp_path_factory.mktemp("not_finite") / "copy") / "run"
    store = CheckpointStore(folder / "checkpoints")
    template = jax.eval_shape(lambda: init_params(trained_config().model, 0))
    opened = store.open(8)
    params = store.restore_params(template, 8).state
    embedding = params["embedding"]["embedding"]
    params["embedding"]["embedding"] = embedding.at[3, 2].set(np.nan)
    with store:
        store.save(9, {"params": params}, opened.record, opened.side_files)
    return folder


@pytest.mark.parametrize("overrides", [{}, {AVERAGE: 2}])
def test_parameters_that_are_not_finite_are_named(not_finite, overrides):
    message = r"step (8, )?9: parameters are not finite: embedding/embedding: 1 of [\d,]+ numbers, .* nan at \[3, 2\]"
    with pytest.raises(CheckpointError, match=message):
        load(not_finite, overrides)
    assert load(not_finite / "checkpoints" / "8").steps == (8,)


@pytest.mark.slow
def test_a_run_does_not_start_from_parameters_that_are_not_finite(not_finite, tmp_path, capsys):
    from run_support import argv, run_main, write_corpus

    words = argv("train", write_corpus(tmp_path), f"--config.training.init_from={not_finite}")
    assert run_main(words) == 2
    assert "step 9: parameters are not finite: params/embedding/embedding" in capsys.readouterr().err
