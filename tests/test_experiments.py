"""Every study in experiments/: its variants build, its documents are there, and the loop over them."""

import json
import re
from pathlib import Path

import pytest
from run_support import metric_lines

from experiments.run import STUDIES, main, table, variants
from transformer_jax.config import walk
from transformer_jax.errors import ConfigError, TrainingError
from transformer_jax.evaluation import run as evaluation_run
from transformer_jax.evaluation.evaluator import make_validate
from transformer_jax.training import run as training_run
from transformer_jax.training.loop import TrainResult

FOLDER = Path(__file__).parent.parent / "experiments"

TINY = {
    "model.vocab_size": "400",
    "model.emb_dim": "16",
    "model.mlp_dim": "24",
    "model.num_encoder_layers": "1",
    "model.num_decoder_layers": "1",
    "model.max_length": "160",
    "data.num_train_pairs": "300",
    "data.num_eval_pairs": "10",
    "data.num_buckets": "1",
    "decode.max_extra_length": "0",
    "training.num_train_steps": "1",
    "optimizer.decay_steps": "400",
}


def test_every_question_is_a_study():
    assert {path.parent.name for path in FOLDER.glob("*/README.md")} == set(STUDIES)
    assert set(STUDIES) >= {"norm_placement", "num_heads", "positions"}


@pytest.mark.parametrize("study", STUDIES)
def test_its_readme_asks_and_answers(study):
    text = (FOLDER / study / "README.md").read_text()
    assert re.match(r"# .*\?\n", text)
    assert f"python -m experiments.run {study} --workdir=" in text
    assert re.search(r"^\*\*Answer:\*\* \S", text, re.M)


@pytest.mark.parametrize("study", STUDIES)
def test_its_variants_differ_from_each_other_and_in_little_else(study):
    """A comparison is controlled: what is not varied on purpose, or derived from it, is equal."""
    configs = variants(study)
    assert len(configs) >= 3
    assert len(set(configs.values())) == len(configs)
    values = {name: {field: value for field, _, value in walk(config)} for name, config in configs.items()}
    fields = next(iter(values.values()))
    varied = {field for field in fields if len({config[field] for config in values.values()}) > 1}
    allowed = {
        "norm_placement": {"model.norm_position", "optimizer.warmup_steps"},
        "positions": {"model.position_encoding"},
        "num_heads": {"model.num_heads", "model.num_kv_heads", "model.head_dim", "model.value_head_dim"},
    }
    assert varied == allowed[study]


def test_norm_placement_crosses_both_placements_with_and_without_warm_up():
    cells = {(c.model.norm_position, c.optimizer.warmup_steps > 0) for c in variants("norm_placement").values()}
    assert cells == {("pre", True), ("pre", False), ("post", True), ("post", False)}


def test_positions_has_every_encoding():
    assert [config.model.position_encoding for config in variants("positions").values()] == list(variants("positions"))
    assert len(variants("positions")) == 5


def test_overrides_are_for_every_variant():
    for study in STUDIES:
        assert {config.seed for config in variants(study, {"seed": "7"}).values()} == {7}


def test_what_would_make_two_variants_equal_is_refused():
    with pytest.raises(ConfigError, match="variants 'sinusoidal' and 'learned' are the same experiment"):
        variants("positions", {"model.position_encoding": "none"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "usage: python -m experiments.run STUDY"),
        (["--workdir=x", "positions"], "usage: "),
        (["positions"], "--workdir=... is missing"),
        (["positions", "num_heads", "--workdir=x"], "unexpected argument 'num_heads'"),
        (["positions", "--workdir=x", "--seed=3"], "unknown flag --seed"),
        (["postions", "--workdir=x"], "no study 'postions' (did you mean 'positions'?)"),
        (["positions", "--workdir=x", "--config.model.num_head=3"], "did you mean 'model.num_heads'"),
        (["positions", "--workdir=x", "--config.model.num_heads=3"], "num_heads=3 does not divide emb_dim"),
    ],
)
def test_bad_arguments(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("experiments.run: error: ")
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback(capsys):
    assert main(["positions", "--workdir=x", "--config.model.num_heads=3", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["positions", "--workdir=x", "--config.model.num_heads=3"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_help(capsys):
    assert main(["--help"]) == 0
    assert "python -m experiments.run norm_placement --workdir=" in capsys.readouterr().out


class Doubles:
    """In place of training and evaluating."""

    def __init__(self, monkeypatch):
        self.trained, self.outcomes = [], {}
        monkeypatch.setattr(training_run, "train", self.train)
        monkeypatch.setattr(evaluation_run, "evaluate", self.evaluate)

    def train(self, config, workdir, make_validate):
        self.trained.append((workdir.name, config))
        workdir.mkdir(parents=True)
        outcome = self.outcomes.get(workdir.name, "finished")
        if isinstance(outcome, Exception):
            raise outcome
        return TrainResult(1, outcome, {})

    def evaluate(self, workdir):
        number = len(self.trained)
        metrics = {"loss": 1.0 + number, "exact_match": 10.0 * number, "sacrebleu": 50.125, "chrf": 1.0}
        return {"test": metrics, "test_longer": metrics | {"loss": 9.0}}


@pytest.fixture
def doubles(monkeypatch):
    return Doubles(monkeypatch)


def test_every_variant_is_trained_and_scored(doubles, tmp_path, capsys):
    assert main(["positions", f"--workdir={tmp_path}", "--config.training.num_train_steps=777"]) == 0
    assert dict(doubles.trained) == variants("positions", {"training.num_train_steps": "777"})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| variant | split | parameters | loss | exact_match | sacrebleu |"
    results = json.loads((tmp_path / "results.json").read_text())
    assert list(results) == ["sinusoidal", "learned", "rotary", "relative", "none"]
    counts = {name: splits["test"]["parameters"] for name, splits in results.items()}
    model = variants("positions")["learned"].model
    assert counts["learned"] - counts["none"] == 2 * model.max_length * model.emb_dim  # a table for each stack
    assert lines[2] == f"| sinusoidal | test | {counts['sinusoidal']:,} | 2.00 | 10.00 | 50.12 |"
    assert lines[3] == f"| sinusoidal | test_longer | {counts['sinusoidal']:,} | 9.00 | 10.00 | 50.12 |"
    assert len(lines) == 2 + 2 * 5


def test_a_variant_that_does_not_train_is_an_answer(doubles, tmp_path, capsys):
    why = "loss is nan at step 12 (loss nan, gradient norm 1); a lower optimizer.learning_rate may help"
    doubles.outcomes["post_without_warmup"] = TrainingError(why)
    assert main(["norm_placement", f"--workdir={tmp_path}"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "| post_without_warmup | loss is nan at step 12 | | | | |"
    assert why in captured.err
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["post_without_warmup"] == {"diverged": why}
    assert "test" in results["pre_without_warmup"]


@pytest.mark.parametrize(("reason", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_study_that_is_told_to_stop_stops(doubles, tmp_path, reason, code):
    doubles.outcomes["learned"] = reason
    assert main(["positions", f"--workdir={tmp_path}"]) == code
    assert [name for name, _ in doubles.trained] == ["sinusoidal", "learned"]
    assert list(json.loads((tmp_path / "results.json").read_text())) == ["sinusoidal"]


def test_what_the_user_can_fix_ends_it(doubles, tmp_path, capsys):
    doubles.outcomes["learned"] = ConfigError("another config is in use here")
    assert main(["positions", f"--workdir={tmp_path}"]) == 2
    assert "experiments.run: error: another config" in capsys.readouterr().err


def test_a_table_row_has_as_many_cells_as_the_heading():
    splits = {"test": {"parameters": 1234, "loss": 1.0, "exact_match": 2.0, "sacrebleu": 3.0}}
    lines = table({"a": splits, "b": {"diverged": "loss is nan at step 3 (x)"}}).splitlines()
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_every_variant_takes_a_step(study, tmp_path):
    for name, config in variants(study, TINY).items():
        assert training_run.train(config, tmp_path / name, make_validate).reason == "finished"
        assert [line["step"] for line in metric_lines(tmp_path / name)] == [1, 1]


@pytest.mark.slow
def test_a_study_from_start_to_end(tmp_path, capsys):
    words = ["norm_placement", f"--workdir={tmp_path}", *(f"--config.{name}={value}" for name, value in TINY.items())]
    assert main(words) == 0
    out = capsys.readouterr().out
    for name in variants("norm_placement"):
        assert re.search(rf"^\| {name} \| test_longer \| [\d,]+ \| \d", out, re.M)
    assert main(words) == 0  # scored again, not trained again
    assert capsys.readouterr().out == out
