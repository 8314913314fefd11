"""The common part of sources of images: splits as parts of sets, and images that do not fit."""

from __future__ import annotations

import collections
import hashlib
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from transformer_jax.config import DataConfig
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.images import Picture
from transformer_jax.data.sources.source import Split, joined, no_such_split
from transformer_jax.errors import DataError

_log = logging.getLogger(__name__)
_WHOLE_SPLIT = 1 << 16
_SAMPLE = 100
"""Number of images whose most frequent shape is that of the corpus, for `data.unfit_images=leave_out`."""
_PART = re.compile(r"(?P<name>[^\[\]]+?)(?:\[(?P<first>\d*%?):(?P<end>\d*%?)\])?")

LEAVES_OUT = {"error": False, "leave_out": True}
"""By the values of `data.unfit_images`."""

MODES = {"as_stored": None, "grey": "L", "rgb": "RGB"}
"""Modes of Pillow that images are converted to, by the values of `data.colours`."""

Example = tuple[Picture, str]
"""An image and the name of its label."""


@runtime_checkable
class ImageSet(Protocol):
    """Images in a fixed order, with their labels."""

    def __len__(self) -> int: ...

    def examples(self, places: range) -> Iterator[Example]:
        """Yield the images at some places, in order."""
        ...

    @property
    def sha256(self) -> str:
        """Digest of all images and labels."""
        ...


class Part(NamedTuple):
    """Some images of a set."""

    images: ImageSet
    places: range


def parts_of(field: str, text: str, find: Callable[[str], ImageSet]) -> list[Part]:
    """Return the parts of a split, as in `train[:90%]` or `train[5000:]+extra`.

    Bounds are numbers of images or percentages; a bound in percent is rounded down to a whole image.

    Args:
      field: name and value of the field, for messages. find: returns the set of a name, or raises DataError.
    Raises: DataError for text of another form, or a part without images.
    """
    parts = []
    for piece in text.split("+"):
        match = _PART.fullmatch(piece.strip())
        if match is None:
            raise DataError(f"{field}: expected a set or a part of one, as in train[:90%] or train[5000:]")
        images = find(match["name"])
        size = len(images)
        first, end = _bound(match["first"], size, 0), _bound(match["end"], size, size)
        if end > size or first >= end:
            raise DataError(
                f"{field}: '{match['name']}' has {size:,} images; the part {first}:{end} has none or too many"
            )
        parts.append(Part(images, range(first, end)))
    return parts


def _of_part(part: Part) -> str:
    """Return the places and the digest for the fingerprint."""
    return f"{part.places.start}:{part.places.stop} {part.images.sha256}"


def _bound(text: str | None, size: int, default: int) -> int:
    if not text or text == "%":
        return default
    return size * int(text[:-1]) // 100 if text.endswith("%") else int(text)


class ImageSource:
    """A source of labelled images; see `sources.source.Source`."""

    def __init__(self, config: DataConfig, splits: Mapping[str, Sequence[Part]]) -> None:
        self._config = config
        self._splits = splits
        self._told: set[str] = set()
        self._shape: tuple[int, ...] | None = None

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits."""
        return tuple(self._splits)

    def num_examples(self, name: str) -> int:
        """Return the number of images of a split, with those that `chunks` leaves out."""
        return sum(len(part.places) for part in self._of(name))

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split, `size` images at a time.

        Raises: DataError for an unknown split, and if `data.unfit_images=leave_out` leaves out all.
        """
        examples = self._examples(name)
        if LEAVES_OUT[self._config.unfit_images]:
            examples = self._fitting(name, examples)
        while chunk := list(itertools.islice(examples, size)):
            yield Split({"inputs": [picture for picture, _ in chunk], "targets": [label for _, label in chunk]})

    def split(self, name: str) -> Split:
        """Return a whole split; its images are not in memory before they are read."""
        return joined(self.chunks(name, _WHOLE_SPLIT))

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the sha256 of the images and labels of all splits, and of the settings that change them."""
        of_corpus = [name for name in self._splits if name in CORPUS_SPLITS]
        names = of_corpus if split is None or split in of_corpus else [split]
        settings = [self._config.colours, self._config.unfit_images]
        lines = [
            *settings,
            *([self._config.resize] if LEAVES_OUT[self._config.unfit_images] else []),
            *(f"{name} {_of_part(part)}" for name in names for part in self._of(name)),
        ]
        return {"sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(), "versions": {}}

    def _of(self, name: str) -> Sequence[Part]:
        if name not in self._splits:
            raise no_such_split(name, self._splits)
        return self._splits[name]

    def _examples(self, name: str) -> Iterator[Example]:
        return itertools.chain.from_iterable(part.images.examples(part.places) for part in self._of(name))

    def _fitting(self, name: str, examples: Iterator[Example]) -> Iterator[Example]:
        """Yield the examples whose images can be read and have the shape of most; warn of the others, once a split."""
        shape, kept, problems = self._usual_shape(), 0, []
        for picture, label in examples:
            try:
                pixels = picture.load()
                if not self._fits(pixels.shape, shape):
                    raise ValueError(f"has the shape {list(pixels.shape)}, most images have {list(shape)}")
            except ValueError as error:
                problems.append(f"{picture}: {error}")
            else:
                kept += 1
                yield Picture(picture.name, lambda pixels=pixels: pixels), label
        if not kept:
            raise DataError(f"split '{name}': none of its {len(problems)} images fits; {problems[0]}")
        if problems and name not in self._told:
            self._told.add(name)
            text = "left out %d of %d images of split '%s'; the first is %s"
            _log.warning(text, len(problems), len(problems) + kept, name, problems[0])

    def _fits(self, shape: tuple[int, ...], usual: tuple[int, ...]) -> bool:
        return shape == usual if self._config.resize == "none" else shape[-1] == usual[-1]

    def _usual_shape(self) -> tuple[int, ...]:
        """Return the most frequent shape of the first images of the training split that can be read."""
        if self._shape is None:
            first, *_ = self._splits
            shapes, problem = collections.Counter(), ""
            for picture, _ in itertools.islice(self._examples(first), _SAMPLE):
                try:
                    shapes[picture.load().shape] += 1
                except ValueError as error:
                    problem = problem or f"{picture}: {error}"
            if not shapes:
                raise DataError(f"split '{first}': none of its first images can be read; {problem}")
            self._shape = shapes.most_common(1)[0][0]
        return self._shape
