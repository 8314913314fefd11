"""With twelve layers, which place of the norm trains best, and which needs a warm-up?"""
