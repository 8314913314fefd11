"""T5 (Raffel et al. 2020) and T5 v1.1: one table, in which the gate and the output projection are options."""

from __future__ import annotations

from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.convert.layouts import HEADS_OUT, LINEAR, TABLE, VECTOR
from transformer_jax.convert.tables import UNTIED, Family, Key, Tensor

_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "silu": "silu", "gated-gelu_new": "geglu_tanh",
    "gated-silu": "swiglu", "gated-gelu": "geglu", "swish": "silu", "gated-swish": "swiglu",
}  # fmt: skip
"""Our activations by `dense_act_fn`, after "gated-" if `is_gated_act`."""


def _adapt(values: dict[str, Any]) -> list[str]:
    """Replace the three keys of the activation by one.

    transformers 5.23 takes `dense_act_fn` and `is_gated_act` from `feed_forward_proj`, unless they are there too.
    """
    given = values.pop("feed_forward_proj", "relu")
    parts = given.split("-") if isinstance(given, str) else []
    if not parts or len(parts) > 2 or (len(parts) == 2 and parts[0] != "gated"):
        return [f"feed_forward_proj={given!r}: expected ACTIVATION or gated-ACTIVATION"]
    name = values.pop("dense_act_fn", "gelu_new" if given == "gated-gelu" else parts[-1])
    gated = values.pop("is_gated_act", parts[0] == "gated")
    found = f"gated-{name}" if gated else name
    if type(gated) is not bool or not isinstance(name, str) or found not in _ACTIVATIONS:
        known = ", ".join(repr(name) for name in _ACTIVATIONS if not name.startswith("gated-"))
        return [f"dense_act_fn={name!r}, is_gated_act={gated!r}: expected one of {known}, gated if not 'relu'"]
    values["feed_forward_proj"] = found
    return []


def _also_written(config: ModelConfig) -> dict[str, Any]:
    """Return the key in which old versions expect "gated-gelu", and that which tells two kinds of it apart."""
    gelu = {"geglu_tanh": "gelu_new", "geglu": "gelu"}
    if config.activation not in gelu:
        return {}
    known = {"dense_act_fn": "gelu", "is_gated_act": True} if config.activation == "geglu" else {}
    return {"feed_forward_proj": "gated-gelu", **known}


def _attention(theirs: str, ours: str) -> tuple[Tensor, ...]:
    names = (("q", "query"), ("k", "key"), ("v", "value"))
    return (
        *(Tensor(f"{theirs}.{short}.weight", (f"{ours}/{name}/kernel",), LINEAR) for short, name in names),
        Tensor(f"{theirs}.o.weight", (f"{ours}/out/kernel",), HEADS_OUT),
    )


def _stack(side: str) -> tuple[Tensor, ...]:
    layer, ours = f"{side}.block.{{layer}}.layer", f"{side}/layers"
    cross = (
        *_attention(f"{layer}.1.EncDecAttention", f"{ours}/cross_attention"),
        Tensor(f"{layer}.1.layer_norm.weight", (f"{ours}/cross_attention_residual/norm/scale",), VECTOR),
    )
    last = f"{layer}.2" if side == "decoder" else f"{layer}.1"
    wide, feed_forward = f"{last}.DenseReluDense", f"{ours}/feed_forward"
    names = {True: [], False: []}
    for their_name, our_name in _ACTIVATIONS.items():
        kind = names[their_name.startswith("gated-")]
        kind += [our_name] if our_name not in kind else []
    gated, plain = ([{"activation": name} for name in names[is_gated]] for is_gated in (True, False))
    return (
        *_attention(f"{layer}.0.SelfAttention", f"{ours}/self_attention"),
        Tensor(f"{layer}.0.layer_norm.weight", (f"{ours}/self_attention_residual/norm/scale",), VECTOR),
        Tensor(
            f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            (f"{side}/relative_bias/embedding",),
            TABLE,
        ),
        *(cross if side == "decoder" else ()),
        *(Tensor(f"{wide}.wi.weight", (f"{feed_forward}/hidden/kernel",), LINEAR, None, when) for when in plain),
        *(Tensor(f"{wide}.wi_0.weight", (f"{feed_forward}/gate/kernel",), LINEAR, None, when) for when in gated),
        *(Tensor(f"{wide}.wi_1.weight", (f"{feed_forward}/hidden/kernel",), LINEAR, None, when) for when in gated),
        Tensor(f"{wide}.wo.weight", (f"{feed_forward}/out/kernel",), LINEAR),
        Tensor(f"{last}.layer_norm.weight", (f"{ours}/feed_forward_residual/norm/scale",), VECTOR),
        Tensor(f"{side}.final_layer_norm.weight", (f"{side}/final_norm/scale",), VECTOR),
    )


T5 = Family(
    name="t5",
    label="T5",
    class_name="T5ForConditionalGeneration",
    also=("T5WithLMHeadModel", "T5Model"),
    architecture="encoder_decoder",
    tasks=("translation", "text_to_text", "span_corruption"),
    init="t5",
    keys=(
        Key("vocab_size", "vocab_size", 32_128),
        Key("n_positions", "max_length", 512),
        Key("d_model", "emb_dim", 512),
        Key("d_kv", "head_dim", 64),
        Key("d_ff", "mlp_dim", 2048),
        Key("num_layers", "num_encoder_layers", 6),
        Key("num_decoder_layers", "num_decoder_layers", 6),
        Key("num_heads", "num_heads", 8),
        Key("relative_attention_num_buckets", "relative_num_buckets", 32),
        Key("relative_attention_max_distance", "relative_max_distance", 128),
        Key("feed_forward_proj", "activation", "relu", _ACTIVATIONS),
        Key("layer_norm_epsilon", "norm_epsilon", 1e-6),
        Key("dropout_rate", "dropout_rate", 0.1),
        Key("dropout_rate", "attention_dropout_rate", 0.1),
        Key("dropout_rate", "activation_dropout_rate", 0.1),
        Key("dropout_rate", "final_dropout_rate", 0.1),
        Key("tie_word_embeddings", "tie_output", True),
        Key("scale_decoder_outputs", "scale_logits", True),
        Key("decoder_start_token_id", "decoder_start_id", 0),
    ),
    tensors=(
        Tensor("shared.weight", ("embedding/embedding",), TABLE),
        *_stack("encoder"),
        *_stack("decoder"),
        Tensor("lm_head.weight", ("output/kernel",), LINEAR, None, UNTIED),
    ),
    fixed={
        **{"architecture": "encoder_decoder", "norm_position": "pre", "norm": "rmsnorm", "use_bias": False},
        **{"position_encoding": "relative", "attention_scale": False, "scale_embeddings": False},
        **{"share_embeddings": True, "output_bias": False, "embedding_norm": False, "token_types": 0},
        "num_kv_heads": lambda config: config.num_heads,
        "value_head_dim": lambda config: config.head_dim,
    },
    required={"is_encoder_decoder": (True,), "is_decoder": (False,)},
    ignored={
        "initializer_factor": "of newly initialised weights",
        "bos_token_id": "T5 has no begin-of-sequence",
    },
    notes={"initializer_factor": 1.0},
    adapt=_adapt,
    also_written=_also_written,
    repeats={"scale_decoder_outputs": "tie_word_embeddings", "num_decoder_layers": "num_layers"},
    copies={
        "lm_head.weight": ("shared.weight",),
        "encoder.embed_tokens.weight": ("shared.weight",),
        "decoder.embed_tokens.weight": ("shared.weight",),
    },
    computed={
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight": "not used: attention to the "
        "encoder has no positions"
    },
    # For transformers 5, tie_word_embeddings says only whether the logits are scaled. The output is the embedding if
    # the folder has no projection. It writes true even beside one.
    untied_by="lm_head.weight",
)
