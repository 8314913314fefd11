"""A worker scores what it has trained, and its reaction to errors outside its control."""

import dataclasses
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest
from sweep_support import tiny_study

from transformer_jax.config import DecodeConfig, EvaluationConfig, ExperimentConfig
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.evaluation import scoring
from transformer_jax.sweeps import vmap_training, worker
from transformer_jax.sweeps.results import TRIALS, read_result, read_spec, write_spec
from transformer_jax.sweeps.study import Metric
from transformer_jax.sweeps.trial_examples import read_examples
from transformer_jax.sweeps.trials import grid
from transformer_jax.training import run
from transformer_jax.training.loop import Trained, TrainResult

FULL = RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
TRAINED = TrainResult(8, "finished", {})


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Return a trial's folder that a worker has trained and scored without reading its checkpoint."""
    folder = tmp_path_factory.mktemp("sweep")
    study = tiny_study(folder / "corpus", seeds=(0,))
    found = grid(study).trials[0]
    trial = folder / TRIALS / found.name
    metrics = [
        Metric(f"test/{name}") for name in ("sacrebleu", "chrf", "exact_match", "loss", "accuracy", "perplexity")
    ]
    write_spec(trial, found, [*metrics, Metric("train/loss")], None, examples=True)
    with mock.patch.object(scoring, "load", side_effect=AssertionError("the checkpoint was read")):
        assert worker.run_trials([trial]) == 0
    return trial


def test_scores_of_trained_parameters_are_those_of_the_checkpoint(trial):
    result = read_result(trial)
    assert result.status == "finished"
    files = {path.name: path.read_bytes() for path in (trial / "evaluation").iterdir()}
    assert files.keys() == {"test.json", "test.txt"}
    scores = scoring.Scorer.from_checkpoint(trial).score("test")
    assert {f"test/{name}": value for name, value in scores.items() if f"test/{name}" in result.metrics} == {
        name: value for name, value in result.metrics.items() if name.startswith("test/")
    }
    assert "test/sacrebleu" in result.metrics
    assert {path.name: path.read_bytes() for path in (trial / "evaluation").iterdir()} == files


def test_the_influences_of_the_examples_are_written(trial):
    """Not of the log, nor of a metric that does not follow from the task's sums."""
    scores = read_result(trial).metrics
    found = read_examples(trial, scores)
    assert set(found) == {f"test/{name}" for name in ("sacrebleu", "chrf", "exact_match", "loss", "accuracy")}
    scorer = scoring.Scorer.from_checkpoint(trial)
    assert {of.key for of in found.values()} == {scorer.corpus("test")}
    sums = scorer.evaluator.task.statistics(scorer.evaluator, scorer.loaded.params, "test")
    loss = sums["nll"].sum() / sums["weight"].sum()
    linear = (sums["nll"] - loss * sums["weight"]) / sums["weight"].mean()
    assert scores["test/loss"] == pytest.approx(loss)
    np.testing.assert_allclose(found["test/loss"].values, linear, atol=0.2 * np.abs(linear).std())
    for of in found.values():
        assert len(of.values) == scorer.evaluator.data.splits["test"].num_examples
        assert abs(of.values.mean()) <= 1e-4 * max(of.values.std(), 1e-3)
    assert "test/loss" not in read_examples(trial, scores | {"test/loss": loss + 1})
    assert read_examples(trial.parent, scores) == {}


@pytest.mark.parametrize("ended", [False, True])
def test_an_average_of_checkpoints_is_read(trial, ended):
    """Also a trial that this process has not trained."""
    spec = read_spec(trial)
    of_two = dataclasses.replace(spec.trial.config, evaluation=EvaluationConfig(average_checkpoints=1 if ended else 2))
    outcome = None if ended else TrainResult(8, "finished", {}, Trained({}, mock.sentinel.data))
    scorer = worker._scorer(trial, dataclasses.replace(spec.trial, config=of_two), trial, outcome)
    assert scorer.loaded.steps == ((8,) if ended else (5, 8))


def test_trained_parameters_that_are_not_finite_are_not_scored(trial):
    loaded = scoring.Scorer.from_checkpoint(trial)
    params = jax.tree.map(lambda leaf: leaf * np.nan, loaded.loaded.params)
    config, data = loaded.loaded.config, loaded.evaluator.data
    with pytest.raises(CheckpointError, match="step 8: parameters are not finite"):
        scoring.Scorer.of_training(config, params, data, 8, trial)
    samples = dataclasses.replace(config, decode=DecodeConfig(method="sample", num_samples=2))
    with pytest.raises(ConfigError, match="one output per input"):
        scoring.Scorer.of_training(samples, loaded.loaded.params, data, 8, trial)


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
    assert found["b"] == TRAINED


def test_a_bug_is_not_taken_for_a_lack_of_memory(outcomes):
    with pytest.raises(RuntimeError, match="odd"):
        outcomes(RuntimeError("odd"), {})
    with pytest.raises(RuntimeError, match="odd"):
        outcomes(FULL, {"b": RuntimeError("odd")})
