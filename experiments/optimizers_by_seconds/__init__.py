"""Which optimizer has the lowest loss after equally many seconds on two CPU cores?"""
