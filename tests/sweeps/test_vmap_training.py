"""Runs that train as one program equal single runs."""

import os
import signal
from unittest import mock

import pytest
from data_support import prepared
from run_support import kept_programs, metric_lines, write_corpus
from training_support import identical

from transformer_jax.config_file import read_config
from transformer_jax.errors import TrainingError
from transformer_jax.evaluation.evaluator import make_validate
from transformer_jax.evaluation.loading import load
from transformer_jax.sweeps import vmap_training
from transformer_jax.sweeps.vmap_training import train_together
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.trackers.tracker import TRACKERS
from transformer_jax.training import loop
from transformer_jax.training.run import train
from transformer_jax.training.stepper import over_trials

pytestmark = pytest.mark.slow

FIELDS = [
    {"seed": "0", "training.ema_decay": "0.9"},
    {"seed": "1", "training.ema_decay": "0.2", "optimizer.learning_rate": "0.003", "model.dropout_rate": "0.3"},
    {
        "seed": "2",
        "training.ema_decay": "0.3",
        "seed_init": "0",
        "seed_data": "7",
        "optimizer.warmup_steps": "5",
        "optimizer.beta2": "0.9",
    },
]


def configs(folder, fields=FIELDS):
    """Return configs by work directory, of one program."""
    corpus = write_corpus(folder / "corpus")
    values = {"data.dir": str(corpus), "data.cache_dir": str(folder / "cache")}
    return {folder / f"trial_{n}": read_config(str(corpus / "tiny.py"), values | f) for n, f in enumerate(fields)}


def losses(folder):
    lines = metric_lines(folder)
    assert [(line["step"], line["split"]) for line in lines] == [
        (3, "train"), (4, "valid"), (6, "train"), (8, "train"), (8, "valid")
    ]  # fmt: skip
    return [line["loss"] for line in lines]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Train each by itself."""
    folder = tmp_path_factory.mktemp("alone")
    found = configs(folder)
    with kept_programs():
        for path, config in found.items():
            assert train(config, path, make_validate).reason == "finished"
    return [losses(path) for path in found]


@pytest.fixture(scope="module")
def programs():
    """Compiled steps by axis; all runs of this file have the same program."""
    return {}


@pytest.fixture(autouse=True)
def _compiled_once(programs, monkeypatch):
    def kept(step, axis):
        if axis not in programs:
            programs[axis] = over_trials(step, axis)
        return programs[axis]

    monkeypatch.setattr(vmap_training, "over_trials", kept)


def test_trials_of_one_program_equal_single_runs(tmp_path, alone):
    """They have their own seeds, schedules and dropout rates, averages, checkpoints, metrics and rows."""
    found, seen = configs(tmp_path), []

    def recording(step, axis):
        together_step = over_trials(step, axis)

        def record(state, batches, hyper):
            seen.append(batches)
            return together_step(state, batches, hyper)

        return record

    with mock.patch.object(vmap_training, "over_trials", recording):
        outcomes = train_together(found, make_validate, "vmap")
    check_rows(found, seen)
    assert {outcome.reason for outcome in outcomes.values()} == {"finished"}
    for path, expected in zip(found, alone, strict=True):
        assert losses(path) == pytest.approx(expected, rel=1e-4)
        assert saved_steps_of(path) == [5, 8]
        assert identical(outcomes[path].trained.params, load(path).params)
    assert len({tuple(losses(path)) for path in found}) == len(found)


def check_rows(found, seen):
    """Each trial had the rows on which its run alone would train, step by step."""
    assert len(seen) == 8
    for number, (path, config) in enumerate(found.items()):
        plan = training_batches(config, prepared(config, path).splits["train"])
        for step, batches in enumerate(seen):
            own = plan.batch(step, slice(0, plan.shape(step).rows))
            assert {name: leaf[number].tolist() for name, leaf in batches.items()} == {
                name: leaf.tolist() for name, leaf in own.items()
            }
    assert len({seen[0]["inputs"][number].tobytes() for number in range(3)}) == 3


def saved_steps_of(path):
    return sorted(int(folder.name) for folder in (path / "checkpoints").iterdir() if folder.name.isdigit())


def test_trials_at_different_steps_resume_alone_or_together(tmp_path, alone):
    found = configs(tmp_path)
    first_two = dict(list(found.items())[:2])

    def stop(name, step):
        if name == "after_batch" and step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with mock.patch.object(loop, "kill_point", stop):
        outcomes = train_together(first_two, make_validate, "map")
    assert [(outcome.reason, outcome.step) for outcome in outcomes.values()] == [("SIGTERM", 5)] * 2
    assert [saved_steps_of(path) for path in first_two] == [[5], [5]]
    seen = []
    with mock.patch.object(loop, "kill_point", lambda name, step: seen.append((name, step))):
        outcomes = train_together(found, make_validate, "map")
    assert {outcome.reason for outcome in outcomes.values()} == {"finished"}
    assert [step for name, step in seen if name == "after_batch"] == [*range(1, 9), *range(6, 9)]
    for path, expected in zip(found, alone, strict=True):
        assert losses(path) == pytest.approx(expected, rel=1e-4)


def test_every_trial_has_trackers_of_its_own(tmp_path, alone, monkeypatch):
    written = {}

    class Memory:
        def __init__(self, run):
            self.lines = written.setdefault(run.workdir, [])

        def cut(self, step):
            return step

        def write(self, step, split, metrics):
            self.lines.append((step, split, metrics["loss"]))

        def attach(self, file, name): ...

        def finish(self, ending):
            self.lines.append(ending)

    monkeypatch.setattr(TRACKERS, "_registered", {"memory": Memory})
    found = configs(tmp_path, [fields | {"training.trackers": "jsonl,memory"} for fields in FIELDS])
    train_together(found, make_validate, "map")
    assert written == {
        path: [*((line["step"], line["split"], line["loss"]) for line in metric_lines(path)), "finished"]
        for path in found
    }
    for path, expected in zip(found, alone, strict=True):
        assert losses(path) == pytest.approx(expected, rel=1e-4)


def test_a_trial_with_a_loss_that_is_not_finite_does_not_stop_the_others(tmp_path, alone):
    found = configs(tmp_path, [FIELDS[0] | {"optimizer.learning_rate": "1e30"}, FIELDS[1]])
    broken, other = train_together(found, make_validate, "map").values()
    assert isinstance(broken, TrainingError)
    assert "is nan at step" in str(broken) or "is inf at step" in str(broken)
    assert other.reason == "finished"
    assert losses(list(found)[1]) == pytest.approx(alone[1], rel=1e-4)
    assert (tmp_path / "trial_0" / "nonfinite").is_dir()
