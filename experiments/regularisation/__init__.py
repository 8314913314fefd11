"""What do dropout, label smoothing and clipping do to perplexity, and what to BLEU?"""
