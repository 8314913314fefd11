"""From a path to parameters, config and tokenizer."""

import jax
import numpy as np
import pytest
from run_support import copy_of_trained, trained_config, trained_folder

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.evaluation.loading import apply_overrides, load
from transformer_jax.models.encoder_decoder import init_params

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


@pytest.mark.parametrize(("path", "count", "there"), [("run", 3, 2), ("run/checkpoints/5", 2, 1)])
def test_fewer_checkpoints_than_are_to_be_averaged(path, count, there):
    message = rf"{path}: {AVERAGE}={count}, but there are {there} checkpoints up to step"
    with pytest.raises(CheckpointError, match=message):
        load(trained_folder() / path, {AVERAGE: count})


def damage(folder, step, name):
    """Cuts a file short: the record, or the largest, which holds arrays."""
    checkpoint = folder / "run" / "checkpoints" / str(step)
    file = checkpoint / "record.json"
    if name == "arrays":
        file = max((checkpoint / "state").rglob("*"), key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-9])
    return file.relative_to(checkpoint).as_posix()


@pytest.mark.parametrize("name", ["record.json", "arrays"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, name):
    folder = copy_of_trained(tmp_path / "copy")
    problem = f"8: {damage(folder, 8, name)} does not match its sha256"
    assert load(folder / "run").steps == (5,)
    assert problem in caplog.text
    with pytest.raises(CheckpointError, match=problem):
        load(folder / "run" / "checkpoints" / "8")
    damage(folder, 5, name)
    with pytest.raises(CheckpointError, match=rf"run: no good checkpoint in it\n  - .*{problem}\n  - .*5: "):
        load(folder / "run")


def test_an_average_is_over_the_checkpoints_that_were_asked_for(tmp_path):
    folder = copy_of_trained(tmp_path / "copy")
    problem = f"5: {damage(folder, 5, 'arrays')} does not match its sha256"
    with pytest.raises(CheckpointError, match=problem):
        load(folder / "run", {AVERAGE: 2})


CONFIG = ExperimentConfig().resolved()


def test_overrides_replace_what_was_not_trained():
    config = apply_overrides(CONFIG.to_dict(), {"evaluation.tokens_per_batch": 99, "data.dir": "x"})
    assert config.evaluation.tokens_per_batch == 99
    assert config.data.dir == "x"
    assert config.model == CONFIG.model
    assert config.training == CONFIG.training
    assert apply_overrides(CONFIG.to_dict(), {}) == CONFIG


def test_more_checkpoints_may_be_averaged_than_this_training_was_told_to_keep():
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
    with pytest.raises(ConfigError, match=rf"^{name}: only evaluation\.\* and data\.dir .*{hint}"):
        apply_overrides(CONFIG.to_dict(), {name: 1})


def test_a_bad_value_is_named():
    with pytest.raises(ConfigError, match=r"evaluation\.tokens_per_batch=3: expected at least 16"):
        apply_overrides(CONFIG.to_dict(), {"evaluation.tokens_per_batch": 3})
