"""Arrays in an .npz file: images `train_x` and labels `train_y`, `test_x` and `test_y`; also `x_train`, `y_train`, ...

Images are uint8 [n, height, width] or [n, height, width, channels]; labels are integers or texts [n].
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.images import Picture, converted
from transformer_jax.data.sources.images.image_source import MODES, Example, ImageSource, parts_of
from transformer_jax.data.sources.slices import field_of
from transformer_jax.errors import DataError
from transformer_jax.readers.arrays import ArrayFile, open_npz


def npz_source(config: DataConfig) -> ImageSource:
    """Return the source of `data.dir`, an .npz file or a folder with one; raises DataError if it cannot be used."""
    path = _file(config.dir)
    find = functools.cache(lambda name: _ArraySet(path, name, MODES[config.colours]))
    texts = config.split_texts().items()
    return ImageSource(config, {split: parts_of(field_of(split, text), text, find) for split, text in texts})


def _file(dir: str) -> Path:
    if not dir:
        raise DataError("data.dir is not set: data.source=npz needs an .npz file, or the folder of one")
    path = Path(os.path.expanduser(dir))
    if path.is_dir():
        found = sorted(path.glob("*.npz"))
        if len(found) != 1:
            raise DataError(f"data.dir={dir!r}: expected one .npz file, found {len(found)}; name the file itself")
        return found[0]
    if not path.is_file():
        raise DataError(f"data.dir={dir!r} does not exist")
    return path


class _ArraySet:
    """The images and labels of one name in a file."""

    def __init__(self, path: Path, name: str, mode: str | None) -> None:
        self._name, self._mode = name, mode
        try:
            with open_npz(path) as arrays:
                images, labels = (_array(path, arrays, name, letter) for letter in "xy")
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read as an .npz file: {error}") from error
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise DataError(
                f"{path}: the images of '{name}' are {images.dtype.name} {list(images.shape)}, expected uint8 "
                "[n, height, width] or [n, height, width, channels]"
            )
        labels = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels  # as of CIFAR-10
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuU":
            raise DataError(
                f"{path}: the labels of '{name}' are {labels.dtype.name} {list(labels.shape)}, expected integers or "
                f"texts [{len(images)}]"
            )
        if labels.dtype.kind == "i" and (missing := np.flatnonzero(labels < 0)).size:
            raise DataError(f"{path}: image {missing[0] + 1:,} of '{name}' has no label ({labels[missing[0]]})")
        self._images = images if images.ndim == 4 else images[..., None]
        self._labels = labels

    def __len__(self) -> int:
        return len(self._images)

    def examples(self, places: range) -> Iterator[Example]:
        for place in places:
            yield (
                Picture(f"{self._name} image {place + 1:,}", functools.partial(self._load, place)),
                str(self._labels[place]),
            )

    def _load(self, place: int) -> np.ndarray:
        pixels = self._images[place]
        return pixels if self._mode is None else converted(pixels, self._mode)

    @functools.cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256(repr((self._images.shape, self._labels.tolist())).encode())
        digest.update(np.ascontiguousarray(self._images).data)
        return digest.hexdigest()


def _array(path: Path, arrays: ArrayFile, name: str, letter: str) -> np.ndarray:
    """Return the array NAME_LETTER or LETTER_NAME of a file."""
    wanted = (f"{name}_{letter}", f"{letter}_{name}")
    for key in wanted:
        if key in arrays.names:
            return arrays.read(key)
    kind = {"x": "images", "y": "labels"}[letter]
    raise DataError(f"{path}: has no {kind} of '{name}', {wanted[0]} or {wanted[1]}; it has {', '.join(arrays.names)}")
