"""Texts in two languages that tokenizers are trained on in tests."""

import numpy as np

from transformer_jax.data.tokenizers import train_tokenizer


def sentences(syllables):
    """Return 300 lines of words that share syllables, so that a tokenizer has something to learn."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(syllables.split(), random.integers(2, 4))) for _ in range(150)]
    return [" ".join(random.choice(words, 7)) for _ in range(300)]


INPUTS = sentences("ing the ous tion ed re con ment ly un king ship ter per ball dis ance for est ward")
TARGETS = sentences("keit schaft der ung los bar ver ent zu isch heim lich mäß burg sch ein auf wald über nis")
TEXTS = [*INPUTS, *TARGETS]

SIZES = {
    "unigram": 360,
    "bpe": 360,
    "byte_bpe": 360,
    "wordpiece": 300,
    "wordpiece_cased": 300,
    "words": 200,
    "char": 31,
    "byte": 260,
}
"""Vocabulary size by kind of tokenizer."""


def trained(kind):
    return train_tokenizer(TEXTS, kind, SIZES[kind])


def encode(tokenizer, text):
    return tokenizer.encode_batch([text]).ids
