"""train, evaluate and quickstart: the arguments that they pass on, and their exit codes."""

import json
from pathlib import Path
from unittest import mock

import pytest
from data_support import pair_texts

from transformer_jax.cli import quickstart
from transformer_jax.cli.main import main
from transformer_jax.config import ExperimentConfig
from transformer_jax.data import sources
from transformer_jax.evaluation import scoring as evaluation_run
from transformer_jax.training import run as training_run
from transformer_jax.training.loop import TrainResult

CONFIG = str(Path(__file__).parent.parent.parent / "configs" / "quickstart.py")


@pytest.fixture
def train(monkeypatch):
    """Replaces training.run.train, with its signature."""
    double = mock.create_autospec(training_run.train, return_value=TrainResult(3, "finished", {}))
    monkeypatch.setattr(training_run, "train", double)
    return double


@pytest.fixture
def evaluate(monkeypatch):
    double = mock.create_autospec(evaluation_run.evaluate, return_value={})
    monkeypatch.setattr(evaluation_run, "evaluate", double)
    return double


def test_train_passes_config_and_folder(train, tmp_path):
    argv = ["train", f"--config={CONFIG}", f"--workdir={tmp_path}", "--config.model.norm_position=post"]
    assert main(argv) == 0
    (config, workdir, make_validate), options = train.call_args
    assert (config.model.norm_position, config.model.num_heads, config.model.head_dim) == ("post", 4, 32)
    assert workdir == tmp_path
    assert callable(make_validate)
    assert options == {"allow_config_change": False}
    assert main([*argv, "--allow_config_change"]) == 0
    assert train.call_args.kwargs == {"allow_config_change": True}


@pytest.mark.parametrize(("reason", "code"), [("finished", 0), ("SIGINT", 130), ("SIGTERM", 143)])
def test_exit_code_says_why_training_ended(train, evaluate, tmp_path, reason, code):
    train.return_value = TrainResult(3, reason, {})
    assert main(["train", f"--config={CONFIG}", f"--workdir={tmp_path}"]) == code


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--workdir=nowhere"], "--config=... is missing, and nowhere has no config.json to resume with"),
        ([], "--workdir=... is missing"),
        ([f"--config={CONFIG}"], "--workdir=... is missing"),
        (["--config=nope.py", "--workdir=x"], "nope.py: no such config file"),
        ([f"--config={CONFIG}:x", "--workdir=x"], "argument 'x': this config has none"),
        ([f"--config={CONFIG}", "--workdir=x", "--config.model.num_head=4"], "did you mean 'model.num_heads'"),
        ([f"--config={CONFIG}", "--workdir=x", "--config.model.num_heads=3"], "num_heads=3 does not divide"),
        ([f"--config={CONFIG}", "--workdir=x", "--config.model.dropout_rate=1"], "expected less than 1.0"),
        ([f"--config={CONFIG}", "--workdir=x", "--config.model.num_heads=4.5"], "expected an integer"),
        ([f"--config={CONFIG}", "--workdir=x", "--config.model.norm_position=por"], "(did you mean 'pre'?)"),
        ([f"--config={CONFIG}", "--workdir=x", "--config.model.emb_dim=129"], "emb_dim=129"),
    ],
)
def test_a_bad_config_is_one_message_and_nothing_starts(train, capsys, argv, message):
    assert main(["train", *argv]) == 2
    err = capsys.readouterr().err
    assert err.startswith("transformer-jax: error: ")
    assert message in err
    assert "Traceback" not in err
    assert not train.called


def test_evaluate_passes_typed_overrides(evaluate):
    given = {"baselines": False, "files": None, "weights": "scored"}
    assert main(["evaluate", "--checkpoint=runs/x"]) == 0
    assert evaluate.call_args == mock.call(Path("runs/x"), None, {}, generate=True, **given)
    argv = ["--splits=test, valid", "--evaluation.average_checkpoints=5", "--data.dir=d", "--nogenerate"]
    assert main(["evaluate", "--checkpoint=runs/x/checkpoints/7", *argv]) == 0
    overrides = {"evaluation.average_checkpoints": 5, "data.dir": "d"}
    checkpoint, splits = Path("runs/x/checkpoints/7"), ["test", "valid"]
    assert evaluate.call_args == mock.call(checkpoint, splits, overrides, generate=False, **given)
    assert main(["evaluate", "--checkpoint=runs/x", "--baselines"]) == 0
    assert evaluate.call_args == mock.call(Path("runs/x"), None, {}, generate=True, **{**given, "baselines": True})
    assert main(["evaluate", "--checkpoint=runs/x", "--weights=both"]) == 0
    assert evaluate.call_args == mock.call(Path("runs/x"), None, {}, generate=True, **{**given, "weights": "both"})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--checkpoint=... is missing"),
        (["--checkpoint=x", "--splits=test,,valid"], "--splits=test,,valid: expected different names"),
        (["--checkpoint=x", "--splits=test,test"], "--splits=test,test: expected different names"),
        (["--checkpoint=x", "--splits="], "--splits=: expected different names"),
        (["--checkpoint=x", "--evaluation.averag=5"], "(did you mean 'evaluation.average_checkpoints'?)"),
        (["--checkpoint=x", "--evaluation.average_checkpoints=five"], "expected an integer"),
        (["--checkpoint=x", "--model.num_heads=5"], "unknown flag --model.num_heads"),
        (["--checkpoint=x", "--data.source=text"], "data.source: cannot be overridden here"),
    ],
)
def test_bad_flags_of_evaluate(evaluate, capsys, argv, message):
    assert main(["evaluate", *argv]) == 2
    assert message in capsys.readouterr().err
    assert not evaluate.called


def test_a_missing_checkpoint(capsys, tmp_path):
    for command in (["evaluate"], ["generate"], ["inspect"]):
        assert main([*command, f"--checkpoint={tmp_path / 'nope'}"]) == 2
        assert "nope: no such folder" in capsys.readouterr().err


class FewPairs:
    """A corpus of numbers in words."""

    def __init__(self, *names):
        self.split_names = ("train", "valid", *names)

    def split(self, name):
        inputs = {"train": ["one", "two", "three"]}.get(name, ["two", "four", "one", "three", "five", "six"])
        return pair_texts(inputs, [f"{text} in other words" for text in inputs])


def write_translations(path, splits):
    """Write the files of an evaluation."""
    (path / "evaluation").mkdir(parents=True)
    for name in splits:
        lines = [f"{text} in other words" for text in FewPairs().split(name).features["inputs"]]
        lines[2] = "one translated wrongly"
        (path / "evaluation" / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_quickstart_trains_scores_and_compares(train, evaluate, monkeypatch, capsys, tmp_path):
    evaluate.side_effect = write_translations
    monkeypatch.setattr(sources, "load_source", lambda config: FewPairs("test", "test_longer"))
    workdir = tmp_path / "first"
    assert main(["quickstart", f"--config={CONFIG}", f"--workdir={workdir}", "--config.model.num_heads=1"]) == 0
    assert train.call_args.args[0].model.num_heads == 1
    assert train.call_args.args[1] == workdir
    assert train.call_args.kwargs == {"allow_config_change": False}
    assert evaluate.call_args == mock.call(workdir, ["test", "test_longer"])
    out = capsys.readouterr().out
    assert "test_longer  exact match 50.00 %" in out
    assert "two\n  -> two in other words\n\n" in out
    assert "one\n  -> one translated wrongly\n  (reference: one in other words)\n" in out
    assert f"{workdir}/evaluation/test.txt\n" in out
    assert json.loads((workdir / "evaluation" / "nearest_neighbour.json").read_text())["test"]["exact_match"] == 50


def test_quickstart_scores_the_existing_splits(train, evaluate, monkeypatch, capsys, tmp_path):
    evaluate.side_effect = write_translations
    monkeypatch.setattr(sources, "load_source", lambda config: FewPairs("test"))
    words = ["quickstart", f"--config={CONFIG}", f"--workdir={tmp_path / 'first'}", "--allow_config_change"]
    assert main(words) == 0
    assert train.call_args.kwargs == {"allow_config_change": True}
    assert evaluate.call_args.args[1] == ["test"]
    assert "test_longer" not in capsys.readouterr().out


def test_quickstart_without_a_test_split_is_refused_before_training(train, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sources, "load_source", lambda config: FewPairs())
    assert main(["quickstart", f"--config={CONFIG}", f"--workdir={tmp_path}"]) == 2
    assert "quickstart scores the split `test`, which this corpus lacks" in capsys.readouterr().err
    assert not train.called


def test_quickstart_below_the_home_folder(train, evaluate, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "load_source", lambda config: FewPairs("test"))
    evaluate.side_effect = write_translations
    assert main(["quickstart", f"--config={CONFIG}", "--workdir=~/q"]) == 0
    assert train.call_args.args[1] == tmp_path / "home" / "q"
    assert (tmp_path / "home" / "q" / "evaluation" / "nearest_neighbour.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_quickstart_shows_five_sentences_of_a_large_split(monkeypatch, capsys, tmp_path):
    source = mock.Mock(**{"split.return_value": pair_texts([f"text {i}" for i in range(2003)], ["x"] * 2003)})
    monkeypatch.setattr(sources, "load_source", lambda config: source)
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation" / "test.txt").write_text("x\n" * 2003)
    quickstart._compare_with_memory(ExperimentConfig(), tmp_path, ["test"])
    assert capsys.readouterr().out.count("  -> x\n") == 5


@pytest.mark.parametrize(("reason", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_quickstart_that_is_stopped_is_not_scored(train, evaluate, monkeypatch, tmp_path, reason, code):
    monkeypatch.setattr(sources, "load_source", lambda config: FewPairs("test"))
    train.return_value = TrainResult(3, reason, {})
    assert main(["quickstart", f"--config={CONFIG}", f"--workdir={tmp_path}"]) == code
    assert not evaluate.called


def test_quickstart_goes_to_runs_quickstart(train, monkeypatch, tmp_path):
    train.return_value = TrainResult(3, "SIGINT", {})
    monkeypatch.setattr(sources, "load_source", lambda config: FewPairs("test"))
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart"]) == 130
    assert train.call_args.args[1] == Path("runs/quickstart")
