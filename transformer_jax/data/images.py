"""Images of a corpus: their pixels, decoded when they are read, and the column that stores them as bytes."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import UInt8

from transformer_jax.data.columns import ArrayColumn, BadValueError
from transformer_jax.data.tokenizers.base import Tokenizer
from transformer_jax.errors import DataError

Pixels = UInt8[np.ndarray, "height width channels"]
Resized = UInt8[np.ndarray, "new_height new_width channels"]

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Ends of the names of image files, in small letters."""


@dataclasses.dataclass(frozen=True)
class Picture:
    """An image of a corpus. name: as messages say it. load: returns its pixels; raises ValueError with a problem."""

    name: str
    load: Callable[[], Pixels]

    def __str__(self) -> str:
        return self.name


def decoded(data: bytes, mode: str | None = None) -> Pixels:
    """Return the pixels of a PNG or JPEG file.

    Args:
      mode: `L` (grey) or `RGB`, to convert to; None: 1 channel for grey, 3 for colours and for a palette, 4 with alpha.
    Raises: ValueError if it is no such file, or is damaged.
    """
    import PIL
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            shown = image.convert(mode or _MODES.get(image.mode, image.mode))
            pixels = np.asarray(shown)
    except (OSError, ValueError, SyntaxError, PIL.UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError("cannot be read as PNG or JPEG") from error
    if pixels.dtype != np.uint8:
        raise ValueError(f"has pixels of Pillow's mode {shown.mode}; expected 8 bits a channel")
    return pixels.reshape(*pixels.shape[:2], -1)


_MODES = {"1": "L", "P": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}
"""Modes of Pillow that become another one: bits, palettes, and other spaces of colours."""


def converted(pixels: np.ndarray, mode: str) -> Pixels:
    """Return pixels as `L` (grey) or `RGB`; those of 1, 3 or 4 channels."""
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    return np.asarray(image.convert(mode)).reshape(*pixels.shape[:2], -1)


def read_picture(path: Path, name: str, mode: str | None = None) -> Picture:
    """Return the image of a file, which is read when its pixels are; `mode` as of `decoded`."""

    def load() -> Pixels:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(f"cannot be read: {error.strerror}") from error
        return decoded(data, mode)

    return Picture(name, load)


def squashed(pixels: Pixels, size: int) -> Resized:
    """Return the image scaled to size x size, whatever its proportions."""
    return _scaled(pixels, (size, size))


def cropped(pixels: Pixels, size: int) -> Resized:
    """Return the image scaled so that its shorter side is `size`, and its centre, size x size."""
    height, width = pixels.shape[:2]
    scale = size / min(height, width)
    scaled = _scaled(pixels, (max(size, round(height * scale)), max(size, round(width * scale))))
    top, left = (scaled.shape[0] - size) // 2, (scaled.shape[1] - size) // 2
    return scaled[top : top + size, left : left + size]


def _scaled(pixels: Pixels, shape: tuple[int, int]) -> Resized:
    """Return the image with another height and width, by Pillow's bilinear filter, which averages where it shrinks."""
    from PIL import Image

    if pixels.shape[:2] == shape:
        return pixels
    channels = [Image.fromarray(np.ascontiguousarray(pixels[..., i])) for i in range(pixels.shape[-1])]
    scaled = [channel.resize(shape[::-1], Image.Resampling.BILINEAR) for channel in channels]
    return np.stack([np.asarray(channel) for channel in scaled], axis=-1)


RESIZES: dict[str, Callable[[Pixels, int], Resized]] = {
    "none": lambda pixels, size: pixels,
    "squash": squashed,
    "crop": cropped,
}
"""Functions of pixels and the model's image size, by the values of `data.resize`."""


@dataclasses.dataclass(frozen=True)
class ImageColumn(ArrayColumn):
    """Images [size, size, channels] of bytes. resize: a name of `RESIZES`."""

    resize: str = "none"
    version: ClassVar[int] = 1

    def encode(self, values: Sequence[Any], tokenizer: Tokenizer) -> np.ndarray:
        """Return the pixels, uint8 [examples, size, size, channels].

        Args:
          values: `Picture` objects.
        Raises: BadValueError, which names the image, if it cannot be read or has another shape; DataError for texts.
        """
        result = np.empty((len(values), *self.shape), np.uint8)
        for index, value in enumerate(values):
            if not isinstance(value, Picture):
                raise DataError(f"feature '{self.feature}' has no images, but {type(value).__name__}")
            try:
                pixels = value.load()
            except ValueError as error:
                remedy = "repair or remove it, or train with data.unfit_images=leave_out"
                raise BadValueError(index, f"{value}: {error}; {remedy}") from error
            try:
                result[index] = self.fitted(pixels)
            except ValueError as error:
                raise BadValueError(index, f"{value}: {error}") from error
        return result

    def fitted(self, pixels: Pixels) -> Resized:
        """Return the pixels of an image in the model's shape; raise ValueError if they do not have it."""
        size, _, channels = self.shape
        if pixels.shape[-1] != channels:
            raise ValueError(
                f"{_shape(pixels)}, but model.image_channels={channels}; set it to {pixels.shape[-1]}, or "
                f"data.colours={'grey' if channels == 1 else 'rgb'}"
            )
        fitted = RESIZES[self.resize](pixels, size)
        if fitted.shape != self.shape:
            raise ValueError(f"{_shape(pixels)}, but model.image_size={size}; set data.resize=crop or squash")
        return fitted


def _shape(pixels: Pixels) -> str:
    height, width, channels = pixels.shape
    return f"{width} x {height} pixels in {channels} channel{'s' if channels > 1 else ''}"
