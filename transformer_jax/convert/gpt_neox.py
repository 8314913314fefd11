"""GPT-NeoX (Black et al. 2022), of which Pythia is a series (Biderman et al. 2023)."""

from __future__ import annotations

from typing import Any

from transformer_jax.convert.layouts import FUSED_LINEAR, FUSED_VECTOR, HEADS_OUT, LINEAR, TABLE
from transformer_jax.convert.rotary_keys import RotaryKeys
from transformer_jax.convert.tables import (
    ACTIVATIONS,
    LIBRARY,
    OWN_HEADS,
    PLAIN,
    UNTIED,
    Family,
    Key,
    Tensor,
    linear,
    norm,
)

_D = "decoder/layers"
_LAYER = "gpt_neox.layers.{layer}"
_HEAD = "embed_out.weight"
_PARTS = ("query", "key", "value")
_WIDTH, _HEADS, _FRACTION = 6144, 64, 0.25


def _adapt(values: dict[str, Any]) -> list[str]:
    """Check the size of heads, and make the part that is rotated one with a whole number; return what is wrong."""
    size = values.pop("head_dim", None)
    width, heads = values.get("hidden_size", _WIDTH), values.get("num_attention_heads", _HEADS)
    if not (type(width) is type(heads) is int and 0 < heads <= width):
        return []  # a problem of these two keys
    head_dim, fraction = width // heads, values.get("rotary_pct", _FRACTION)
    problems = []
    if size not in (None, head_dim):
        problems.append(f"head_dim={size!r}: a GPT-NeoX has hidden_size / num_attention_heads")
    if type(fraction) not in (int, float) or not 0 <= fraction <= 1:
        return [*problems, f"rotary_pct={fraction!r}: expected a number from 0 to 1"]
    rotated = int(head_dim * fraction)
    if rotated % 2:
        problems.append(
            f"rotary_pct={fraction!r} rotates {rotated} of {head_dim} numbers of a head; here rotary positions rotate "
            "pairs"
        )
    values["rotary_pct"] = rotated / head_dim
    return problems


GPT_NEOX = Family(
    name="gpt_neox",
    label="GPT-NeoX",
    class_name="GPTNeoXForCausalLM",
    also=("GPTNeoXModel",),
    architecture="decoder_only",
    tasks=("language_model",),
    keys=(
        Key("vocab_size", "vocab_size", 50_432),
        Key("max_position_embeddings", "max_length", 2048),
        Key("hidden_size", "emb_dim", _WIDTH),
        Key("num_hidden_layers", "num_decoder_layers", 44),
        Key("num_attention_heads", "num_heads", _HEADS),
        Key("intermediate_size", "mlp_dim", 24_576),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS | {"gelu_fast": "gelu_tanh"}),
        Key("layer_norm_eps", "norm_epsilon", 1e-5),
        Key("hidden_dropout", "dropout_rate", 0.0),
        Key("attention_dropout", "attention_dropout_rate", 0.0),
        Key("initializer_range", "init_std", 0.02),
        Key("tie_word_embeddings", "tie_output", False),
        Key("use_parallel_residual", "parallel", True, {True: "two_norms", False: "none"}),
        Key("rotary_pct", "rotary_fraction", _FRACTION),
        Key("bos_token_id", "decoder_start_id", 0),
    ),
    tensors=(
        Tensor("gpt_neox.embed_in.weight", ("embedding/embedding",), TABLE),
        *norm(f"{_LAYER}.input_layernorm", f"{_D}/self_attention_residual/norm"),
        Tensor(
            f"{_LAYER}.attention.query_key_value.weight",
            tuple(f"{_D}/self_attention/{part}/kernel" for part in _PARTS),
            FUSED_LINEAR,
        ),
        Tensor(
            f"{_LAYER}.attention.query_key_value.bias",
            tuple(f"{_D}/self_attention/{part}/bias" for part in _PARTS),
            FUSED_VECTOR,
        ),
        *linear(f"{_LAYER}.attention.dense", f"{_D}/self_attention/out", HEADS_OUT),
        *norm(f"{_LAYER}.post_attention_layernorm", f"{_D}/feed_forward_residual/norm"),
        *linear(f"{_LAYER}.mlp.dense_h_to_4h", f"{_D}/feed_forward/hidden", LINEAR),
        *linear(f"{_LAYER}.mlp.dense_4h_to_h", f"{_D}/feed_forward/out", LINEAR),
        *norm("gpt_neox.final_layer_norm", "decoder/final_norm"),
        Tensor(_HEAD, ("output/kernel",), LINEAR, None, UNTIED),
    ),
    fixed={
        **{"architecture": "decoder_only", "norm_position": "pre", "norm": "layernorm", "use_bias": True},
        **{"position_encoding": "rotary", "scale_embeddings": False, "attention_scale": True, "output_bias": False},
        **{**OWN_HEADS, **PLAIN},
    },
    required={"attention_bias": (True,)},
    because={"attention_bias": "without biases in attention alone"},
    ignored={
        "is_decoder": "the blocks are those of a decoder",
        "rope_theta": "transformers reads rotary_emb_base and rope_parameters",
        "partial_rotary_factor": "transformers reads rotary_pct and rope_parameters",
        "original_max_position_embeddings": "of rotary positions that are scaled",
        "layer_types": "transformers reads it for other models",
        "_rope_type_labels": LIBRARY,
    },
    copies={_HEAD: ("gpt_neox.embed_in.weight",)},
    computed={
        r"gpt_neox\.layers\.\d+\.attention\.(masked_)?bias": "the causal mask, which is computed",
        r"gpt_neox\.layers\.\d+\.attention\.rotary_emb\.inv_freq": "the rotary frequencies, which are computed",
    },
    prefix="gpt_neox.",
    renamed=(("lm_head.weight", _HEAD),),
    adapt=_adapt,
    rope=RotaryKeys(base="rotary_emb_base", fraction="rotary_pct"),
)
