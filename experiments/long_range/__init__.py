"""How far back does a model remember, and how far back does its gradient reach?"""
