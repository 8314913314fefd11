"""Which optimizer has the lowest loss after equally many steps?"""
