"""How should the model be told the order of its tokens?"""
