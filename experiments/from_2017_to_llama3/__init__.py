"""From the Transformer of 2017 to Llama 3: which of the seven steps carries weight?"""
