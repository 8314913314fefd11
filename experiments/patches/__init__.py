"""How large should patches be, and should a class token or the mean stand for the image?"""
