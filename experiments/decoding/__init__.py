"""What do beams and sampling change against greedy search, by length, and what do they cost?"""
