"""Which normalisation serves an encoder, by batch size and by length?"""
