"""The tables that `evaluate` and `compare` print."""

import dataclasses

import pytest
from rich.table import Column, Table

from transformer_jax.config import DecodeConfig
from transformer_jax.evaluation.table import print_comparison, print_signatures, print_table, print_types
from transformer_jax.host.terminal import render_table
from transformer_jax.tasks.label_prediction import by_name
from transformer_jax.tasks.metrics.chunks import count_chunks
from transformer_jax.tasks.task import TASKS, SystemScore

SPECS = TASKS["translation"].metrics
LOSSES = {"loss": 1.23456, "perplexity": 3.4368, "accuracy": 71.239, "tokens": 1234, "over_length": 5}
SCORES = {
    "exact_match": 95.5,
    "sacrebleu": 97.123,
    "chrf": 98.0,
    "unfinished": 3,
    "sacrebleu_signature": "nrefs:1|case:mixed",
    "chrf_signature": "nrefs:1|[bold]",
}


def cells(line):
    return [cell.strip() for cell in line.replace("┃", "│").strip("│ ").split("│")]


def test_a_row_per_split_and_the_signatures(capsys):
    print_table({"valid": LOSSES | SCORES, "test": LOSSES | SCORES | {"loss": 2.0}}, SPECS)
    lines = capsys.readouterr().out.splitlines()
    headings = ["split", "loss", "perplexity", "accuracy %", "exact match %", "sacreBLEU", "chrF", "unfinished"]
    assert cells(lines[1]) == headings
    assert cells(lines[3]) == ["valid", "1.2346", "3.437", "71.24", "95.50", "97.12", "98.00", "3"]
    assert cells(lines[4])[:2] == ["test", "2.0000"]
    assert lines[-2:] == ["sacrebleu: nrefs:1|case:mixed", "chrf: nrefs:1|[bold]"]


def test_scores_of_tokens_have_a_column_and_a_signature(capsys):
    print_table({"test": LOSSES | SCORES | {"tokenized_bleu": 39.876, "tokenized_bleu_signature": "case:lc"}}, SPECS)
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[1])[4:8] == ["exact match %", "tokenized BLEU", "sacreBLEU", "chrF"]
    assert cells(lines[3])[4:8] == ["95.50", "39.88", "97.12", "98.00"]
    assert lines[-3:] == ["tokenized_bleu: case:lc", "sacrebleu: nrefs:1|case:mixed", "chrf: nrefs:1|[bold]"]


def test_types_of_chunks_have_a_table_of_their_own(capsys):
    """The numbers are those of seqeval's `classification_report`.

    PER: 2 of 3 predicted names are right, and all 2 true ones are found; LOC: its one name is taken for a PER.
    """
    true = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-PER", "O", "B-ORG"]
    predicted = ["B-PER", "I-PER", "O", "B-PER", "O", "B-PER", "O", "B-ORG"]
    counts = count_chunks(true, predicted)
    by_type = by_name([*counts], [(right, of_true, of_predicted) for right, of_predicted, of_true in counts.values()])
    print_types({"valid": LOSSES, "test": {"f1": 75.0, "by_type": by_type}, "other": {"by_type": {}}})
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[1]) == ["test: type", "precision %", "recall %", "F1 %", "support"]
    assert [cells(line) for line in lines[3:-1]] == [
        ["LOC", "0.00", "0.00", "0.00", "1"],
        ["ORG", "100.00", "100.00", "100.00", "1"],
        ["PER", "66.67", "100.00", "80.00", "2"],
    ]


def test_without_translations_there_are_no_columns_for_them(capsys):
    print_table({"test": LOSSES}, SPECS)
    out = capsys.readouterr().out
    assert cells(out.splitlines()[1]) == ["split", "loss", "perplexity", "accuracy %"]
    assert "signature" not in out
    assert "sacrebleu" not in out


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "greedy search"),
        ({"beam_size": 5}, "beam_size=5, length_penalty=gnmt, length_penalty_alpha=0.6"),
        ({"method": "sample", "top_p": 0.9}, "method=sample, top_p=0.9"),
    ],
)
def test_how_the_translations_were_made(capsys, fields, told):
    decode = dataclasses.asdict(DecodeConfig(**fields).resolved())
    print_table({"test": LOSSES | SCORES | {"decode": decode}}, SPECS)
    assert f"\ndecode: {told}\nsacrebleu: " in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_narrow_terminal_cuts_nothing(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_table({"test_longer": LOSSES | SCORES}, SPECS)
    out = capsys.readouterr().out
    assert "accuracy %" in out
    assert "exact match %" in out
    assert "test_longer" in out


# `compare`.

FIRST = SystemScore(27.314, 27.298, 1.204, None, None)
BETTER = SystemScore(27.9, 27.91, 1.1, 0.586, 0.0127)


def compared(capsys, *scores, names=("runs/a", "runs/b")):
    print_comparison("test, 2,000 pairs", names, {"sacrebleu": [FIRST, scores[0]], "chrf": [FIRST, scores[-1]]}, SPECS)
    return capsys.readouterr().out.splitlines()


def test_a_row_per_system_and_columns_per_metric(capsys):
    lines = compared(capsys, BETTER, BETTER._replace(difference=-0.586, p_value=1e-5))
    statistics = ["mean ± 95 %", "difference", "p-value"]
    assert cells(lines[1]) == ["test, 2,000 pairs", "sacreBLEU", *statistics, "chrF", *statistics]
    assert cells(lines[3])[:5] == ["runs/a", "27.31", "27.30 ± 1.20", "", ""]
    assert cells(lines[4])[:5] == ["runs/b", "27.90", "27.91 ± 1.10", "+0.59", "0.0127"]
    assert cells(lines[4])[-2:] == ["-0.59", "1.0e-05"]
    print_signatures({"sacrebleu": "nrefs:1|[bold]"})
    assert capsys.readouterr().out == "sacrebleu: nrefs:1|[bold]\n"


@pytest.mark.parametrize("columns", ["10", "80", "300"])
def test_four_metrics_are_readable_in_a_pipe(capsys, monkeypatch, columns):
    """The table is wider than a pipe, which says 80 columns."""
    monkeypatch.setenv("COLUMNS", columns)
    specs = TASKS["tagging"].metrics
    names = [spec.name for spec in specs if spec.direction][:4]
    print_comparison("test, 2,000 pairs", ("runs/a", "runs/b"), {name: [FIRST, BETTER] for name in names}, specs)
    lines = capsys.readouterr().out.splitlines()
    assert cells(lines[1])[0] == "test, 2,000 pairs"
    assert cells(lines[3])[0] == "runs/a"
    row = cells(lines[4])
    assert (row[0], row[4::4]) == ("runs/b", ["0.0127"] * 4)
    assert [value.split(" ")[1] for value in row[2::4]] == ["±"] * 4
    assert "…" not in "".join(lines)


def test_a_table_is_as_wide_as_its_longest_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    wide = Table("name", Column("why", overflow="fold"), Column("number", justify="right"))
    wide.add_row("n" * 300, "w " * 300, "1.25")
    assert len(render_table(wide).splitlines()) == 5
    assert "1.25" in render_table(wide)


def test_the_p_value_of_always_equal_scores_is_in_parentheses(capsys):
    equal = BETTER._replace(difference=0.0, p_value=1 / 1001, always_equal=True)
    assert cells(compared(capsys, equal)[4])[-2:] == ["+0.00", "(0.0010)"]


@pytest.mark.parametrize("columns", ["20", "140"])
def test_a_path_is_shown_whole(capsys, monkeypatch, columns):
    """Whatever its length and its characters."""
    monkeypatch.setenv("COLUMNS", columns)
    path = "/data/[bold]runs/" + "x" * 200 + "/checkpoints/8"
    lines = compared(capsys, BETTER, names=("runs/a", path))
    assert cells(lines[4])[:5] == [path, "27.90", "27.91 ± 1.10", "+0.59", "0.0127"]
