"""`compare` through the command line."""

import os
from pathlib import Path
from unittest import mock

import pytest
from run_support import copy_of_trained, run_main, snapshot

from transformer_jax.cli.main import main
from transformer_jax.evaluation import comparison, significance


@pytest.fixture
def compare(monkeypatch):
    """Replaces evaluation.comparison.compare, with its signature."""
    double = mock.create_autospec(comparison.compare, return_value={})
    monkeypatch.setattr(comparison, "compare", double)
    return double


def test_defaults(compare):
    assert main(["compare", "runs/a", "runs/b"]) == 0
    assert compare.call_args == mock.call(
        [Path("runs/a"), Path("runs/b")], ["test"], {}, samples=1000, seed=12345, files=None
    )
    assert (significance.SAMPLES, significance.SEED) == (1000, 12345)


def test_passes_its_arguments(compare):
    flags = ["--splits=valid, test", "--samples", "50", "--seed=3", "--decode.beam_size=5", "--data.dir=d"]
    assert main(["compare", "a", *flags[:3], "b/checkpoints/best", *flags[3:], "c"]) == 0
    paths = [Path("a"), Path("b/checkpoints/best"), Path("c")]
    overrides = {"decode.beam_size": 5, "data.dir": "d"}
    assert compare.call_args == mock.call(paths, ["valid", "test"], overrides, samples=50, seed=3, files=None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "A and B are missing: transformer-jax compare A B [C ...]; see transformer-jax compare --help"),
        (["a"], "B is missing: transformer-jax compare A B [C ...]"),
        (["--checkpoint=a", "b"], "unknown flag --checkpoint"),
        (["a", ""], "argument 2 is empty"),
        (["a", "b", "--splits=test,,valid"], "--splits=test,,valid: expected different names, separated by commas"),
        (["a", "b", "--splits="], "--splits=: expected different names"),
        (["a", "b", "--samples=0"], "--samples=0: expected at least 1"),
        (["a", "b", "--samples=many"], "--samples=many: expected an integer"),
        (["a", "b", "--seed=0"], "--seed=0: expected at least 1"),
        (["a", "b", "--decode.beam_siz=5"], "(did you mean 'decode.beam_size'?)"),
        (["a", "b", "--config.seed=5"], "unknown flag --config.seed"),
    ],
)
def test_bad_usage(compare, capsys, argv, message):
    assert main(["compare", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith("transformer-jax: error: ")
    assert message in err
    assert not compare.called


def test_help_shows_the_positionals(capsys):
    assert main(["compare", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: transformer-jax compare [flags] A B [C ...]\n")
    assert "\narguments:\n  A B [C ...]  checkpoints, the first is the baseline; " in out
    assert out.index("\narguments:\n") < out.index("\nflags:\n")
    assert main(["evaluate", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: transformer-jax evaluate [flags]\n")
    assert "arguments:" not in out


def test_two_checkpoints_of_a_run(tmp_path, capfd):
    """With the real decoder; messages of libraries do not reach stdout."""
    run = copy_of_trained(tmp_path / "copy") / "run"
    words = ["compare", str(run), str(run / "checkpoints" / "5"), "--samples=20", "--decode.beam_size=2"]
    assert run_main(words) == 0
    first = capfd.readouterr()
    lines = first.out.splitlines()
    settings = "beam_size=2, length_penalty=gnmt, length_penalty_alpha=0.6, max_extra_length=8"
    assert lines[-3] == f"decode of all: {settings}"
    assert {line[0] for line in lines[:-3]} == set("┏┃┡│└")
    assert "test, 11 pairs" in lines[1]
    assert lines[-2].startswith("sacrebleu: nrefs:1|bs:20|seed:12345|")
    assert lines[-1].startswith("chrf: nrefs:1|bs:20|seed:12345|")
    assert first.err.count("test: generating outputs of 11 examples into") == 2
    for folder in (run / "evaluation", run / "evaluation" / "step_5"):
        assert sorted(os.listdir(folder))[-2:] == ["test.json", "test.txt"]
        assert (folder / "test.txt").read_text().count("\n") == 11
    before = snapshot(run)
    assert run_main(words) == 0
    second = capfd.readouterr()
    assert second.out == first.out
    assert second.err.count("is reused") == 2
    assert snapshot(run) == before


def test_missing_checkpoints_and_splits(tmp_path, capsys):
    run = copy_of_trained(tmp_path / "copy") / "run"
    before = snapshot(run)
    for words in ([str(run), str(tmp_path / "nope")], [str(tmp_path / "nope"), str(run)]):
        assert run_main(["compare", *words]) == 2
        assert "nope: no such folder" in capsys.readouterr().err
    assert run_main(["compare", str(run), str(run / "checkpoints" / "6")]) == 2
    assert "checkpoints/6: no such folder" in capsys.readouterr().err
    assert run_main(["compare", str(run), str(run), "--splits=tset"]) == 2
    assert "no split 'tset'; there are train, valid, test (did you mean 'test'?)" in capsys.readouterr().err
    assert snapshot(run) == before
