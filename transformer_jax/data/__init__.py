"""Data: sources of examples, tokenizers, and batches. It uses NumPy only; nothing here imports JAX."""
