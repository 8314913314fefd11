"""Which objective of pretraining helps a classifier of questions most, at equal operations?"""
