"""Does a Transformer pass an LSTM with attention when training is eight times as long?"""
