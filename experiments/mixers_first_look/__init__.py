"""What do attention, a gated delta rule and a hybrid of both recall?"""
