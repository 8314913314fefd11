"""Texts in two languages that tokenizers are trained on in tests."""

import json

import numpy as np

from transformer_jax.convert.tokenizer_rules import RULES, with_rules
from transformer_jax.data.tokenizers import train_tokenizer
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer


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


def as_roberta(tokenizer):
    """Return a byte-level BPE of this project with RoBERTa's special ids: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3."""
    values = json.loads(tokenizer.model_bytes)
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    values["model"]["vocab"] |= ids
    for token in values["added_tokens"]:
        token["id"] = ids.get(token["content"], token["id"])
    values["added_tokens"].sort(key=lambda token: token["id"])
    return ByteBPETokenizer(json.dumps(values).encode())


def as_qwen(tokenizer):
    """Return a byte-level BPE of this project that divides texts as Qwen2's tokenizer."""
    return ByteBPETokenizer(with_rules(tokenizer.model_bytes, RULES["Qwen2Tokenizer"], adds_space=False))
