"""Llama (Touvron et al. 2023)."""

from __future__ import annotations

from transformer_jax.convert.layouts import HEADS_OUT, LINEAR, ROTARY_LINEAR, ROTARY_VECTOR, TABLE, VECTOR
from transformer_jax.convert.tables import LIBRARY, PLAIN, UNTIED, Family, Key, Tensor, linear

_D = "decoder/layers"


def _tensors() -> tuple[Tensor, ...]:
    layer = "model.layers.{layer}"
    return (
        Tensor("model.embed_tokens.weight", ("embedding/embedding",), TABLE),
        Tensor(f"{layer}.input_layernorm.weight", (f"{_D}/self_attention_residual/norm/scale",), VECTOR),
        *linear(f"{layer}.self_attn.q_proj", f"{_D}/self_attention/query", ROTARY_LINEAR, bias=ROTARY_VECTOR),
        *linear(f"{layer}.self_attn.k_proj", f"{_D}/self_attention/key", ROTARY_LINEAR, bias=ROTARY_VECTOR),
        *linear(f"{layer}.self_attn.v_proj", f"{_D}/self_attention/value", LINEAR),
        *linear(f"{layer}.self_attn.o_proj", f"{_D}/self_attention/out", HEADS_OUT),
        Tensor(f"{layer}.post_attention_layernorm.weight", (f"{_D}/feed_forward_residual/norm/scale",), VECTOR),
        *linear(f"{layer}.mlp.gate_proj", f"{_D}/feed_forward/gate", LINEAR),
        *linear(f"{layer}.mlp.up_proj", f"{_D}/feed_forward/hidden", LINEAR),
        *linear(f"{layer}.mlp.down_proj", f"{_D}/feed_forward/out", LINEAR),
        Tensor("model.norm.weight", ("decoder/final_norm/scale",), VECTOR),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, UNTIED),
    )


LLAMA = Family(
    name="llama",
    label="Llama",
    class_name="LlamaForCausalLM",
    also=("LlamaModel",),
    architecture="decoder_only",
    tasks=("language_model",),
    keys=(
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
        Key("attention_bias", "use_bias", False),
        Key("mlp_bias", "use_bias", False),
        Key("bos_token_id", "decoder_start_id", 1),
    ),
    tensors=_tensors(),
    fixed={
        **{"architecture": "decoder_only", "norm_position": "pre", "norm": "rmsnorm", "position_encoding": "rotary"},
        **{"scale_embeddings": False, "attention_scale": True, "output_bias": False, **PLAIN},
        "value_head_dim": lambda config: config.head_dim,
        # transformers refuses a width that the heads do not divide, even if head_dim is given.
        "emb_dim": lambda config: config.emb_dim // config.num_heads * config.num_heads,
    },
    ignored={
        "pretraining_tp": "a way to compute the same numbers",
        **dict.fromkeys(
            ("original_max_position_embeddings", "partial_rotary_factor"), "of rotary positions that are scaled"
        ),
        "_rope_type_labels": LIBRARY,
        "layer_types": "transformers reads it for other models",
    },
    copies={"lm_head.weight": ("model.embed_tokens.weight",)},
    computed={r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq": "the rotary frequencies, which are computed"},
    prefix="model.",
    rope=True,
)
