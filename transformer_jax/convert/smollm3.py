"""SmolLM3 (Bakouch et al. 2025): Llama's blocks, every fourth without rotary positions."""

from __future__ import annotations

from transformer_jax.convert.layer_lists import LayerLists
from transformer_jax.convert.llama import BIASES, like_llama

SMOLLM3 = like_llama(
    "smollm3",
    "SmolLM3",
    defaults={
        **{"vocab_size": 128_256, "max_position_embeddings": 32_768, "hidden_size": 2048, "num_hidden_layers": 36},
        **{"num_attention_heads": 16, "num_key_value_heads": 4, "tie_word_embeddings": True, "bos_token_id": 128_000},
    },
    keys=BIASES,
    rope_theta=2_000_000.0,
    repeats={"bos_token_id": "eos_token_id"},
    layers=LayerLists(sliding_window=None, no_rope_layer_interval=4),
)
