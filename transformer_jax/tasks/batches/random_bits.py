"""Random numbers that follow from integers alone: those of one text never depend on other texts or on array widths."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, UInt64

_STEP = np.uint64(0x9E3779B97F4A7C15)
_DRAW = np.uint64(1 << 32)


def splitmix64(x: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """Return the output function of SplitMix64, a bijection of 64-bit words (Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keys(*words: int | Int[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Return one key per row of some integers, at least one of them an array; other integers give unrelated keys."""
    key = np.zeros(1, np.uint64)
    for word in words:
        key = splitmix64((key ^ np.asarray(word, np.int64).astype(np.uint64)) + _STEP)
    return key


def uniform(keys: UInt64[np.ndarray, " n"], draw: int, width: int) -> Float[np.ndarray, "n width"]:
    """Return numbers in [0, 1), float64 [n, width]; number i of draw d of a key is the same for every width.

    They are outputs d * 2^32 + 1, d * 2^32 + 2, ... of SplitMix64 from the key.

    Args:
      draw: from 0; other draws of the same key are other numbers.
    """
    places = np.uint64(draw) * _DRAW + np.arange(1, width + 1, dtype=np.uint64)
    bits = splitmix64(keys[:, None] + places * _STEP)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
