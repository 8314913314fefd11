"""Which models generalise to new commands, and to outputs longer than any in training?"""
