"""The training loop with fakes around it: the order of events, and the arguments that it passes on."""

import importlib.util
import os
import signal
import sys
import threading
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import TrainingConfig
from transformer_jax.data.batching import BatchShape
from transformer_jax.errors import CheckpointError, TrainingError
from transformer_jax.training.best_so_far import BestSoFar
from transformer_jax.training.interruption import SIGNALS, Interruption
from transformer_jax.training.progress import Progress


def without_type_checks(name):
    """Return a second copy of a module, which accepts fakes where its annotations name classes."""
    path = importlib.util.find_spec(name).origin
    spec = importlib.util.spec_from_file_location(f"unchecked_{name.rpartition('.')[2]}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


loop = without_type_checks("transformer_jax.training.loop")
session = without_type_checks("transformer_jax.training.session")
stepper = without_type_checks("transformer_jax.training.stepper")
window = without_type_checks("transformer_jax.training.metric_window")
loop.InFlight, session.MetricWindow = window.InFlight, window.MetricWindow
TrainResult, InFlight, MetricWindow = loop.TrainResult, window.InFlight, window.MetricWindow


class State(NamedTuple):
    step: Any
    params: Any

    @property
    def evaluated(self):
        return self.params


class World:
    """Launcher, plan, store and log in one; it records every call."""

    def __init__(self, **training):
        defaults = {"num_train_steps": 8, "log_every_steps": 3, "eval_every_steps": 4, "checkpoint_every_steps": 5}
        self.config = TrainingConfig(**{**defaults, **training})
        self.events: list[tuple[str, int]] = []
        self.lines: list[tuple[int, str, dict[str, Any]]] = []
        self.saved: dict[int, tuple[State, dict[str, Any], Any, Any]] = {}
        self.bad: dict[int, dict[str, float]] = {}
        self.losses: dict[int, float] = {}
        self.on_event: dict[tuple[str, int], Any] = {}
        self.endings: list[str] = []

    def happens(self, *event):
        self.events.append(event)
        if event in self.on_event:
            self.on_event[event]()

    # Plan.

    def shape(self, step):
        return BatchShape(4, (("inputs", 3), ("targets", 50)))

    @property
    def shapes(self):
        return (self.shape(0),)

    def batch(self, step, rows):
        """Return 6 + step ids in 106 slots: two of four rows."""
        assert rows == slice(2, 4)
        return {"inputs": np.full((2, 3), 1), "targets": (np.arange(100) < step).reshape(2, 50).astype(np.int32)}

    def epoch(self, step):
        return step // 5

    # Launcher.

    def local_rows(self, num_rows):
        return slice(num_rows // 2, num_rows)

    def step(self, state, batch, hyper):
        assert hyper == "hyper"
        assert batch["targets"].sum() == state.step
        step = int(state.step) + 1
        self.happens("step", step)
        metrics = metrics_of(step) | self.bad.get(step, {})
        return State(jnp.int32(step), f"params {step}"), {name: jnp.float32(v) for name, v in metrics.items()}

    # Store.

    def save(self, step, state, record, side_files, metrics):
        self.happens("save", step)
        # Copies, as if serialised now.
        self.saved[step] = (state, {**record, "window": [dict(v) for v in record["window"]]}, side_files, metrics)

    def wait(self):
        self.events.append(("wait",))

    # Log.

    def write(self, step, split, metrics):
        self.happens(split, step)
        self.lines.append((step, split, metrics))

    def finish(self, ending):
        self.endings.append(ending)

    def digest(self):
        return f"to step {self.lines[-1][0]}" if self.lines else ""

    def evaluate(self, params):
        step = int(params.split()[1])
        self.happens("evaluate", step)
        return {"loss": self.losses.get(step, 10.0 - step), "tokens": 7.0, "families": {}}

    def keep_batch(self, step, batch):
        assert batch["targets"].sum() == step - 1
        self.happens("keep", step)
        return f"step_{step}.npz"

    def session(self, progress, record=None):
        parts = session.RunParts(
            config=self.config,
            data=self,
            higher_is_better=self.config.best_metric != "loss",
            plan=self,
            store=self,
            evaluate=self.evaluate,
            record={"config": "c"},
            side_files={"tokenizer.model": b"t"},
            keep_batch=self.keep_batch,
            step_flops=lambda shape: 10**15 * shape.rows,
        )
        return session.TrainingSession(parts, self, progress, record or {})

    def train(self, first=0, record=None):
        """Run a single training and return its result, or raise its error."""
        progress = Progress(first, self.config.num_train_steps)
        single = stepper.SingleStepper(self, State(jnp.int32(first), f"params {first}"), "hyper", Monitoring(self))
        [outcome] = loop.run_loop([self.session(progress, record)], single, first, progress)
        if isinstance(outcome, TrainingError):
            raise outcome
        return outcome


class Monitoring(NamedTuple):
    """The launcher of monitored steps."""

    world: World

    def step(self, state, batch, hyper):
        state, metrics = self.world.step(state, batch, hyper)
        return state, metrics | {"monitor/stream_rms_decoder_0": state.step / 2}


def metrics_of(step):
    return {
        "loss": float(step),
        "nll": step / 2,
        "accuracy": 10.0 * step,
        "gradient_norm": 2.0**step,
        "learning_rate": step / 8,
        "tokens": 100.0 + step,
        "weight": 100.0 + step,
        "filled": 6.0 + step,
        "slots": 106.0,
    }


def test_order_of_events():
    world = World()
    result = world.train()
    assert world.events == [
        *[("step", 1), ("step", 2), ("step", 3), ("train", 3)],
        *[("step", 4), ("evaluate", 4), ("valid", 4)],
        *[("step", 5), ("save", 5)],
        *[("step", 6), ("train", 6), ("step", 7)],
        *[("step", 8), ("train", 8), ("evaluate", 8), ("valid", 8), ("save", 8), ("wait",)],
    ]
    assert result == TrainResult(8, "finished", {"loss": 2.0, "tokens": 7.0, "families": {}})


def test_monitored_steps_have_a_line_before_all_others_of_their_step():
    """Also in a run that is resumed between two of them; the averages of the log leave their values out."""
    world = World(monitor_every_steps=2)
    world.train()
    expected = [
        *[(2, "monitor"), (3, "train"), (4, "monitor"), (4, "valid"), (6, "monitor"), (6, "train")],
        *[(8, "monitor"), (8, "train"), (8, "valid")],
    ]
    assert [(step, split) for step, split, _ in world.lines] == expected
    for step, split, values in world.lines:
        assert split != "monitor" or values == {"stream_rms_decoder_0": step / 2}
        assert split == "monitor" or "stream_rms_decoder_0" not in values
    resumed = World(monitor_every_steps=2)
    resumed.train(5, world.saved[5][1])
    assert [(step, split) for step, split, _ in resumed.lines] == expected[4:]
    never = World(monitor_every_steps=0)
    never.train()
    assert [(step, split) for step, split, _ in never.lines] == [of for of in expected if of[1] != "monitor"]


def test_a_monitored_step_that_is_not_finite_is_logged():
    world = World(monitor_every_steps=4)
    world.bad[4] = {"loss": float("nan")}
    with pytest.raises(TrainingError, match="loss is nan at step 4"):
        world.train()
    assert world.lines[-1] == (4, "monitor", {"stream_rms_decoder_0": 2.0})


def test_the_program_of_monitored_steps_is_told(capsys):
    World(monitor_every_steps=4).train()
    told = [line for line in capsys.readouterr().err.splitlines() if "compiling" in line]
    shape = "4 rows, inputs 3, targets 50"
    assert [line.partition("compiling ")[2] for line in told] == [
        f"program 1 of 2: {shape}",
        f"program 2 of 2: {shape}, monitored",
    ]


def impatient(**training):
    """Validate after every second step; the best is after the fourth, an equally good one after the sixth."""
    world = World(num_train_steps=16, eval_every_steps=2, checkpoint_every_steps=4, **training)
    world.losses = {2: 5.0, 4: 3.0, 6: 3.0, 8: 4.0, 10: 3.5, **dict.fromkeys(range(12, 17, 2), 9.0)}
    return world


@pytest.mark.parametrize(("patience", "last"), [(1, 6), (2, 8), (3, 10), (0, 16)])
def test_patience_ends_training_with_a_checkpoint_and_no_step_more(patience, last):
    world = impatient(patience=patience)
    result = world.train()
    assert (result.step, result.reason) == (last, "finished")
    assert max(step for name, *step in world.events if name == "step") == [last]
    assert [event for event in world.events if event[1:] == (last,)][-2:] == [world.events[-3], ("save", last)]
    assert {"train", "valid"} == {split for step, split, _ in world.lines if step == last}


@pytest.mark.parametrize("higher_is_better", [False, True])
def test_stale_validations_are_those_since_the_first_best_one(higher_is_better):
    values = [5.0, 6.0, 5.0, 3.0, 4.0, 3.0, 3.5, 2.0, 1.0, 1.0]
    best_so_far = BestSoFar(TrainingConfig(best_metric="x"), higher_is_better, {})
    for number in range(1, len(values) + 1):
        seen = values[:number]
        best_so_far.record_validation({"x": -seen[-1] if higher_is_better else seen[-1]})
        assert best_so_far.stale == number - 1 - seen.index(min(seen))
        assert abs(best_so_far.best) == min(seen)


def test_patience_continues_after_a_restart():
    world = impatient(patience=3)
    world.on_event["step", 8] = lambda: os.kill(os.getpid(), signal.SIGINT)
    assert world.train().reason == "SIGINT"
    resumed = impatient(patience=3)
    assert resumed.train(8, world.saved[8][1]).step == 10
    # A run that has ended for this reason has nothing left to do.
    again = impatient(patience=3)
    assert again.train(10, resumed.saved[10][1]) == TrainResult(10, "finished", resumed.saved[10][1]["metrics"])
    assert again.events == [("wait",)]


def test_patience_restarts_with_another_metric(monkeypatch):
    record = {"validations": {"metric": "accuracy", "best": 70.0, "stale": 3}}
    world = impatient(patience=4, best_metric="sacrebleu")
    monkeypatch.setattr(world, "evaluate", lambda params: {"sacrebleu": 20.0})
    assert world.train(0, record).step == 10


def test_patience_knows_which_metrics_are_better_when_higher(monkeypatch):
    world = impatient(patience=2, best_metric="sacrebleu")
    monkeypatch.setattr(world, "evaluate", lambda params: {"sacrebleu": -world.losses[int(params.split()[1])]})
    assert world.train().step == 8


def test_nothing_happens_twice_when_everything_is_due():
    world = World(num_train_steps=4, log_every_steps=2, eval_every_steps=2, checkpoint_every_steps=2)
    world.train()
    each = [(name, step) for step in (2, 4) for name in ("train", "evaluate", "valid", "save")]
    assert [event for event in world.events if event[0] not in ("step", "wait")] == each


def test_averages_are_over_tokens():
    world = World()
    world.train()
    (step, split, line), *_ = world.lines
    tokens = np.array([101.0, 102.0, 103.0])
    assert (step, split) == (3, "train")
    assert line["loss"] == pytest.approx((tokens * [1, 2, 3]).sum() / tokens.sum(), rel=1e-12)
    assert line["nll"] == pytest.approx((tokens * [0.5, 1, 1.5]).sum() / tokens.sum(), rel=1e-12)
    assert line["accuracy"] == pytest.approx((tokens * [10, 20, 30]).sum() / tokens.sum(), rel=1e-12)
    assert line["gradient_norm"] == pytest.approx((2 + 4 + 8) / 3)
    assert line["learning_rate"] == 3 / 8
    assert line["tokens"] == tokens.sum()
    assert line["padding_efficiency"] == pytest.approx((7 + 8 + 9) / (3 * 106))
    assert line["epoch"] == 0
    assert line["flops"] == 3 * 4 * 10**15
    assert line["seconds"] > 0
    assert line["tokens_per_s"] == pytest.approx(tokens.sum() / line["seconds"])
    last = world.lines[-2][2]  # only steps 7 and 8
    assert last["loss"] == pytest.approx((107 * 7 + 108 * 8) / 215)
    assert last["epoch"] == 1
    assert last["flops"] == 2 * 4 * 10**15


def test_a_checkpoint_contains_everything_for_a_resumed_run():
    world = World()
    world.train()
    state, record, side_files, metrics = world.saved[5]
    assert record.pop("window_seconds") > 0
    assert state == State(jnp.int32(5), "params 5")
    assert record == {
        "config": "c",
        "window": [metrics_of(4), metrics_of(5)],
        "metrics": world.lines[1][2],
        "validations": {"metric": "loss", "best": 6.0, "stale": 0},
        "skipped_updates": 0,
        "log_sha256": f"to step {world.lines[1][0]}",
    }
    assert side_files == {"tokenizer.model": b"t"}
    assert metrics is None  # its parameters were not evaluated
    state, record, _, metrics = world.saved[8]
    assert record["window"] == []
    assert metrics == {"loss": 2.0, "tokens": 7.0}  # only numbers can rank


@pytest.mark.parametrize("first", [5, 8])
def test_a_resumed_run_logs_the_same_as_the_uninterrupted_run(first):
    whole, rest = World(), World()
    whole.train()
    assert rest.train(first, whole.saved[first][1]) == TrainResult(8, "finished", whole.lines[-1][2])
    expected = [line for line in whole.lines if line[0] > first]
    assert [(s, n, without_clock(v)) for s, n, v in rest.lines] == [(s, n, without_clock(v)) for s, n, v in expected]
    assert rest.saved == {step: saved for step, saved in whole.saved.items() if step > first}


def test_a_resumed_run_adds_the_time_of_its_first_window(monkeypatch):
    """The seconds of a line are of all its steps, also those before the restart; the speed is of the new process."""
    now = [0.0]
    monkeypatch.setattr(session.time, "monotonic", lambda: now[0])

    def takes(world, seconds):
        def step():
            now[0] += seconds

        world.on_event = {("step", number): step for number in range(1, 9)}
        return world

    whole, rest = takes(World(), 1.0), takes(World(), 10.0)
    whole.train()
    assert [record["window_seconds"] for _, record, _, _ in whole.saved.values()] == [2.0, 0.0]
    rest.train(5, whole.saved[5][1])
    step, _, line = rest.lines[0]
    assert step == 6
    assert line["tokens"] == 104 + 105 + 106
    assert (line["seconds"], line["tokens_per_s"]) == (12.0, 10.6)
    line = rest.lines[1][2]
    assert (line["seconds"], line["tokens_per_s"]) == (20.0, (107 + 108) / 20.0)


def without_clock(metrics):
    return {name: value for name, value in metrics.items() if name not in ("seconds", "tokens_per_s")}


def test_time_of_evaluation_and_saving_does_not_count(monkeypatch):
    now = [0.0]

    def pass_time(seconds):
        now[0] += seconds

    monkeypatch.setattr(session.time, "monotonic", lambda: now[0])
    world = World(num_train_steps=6, log_every_steps=6, eval_every_steps=2, checkpoint_every_steps=3)
    world.on_event = {("step", s): lambda: pass_time(1.0) for s in range(1, 7)}
    world.on_event |= {(name, s): lambda: pass_time(100.0) for name in ("evaluate", "save") for s in range(1, 6)}
    world.train()
    assert world.lines[-2][2]["seconds"] == pytest.approx(6.0)


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_stops_the_run(name, value):
    world = World()
    world.bad = {5: {name: value}, 6: {"loss": np.nan}}
    with pytest.raises(TrainingError, match=rf"^{name} is {value} at step 5 \(.*learning rate 0\.625\)") as caught:
        world.train()
    assert "optimizer.learning_rate" in str(caught.value)
    assert "its batch is in step_5.npz" in str(caught.value)
    # It is noticed at the checkpoint of step 5, which is not saved.
    assert world.events[-2:] == [("step", 5), ("keep", 5)]
    assert world.saved == {}


@pytest.mark.parametrize(("bad", "noticed"), [(1, 2), (4, 4), (6, 6), (7, 8)])
def test_nothing_is_scored_logged_or_saved_once_the_loss_is_not_finite(bad, noticed):
    world = World()
    world.bad = {bad: {"loss": np.nan}}
    with pytest.raises(TrainingError, match=f"at step {bad} "):
        world.train()
    assert world.events[-2:] == [("step", noticed), ("keep", bad)]


def test_updates_that_are_not_finite_can_be_left_out(caplog):
    world = World(on_nonfinite="skip", max_skipped_updates=3)
    world.bad = {2: {"loss": np.nan}, 5: {"gradient_norm": np.inf}, 7: {"loss": np.nan}, 8: {"loss": np.nan}}
    with pytest.raises(TrainingError, match=r"step 8 .*; 4 updates .* than training.max_skipped_updates=3$"):
        world.train()
    assert [step for name, *step in world.events if name == "keep"] == [[2], [5], [7], [8]]
    assert "loss is nan at step 2" in caplog.text
    (_, _, first), *_ = world.lines
    assert first["loss"] == pytest.approx((101 * 1 + 103 * 3) / 204)
    assert first["gradient_norm"] == pytest.approx((2 + 8) / 2)
    assert (first["tokens"], first["nonfinite"]) == (204, 1)
    assert world.saved[5][1]["skipped_updates"] == 2
    assert world.saved[5][1]["window"] == [
        metrics_of(4),
        {"learning_rate": 5 / 8, "filled": 11.0, "slots": 106.0},
    ]
    # The count continues after a restart.
    rest = World(on_nonfinite="skip", max_skipped_updates=3)
    rest.bad = world.bad
    with pytest.raises(TrainingError, match="4 updates"):
        rest.train(5, world.saved[5][1])


def test_a_window_without_a_finite_step():
    world = World(num_train_steps=3, on_nonfinite="skip")
    world.bad = {step: {"loss": np.nan} for step in (1, 2, 3)}
    assert world.train().reason == "finished"
    line = world.lines[0][2]
    assert np.isnan([line["loss"], line["nll"], line["accuracy"], line["gradient_norm"]]).all()
    assert (line["tokens"], line["nonfinite"], line["learning_rate"]) == (0, 3, 3 / 8)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_run_after_its_step(number, capsys):
    name = signal.Signals(number).name
    world = World()
    world.on_event = {("step", 2): lambda: os.kill(os.getpid(), number)}
    before = signal.getsignal(number)
    assert world.train() == TrainResult(2, name, {})
    assert world.events == [("step", 1), ("step", 2), ("save", 2), ("wait",)]
    assert world.saved[2][1]["window"] == [metrics_of(1), metrics_of(2)]
    assert signal.getsignal(number) is before
    message = f"{name}: the checkpoint of step 2 is saved; the same command resumes from it\n"
    assert capsys.readouterr().err.endswith(message)


def test_a_signal_during_a_save_is_answered_after_the_next_step():
    world = World()
    world.on_event = {("save", 5): lambda: os.kill(os.getpid(), signal.SIGTERM)}
    assert world.train() == TrainResult(6, "SIGTERM", world.lines[1][2])
    assert world.events[-5:] == [("save", 5), ("step", 6), ("train", 6), ("save", 6), ("wait",)]


def test_a_signal_during_evaluation_is_answered_after_it():
    world = World()
    world.on_event = {("evaluate", 4): lambda: os.kill(os.getpid(), signal.SIGTERM)}
    assert world.train() == TrainResult(4, "SIGTERM", world.lines[-1][2])
    assert world.events[-4:] == [("evaluate", 4), ("valid", 4), ("save", 4), ("wait",)]
    assert world.saved[4][3] is None  # the uninterrupted run has no checkpoint here, so this one is not ranked


@pytest.mark.parametrize("event", ["step", "save"])
def test_a_signal_in_the_last_step_changes_nothing(event):
    world = World()
    world.on_event = {(event, 8): lambda: os.kill(os.getpid(), signal.SIGTERM)}
    assert world.train().reason == "finished"


def test_a_save_that_fails_ends_the_run():
    def fail():
        raise CheckpointError("the disk is full")

    world = World()
    world.on_event = {("save", 5): fail}
    with pytest.raises(CheckpointError, match="the disk is full"):
        world.train()
    assert world.events[-1] == ("save", 5)


def test_without_a_terminal_there_is_a_line_per_log_interval(capsys):
    World(num_train_steps=3).train()
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "compiling program 1 of 1: 4 rows, inputs 3, targets 50"
    assert lines[0].startswith("step 3/3  loss 2.0")
    assert "tokens/s" in lines[0]
    assert lines[0].endswith("0:00 spent, 0:00 left")
    assert lines[1] == "step 3  valid  loss 7  tokens 7"


# Groups.


class Stacked:
    """The steppers of some worlds as one; all of them must ask for the same steps."""

    def __init__(self, worlds, first=0):
        self.worlds = worlds
        self.states = [State(jnp.int32(first), f"params {first}") for _ in worlds]

    def local_rows(self, num_rows):
        return slice(num_rows // 2, num_rows)

    def step(self, batches, monitored=False):
        results = [w.step(s, b, "hyper") for w, s, b in zip(self.worlds, self.states, batches, strict=True)]
        self.states = [state for state, _ in results]
        return [metrics for _, metrics in results]

    def metrics_of(self, metrics, number):
        return metrics[number]

    def state_of(self, number):
        return self.states[number]


def train_group(worlds, first=0, records=None):
    total = worlds[0].config.num_train_steps
    silent = [
        w.session(Progress(first, total, shown=False), r) for w, r in zip(worlds, records or [{}] * 9, strict=False)
    ]
    return loop.run_loop(silent, Stacked(worlds, first), first, Progress(first, total))


def test_a_group_treats_every_run_like_a_single_run(capsys):
    alone, worlds = World(), [World(), World()]
    result = alone.train()
    capsys.readouterr()
    assert train_group(worlds) == [result, result]
    for saved in (world.saved for world in (alone, *worlds)):
        for _, record, _, _ in saved.values():
            del record["window_seconds"]
    for world in worlds:
        assert world.events == alone.events
        assert world.saved == alone.saved
        assert [(*line[:2], without_clock(line[2])) for line in world.lines] == [
            (*line[:2], without_clock(line[2])) for line in alone.lines
        ]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == ["step 3/8", "step 6/8", "step 8/8"]  # one line for all


def test_each_run_of_a_group_logs_its_share_of_the_time(monkeypatch):
    now = [0.0]

    def pass_time():
        now[0] += 3.0

    monkeypatch.setattr(session.time, "monotonic", lambda: now[0])
    worlds = [World(num_train_steps=6, log_every_steps=3, eval_every_steps=6, on_nonfinite="stop") for _ in range(3)]
    for step in range(1, 7):
        worlds[0].on_event["step", step] = pass_time
    for world in worlds:  # no other trial trains while one is scored
        world.on_event["evaluate", 6] = pass_time
    worlds[2].bad = {4: {"loss": np.nan}}
    train_group(worlds)
    seconds = [[line["seconds"] for _, split, line in world.lines if split == "train"] for world in worlds]
    assert seconds == [[3.0, 4.5], [3.0, 4.5], [3.0]]


def test_a_run_with_a_loss_that_is_not_finite_leaves_the_group(caplog):
    worlds = [World(), World(), World()]
    worlds[1].bad = {5: {"loss": np.nan}}
    first, error, last = train_group(worlds)
    assert (first.step, first.reason) == (last.step, last.reason) == (8, "finished")
    assert isinstance(error, TrainingError)
    assert "loss is nan at step 5" in str(error)
    assert [world.endings for world in worlds] == [["finished"], ["failed"], ["finished"]]
    assert [step for name, *step in worlds[1].events if name == "keep"] == [[5]]
    assert worlds[1].saved == {}
    assert sorted(worlds[0].saved) == sorted(worlds[2].saved) == [5, 8]


def test_a_group_without_runs_ends():
    worlds = [World(), World()]
    worlds[0].bad, worlds[1].bad = {2: {"loss": np.nan}}, {1: {"loss": np.nan}}
    assert all(isinstance(outcome, TrainingError) for outcome in train_group(worlds))
    assert [max(step for name, step in world.events if name == "step") for world in worlds] == [3, 3]


def test_a_run_without_patience_left_leaves_the_group():
    worlds = [impatient(patience=1), impatient(patience=1)]
    worlds[1].losses = dict.fromkeys(range(2, 10, 2), 1.0) | {n: 1 / n for n in range(2, 17, 2)}
    impatient_one, patient_one = train_group(worlds)
    assert (impatient_one.step, impatient_one.reason) == (6, "finished")
    assert (patient_one.step, patient_one.reason) == (16, "finished")
    assert sorted(worlds[0].saved) == [4, 6]
    assert worlds[0].events[-1] == ("step", 16)  # it is computed, but its result is not used
    assert [event for event in worlds[0].events if event[0] != "step"][-2:] == [("save", 6), ("wait",)]


def test_a_signal_saves_all_runs_that_are_left(capsys):
    worlds = [World(), World(), World()]
    worlds[0].bad = {1: {"loss": np.nan}}
    worlds[1].on_event = {("step", 2): lambda: os.kill(os.getpid(), signal.SIGTERM)}
    error, *others = train_group(worlds)
    assert isinstance(error, TrainingError)
    assert others == [TrainResult(2, "SIGTERM", {})] * 2
    assert [world.endings for world in worlds] == [["failed"], ["interrupted"], ["interrupted"]]
    assert [sorted(world.saved) for world in worlds] == [[], [2], [2]]
    message = "SIGTERM: the checkpoints of step 2 are saved; the same command resumes from them\n"
    assert capsys.readouterr().err.endswith(message)


# Windows.

BATCH = {"inputs": np.array([[5, 1], [1, 0]]), "targets": np.array([[7, 1], [0, 0]])}


def never(step, batch, values):
    raise AssertionError(f"step {step} is finite")


def test_metrics_are_fetched_one_step_late():
    taken = []
    in_flight = InFlight(lambda step, batch, metrics: taken.append((step, batch, metrics)))
    for step in range(1, 5):
        in_flight.push(step, f"batch {step}", {"loss": jnp.float32(step)})
        assert [number for number, _, _ in taken] == list(range(1, step))
    in_flight.drain()
    assert taken == [(step, f"batch {step}", {"loss": step}) for step in range(1, 5)]
    assert all(isinstance(metrics["loss"], np.ndarray) for _, _, metrics in taken)  # on the host


def test_before_the_first_step_there_is_no_loss():
    window = MetricWindow([], never)
    assert window.latest_loss is None
    window.record_metrics(1, BATCH, {name: np.float32(value) for name, value in metrics_of(1).items()})
    assert window.values == [metrics_of(1)]
    assert window.latest_loss == 1.0
    assert MetricWindow([metrics_of(3)], never).latest_loss == 3.0


def test_averages_are_over_the_weight_of_the_targets():
    """Such as labels, of which there are fewer than tokens."""
    window = MetricWindow([], never)
    for step, weight in ((1, 3.0), (2, 0.0), (3, 1.0)):
        counts = {"tokens": 50.0, "weight": weight, "filled": 0.0, "slots": 0.0}
        metrics = {"loss": 10.0 * step, "gradient_norm": 1.0, "learning_rate": 0.1, **counts}
        window.record_metrics(step, BATCH, metrics)
    assert window.close() == {"loss": 15.0, "gradient_norm": 1.0, "learning_rate": 0.1, "tokens": 150.0}
    window.record_metrics(4, BATCH, metrics | {"weight": 0.0})
    assert np.isnan(window.close()["loss"])


def test_every_metric_of_a_step_is_averaged():
    window = MetricWindow([], never)
    for step in (1, 2):
        metrics = {name: value for name, value in metrics_of(step).items() if name != "nll"} | {"slots": 0.0}
        window.record_metrics(step, BATCH, metrics | {"masked_accuracy": 50.0 * step})
    averages = window.close()
    assert list(averages) == ["loss", "accuracy", "masked_accuracy", "gradient_norm", "learning_rate", "tokens"]
    assert averages["masked_accuracy"] == pytest.approx((101 * 50 + 102 * 100) / 203)


# Signals.


def test_the_second_ctrl_c_interrupts_at_once():
    with Interruption() as interruption:
        assert interruption.signal_name is None
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.signal_name == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_after_sigterm_interrupts_and_sigterm_again_does_not():
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.signal_name == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_in_another_thread_there_are_no_signals_to_catch():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run():
        with Interruption() as interruption:
            seen.append((interruption.signal_name, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [(None, before)]
