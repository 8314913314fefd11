"""How should the model be told where a patch is?"""
