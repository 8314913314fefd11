import jax.numpy as jnp
import numpy as np

from transformer_jax.hashing import mix


def test_the_mix_is_a_bijection_that_flips_half_of_the_bits():
    x = np.arange(2**16, dtype=np.uint32)
    for words in (x, x << np.uint32(16), x * np.uint32(0x9E3779B9)):
        assert len(np.unique(np.asarray(mix(jnp.asarray(words))))) == 2**16
    base = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    out = np.asarray(mix(jnp.asarray(base)))
    for bit in range(32):
        flipped = np.asarray(mix(jnp.asarray(base ^ np.uint32(1 << bit)))) ^ out
        share = (flipped[:, None] >> np.arange(32, dtype=np.uint32) & 1).mean(0)
        assert np.abs(share - 0.5).max() < 0.06, f"input bit {bit}"
