"""A picture of the plane of two principal components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.inspection.embeddings import Embeddings, Match, Projection, spread_out
from transformer_jax.inspection.pictures import new_figure, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = 80


def projection_figure(found: Embeddings, projection: Projection, asked: Mapping[str, Sequence[Match]]) -> Figure:
    """Return a figure with all tokens as points.

    The matches of each question have a colour and labels. Without questions, some tokens are labelled. A label that
    would overlap another is left out.

    Args:
      projection: projection of the rows of `found.candidates`.
      asked: matches by question.
    """
    figure = new_figure(10, 8, layout="constrained")
    axes = figure.subplots()
    points, ids = projection.points, found.candidates
    axes.scatter(*points.T, s=6, color="#bbbbbb", linewidths=0)
    place = {int(id): index for index, id in enumerate(ids)}
    groups = {question: [place[match.id] for match in matches] for question, matches in asked.items()}
    if groups:
        order, apart = [index for group in groups.values() for index in group], 0.015
    else:
        order, apart = list(range(len(ids))), 0.05
    colours = {index: f"C{number % 10}" for number, group in enumerate(groups.values()) for index in group}
    for number, (question, group) in enumerate(groups.items()):
        axes.scatter(*points[group].T, s=16, color=f"C{number % 10}", linewidths=0, label=question)
    tokens = found.tokenizer.tokens(ids)
    for index in spread_out(points, order, _NAMES, apart):
        style: dict[str, Any] = {"textcoords": "offset points", "size": 8, "color": colours.get(index, "C0")}
        axes.annotate(shortened(tokens[index]), (points[index, 0], points[index, 1]), (3, 2), parse_math=False, **style)
    first, second = (f"{share:.1%}" for share in projection.explained)
    axes.set(
        title=f"Embeddings of {len(ids):,} tokens: two principal components",
        xlabel=f"component 1, {first} of the variance",
        ylabel=f"component 2, {second} of the variance",
    )
    axes.tick_params(labelsize=8)
    if groups:
        for name in axes.legend(fontsize=9).get_texts():
            name.set_parse_math(False)
    return figure
