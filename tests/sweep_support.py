"""Shared by the tests of sweeps: a study of learning rates, and an executor that does not train."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from run_support import metric_lines, write_corpus

from transformer_jax.metrics_file import format_line
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import Effect, effects
from transformer_jax.sweeps.results import RESULT, TRIALS, Result, claim_sweep, pruned_because, read_result, read_spec
from transformer_jax.sweeps.search import make_search
from transformer_jax.sweeps.search.search import Listed, SearchOptions
from transformer_jax.sweeps.statistics import deviation
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, over
from transformer_jax.sweeps.study_json import declaration_of
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.trials import grid

ROOT = Path(__file__).parent.parent
RATE = Range("optimizer.learning_rate", 1e-5, 1e-1, log=True)
HEADS = over("model.num_heads", 1, 2)


def study(*axes, metric="valid/loss", direction="min", seeds=(3, 5), **fields):
    return Study(
        "Which?", "configs/quickstart.py", axes or (RATE, HEADS), (Metric(metric, direction),), seeds=seeds, **fields
    )


def loss_of(config, seed=0):
    """Return a loss whose minimum, 0, is at a learning rate of 1e-3 and two heads."""
    rate, heads = config.optimizer.learning_rate, config.model.num_heads
    return (math.log10(rate) + 3) ** 2 + 0.5 * (heads == 1) + 0.01 * seed


class Job:
    """Logs a validation at every poll and has a result after the last; once stopped, it ends, pruned or not."""

    def __init__(self, folder, loss, validations):
        self.folder, self._validations, self._stopped = folder, validations, False
        self._trial = read_spec(folder)[0]
        self._loss = loss(self._trial.config, self._trial.seed)
        self._steps = 0

    def poll(self):
        if (self.folder / RESULT).exists():
            return 0
        if self._stopped:
            if (why := pruned_because(self.folder)) is not None:
                self._write("pruned", why, {})
                return 0
            return 143
        self._steps += 1
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(format_line(100 * self._steps, "valid", {"loss": self._loss + 1 / self._steps}))
        if self._steps < self._validations:
            return None
        if math.isfinite(self._loss):
            self._write("finished", "", {"valid/loss": self._loss})
        else:
            self._write("diverged", "loss is nan", {})
        return 0

    def stop(self):
        self._stopped = True

    def _write(self, status, why, metrics):
        trial = self._trial
        Result(trial.labels, trial.seed, status, why, metrics, 8, 1.0, 10, "cpu", {}).write(self.folder)


class FakeExecutor:
    """Gives every trial a loss that is a function of its config and seed."""

    def __init__(self, loss=loss_of, num_workers=1, validations=1):
        self.num_workers, self.started = num_workers, []
        self._loss, self._validations = loss, validations

    def jobs(self, trials):
        return [[folder] for _, folder in trials]

    def start(self, folders, slot):
        self.started.append(folders[0].name)
        return Job(folders[0], self._loss, self._validations)

    def close(self):
        pass


def tiny_study(folder: Path, seeds: tuple[int, ...] = (0, 1)) -> Study:
    """Return a study of two learning rates on the tiny corpus, for real training."""
    write_corpus(folder)
    axis = Axis("rate", {"slow": {"optimizer.learning_rate": 1e-3}, "fast": {"optimizer.learning_rate": 1e-2}})
    settings = {"data.dir": str(folder), "data.cache_dir": str(folder / "cache")}
    return Study("Which?", str(folder / "tiny.py"), (axis,), (Metric("test/loss", "min"),), seeds, settings)


def trained(study: Study, workdir: Path, executor, show=lambda standings: None):
    """Run trials with an executor and return the metrics and logs of each."""
    trials = grid(study).trials
    assert Sweep(Listed(trials), study.metrics, workdir, executor).run(show)
    found = [read_result(workdir / TRIALS / trial.name) for trial in trials]
    assert {result.status for result in found} == {"finished"}
    return [result.metrics for result in found], [metric_lines(workdir / TRIALS / trial.name) for trial in trials]


def needing_seven_seeds(study: Study, losses: list[float]) -> Study:
    """Return the study of `tiny_study` with a contrast, and a width that its pilot needs two more seeds for.

    Args: losses: of the ten trials of the pilot, in the order of the grid.
    """
    slow, fast = np.array(losses).reshape(2, 5)
    width = 2.7764451 * deviation([*(fast - slow)]) / math.sqrt(6.5)
    return dataclasses.replace(study, precision={"test/loss": width}, contrasts=("rate",))


def run_two_stages(study: Study, workdir: Path, executor) -> tuple[Effect, str]:
    """Train the trials of `needing_seven_seeds`; return its contrast, and what the search says of the seeds."""
    claim_sweep(workdir, workdir.parent / "why", declaration_of(study))
    search = make_search(study, {}, SearchOptions(), workdir, 2)
    assert Sweep(search, study.metrics, workdir, executor, examples=True).run(lambda _: None)
    (effect,) = (effect for effect in effects(collect(workdir)) if effect.metric == "test/loss")
    return effect, search.outcome


def assert_same_effect(one: Effect, other: Effect) -> None:
    """Both have the same seeds, and the same numbers up to rounding."""
    assert one.difference.count == other.difference.count == 7
    assert one.difference == pytest.approx(other.difference, rel=1e-2)
    assert one.seed_error == pytest.approx(other.seed_error, rel=1e-2)
    assert one.noise is not None
    assert one.noise == pytest.approx(other.noise, rel=1e-2)
