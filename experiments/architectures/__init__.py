"""Which architecture translates best, at equal parameters and at equal operations?"""
