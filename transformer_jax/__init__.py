"""Controlled comparisons of Transformer designs in JAX and Flax."""

__version__ = "0.1.0"
