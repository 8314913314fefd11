"""Images of a corpus: their pixels, decoded when they are read, and the column that stores them as bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import UInt8

from transformer_jax.data.columns import ArrayColumn, BadValueError
from transformer_jax.data.tokenizers.tokenizer import Tokenizer
from transformer_jax.errors import DataError
from transformer_jax.readers.images import MAX_PIXELS, png_bit_depth, read_image, with_image

if TYPE_CHECKING:
    from PIL import Image

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


def decoded(data: bytes, mode: str | None = None, most_pixels: int = MAX_PIXELS) -> Pixels:
    """Return the pixels of a PNG or JPEG file.

    16 bits per channel are scaled to 8: v becomes v * 255 / 65,535, rounded; Pillow rounds colours down. Transparent
    pixels are laid on white, unless they stay as a fourth channel. Of an animation it is the first image.

    Args:
      mode: `L` (grey) or `RGB`, to convert to; None: 1 channel for grey, 3 for colours and for a palette, 4 for colours
        with alpha, 2 for grey with alpha.
      most_pixels: of an image that is not too large.
    Raises: ValueError if it is no such file, is damaged, or is too large.
    """
    return with_image(data, lambda image: _pixels_of(image, mode, png_bit_depth(data)), most_pixels)


def _pixels_of(image: Image.Image, mode: str | None, bits: int) -> Pixels:
    """Return the pixels of an opened image; `bits` are those of a channel of a PNG file."""
    image = _with_alpha(_in_8_bits(image), bits)
    if mode is None and image.mode in ("LA", "RGBA") and "transparency" not in image.info:
        return np.asarray(image)
    shown = _on_white(image)
    pixels = np.asarray(shown.convert(mode or _MODES.get(shown.mode, shown.mode)))
    return pixels.reshape(*pixels.shape[:2], -1)


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Return an image whose channels have 8 bits or 1; raise ValueError for numbers that do not have 16 bits."""
    from PIL import Image

    if image.mode != "F" and not image.mode.startswith("I"):
        return image
    values = np.asarray(image)
    if values.dtype.kind == "f" or values.min() < 0 or values.max() >= len(_SCALED_16):
        raise ValueError(f"has pixels of Pillow's mode {image.mode}; expected 8 or 16 bits a channel")
    scaled = Image.fromarray(_SCALED_16[values])
    if (clear := image.info.get("transparency")) is not None:  # a value of 16 bits, which may share its 8 with others
        scaled.putalpha(Image.fromarray(np.where(values == clear, 0, 255).astype(np.uint8)))
        scaled.info["transparency"] = clear
    return scaled


def _with_alpha(image: Image.Image, bits: int) -> Image.Image:
    """Return an image with a channel for its transparency, if it has any.

    `info` of the result has `transparency` if the file names colours that are transparent, and has no such channel.
    """
    clear = image.info.get("transparency")
    if image.mode == "PA":
        return image.convert("RGBA")
    if clear is None or image.mode in ("LA", "RGBA"):
        return image
    if image.mode in ("1", "L") and isinstance(clear, int):
        # Pillow scales the pixels of 1, 2 and 4 bits to 0 to 255, and leaves the transparent value as it is.
        grey = image.convert("L")
        value = clear >> 8 if bits == 16 else clear * 255 // ((1 << bits) - 1)
        grey.putalpha(grey.point([0 if level == value else 255 for level in range(256)]))
        shown = grey
    elif image.mode == "RGB" and bits == 16:  # Pillow compares the 16 bits of the colour with the 8 of the pixels
        image.info["transparency"] = tuple(channel >> 8 for channel in clear)
        shown = image.convert("RGBA")
    else:
        shown = image.convert("RGBA")
    shown.info["transparency"] = clear
    return shown


def _on_white(image: Image.Image) -> Image.Image:
    """Return an image without its channel of transparency, laid on white."""
    from PIL import Image

    if image.mode not in ("LA", "RGBA"):
        return image
    white = Image.new(image.mode[:-1], image.size, "white")
    white.paste(image.convert(white.mode), mask=image.getchannel("A"))
    return white


_SCALED_16 = np.round(np.arange(1 << 16) * 255 / 65_535).astype(np.uint8)
"""Values of 8 bits by those of 16."""
_MODES = {"1": "L", "P": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}
"""Modes of Pillow that become another one: bits, palettes, and other spaces of colours."""
_BY_CHANNELS = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def converted(pixels: np.ndarray, mode: str) -> Pixels:
    """Return pixels, uint8 [height, width, channels], as `L` (grey) or `RGB`; those of alpha are laid on white.

    Raises: ValueError if they do not have 1 to 4 channels: grey or colours, without or with alpha.
    """
    from PIL import Image

    channels = pixels.shape[-1]
    if channels not in _BY_CHANNELS:
        raise ValueError(f"{_shape(pixels)}; expected 1 to 4 channels for data.colours")
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels))
    return np.asarray(_on_white(image).convert(mode)).reshape(*pixels.shape[:2], -1)


def read_picture(path: Path, name: str, mode: str | None = None) -> Picture:
    """Return the image of a file, which is read when its pixels are; `mode` as in `decoded`."""

    def load() -> Pixels:
        try:
            data = read_image(path)
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
    rows, columns = max(size, round(height * scale)), max(size, round(width * scale))
    top, left = (rows - size) // 2, (columns - size) // 2
    if rows * columns > MAX_PIXELS:  # of a long strip only the centre is scaled
        across, down = width / columns, height / rows
        box = (left * across, top * down, (left + size) * across, (top + size) * down)
        return _scaled(pixels, (size, size), box)
    return _scaled(pixels, (rows, columns))[top : top + size, left : left + size]


def _scaled(pixels: Pixels, shape: tuple[int, int], box: tuple[float, float, float, float] | None = None) -> Resized:
    """Return the image with another height and width, by Pillow's bilinear filter, which averages where it shrinks.

    Args: box: left, top, right and bottom of the part to scale, in pixels; None: all.
    """
    from PIL import Image

    if pixels.shape[:2] == shape and box is None:
        return pixels
    channels = [Image.fromarray(np.ascontiguousarray(pixels[..., i])) for i in range(pixels.shape[-1])]
    scaled = [channel.resize(shape[::-1], Image.Resampling.BILINEAR, box) for channel in channels]
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
    version: ClassVar[int] = 2  # 16 bits and transparency

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
