"""Which activation of the feed-forward network has the lowest loss, at equal parameters?"""
