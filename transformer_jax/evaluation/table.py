"""Scores as tables on stdout."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

from transformer_jax.config import DecodeConfig
from transformer_jax.evaluation.significance import SystemScore

# Metric, heading, format; in the order of the columns.
_COLUMNS = (
    ("loss", "loss", "{:.4f}"),
    ("perplexity", "perplexity", "{:.3f}"),
    ("accuracy", "accuracy %", "{:.2f}"),
    ("exact_match", "exact match %", "{:.2f}"),
    ("tokenized_bleu", "tokenized BLEU", "{:.2f}"),
    ("sacrebleu", "sacreBLEU", "{:.2f}"),
    ("chrf", "chrF", "{:.2f}"),
    ("unfinished", "unfinished", "{}"),
)
_SIGNATURES = ("tokenized_bleu_signature", "sacrebleu_signature", "chrf_signature")


def print_table(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints metrics by split, and below them the signatures that make the scores comparable."""
    from rich.table import Table

    first = next(iter(results.values()))
    columns = [column for column in _COLUMNS if column[0] in first]
    table = Table("split", *(heading for _, heading, _ in columns), title=None)
    for split, metrics in results.items():
        table.add_row(split, *(layout.format(metrics[name]) for name, _, layout in columns))
    print(drawn(table, minimum_width=120))  # a heading cut short says nothing; a terminal wraps long lines by itself
    if "decode" in first:
        print(f"decode: {described(first['decode'])}")
    print_signatures({name.removesuffix("_signature"): first[name] for name in _SIGNATURES if name in first})


def described(decode: Mapping[str, Any]) -> str:
    """Settings of the decoder that are not the defaults, or that they all are."""
    defaults = dataclasses.asdict(DecodeConfig().resolved())
    changed = [f"{name}={value}" for name, value in decode.items() if value != defaults.get(name)]
    return ", ".join(changed) or "greedy search"


def print_comparison(title: str, systems: Sequence[str], scores: Mapping[str, Sequence[SystemScore]]) -> None:
    """Prints scores by metric with their uncertainty, a row for each system; differences are to the first.

    A p-value that says nothing, of scores that are always equal, is in parentheses.
    """
    from rich.table import Column, Table
    from rich.text import Text

    headings = {name: heading for name, heading, _ in _COLUMNS}
    table = Table(Column(title, overflow="fold"), title=None)
    for metric in scores:
        for heading in (headings[metric], "mean ± 95 %", "difference", "p-value"):
            table.add_column(heading, justify="right", no_wrap=True)
    for row, system in enumerate(systems):
        cells = []
        for score in (of_systems[row] for of_systems in scores.values()):
            cells += [f"{score.score:.2f}", f"{score.mean:.2f} ± {score.interval:.2f}"]
            cells += ["" if score.difference is None else f"{score.difference:+.2f}", _p_value(score)]
        table.add_row(Text(system), *cells)  # a path may have what Rich takes for markup
    print(drawn(table, minimum_width=120 + max(map(len, systems))))  # the numbers take less than 120


def print_signatures(signatures: Mapping[str, str]) -> None:
    """Prints what makes scores comparable, by metric."""
    for name, signature in signatures.items():
        print(f"{name}: {signature}")


def _p_value(score: SystemScore) -> str:
    if score.p_value is None:
        return ""
    value = f"{score.p_value:.4f}" if score.p_value > 5e-4 else f"{score.p_value:.1e}"
    return f"({value})" if score.always_equal else value


def drawn(table: Any, minimum_width: int) -> str:
    """A Rich table as text, as wide as the terminal; Rich itself would end the process where nobody reads stdout."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=max(Console().width, minimum_width))
    console.print(table)
    return cast(io.StringIO, console.file).getvalue().removesuffix("\n")
