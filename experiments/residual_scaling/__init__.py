"""Does a factor before the residual sum help, and can it replace the norm?"""
