"""Scores and losses of predictions."""
