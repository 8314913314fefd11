"""Augmentation of images on the host. Its random numbers follow from the seed, the step and the row alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8, UInt64

from transformer_jax.config import TaskConfig
from transformer_jax.data.order import AUGMENTATION_STREAM
from transformer_jax.tasks.batches.random_bits import keys, uniform

_Images = UInt8[np.ndarray, "n height width channels"]

# Draws of the key of a row.
_CROP, _FLIP, _OPERATIONS, _MIX = range(4)


def keys_of_rows(
    seed: int, step: int, row_ids: Int[np.ndarray, " n"], partner: bool = False
) -> UInt64[np.ndarray, " n"]:
    """Return the keys of the random numbers of rows; those of the images mixed into them are others (`partner`)."""
    return keys(AUGMENTATION_STREAM, seed, step, row_ids, int(partner))


def augmented(config: TaskConfig, images: _Images, row_keys: UInt64[np.ndarray, " n"]) -> _Images:
    """Return images after a random crop, flip and RandAugment, as far as the config has them."""
    if config.crop_padding:
        images = randomly_cropped(images, config.crop_padding, uniform(row_keys, _CROP, 2))
    if config.flip:
        images = flipped(images, uniform(row_keys, _FLIP, 1)[:, 0] < 0.5)
    if config.rand_augment:
        from transformer_jax.tasks.batches.rand_augment import rand_augment

        draws = uniform(row_keys, _OPERATIONS, 2 * config.rand_augment).reshape(len(images), -1, 2)
        rows = [rand_augment(x, config.rand_augment_magnitude, d) for x, d in zip(images, draws, strict=True)]
        images = np.stack(rows) if rows else images
    return images


def randomly_cropped(images: _Images, padding: int, draws: Float[np.ndarray, "n 2"]) -> _Images:
    """Return images moved by up to `padding` pixels down or right, or up or left, each distance equally likely.

    Args: draws: numbers in [0, 1), for rows and for columns.
    """
    count, height, width, _ = images.shape
    around = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded = np.pad(images, around)
    first = np.floor(draws * (2 * padding + 1)).astype(np.int64)
    rows = first[:, 0, None, None] + np.arange(height)[None, :, None]
    columns = first[:, 1, None, None] + np.arange(width)[None, None, :]
    return padded[np.arange(count)[:, None, None], rows, columns]


def flipped(images: _Images, chosen: Bool[np.ndarray, " n"]) -> _Images:
    """Return images, the chosen ones with left and right exchanged."""
    result = images.copy()
    result[chosen] = images[chosen, :, ::-1]
    return result


class Mixing(NamedTuple):
    """The mixture of every row with another image (Zhang et al. 2018).

    partners: int [n], number of the other example. shares: float32 [n], of the row's own image, from Beta(a, a).
    """

    partners: np.ndarray
    shares: np.ndarray


def mixing(alpha: float, num_examples: int, row_keys: UInt64[np.ndarray, " n"]) -> Mixing:
    """Return the partners and shares of rows; the partners are any of `num_examples` examples, equally likely.

    Zhang et al. shuffle the batch for the partners. An example of the whole split has the same distribution, and does
    not depend on the other rows.
    """
    from scipy.special import betaincinv

    draws = uniform(row_keys, _MIX, 2)
    partners = np.floor(draws[:, 0] * num_examples).astype(np.int64)
    return Mixing(partners, betaincinv(alpha, alpha, draws[:, 1]).astype(np.float32))


def mixed(images: _Images, others: _Images, shares: Float[np.ndarray, " n"]) -> _Images:
    """Return share * image + (1 - share) * other, rounded to whole numbers."""
    weights = shares.reshape(-1, 1, 1, 1)
    return np.rint(weights * images + (1.0 - weights) * others).astype(np.uint8)
