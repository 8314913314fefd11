"""Qwen2, Qwen2.5 (Yang et al. 2024) and Qwen3 (Yang et al. 2025): Llama's blocks with biases or norms in attention."""

from __future__ import annotations

from transformer_jax.convert.layer_lists import LayerLists
from transformer_jax.convert.llama import QK_NORMS, like_llama

_DEFAULTS = {
    **{"vocab_size": 151_936, "max_position_embeddings": 32_768, "num_key_value_heads": 32},
    **{"intermediate_size": 22_016, "bos_token_id": 151_643},
}
_LAYERS = LayerLists(sliding_window=4096, max_window_layers=28)
# Files without a start of a text: their models were trained without one, and read texts after the end of another.
_START = {"bos_token_id": "eos_token_id"}

QWEN2 = like_llama(
    "qwen2",
    "Qwen2",
    defaults=_DEFAULTS,
    fixed={"use_bias": False, "qkv_bias": True},
    repeats=_START,
    layers=_LAYERS,
)
QWEN3 = like_llama(
    "qwen3",
    "Qwen3",
    defaults=_DEFAULTS | {"head_dim": 128},
    tensors=QK_NORMS,
    fixed={"use_bias": False, "qk_norm": "rms"},
    required={"attention_bias": (False,)},
    because={"attention_bias": "with biases in attention alone, but in all of its projections"},
    repeats=_START,
    layers=_LAYERS,
)
