"""Does a norm of queries and keys lower the loss, or widen the range of good learning rates?"""
