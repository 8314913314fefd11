"""The progress of training: lines without a terminal, a bar on one, the time left, and signs of life."""

import io
import itertools
import sys
import threading

import pytest

from transformer_jax.host import terminal as stderr
from transformer_jax.tasks.task import TASKS
from transformer_jax.training import progress as progress_module
from transformer_jax.training.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def now(monkeypatch):
    """Seconds of a clock that only the test advances, in a list."""
    seconds = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(stderr, "_stderr", stderr._Stderr())
    return seconds


def take_steps(progress, now, shapes, seconds):
    """Train a step per shape, the first of every shape after a compilation of 50 seconds."""
    known = set()
    for step, shape in enumerate(shapes, 1):
        with progress.training(step, shape, 3):
            now[0] += 0 if shape in known else 50.0
        known.add(shape)
        now[0] += seconds


def test_without_a_terminal_there_are_lines_and_no_bar(capsys, now):
    with Progress(20, 100) as progress:
        assert not progress.due()
        now[0] += 65.0
        progress.update(1, None, None)  # nothing is known yet
        progress.update(40, 2.3456, 12345.6)
        progress.say("step 40  valid  loss [1]")
    assert capsys.readouterr().err.splitlines() == [
        "step 1/100  1:05 spent",
        "step 40/100  loss 2.346  12,346 tokens/s  1:05 spent",
        "step 40  valid  loss [1]",
    ]


def test_the_speed_has_the_unit_of_the_task(capsys, now):
    with Progress(0, 10, TASKS["images"].unit) as progress:
        progress.update(5, 1.0, 1250.0)
    assert capsys.readouterr().err == "step 5/10  loss 1.000  1,250 images/s  0:00 spent\n"


def test_the_time_left_is_that_of_recent_steps_and_of_what_is_to_be_compiled(capsys, now):
    with Progress(0, 10) as progress:
        take_steps(progress, now, ["short", "long", "short", "long", "short"], 2.0)
        progress.update(5, 1.0, 9.0)
    assert capsys.readouterr().err.splitlines() == [
        "compiling program 1 of 3: short",
        "compiling program 2 of 3: long",
        "step 5/10  loss 1.000  9 tokens/s  1:50 spent, 1:00 left",  # 5 steps of 2 s, and 50 s of compilation
    ]


def test_the_time_left_counts_validations_with_their_share(capsys, now):
    with Progress(0, 10) as progress:
        take_steps(progress, now, ["a"] * 4, 1.0)
        with progress.paused("validating"):
            now[0] += 8.0
        take_steps(progress, now, ["a"] * 1, 1.0)
        progress.update(4, 1.0, None)
    assert capsys.readouterr().err.endswith(f"spent, {int(6 * (1 + 8 / 4) + 2 * 50) // 60}:{6 * 3 + 100 - 60} left\n")


def test_the_time_left_forgets_how_slow_the_beginning_was(capsys, now):
    with Progress(0, 300) as progress:
        take_steps(progress, now, ["a", "b", "c"] + ["a"] * 97, 30.0)
        with progress.training(101, "a", 3):
            pass
        for step in range(102, 301):
            with progress.training(step, "a", 3):
                now[0] += 0.5
        progress.update(290, 1.0, 1.0)
    assert capsys.readouterr().err.endswith("0:05 left\n")


def test_a_line_is_due_when_nothing_was_printed_for_long(now):
    with Progress(0, 10) as progress:
        progress.say("")
        now[0] += stderr.SILENCE_SECONDS - 1
        assert not progress.due()
        now[0] += 1
        assert progress.due()
        progress.update(1, 1.0, 1.0)
        assert not progress.due()
    assert not Progress(0, 10, shown=False).due()


def on_terminal(monkeypatch):
    """Not a fixture: pytest installs its own stderr before the test starts."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return stream


def test_a_terminal_gets_a_bar(monkeypatch):
    stream = on_terminal(monkeypatch)
    with Progress(20, 100) as progress:
        assert progress.due()
        progress.update(40, 2.3456, 12345.6)
        assert not progress.due()  # at most once a second
        with progress.training(41, "shape", 2):
            progress.say("step 40  valid  [loss] 1")
        progress.update(50, 2.0, 10.0)
    text = stream.getvalue()
    assert "step 40  valid  [loss] 1" in text
    assert "compiling program 1 of 2" in text
    assert "50/100" in text
    assert "loss 2.000" in text
    assert "10 tokens/s" in text
    assert "spent" not in text


def test_a_dumb_terminal_gets_lines(monkeypatch):
    stream = on_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    with Progress(0, 10) as progress:
        progress.update(5, 1.0, 10.0)
    assert stream.getvalue().startswith("step 5/10")


# Signs of life.


class Lines(io.StringIO):
    """A stderr that sets an event when a line has been written."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def flush(self):
        self.written.set()


@pytest.fixture
def silent(monkeypatch):
    """A stderr on which every second of silence is too long; pytest's is installed before."""
    monkeypatch.setattr(stderr, "_stderr", stderr._Stderr())
    monkeypatch.setattr(stderr, "SILENCE_SECONDS", 0.001)
    return monkeypatch


def test_a_silent_activity_gives_signs_of_life(silent):
    lines = Lines()
    silent.setattr(sys, "stderr", lines)
    with stderr.signs_of_life(), stderr.doing("outer"), stderr.doing("scoring test"):
        assert lines.written.wait(60)
    assert lines.getvalue().startswith("scoring test: 0 s so far\n")


@pytest.mark.parametrize("hidden", [stderr.bar_shown, None])
def test_there_are_no_signs_of_life_beside_a_bar_or_without_an_activity(silent, hidden):
    lines, looked = Lines(), threading.Event()
    calls = itertools.count()
    is_silent = stderr.is_silent

    def look():
        if next(calls) == 3:
            looked.set()
        return is_silent()

    silent.setattr(stderr, "is_silent", look)
    silent.setattr(sys, "stderr", lines)
    with stderr.signs_of_life():
        if hidden:
            with hidden(), stderr.doing("training"):
                assert looked.wait(60)
        else:
            assert looked.wait(60)
    assert lines.getvalue() == ""
