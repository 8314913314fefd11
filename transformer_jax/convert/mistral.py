"""Mistral (Jiang et al. 2023): Llama's blocks, with a window in all layers or, since version 0.2, without."""

from __future__ import annotations

from transformer_jax.convert.llama import like_llama
from transformer_jax.convert.tables import Key

MISTRAL = like_llama(
    "mistral",
    "Mistral",
    defaults={"max_position_embeddings": 131_072, "num_key_value_heads": 8, "intermediate_size": 14_336},
    keys=(Key("sliding_window", "attention_window", 4096),),
    fixed={"use_bias": False},
    required={"layer_types": (None,)},
    because={"layer_types": "transformers has one window for all layers of Mistral, whatever this says"},
)
