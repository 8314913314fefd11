"""The table that `evaluate` prints."""

import pytest

from transformer_jax.evaluation.table import print_table

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
    print_table({"valid": LOSSES | SCORES, "test": LOSSES | SCORES | {"loss": 2.0}})
    lines = capsys.readouterr().out.splitlines()
    headings = ["split", "loss", "perplexity", "accuracy %", "exact match %", "sacreBLEU", "chrF", "unfinished"]
    assert cells(lines[1]) == headings
    assert cells(lines[3]) == ["valid", "1.2346", "3.437", "71.24", "95.50", "97.12", "98.00", "3"]
    assert cells(lines[4])[:2] == ["test", "2.0000"]
    assert lines[-2:] == ["sacrebleu: nrefs:1|case:mixed", "chrf: nrefs:1|[bold]"]


def test_without_translations_there_are_no_columns_for_them(capsys):
    print_table({"test": LOSSES})
    out = capsys.readouterr().out
    assert cells(out.splitlines()[1]) == ["split", "loss", "perplexity", "accuracy %"]
    assert "signature" not in out
    assert "sacrebleu" not in out


@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_narrow_terminal_cuts_nothing(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    print_table({"test_longer": LOSSES | SCORES})
    out = capsys.readouterr().out
    assert "accuracy %" in out
    assert "exact match %" in out
    assert "test_longer" in out
