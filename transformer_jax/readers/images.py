"""PNG and JPEG files, bounded in bytes and pixels before a pixel is decoded."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.readers.files import read_bytes

if TYPE_CHECKING:
    from PIL import Image

T = TypeVar("T")

MAX_IMAGE_BYTES = 1 << 28
"""Largest image file."""
MAX_SIDE = 1 << 16
"""Greatest width and height in pixels; that of JPEG is 65,535."""
MAX_PIXELS = 178_956_970
"""Greatest number of pixels of an image, that of Pillow: 0.5 GB in three channels."""

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error)
"""What Pillow raises for damaged files."""


def read_image(path: Path | str) -> bytes:
    """Return the content of an image file; raises OSError as `read_bytes`."""
    return read_bytes(path, MAX_IMAGE_BYTES)


def with_image(data: bytes, use: Callable[[Image.Image], T], most_pixels: int = MAX_PIXELS) -> T:
    """Return what a function makes of an image, the first one of an animation.

    Args:
      data: of a PNG or JPEG file. use: of the opened image, whose pixels are decoded when it asks for them.
      most_pixels: of an image that is not too large.
    Raises: ValueError if it is no such file, is too large or is damaged, and as `use` does.
    """
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    kind = PngImageFile if data.startswith(_PNG) else JpegImageFile if data.startswith(_JPEG) else None
    if kind is None:
        raise ValueError("cannot be read as PNG or JPEG")
    try:
        # Not `Image.open`, which warns of some large images, tries other kinds of file, and has no bound for a side.
        image = kind(io.BytesIO(data))
        width, height = image.size
        fits = max(width, height) <= MAX_SIDE and width * height <= most_pixels
        if fits:
            image.load()
    except _DAMAGE as error:
        raise ValueError("cannot be read as PNG or JPEG: it is damaged or cut short") from error
    if not fits:
        raise ValueError(
            f"has {width:,} x {height:,} pixels; expected at most {MAX_SIDE:,} a side and {most_pixels:,} in all"
        )
    with image:
        return use(image)


def png_bit_depth(data: bytes) -> int:
    """Return the bits per channel of a PNG file, of which `with_image` has opened the data."""
    return data[24]
