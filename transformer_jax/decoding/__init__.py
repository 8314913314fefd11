"""Greedy search, sampling and beam search, by a model's `Decoder`; `generate` runs them over many rows."""
