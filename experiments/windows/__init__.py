"""Does an encoder know the order of its tokens before it has learned anything?"""
