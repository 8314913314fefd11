"""Is a pretrained encoder better than the same model from scratch?"""
