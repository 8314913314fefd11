"""Drawn digits and shapes: a corpus of images that needs no files.

Each image is 28 x 28 pixels in one channel, with one of 16 figures: the digits, and a circle, a cross, a heart, a
square, a star and a triangle. A figure is a few strokes. Size, place, turn, slant, width of the strokes, both
brightnesses and noise follow from (seed, split, number of the image) alone. Around the edge of a stroke, the brightness
falls to that of the background within one pixel.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.config import DataConfig
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.images import Picture, converted
from transformer_jax.data.order import SHAPES_STREAM, generator
from transformer_jax.data.sources.images.image_source import MODES, Example, ImageSource, Part

SIZE = 28
"""Height and width of an image in pixels."""
_VERSION = 1
"""Increase it when another image is drawn for the same numbers."""
_SEED = 0

Stroke = Sequence[tuple[float, float]]
"""Points (x, y) from -1 to 1 with straight lines between them; y grows downwards."""


def _arc(x: float, y: float, width: float, height: float, first: float, last: float, lines: int = 12) -> Stroke:
    """Return a part of an ellipse; angles in parts of a full turn, from the right over the bottom."""
    angles = [2 * math.pi * (first + (last - first) * i / lines) for i in range(lines + 1)]
    return [(x + width * math.cos(a), y + height * math.sin(a)) for a in angles]


def _polygon(corners: int, skip: int = 1) -> Stroke:
    """Return lines between the corners of a regular polygon, one corner at the top; `skip` 2 of 5 makes a star."""
    angles = [2 * math.pi * (skip * i / corners - 0.25) for i in range(corners + 1)]
    return [(math.cos(a), math.sin(a)) for a in angles]


FIGURES: dict[str, Sequence[Stroke]] = {
    "0": [_arc(0.0, 0.0, 0.6, 1.0, 0.0, 1.0, 20)],
    "1": [[(-0.4, -0.6), (0.1, -1.0), (0.1, 1.0)]],
    "2": [[*_arc(0.0, -0.45, 0.6, 0.55, 0.5, 1.07), (-0.6, 1.0), (0.65, 1.0)]],
    "3": [[*_arc(-0.05, -0.5, 0.55, 0.5, 0.55, 1.25), *_arc(-0.05, 0.5, 0.65, 0.5, 0.75, 1.45)]],
    "4": [[(0.3, 1.0), (0.3, -1.0), (-0.65, 0.35), (0.7, 0.35)]],
    "5": [[(0.55, -1.0), (-0.45, -1.0), (-0.5, -0.15), *_arc(-0.05, 0.35, 0.6, 0.65, 0.72, 1.42)]],
    "6": [[(0.4, -1.0), (-0.3, -0.2), *_arc(0.0, 0.4, 0.58, 0.6, 0.55, 1.55, 16)]],
    "7": [[(-0.6, -1.0), (0.6, -1.0), (-0.15, 1.0)]],
    "8": [_arc(0.0, -0.5, 0.5, 0.5, 0.0, 1.0), _arc(0.0, 0.5, 0.62, 0.5, 0.0, 1.0)],
    "9": [[*_arc(0.0, -0.4, 0.56, 0.6, 0.0, 1.0, 16), (0.4, 1.0)]],
    "circle": [_arc(0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 24)],
    "cross": [[(-1.0, 0.0), (1.0, 0.0)], [(0.0, -1.0), (0.0, 1.0)]],
    "heart": [
        [(0.0, 0.95), *_arc(-0.45, -0.3, 0.5, 0.55, 0.42, 0.97), *_arc(0.45, -0.3, 0.5, 0.55, 0.53, 1.08), (0.0, 0.95)]
    ],
    "square": [[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9), (-0.9, -0.9)]],
    "star": [_polygon(5, 2)],
    "triangle": [_polygon(3)],
}
"""Strokes by the name of the figure, which is its label."""


def shapes_source(config: DataConfig) -> ImageSource:
    """Return the drawn images: `num_train_pairs` for training, `num_eval_pairs` each for validation and test."""
    sizes = (config.num_train_pairs, config.num_eval_pairs, config.num_eval_pairs)
    return ImageSource(
        config,
        {
            split: [Part(_DrawnSet(split, number, size, MODES[config.colours]), range(size))]
            for number, (split, size) in enumerate(zip(CORPUS_SPLITS, sizes, strict=True))
        },
    )


class _DrawnSet:
    def __init__(self, split: str, number: int, size: int, mode: str | None) -> None:
        self._split, self._number, self._size, self._mode = split, number, size, mode

    def __len__(self) -> int:
        return self._size

    def examples(self, places: range) -> Iterator[Example]:
        for place in places:
            rng = generator(SHAPES_STREAM, _SEED, self._number, place)
            label = [*FIGURES][rng.integers(len(FIGURES))]
            yield Picture(f"{self._split} image {place + 1:,}", functools.partial(self._load, place)), label

    def _load(self, place: int) -> np.ndarray:
        rng = generator(SHAPES_STREAM, _SEED, self._number, place)
        pixels = drawn([*FIGURES][rng.integers(len(FIGURES))], rng)
        return pixels if self._mode is None else converted(pixels, self._mode)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(f"shapes {_VERSION} {_SEED} {self._number} {self._size}".encode()).hexdigest()


def drawn(figure: str, rng: np.random.Generator) -> np.ndarray:
    """Return an image of a figure, [28, 28, 1] uint8; raises KeyError for an unknown name."""
    turn, slant = rng.uniform(-0.25, 0.25), rng.uniform(-0.25, 0.25)
    radius, thickness = rng.uniform(6.0, 10.0), rng.uniform(0.7, 1.4)
    cos, sin = math.cos(turn), math.sin(turn)
    matrix = radius * np.array([[cos, -sin], [sin, cos]]) @ np.array([[1.0, slant], [0.0, 1.0]])
    centre = SIZE / 2 - 0.5 + rng.uniform(-2.5, 2.5, 2)
    lines = [
        np.stack([points[:-1], points[1:]], 1)
        for stroke in FIGURES[figure]
        for points in [np.array(stroke) @ matrix.T + centre]
    ]
    ink = np.clip(thickness + 0.5 - _distance(np.concatenate(lines)), 0.0, 1.0)
    background, contrast = rng.uniform(0.0, 80.0), rng.uniform(100.0, 175.0)
    noise = rng.uniform(0.0, 25.0) * rng.standard_normal((SIZE, SIZE))
    return np.clip(background + contrast * ink + noise, 0, 255).round().astype(np.uint8)[..., None]


def _distance(lines: Float[np.ndarray, "lines 2 2"]) -> Float[np.ndarray, "size size"]:
    """Return the distance of every pixel to the nearest of some lines, [line, end, (x, y)] in pixels."""
    rows, columns = np.mgrid[:SIZE, :SIZE]
    pixels = np.stack([columns, rows], -1).reshape(-1, 1, 2).astype(np.float64)
    start, along = lines[:, 0], lines[:, 1] - lines[:, 0]
    share = ((pixels - start) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-12)
    nearest = start + np.clip(share, 0.0, 1.0)[..., None] * along
    return np.sqrt(((pixels - nearest) ** 2).sum(-1)).min(1).reshape(SIZE, SIZE)
