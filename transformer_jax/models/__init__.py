"""Models: compositions of the blocks in `transformer_jax.nn`."""
