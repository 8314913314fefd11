"""How does the loss fall with the number of parameters and of operations, and where are they best spent?"""
