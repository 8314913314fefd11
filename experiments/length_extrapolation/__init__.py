"""Which position encodings serve a language model beyond the length of its training?"""
