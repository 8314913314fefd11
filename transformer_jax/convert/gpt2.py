"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

from transformer_jax.convert.layouts import HEADS_OUT_TABLE, LINEAR, TABLE, VECTOR
from transformer_jax.convert.tables import ACTIVATIONS, OWN_HEADS, PLAIN, UNTIED, Family, Key, Tensor, norm

_D = "decoder/layers"


def _tensors() -> tuple[Tensor, ...]:
    h, parts = "transformer.h.{layer}", ("query", "key", "value")
    return (
        Tensor("transformer.wte.weight", ("embedding/embedding",), TABLE),
        Tensor("transformer.wpe.weight", ("decoder/position_embedding/learned/embedding",), TABLE),
        *norm(f"{h}.ln_1", f"{_D}/self_attention_residual/norm"),
        Tensor(f"{h}.attn.c_attn.weight", tuple(f"{_D}/self_attention/{part}/kernel" for part in parts), TABLE),
        Tensor(f"{h}.attn.c_attn.bias", tuple(f"{_D}/self_attention/{part}/bias" for part in parts), VECTOR),
        Tensor(f"{h}.attn.c_proj.weight", (f"{_D}/self_attention/out/kernel",), HEADS_OUT_TABLE),
        Tensor(f"{h}.attn.c_proj.bias", (f"{_D}/self_attention/out/bias",), VECTOR),
        *norm(f"{h}.ln_2", f"{_D}/feed_forward_residual/norm"),
        Tensor(f"{h}.mlp.c_fc.weight", (f"{_D}/feed_forward/hidden/kernel",), TABLE),
        Tensor(f"{h}.mlp.c_fc.bias", (f"{_D}/feed_forward/hidden/bias",), VECTOR),
        Tensor(f"{h}.mlp.c_proj.weight", (f"{_D}/feed_forward/out/kernel",), TABLE),
        Tensor(f"{h}.mlp.c_proj.bias", (f"{_D}/feed_forward/out/bias",), VECTOR),
        *norm("transformer.ln_f", "decoder/final_norm"),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, UNTIED),
    )


GPT2 = Family(
    name="gpt2",
    label="GPT-2",
    class_name="GPT2LMHeadModel",
    also=("GPT2Model",),
    architecture="decoder_only",
    tasks=("language_model",),
    keys=(
        Key("vocab_size", "vocab_size", 50_257),
        Key("n_positions", "max_length", 1024),
        Key("n_embd", "emb_dim", 768),
        Key("n_layer", "num_decoder_layers", 12),
        Key("n_head", "num_heads", 12),
        Key("n_inner", "mlp_dim", None),
        Key("activation_function", "activation", "gelu_new", ACTIVATIONS),
        Key("layer_norm_epsilon", "norm_epsilon", 1e-5),
        Key("resid_pdrop", "dropout_rate", 0.1),
        Key("embd_pdrop", "embedding_dropout_rate", 0.1),
        Key("attn_pdrop", "attention_dropout_rate", 0.1),
        Key("initializer_range", "init_std", 0.02),
        Key("tie_word_embeddings", "tie_output", True),
        Key("scale_attn_weights", "attention_scale", True),
        Key("bos_token_id", "decoder_start_id", 50_256),
    ),
    tensors=_tensors(),
    fixed={
        **{"architecture": "decoder_only", "norm_position": "pre", "norm": "layernorm", "use_bias": True},
        **{"position_encoding": "learned", "scale_embeddings": False, "output_bias": False, **OWN_HEADS, **PLAIN},
    },
    required={"add_cross_attention": (False,), "scale_attn_by_inverse_layer_idx": (False,)},
    ignored={
        "reorder_and_upcast_attn": "changes only the rounding of float16",
        **dict.fromkeys(
            ("summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
             "summary_last_dropout", "summary_proj_to_labels"),
            "of the head for classification",
        ),
    },
    copies={"lm_head.weight": ("transformer.wte.weight",)},
    computed={r"transformer\.h\.\d+\.attn\.(masked_)?bias": "the causal mask, which is computed"},
    prefix="transformer.",
)  # fmt: skip
