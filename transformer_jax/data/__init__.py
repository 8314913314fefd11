"""Data: where pairs come from, how text becomes ids, how ids become batches. NumPy only; nothing here imports JAX."""
