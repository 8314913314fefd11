"""Looking inside: attention weights, positions, masks, schedules and embeddings, as numbers and as pictures."""
