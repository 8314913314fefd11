"""Which optimizer has the lowest loss after equally many steps, and after equally many seconds?"""
