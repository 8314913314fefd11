"""Which learning rate, warm-up, decay and clipping suit the quickstart?"""
