"""The families that can be converted: a table for each class of transformers.

A new family is a module with its tables and an entry of `CLASSES`; no other module needs a change.
"""

from __future__ import annotations

from transformer_jax.convert.bart import BART
from transformer_jax.convert.bert import BERT_CLASSES
from transformer_jax.convert.gpt2 import GPT2
from transformer_jax.convert.gpt_neox import GPT_NEOX
from transformer_jax.convert.llama import LLAMA
from transformer_jax.convert.marian import MARIAN
from transformer_jax.convert.mistral import MISTRAL
from transformer_jax.convert.olmo2 import OLMO2
from transformer_jax.convert.qwen import QWEN2, QWEN3
from transformer_jax.convert.roberta import ROBERTA_CLASSES
from transformer_jax.convert.smollm3 import SMOLLM3
from transformer_jax.convert.t5 import T5
from transformer_jax.convert.vit import VIT_CLASSES

CLASSES = (
    *(GPT2, LLAMA, MARIAN, *BERT_CLASSES, T5, BART, *VIT_CLASSES),
    *(QWEN2, QWEN3, MISTRAL, SMOLLM3, *ROBERTA_CLASSES, OLMO2, GPT_NEOX),
)
"""One table for each class of transformers; of a family with several classes the first is the default.

A model that several families can express is written as the first of them.
"""

FAMILIES = {name: next(c for c in CLASSES if c.name == name) for name in dict.fromkeys(c.name for c in CLASSES)}
"""The default class of every family, by `model_type`."""
