"""OLMo 2 (OLMo et al. 2025): Llama's blocks with norms of outputs, and of all queries or keys of a token together."""

from __future__ import annotations

from transformer_jax.convert.llama import OUTPUT_NORMS, QK_NORMS, like_llama

OLMO2 = like_llama(
    "olmo2",
    "OLMo 2",
    class_prefix="Olmo2",
    defaults={"vocab_size": 50_304, "rms_norm_eps": 1e-5, "bos_token_id": 50_279},
    norms=OUTPUT_NORMS,
    tensors=QK_NORMS,
    fixed={"norm_position": "output", "use_bias": False, "qk_norm": "rms_full"},
    required={"attention_bias": (False,)},
    because={"attention_bias": "with biases in attention alone, but in all of its projections"},
    ignored={"layer_types": "transformers reads it for other models"},
    repeats={"bos_token_id": "eos_token_id"},
)
