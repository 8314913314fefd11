"""The model sizes on which speed is measured."""

import functools
from collections.abc import Callable
from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.models.presets import (
    bert,
    gpt2,
    seq2seq_bentrevett,
    t5,
    transformer_base,
    transformer_big,
    vit,
)

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"emb_dim": 128, "num_heads": 4, "mlp_dim": 256, "num_encoder_layers": 4, "num_decoder_layers": 4},
    "small": {"emb_dim": 256, "num_heads": 4, "mlp_dim": 1024, "num_encoder_layers": 3, "num_decoder_layers": 3},
    "base": {"emb_dim": 512, "num_heads": 8, "mlp_dim": 2048, "num_encoder_layers": 6, "num_decoder_layers": 6},
}
"""Encoder-decoders with a vocabulary of 8,192."""
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "gpt_char": {
        **{"vocab_size": 65, "emb_dim": 128, "num_heads": 4, "mlp_dim": 512, "num_decoder_layers": 4},
        **{"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "decoder_start_id": 0},
    },
    "gpt_small": {
        **{"vocab_size": 8192, "emb_dim": 384, "num_heads": 6, "mlp_dim": 1536, "num_decoder_layers": 6},
        "decoder_start_id": 0,
    },
    "gpt_124m": {},
}
"""Decoder-only models in GPT-2's form: fields that differ from GPT-2 small."""
_SMALL = {"vocab_size": 8192, "emb_dim": 256, "num_heads": 4, "mlp_dim": 1024}
_GRU = {"vocab_size": 8192, "source_vocab_size": 8192, "emb_dim": 256, "hidden_dim": 256}
FAMILIES: dict[str, Callable[..., ModelConfig]] = {
    "bert_small": functools.partial(bert, **_SMALL, num_encoder_layers=4),
    "t5_small": functools.partial(t5, "small", **_SMALL, num_encoder_layers=3, num_decoder_layers=3),
    "vit_tiny": functools.partial(vit, "Ti/4", image_size=32, num_encoder_layers=6),
    "gru_attention": functools.partial(
        seq2seq_bentrevett, "attention", **_GRU, teacher_forcing_rate=1.0, dropout_rate=0.1
    ),
}
"""Small models in the form of BERT, T5, ViT and Bahdanau et al. 2015 (GRU), with the dropout of these."""
PUBLISHED = {"transformer_base": transformer_base, "transformer_big": transformer_big}
"""Published models, with their own vocabulary and norms; for accelerators."""


def names() -> list[str]:
    """Return the names of all shapes."""
    return [*SHAPES, *LANGUAGE_MODELS, *FAMILIES, *PUBLISHED]


def task(shape: str) -> str:
    """Return the name of the task that a shape is trained on."""
    if shape in LANGUAGE_MODELS:
        return "language_model"
    return {"bert_small": "masked_lm", "vit_tiny": "images"}.get(shape, "translation")


def model_config(shape: str, **fields: Any) -> ModelConfig:
    """Return the model of a shape, not resolved. Encoder-decoders that are not published ones are Pre-LN."""
    if shape in LANGUAGE_MODELS:
        return gpt2(**LANGUAGE_MODELS[shape] | fields)
    if shape in FAMILIES:
        return FAMILIES[shape](**fields)
    if shape in PUBLISHED:
        return PUBLISHED[shape](**fields)
    values: dict[str, Any] = {"vocab_size": 8192, "norm_position": "pre"}
    return ModelConfig(**(values | SHAPES[shape] | fields))
