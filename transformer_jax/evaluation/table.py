"""Scores as a table on stdout."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, cast

# Metric, heading, format; in the order of the columns.
_COLUMNS = (
    ("loss", "loss", "{:.4f}"),
    ("perplexity", "perplexity", "{:.3f}"),
    ("accuracy", "accuracy %", "{:.2f}"),
    ("exact_match", "exact match %", "{:.2f}"),
    ("sacrebleu", "sacreBLEU", "{:.2f}"),
    ("chrf", "chrF", "{:.2f}"),
    ("unfinished", "unfinished", "{}"),
)
_SIGNATURES = ("sacrebleu_signature", "chrf_signature")


def print_table(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints metrics by split, and below them the signatures that make the scores comparable."""
    from rich.table import Table

    first = next(iter(results.values()))
    columns = [column for column in _COLUMNS if column[0] in first]
    table = Table("split", *(heading for _, heading, _ in columns), title=None)
    for split, metrics in results.items():
        table.add_row(split, *(layout.format(metrics[name]) for name, _, layout in columns))
    print(drawn(table, minimum_width=100))  # a heading cut short says nothing; a terminal wraps long lines by itself
    for name in _SIGNATURES:
        if name in first:
            print(f"{name.removesuffix('_signature')}: {first[name]}")


def drawn(table: Any, minimum_width: int) -> str:
    """A Rich table as text, as wide as the terminal; Rich itself would end the process where nobody reads stdout."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=max(Console().width, minimum_width))
    console.print(table)
    return cast(io.StringIO, console.file).getvalue().removesuffix("\n")
