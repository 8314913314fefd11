"""Trained models for users: they translate, continue and fill texts, and predict."""
