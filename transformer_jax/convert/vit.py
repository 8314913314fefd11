"""ViT (Dosovitskiy et al. 2021): the table of its stack, and one for each class of transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

from transformer_jax.convert.layouts import CONVOLUTION, HEADS_OUT, LINEAR, MATRIX_OF_ONE, VECTOR, VECTOR_OF_ONE
from transformer_jax.convert.tables import ACTIVATIONS, OWN_HEADS, QKV_BIASED, Family, Key, Tensor, linear, norm


def _stack() -> tuple[Tensor, ...]:
    theirs, ours = "vit.encoder.layer.{layer}", "encoder/layers"
    names, attention = "vit.embeddings", f"{ours}/self_attention"
    return (
        Tensor(f"{names}.cls_token", ("embedding/class_token",), VECTOR_OF_ONE),
        Tensor(f"{names}.position_embeddings", ("encoder/position_embedding/learned/embedding",), MATRIX_OF_ONE),
        Tensor(f"{names}.patch_embeddings.projection.weight", ("embedding/projection/kernel",), CONVOLUTION),
        Tensor(f"{names}.patch_embeddings.projection.bias", ("embedding/projection/bias",), VECTOR),
        *norm(f"{theirs}.layernorm_before", f"{ours}/self_attention_residual/norm"),
        *(
            tensor
            for name in ("query", "key", "value")
            for tensor in linear(f"{theirs}.attention.attention.{name}", f"{attention}/{name}", LINEAR, when=QKV_BIASED)
        ),
        *linear(f"{theirs}.attention.output.dense", f"{attention}/out", HEADS_OUT),
        *norm(f"{theirs}.layernorm_after", f"{ours}/feed_forward_residual/norm"),
        *linear(f"{theirs}.intermediate.dense", f"{ours}/feed_forward/hidden", LINEAR),
        *linear(f"{theirs}.output.dense", f"{ours}/feed_forward/out", LINEAR),
        *norm("vit.layernorm", "encoder/final_norm"),
    )


def _adapt(values: dict[str, Any]) -> list[str]:
    """Replace a list of two equal sides by one number, and check the size of heads; return what is wrong."""
    problems = []
    for name in ("image_size", "patch_size"):
        sides = values.get(name)
        if isinstance(sides, list):
            if len(sides) != 2 or sides[0] != sides[1]:
                problems.append(f"{name}={sides!r}: images and patches must be square")
            values[name] = sides[0] if sides else None
    size, width, heads = (
        values.pop("head_dim", None),
        values.get("hidden_size", 768),
        values.get("num_attention_heads", 12),
    )
    if size is not None and (type(width), type(heads)) == (int, int) and size * heads != width:
        problems.append(f"head_dim={size!r}: a ViT here has hidden_size / num_attention_heads")
    return problems


_NO_POOLER = "of the pooler, which this class does not have"
_UNUSED_POOLER = {r"vit\.pooler\.dense\.(weight|bias)": "the pooler, which this class does not have"}

CLASSIFICATION = Family(
    name="vit",
    label="ViT",
    class_name="ViTForImageClassification",
    architecture="encoder_only",
    tasks=("images",),
    task_fields={"pooling": "first", "pooler": False},
    has_labels=True,
    init="plain_normal",
    keys=(
        Key("image_size", "image_size", 224),
        Key("patch_size", "patch_size", 16),
        Key("num_channels", "image_channels", 3),
        Key("hidden_size", "emb_dim", 768),
        Key("num_hidden_layers", "num_encoder_layers", 12),
        Key("num_attention_heads", "num_heads", 12),
        Key("intermediate_size", "mlp_dim", 3072),
        Key("hidden_act", "activation", "gelu", ACTIVATIONS),
        Key("layer_norm_eps", "norm_epsilon", 1e-12),
        Key("hidden_dropout_prob", "dropout_rate", 0.0),
        Key("attention_probs_dropout_prob", "attention_dropout_rate", 0.0),
        Key("initializer_range", "init_std", 0.02),
        Key("qkv_bias", "qkv_bias", True),
    ),
    tensors=(*_stack(), *linear("classifier", "head/output", LINEAR)),
    fixed={
        **{"architecture": "encoder_only", "inputs": "patches", "class_token": True, "norm_position": "pre"},
        **{"norm": "layernorm", "position_encoding": "learned", "use_bias": True, "attention_scale": True},
        **{"embedding_norm": False, **OWN_HEADS},
    },
    ignored={
        "encoder_stride": "of the head for masked images",
        **dict.fromkeys(("pooler_output_size", "pooler_act"), _NO_POOLER),
    },
    adapt=_adapt,
    computed=_UNUSED_POOLER,
    prefix="vit.",
)

MODEL = dataclasses.replace(
    CLASSIFICATION,
    label="ViTModel",
    class_name="ViTModel",
    task_fields={"pooling": "first", "pooler": True},
    tensors=(*_stack(), *linear("vit.pooler.dense", "head/pooler", LINEAR)),
    lacks=("head/output/kernel", "head/output/bias"),
    required={"pooler_act": ("tanh",)},
    ignored={"encoder_stride": "of the head for masked images", "pooler_output_size": "hidden_size, or an error"},
    computed={},
    bare=True,
)
"""The encoder with its pooler, which is that of our head; the map to labels begins anew, as zeros."""

MODEL_WITHOUT_POOLER = dataclasses.replace(
    CLASSIFICATION,
    label="ViTModel",
    class_name="ViTModel",
    tensors=_stack(),
    lacks=MODEL.lacks,
    bare=True,
    read_only=True,
)
"""The encoder alone."""

VIT_CLASSES = (CLASSIFICATION, MODEL, MODEL_WITHOUT_POOLER)
