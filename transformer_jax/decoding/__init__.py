"""Greedy search, sampling and beam search with a model's `Decoder`; `generate` runs them over many rows."""
