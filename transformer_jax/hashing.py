"""A hash of 32-bit words, for random bits that depend only on their position."""

import jax.numpy as jnp
from jaxtyping import UInt32

from transformer_jax.typing import Array


def mix(x: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """Return a bijection of 32-bit words; each input bit flips each output bit with probability close to 1/2.

    Two rounds of multiply and xor-shift with constants found by search (Wellons 2018, "lowbias32").
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
