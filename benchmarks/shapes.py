"""The model sizes on which speed is measured."""

import functools
from collections.abc import Callable
from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.models.presets import bert, gpt2, t5, transformer_base, transformer_big

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
FAMILIES: dict[str, Callable[..., ModelConfig]] = {
    "bert_small": functools.partial(bert, **_SMALL, num_encoder_layers=4),
    "t5_small": functools.partial(t5, "small", **_SMALL, num_encoder_layers=3, num_decoder_layers=3),
}
"""Small models in the form of BERT and T5, with the dropout of these."""
PUBLISHED = {"transformer_base": transformer_base, "transformer_big": transformer_big}
"""Published models, with their own vocabulary and norms; for accelerators."""


def names() -> list[str]:
    """Return the names of all shapes."""
    return [*SHAPES, *LANGUAGE_MODELS, *FAMILIES, *PUBLISHED]


def task(shape: str) -> str:
    """Return the name of the task that a shape is trained on."""
    return {"bert_small": "masked_lm"}.get(shape, "language_model" if shape in LANGUAGE_MODELS else "translation")


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
