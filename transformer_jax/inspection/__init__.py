"""Inspection of models: attention weights, positions, masks, schedules and embeddings, as numbers and pictures."""
