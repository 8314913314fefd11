"""Examples of attention masks, made by the functions that models call, and a drawing of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.inspection.drawing import SIZE, Drawing, Rect, Shape, Text, moved, text_width
from transformer_jax.nn.masks import causal_mask, padding_mask, prefix_mask, segment_mask
from transformer_jax.typing import Array

_SOURCE = ("the", "dog", "bites", "</s>", "<pad>", "<pad>")
_TARGET = ("<s>", "der", "Hund", "beißt")
_PACKED = ("zwei", "Liter", "</s>", "drei", "</s>", "<pad>")
_SEGMENTS = (1, 1, 1, 2, 2, 0)
_PREFIX = 3
_CELL, _GAP, _LINE = 18.0, 6.0, 16.0
_ACROSS = 2  # masks in a row


class ExampleMask(NamedTuple):
    """Tokens of T queries and S keys, and the mask [T, S]: True where a query may attend to a key."""

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    allowed: np.ndarray


def example_masks() -> dict[str, ExampleMask]:
    """Return small examples of the masks of all models by title."""
    length, segments = len(_SOURCE), jnp.array([_SEGMENTS])
    of_padding = padding_mask(jnp.array([[token != "<pad>" for token in _SOURCE]]))
    causal = causal_mask(length)
    words = ("the", "dog", "bites", "der", "Hund", "beißt")
    is_prefix = jnp.array([[place < _PREFIX for place in range(length)]])
    return {
        "encoder": ExampleMask(_SOURCE, _SOURCE, _square(of_padding.allowed, length, length)),
        "causal decoder": ExampleMask(words, words, _square(causal.allowed, length, length)),
        "cross-attention": ExampleMask(_TARGET, _SOURCE, _square(of_padding.allowed, len(_TARGET), length)),
        "packed rows": ExampleMask(
            _PACKED, _PACKED, _square((causal & segment_mask(segments, segments)).allowed, length, length)
        ),
        "prefix": ExampleMask(words, words, _square(prefix_mask(is_prefix).allowed, length, length)),
    }


def _square(allowed: Array, queries: int, keys: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(allowed)[0, 0], (queries, keys))


_NOTES = {
    "encoder": "two-way; padding is hidden",
    "causal decoder": "no token sees a later one",
    "cross-attention": "decoder rows, encoder columns",
    "packed rows": "causal, within each sentence",
    "prefix": "two-way in the first three",
}


def masks_drawing() -> Drawing:
    """Return a drawing of `example_masks`, two in a row; a query may attend to the keys that are blue."""
    examples = example_masks()
    tokens = {token for example in examples.values() for token in (*example.queries, *example.keys)}
    # Whole pixels, so that the bytes do not depend on the version of the font.
    left = math.ceil(max(map(text_width, tokens)) + _GAP)
    width = left + math.ceil(max(text_width(_NOTES[title]) for title in examples) + _GAP)
    height = 2.25 * _LINE + left + _CELL * max(len(example.queries) for example in examples.values())
    shapes: list[Shape] = []
    for number, (title, example) in enumerate(examples.items()):
        x, y = 10 + number % _ACROSS * width, 40 + number // _ACROSS * (height + 24)
        shapes += [moved(shape, x, y) for shape in _panel(title, example, left)]
    rows = -(-len(examples) // _ACROSS)
    title = "Masks: a query (row) attends to the blue keys (columns)"
    alt = f"{title}. " + " ".join(
        f"{name}: {_NOTES[name]}; {', '.join(_row_in_words(query, example) for query in range(len(example.queries)))}."
        for name, example in examples.items()
    )
    page = _ACROSS * width + 20
    shapes.append(Text(page / 2, 20, title, 12, is_bold=True))
    return Drawing(page, 40 + rows * (height + 24) - 14, title, alt, tuple(shapes))


def _row_in_words(query: int, example: ExampleMask) -> str:
    keys = [key for key, is_allowed in zip(example.keys, example.allowed[query], strict=True) if is_allowed]
    return f"{example.queries[query]} to {' '.join(keys) or 'nothing'}"


def _panel(title: str, example: ExampleMask, left: float) -> list[Shape]:
    """Return the shapes of one mask; left: width of the queries' tokens, and height of the keys'."""
    middle, top = left + len(example.keys) * _CELL / 2, 2.25 * _LINE + left
    shapes: list[Shape] = [
        Text(middle, 12, title, 12, is_bold=True),
        Text(middle, 12 + _LINE, _NOTES[title]),
    ]
    for column, key in enumerate(example.keys):
        x = left + (column + 0.5) * _CELL - 1 + 0.35 * SIZE
        shapes.append(Text(x, top - _GAP, key, anchor="start", is_vertical=True))
    for row, (query, allowed) in enumerate(zip(example.queries, example.allowed, strict=True)):
        y = top + row * _CELL
        shapes.append(Text(left - _GAP, y + _CELL / 2 - 1 + 0.35 * SIZE, query, anchor="end"))
        for column, is_allowed in enumerate(allowed):
            shapes.append(Rect(left + column * _CELL, y, _CELL - 2, _CELL - 2, "on" if is_allowed else "off", 2))
    return shapes
