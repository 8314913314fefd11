"""BART (Lewis et al. 2020)."""

from __future__ import annotations

from typing import Any

from transformer_jax.convert.layouts import HEADS_OUT, LINEAR, ROW, TABLE, Layout
from transformer_jax.convert.tables import ACTIVATIONS, OWN_HEADS, Family, Key, Tensor, linear, norm

_POSITIONS = Layout(inputs=1, transposed=False, skipped=2)
"""Tables of positions begin with two rows that no position reads."""


def _attention(theirs: str, ours: str) -> tuple[Tensor, ...]:
    names = (("q", "query"), ("k", "key"), ("v", "value"))
    return (
        *(
            tensor
            for short, name in names
            for tensor in linear(f"{theirs}.{short}_proj", f"{ours}/{name}", LINEAR, (0, None))
        ),
        *linear(f"{theirs}.out_proj", f"{ours}/out", HEADS_OUT, (2, 0)),
    )


def layers(side: str) -> tuple[Tensor, ...]:
    """The layers of one stack, as BART and MarianMT name them."""
    theirs, ours = f"model.{side}.layers.{{layer}}", f"{side}/layers"
    cross = (
        *_attention(f"{theirs}.encoder_attn", f"{ours}/cross_attention"),
        *norm(f"{theirs}.encoder_attn_layer_norm", f"{ours}/cross_attention_residual/norm"),
    )
    return (
        *_attention(f"{theirs}.self_attn", f"{ours}/self_attention"),
        *norm(f"{theirs}.self_attn_layer_norm", f"{ours}/self_attention_residual/norm"),
        *(cross if side == "decoder" else ()),
        *linear(f"{theirs}.fc1", f"{ours}/feed_forward/hidden", LINEAR, (0, None)),
        *linear(f"{theirs}.fc2", f"{ours}/feed_forward/out", LINEAR, (1, 0)),
        *norm(f"{theirs}.final_layer_norm", f"{ours}/feed_forward_residual/norm"),
    )


def _embedder(side: str) -> tuple[Tensor, ...]:
    return (
        Tensor(f"model.{side}.embed_positions.weight", (f"{side}/position_embedding/learned/embedding",), _POSITIONS),
        *norm(f"model.{side}.layernorm_embedding", f"{side}/embedding_norm"),
    )


SIZES = (
    Key("d_model", "emb_dim", 1024),
    Key("encoder_layers", "num_encoder_layers", 12),
    Key("decoder_layers", "num_decoder_layers", 12),
    Key("encoder_attention_heads", "num_heads", 16),
    Key("decoder_attention_heads", "num_heads", 16),
    Key("encoder_ffn_dim", "mlp_dim", 4096),
    Key("decoder_ffn_dim", "mlp_dim", 4096),
    Key("max_position_embeddings", "max_length", 1024),
    Key("activation_function", "activation", "gelu", ACTIVATIONS),
    Key("scale_embedding", "scale_embeddings", False),
    Key("dropout", "dropout_rate", 0.1),
    Key("attention_dropout", "attention_dropout_rate", 0.0),
    Key("activation_dropout", "activation_dropout_rate", 0.0),
    Key("init_std", "init_std", 0.02),
)
"""Keys that BART and MarianMT share."""

_MBART = "that is mBART, whose norms stand before and after the layers"
REQUIRED: dict[str, tuple[Any, ...]] = {
    **{"is_encoder_decoder": (True,), "is_decoder": (False,)},
    **{"normalize_before": (False,), "add_final_layer_norm": (False,)},
}
"""The same of `Family.required`; the last two are keys of old versions, whose models had other blocks."""
BECAUSE = {"normalize_before": _MBART, "add_final_layer_norm": _MBART}
"""The same of `Family.because`."""
NOTES = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "add_bias_logits": False}
"""The same of `Family.notes`."""
IGNORED = dict.fromkeys(
    ("encoder_layerdrop", "decoder_layerdrop"), "used in training only; transformer_jax leaves out no layers"
)
"""The same of `Family.ignored`."""

COPIES = {
    "lm_head.weight": ("model.shared.weight", "model.decoder.embed_tokens.weight"),
    "model.encoder.embed_tokens.weight": ("model.shared.weight",),
    "model.decoder.embed_tokens.weight": ("model.shared.weight",),
}
"""The same of `Family.copies`."""

BART = Family(
    name="bart",
    label="BART",
    class_name="BartForConditionalGeneration",
    also=("BartModel", "BartForSequenceClassification"),
    architecture="encoder_decoder",
    tasks=("translation", "text_to_text", "denoising"),
    init="plain_normal",
    keys=(
        *SIZES,
        Key("vocab_size", "vocab_size", 50_265),
        Key("decoder_start_token_id", "decoder_start_id", 2),
    ),
    tensors=(
        Tensor("model.shared.weight", ("embedding/embedding",), TABLE),
        *_embedder("encoder"),
        *layers("encoder"),
        *_embedder("decoder"),
        *layers("decoder"),
        Tensor("final_logits_bias", ("output/bias",), ROW, None, {"output_bias": True}),
    ),
    fixed={
        **{"architecture": "encoder_decoder", "norm_position": "post", "norm": "layernorm", "norm_epsilon": 1e-5},
        **{"position_encoding": "learned", "use_bias": True, "attention_scale": True, "embedding_norm": True},
        **{"share_embeddings": True, "tie_output": True, "scale_logits": False, "token_types": 0, **OWN_HEADS},
    },
    required={**REQUIRED, "tie_word_embeddings": (True,)},
    because=BECAUSE,
    ignored=IGNORED,
    notes={**NOTES, "normalize_embedding": True},
    computed={r"classification_head\.(dense|out_proj)\.(weight|bias)": "the head for labels, which is left out"},
    prefix="model.",
    text_start=True,
    copies=COPIES,
    zeros={"final_logits_bias": "output_bias"},
)
