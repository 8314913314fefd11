"""How many heads, at equal computation?"""
