"""Llama (Touvron et al. 2023), and the tables of families whose blocks are Llama's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_jax.convert.layouts import HEADS_OUT, LINEAR, ROTARY_LINEAR, ROTARY_VECTOR, TABLE, VECTOR
from transformer_jax.convert.rotary_keys import RotaryKeys
from transformer_jax.convert.tables import LIBRARY, PLAIN, QKV_BIASED, UNTIED, Family, Key, Tensor, linear

_D = "decoder/layers"
_LAYER = "model.layers.{layer}"

QK_NORMS = tuple(
    Tensor(f"{_LAYER}.self_attn.{short}_norm.weight", (f"{_D}/self_attention/{name}_norm/scale",), ROTARY_VECTOR)
    for short, name in (("q", "query"), ("k", "key"))
)
"""Gains over the numbers of one head, which all heads share, or over those of all heads."""
_NORMS = (
    Tensor(f"{_LAYER}.input_layernorm.weight", (f"{_D}/self_attention_residual/norm/scale",), VECTOR),
    Tensor(f"{_LAYER}.post_attention_layernorm.weight", (f"{_D}/feed_forward_residual/norm/scale",), VECTOR),
)
"""Before attention and before the feed-forward part."""
OUTPUT_NORMS = (
    Tensor(f"{_LAYER}.post_attention_layernorm.weight", (f"{_D}/self_attention_residual/output_norm/scale",), VECTOR),
    Tensor(f"{_LAYER}.post_feedforward_layernorm.weight", (f"{_D}/feed_forward_residual/output_norm/scale",), VECTOR),
)
"""Of the outputs of attention and of the feed-forward part, for `norm_position=output`."""
_TENSORS = (
    Tensor("model.embed_tokens.weight", ("embedding/embedding",), TABLE),
    *(
        tensor
        for short, name, kernel, bias in (
            ("q", "query", ROTARY_LINEAR, ROTARY_VECTOR),
            ("k", "key", ROTARY_LINEAR, ROTARY_VECTOR),
            ("v", "value", LINEAR, VECTOR),
        )
        for tensor in linear(
            f"{_LAYER}.self_attn.{short}_proj", f"{_D}/self_attention/{name}", kernel, bias=bias, when=QKV_BIASED
        )
    ),
    *linear(f"{_LAYER}.self_attn.o_proj", f"{_D}/self_attention/out", HEADS_OUT),
    *linear(f"{_LAYER}.mlp.gate_proj", f"{_D}/feed_forward/gate", LINEAR),
    *linear(f"{_LAYER}.mlp.up_proj", f"{_D}/feed_forward/hidden", LINEAR),
    *linear(f"{_LAYER}.mlp.down_proj", f"{_D}/feed_forward/out", LINEAR),
    Tensor("model.norm.weight", ("decoder/final_norm/scale",), VECTOR),
    Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, UNTIED),
)
_KEYS = (
    Key("vocab_size", "vocab_size", 32_000),
    Key("max_position_embeddings", "max_length", 2048),
    Key("hidden_size", "emb_dim", 4096),
    Key("num_hidden_layers", "num_decoder_layers", 32),
    Key("num_attention_heads", "num_heads", 32),
    Key("num_key_value_heads", "num_kv_heads", None),
    Key("head_dim", "head_dim", None),
    Key("intermediate_size", "mlp_dim", 11_008),
    Key("hidden_act", "activation", "silu", {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu"}),
    Key("rms_norm_eps", "norm_epsilon", 1e-6),
    Key("attention_dropout", "attention_dropout_rate", 0.0),
    Key("initializer_range", "init_std", 0.02),
    Key("tie_word_embeddings", "tie_output", False),
    Key("bos_token_id", "decoder_start_id", 1),
)
BIASES = (Key("attention_bias", "use_bias", False), Key("mlp_bias", "use_bias", False))
"""Keys of the biases of attention and feed-forward, for which our models have one field."""


def like_llama(
    name: str,
    label: str,
    defaults: Mapping[str, Any],
    keys: tuple[Key, ...] = (),
    tensors: tuple[Tensor, ...] = (),
    fixed: Mapping[str, Any] | None = None,
    ignored: Mapping[str, str] | None = None,
    norms: tuple[Tensor, ...] = _NORMS,
    class_prefix: str | None = None,
    rope_theta: float = 10_000.0,
    **others: Any,
) -> Family:
    """Return the table of a family with the blocks, the names of tensors and the keys of Llama.

    Args:
      name: its `model_type`. label: the name in messages. class_prefix: the name of its classes before `ForCausalLM` or
        `Model`; default: the label.
      defaults: of keys, where they are not Llama's.
      keys, tensors, fixed, ignored: what it has beside those of Llama, or in their place.
      norms: those of a layer. rope_theta: the base of rotary positions of a file without one.
      others: further fields of `Family`.
    """
    classes = label if class_prefix is None else class_prefix
    own = tuple(key._replace(default=defaults.get(key.theirs, key.default)) for key in _KEYS)
    return Family(
        name=name,
        label=label,
        class_name=f"{classes}ForCausalLM",
        also=(f"{classes}Model",),
        architecture="decoder_only",
        tasks=("language_model",),
        keys=(*own, *keys),
        tensors=(*_TENSORS, *norms, *tensors),
        fixed={
            **{"architecture": "decoder_only", "norm_position": "pre", "norm": "rmsnorm"},
            **{"position_encoding": "rotary", "scale_embeddings": False, "attention_scale": True},
            **{"output_bias": False, "value_head_dim": lambda config: config.head_dim, **PLAIN, **(fixed or {})},
        },
        ignored={
            **dict.fromkeys(
                ("original_max_position_embeddings", "partial_rotary_factor"), "of rotary positions that are scaled"
            ),
            "_rope_type_labels": LIBRARY,
            **(ignored or {}),
        },
        copies={"lm_head.weight": ("model.embed_tokens.weight",)},
        computed={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "the rotary frequencies, which are computed"},
        prefix="model.",
        rope=RotaryKeys(rope_theta),
        **others,
    )


LLAMA = like_llama(
    "llama",
    "Llama",
    defaults={},
    keys=BIASES,
    # transformers refuses a width that the heads do not divide, even if head_dim is given.
    fixed={"emb_dim": lambda config: config.emb_dim // config.num_heads * config.num_heads},
    ignored={
        "pretraining_tp": "a way to compute the same numbers",
        "layer_types": "transformers reads it for other models",
    },
)
