"""RandAugment (Cubuk et al. 2020): a few operations of Pillow, chosen at random for each image.

The 14 operations and their greatest strengths are those of the paper's table 6 (AutoAugment's). `colour` leaves a grey
image as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageEnhance, ImageOps

_GREATEST = 10.0
"""The magnitude that means the greatest strength."""
_FAR = 150 / 331
"""The greatest share of an image's size by which it is moved: 150 of AutoAugment's 331 pixels."""


class Operation(NamedTuple):
    """A change of an image by a number: (image, strength) -> image.

    greatest: the strength of the greatest magnitude. signed: whether the sign is random.
    """

    apply: Callable[[Image.Image, float], Image.Image]
    greatest: float = 1.0
    signed: bool = False


def _affine(*numbers: float) -> Callable[[Image.Image], Image.Image]:
    """Return the map with (x, y) of the new image taken from (a x + b y + c, d x + e y + f) of the old one."""
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, numbers, Image.Resampling.BILINEAR)


def _enhanced(kind: Callable[[Image.Image], Any]) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, strength: kind(image).enhance(1.0 + strength)


OPERATIONS: dict[str, Operation] = {
    "identity": Operation(lambda image, _: image),
    "autocontrast": Operation(lambda image, _: ImageOps.autocontrast(image)),
    "equalize": Operation(lambda image, _: ImageOps.equalize(image)),
    "rotate": Operation(lambda image, s: image.rotate(s, Image.Resampling.BILINEAR), 30.0, True),
    "solarize": Operation(lambda image, s: ImageOps.solarize(image, round(256 - s)), 256.0),
    "posterize": Operation(lambda image, s: ImageOps.posterize(image, round(8 - s)), 4.0),
    "colour": Operation(_enhanced(ImageEnhance.Color), 0.9, True),
    "contrast": Operation(_enhanced(ImageEnhance.Contrast), 0.9, True),
    "brightness": Operation(_enhanced(ImageEnhance.Brightness), 0.9, True),
    "sharpness": Operation(_enhanced(ImageEnhance.Sharpness), 0.9, True),
    "shear_x": Operation(lambda image, s: _affine(1.0, s, -s * image.height / 2, 0.0, 1.0, 0.0)(image), 0.3, True),
    "shear_y": Operation(lambda image, s: _affine(1.0, 0.0, 0.0, s, 1.0, -s * image.width / 2)(image), 0.3, True),
    "translate_x": Operation(lambda image, s: _affine(1.0, 0.0, s * image.width, 0.0, 1.0, 0.0)(image), _FAR, True),
    "translate_y": Operation(lambda image, s: _affine(1.0, 0.0, 0.0, 0.0, 1.0, s * image.height)(image), _FAR, True),
}
"""Operations by name. Brightness and the like are scaled by 1 + strength; a threshold or bits fall with it."""


def rand_augment(
    pixels: UInt8[np.ndarray, "height width channels"], magnitude: float, draws: Float[np.ndarray, "operations 2"]
) -> UInt8[np.ndarray, "height width channels"]:
    """Return an image after some operations, each of them chosen anew.

    Args:
      pixels: of 1 or 3 channels.
      magnitude: 0 to 10.
      draws: numbers in [0, 1), of each operation one that chooses it and one for its sign.
    """
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    operations = [*OPERATIONS.values()]
    for choice, sign in draws:
        operation = operations[int(choice * len(operations))]
        strength = operation.greatest * magnitude / _GREATEST
        image = operation.apply(image, -strength if operation.signed and sign < 0.5 else strength)
    return np.asarray(image).reshape(pixels.shape)
