"""Dropout whose mask is a function of seed, step, place, row and element.

A random generator would cost more than the rest of a layer's elementwise work, and its bits would change with the
sharding. XLA fuses a hash of the element's coordinates into the operation that it masks. Every row gets the same mask
on any device, in any micro-batch and on any trial axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt32

from transformer_jax.hashing import mix
from transformer_jax.typing import Array

_GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: successive multiples are spread evenly over the words


def fold(seed: UInt32[Array, "*seed"], number: Int[Array, "*number"] | int) -> UInt32[Array, "*shape"]:
    """Return the seed of the number-th part below `seed`, uint32."""
    return mix(seed ^ mix(jnp.asarray(number).astype(jnp.uint32) * jnp.uint32(_GOLDEN) + jnp.uint32(_GOLDEN)))


def _computed_once(words: Array) -> Array:
    """Prevent XLA for CPU from fusing, and so recomputing, the hash into each of its consumers.

    XLA treats an integer remainder as expensive and computes it once. `words % (2**32 - 5)` leaves all but five values
    unchanged.
    """
    return words % jnp.uint32(4294967291)


def keep_mask(
    seed: UInt32[Array, ""], row_ids: Int[Array, " B"], shape: Sequence[int], rate: Float[Array, ""] | float
) -> Bool[Array, "B ..."]:
    """Return which elements dropout keeps: independent bits, True with probability 1 - rate.

    Args:
      seed: uint32 scalar, different for every run, step, layer and place.
      row_ids: [B] int32, the global number of every row of the batch.
      shape: the array's shape, [B, ...].
      rate: probability of dropping, in [0, 1); may be traced.
    Returns: bool [shape].
    """
    # Two words per row: the first is added before the first round, the second between the rounds. With one word
    # alone, the masks of two rows would be permutations of each other.
    broadcast = (-1, *(1,) * (len(shape) - 1))
    first = _computed_once(fold(seed, row_ids))
    second = _computed_once(mix(first + jnp.uint32(_GOLDEN))).reshape(broadcast)
    first = first.reshape(broadcast)
    element = jnp.zeros((1,) * len(shape), jnp.uint32)
    stride = 1
    for axis in reversed(range(1, len(shape))):
        index = jnp.arange(shape[axis], dtype=jnp.uint32).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        element = element + index * jnp.uint32(stride)
        stride *= shape[axis]
    x = element * jnp.uint32(_GOLDEN) + first
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D) + second
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    # In float32 a rate keeps 24 bits. The threshold is below 2^32 since a rate is below 1.
    threshold = jnp.minimum(jnp.asarray(rate, jnp.float32) * 2.0**32, 2.0**32 - 256).astype(jnp.uint32)
    return (x ^ (x >> 16)) >= threshold


class DropoutRates(NamedTuple):
    """The rate of every place; with None, the program has no dropout there."""

    residual: Array | float | None = None
    embedding: Array | float | None = None
    attention: Array | float | None = None
    activation: Array | float | None = None
    final: Array | float | None = None
    head: Array | float | None = None


class Dropout(NamedTuple):
    """The arguments of dropout, passed down in place of a random generator; None for a deterministic pass.

    seed: uint32 scalar; row_ids: [B] int32.
    """

    seed: Array
    row_ids: Array
    rates: DropoutRates


def fold_dropout(dropout: Dropout | None, number: Array | int) -> Dropout | None:
    """Return the dropout of one part of a module, with a seed that `number` determines; None stays None."""
    return None if dropout is None else dropout._replace(seed=fold(dropout.seed, number))


def drop(x: Float[Array, "B ..."], dropout: Dropout | None, place: str) -> Float[Array, "B ..."]:
    """Set elements of x [B, ...] to zero with the rate of `place`, and scale the others by 1 / (1 - rate).

    Srivastava et al. 2014, section 4, in the inverted form that leaves evaluation unscaled.
    """
    if dropout is None or getattr(dropout.rates, place) is None:
        return x
    rate = getattr(dropout.rates, place)
    keep = keep_mask(dropout.seed, dropout.row_ids, x.shape, rate)
    # In float32: the factor rounded to bfloat16 would be wrong by up to 0.4 %, always in the same direction.
    scaled = x.astype(jnp.float32) * (1.0 / (1.0 - jnp.asarray(rate, jnp.float32)))
    return jnp.where(keep, scaled.astype(x.dtype), jnp.zeros((), x.dtype))
