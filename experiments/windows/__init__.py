"""How far back can layers with a window recall?"""
