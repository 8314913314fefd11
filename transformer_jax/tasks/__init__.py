"""Tasks: their examples, predictions and scores."""
