"""A part of the cases of fuzz.py."""

import fuzz_commands as commands
import fuzz_folders as folders
import pytest
from fuzz import MAKERS, fuzz_damage, fuzz_inputs
from fuzz_support import Outcome

WITHOUT_MODELS = (
    *(commands.overrides, commands.config, commands.study_file, commands.pretraining, commands.results),
    *(folders.config_size, folders.big_vision),
)


def problems(cases):
    return [(what, outcome.words, problem) for what, outcome, problem in cases if problem]


def test_wrong_inputs_that_need_no_trained_model(tmp_path):
    numbers = [number for number, maker in enumerate(MAKERS) if maker in WITHOUT_MODELS]
    assert problems(fuzz_inputs(tmp_path, numbers, seed=0)) == []


@pytest.mark.slow
def test_wrong_inputs_of_every_kind(tmp_path):
    assert problems(fuzz_inputs(tmp_path, range(len(MAKERS)), seed=0)) == []


@pytest.mark.slow
def test_damaged_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert problems(fuzz_damage(tmp_path, 40, seed=0)) == []


def test_a_case_depends_on_its_number_and_the_seed_alone(tmp_path):
    numbers = [number for number, maker in enumerate(MAKERS) if maker is commands.overrides]

    def words(name, numbers):
        return [outcome.words for _, outcome, _ in fuzz_inputs(tmp_path / name, numbers, seed=3)]

    (tmp_path / "all").mkdir()
    (tmp_path / "one").mkdir()
    assert words("all", numbers)[1:] == words("one", numbers[1:])


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (lambda words: 1 / 0, "raised\n"),
        (lambda words: 2, "exit code 2 without a message"),
        (lambda words: 1, "exit code 1"),
        (lambda words: print("\x1b[2J", file=__import__("sys").stderr) or 0, "control characters"),
        (lambda words: bytearray(10 << 30) and 0, "MemoryError"),
    ],
)
def test_what_is_a_problem(monkeypatch, command, problem):
    monkeypatch.setattr("fuzz_support.run_main", command)
    assert problem in Outcome(["x"]).problem


def test_a_hang_is_a_problem(monkeypatch):
    monkeypatch.setattr("fuzz_support.run_main", lambda words: __import__("time").sleep(9))
    monkeypatch.setattr("fuzz_support.SECONDS", 1)
    assert "TimeoutError: more than 1 s" in Outcome(["x"]).problem
