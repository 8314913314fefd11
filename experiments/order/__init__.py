"""What does an encoder know of the order of its tokens before it has learned anything?"""
