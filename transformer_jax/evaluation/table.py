"""Scores as tables, on stdout unless `show`, a function that prints a text, is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.config import DecodeConfig
from transformer_jax.host.terminal import render_table
from transformer_jax.tasks.task import MetricSpec, SystemScore

_MOST_LABELS = 20


def print_table(
    results: Mapping[str, Mapping[str, Any]], specs: Sequence[MetricSpec], show: Callable[[str], object] = print
) -> None:
    """Print metrics by split, and below them the signatures that make the scores comparable.

    Each baseline of a split has a row below that of the model, in the metrics that both have.

    Args:
      specs: the task's metrics, in the order of the columns. show: prints a text, by default on stdout.
    """
    from rich.table import Table
    from rich.text import Text

    first = next(iter(results.values()))
    columns = [spec for spec in specs if spec.heading and spec.name in first]
    headings = ("split", "scores of") if any("baselines" in metrics for metrics in results.values()) else ("split",)
    table = Table(*headings, *(spec.column for spec in columns), title=None)
    for split, metrics in results.items():
        for name, scores in {"model": metrics, **metrics.get("baselines", {})}.items():
            cells = (spec.format.format(scores[spec.name]) if spec.name in scores else "" for spec in columns)
            table.add_row(*(Text(split), Text(name))[: len(headings)], *cells)
    show(render_table(table))
    for split, metrics in results.items():
        if note := unknown_words(metrics.get("baselines", {})):
            show(f"{split}: {note}")
    if "decode" in first:
        show(f"decode: {described(first['decode'])}")
    names = {spec.name: f"{spec.name}_signature" for spec in specs}
    print_signatures({name: first[signature] for name, signature in names.items() if signature in first}, show)


def unknown_words(baselines: Mapping[str, Mapping[str, float]]) -> str:
    """Return which baselines cannot be compared because they do not know all words; empty if all can."""
    shares = {name: row["unknown_words"] / row["words"] for name, row in baselines.items() if row.get("unknown_words")}
    if not shares:
        return ""
    most, names = 100.0 * max(shares.values()), " and ".join(shares)
    return f"{most:.2g} % of the words are one unknown word to {names}, whose perplexity is too low to compare"


def print_types(results: Mapping[str, Mapping[str, Any]], show: Callable[[str], object] = print) -> None:
    """Print for every split with `by_type` the precision, recall and F1 of each type of chunk, and its true chunks.

    Args: show: prints a text, by default on stdout.
    """
    from rich.table import Column, Table
    from rich.text import Text

    headings = [Column(name, justify="right", no_wrap=True) for name in ("precision %", "recall %", "F1 %", "support")]
    for split, metrics in results.items():
        if not metrics.get("by_type"):
            continue
        table = Table(Column(f"{split}: type", no_wrap=True), *headings, title=None)
        for name, scores in metrics["by_type"].items():
            percents = (f"{scores[field]:.2f}" for field in ("precision", "recall", "f1"))
            table.add_row(Text(name), *percents, f"{scores['examples']:,}")
        show(render_table(table))


def print_confusions(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print for every split with `confusion` how often each label was predicted for each label.

    Tables of more than 20 labels are too wide; SPLIT.json has them all.
    """
    from rich.table import Column, Table

    for split, metrics in results.items():
        confusion = metrics.get("confusion", {})
        if not 0 < len(confusion) <= _MOST_LABELS:
            continue
        headings = [Column(name, justify="right", no_wrap=True) for name in confusion]
        table = Table(Column(f"{split}: label", no_wrap=True), *headings, title="predicted label")
        for name, row in confusion.items():
            table.add_row(name, *(str(row.get(predicted, "")) for predicted in confusion))
        print(render_table(table))


def described(decode: Mapping[str, Any]) -> str:
    """Return the decode settings that differ from the defaults, or "greedy search" if none do."""
    defaults = dataclasses.asdict(DecodeConfig().resolved())
    changed = [f"{name}={value}" for name, value in decode.items() if value != defaults.get(name)]
    return ", ".join(changed) or "greedy search"


def print_comparison(
    title: str, systems: Sequence[str], scores: Mapping[str, Sequence[SystemScore]], specs: Sequence[MetricSpec]
) -> None:
    """Print scores by metric with their uncertainty, one row per system; differences are from the first system.

    The p-value of scores that are always equal is meaningless and stands in parentheses.
    """
    from rich.table import Column, Table
    from rich.text import Text

    of_name = {spec.name: spec for spec in specs}
    table = Table(Column(title, overflow="fold"), title=None)
    for metric in scores:
        for heading in (of_name[metric].column or metric, "mean ± 95 %", "difference", "p-value"):
            table.add_column(heading, justify="right", no_wrap=True)
    for row, system in enumerate(systems):
        cells = []
        for metric, of_systems in scores.items():
            score, shown = of_systems[row], of_name[metric].format.format
            cells += [shown(score.score), f"{shown(score.mean)} ± {shown(score.interval)}"]
            cells += ["" if score.difference is None else _signed(shown(score.difference)), _p_value(score)]
        table.add_row(Text(system), *cells)  # Text: Rich would read brackets in a path as markup
    print(render_table(table))


def print_signatures(signatures: Mapping[str, str], show: Callable[[str], object] = print) -> None:
    """Print the signatures by metric, which make scores comparable."""
    for name, signature in signatures.items():
        show(f"{name}: {signature}")


def _signed(number: str) -> str:
    return number if number.startswith("-") else f"+{number}"


def _p_value(score: SystemScore) -> str:
    if score.p_value is None:
        return ""
    value = f"{score.p_value:.4f}" if score.p_value > 5e-4 else f"{score.p_value:.1e}"
    return f"({value})" if score.always_equal else value
