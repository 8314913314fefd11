"""A worker's reaction to errors outside its control; nothing is trained."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps import vmap_training, worker
from transformer_jax.training import run

FULL = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
TRAINED = SimpleNamespace(reason="finished")


@pytest.fixture
def outcomes(monkeypatch):
    """Return the outcomes of two trials, given the errors that they raise when they train together and alone."""

    def found(group, alone):
        def train_together(*arguments):
            raise group

        def train(config, folder, make_validate):
            if error := alone.get(folder.name):
                raise error
            return TRAINED

        monkeypatch.setattr(vmap_training, "train_together", train_together)
        monkeypatch.setattr(run, "train", train)
        made = worker._train(dict.fromkeys((Path("a"), Path("b")), ExperimentConfig()), "map")
        return {folder.name: outcome for folder, outcome in made.items()}

    return found


@pytest.mark.parametrize(
    ("error", "said"),
    [(FULL, "out of memory; use a smaller --max_together"), (ConfigError("an odd one"), "an odd one")],
)
def test_trials_that_cannot_train_together_train_alone(outcomes, capsys, error, said):
    assert outcomes(error, {}) == {"a": TRAINED, "b": TRAINED}
    assert f"cannot train together: {said}" in capsys.readouterr().err


def test_a_trial_that_does_not_fit_alone_does_not_affect_the_others(outcomes):
    found = outcomes(FULL, {"a": FULL})
    assert isinstance(found["a"], ConfigError)
    assert "data.tokens_per_batch" in str(found["a"])
    assert found["b"] is TRAINED


def test_a_bug_is_not_taken_for_a_lack_of_memory(outcomes):
    with pytest.raises(RuntimeError, match="odd"):
        outcomes(RuntimeError("odd"), {})
    with pytest.raises(RuntimeError, match="odd"):
        outcomes(FULL, {"b": RuntimeError("odd")})
