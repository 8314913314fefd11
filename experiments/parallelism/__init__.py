"""How does the time of a training step, and of a decoded token, grow with the length of the text?"""
