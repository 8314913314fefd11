"""Which share of the tokens should a masked language model hide?"""
