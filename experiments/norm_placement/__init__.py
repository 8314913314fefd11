"""Post-LN or Pre-LN, and does either need warm-up?"""
