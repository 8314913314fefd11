"""Studies: one question, many trainings, an answer with its uncertainty."""
