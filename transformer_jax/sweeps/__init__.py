"""Studies: a question, trials that vary a config, and an answer with its uncertainty."""
