"""The model sizes on which speed is measured."""

from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.models.presets import gpt2, transformer_base, transformer_big

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"emb_dim": 128, "num_heads": 4, "mlp_dim": 256, "num_encoder_layers": 4, "num_decoder_layers": 4},
    "small": {"emb_dim": 256, "num_heads": 4, "mlp_dim": 1024, "num_encoder_layers": 3, "num_decoder_layers": 3},
    "base": {"emb_dim": 512, "num_heads": 8, "mlp_dim": 2048, "num_encoder_layers": 6, "num_decoder_layers": 6},
}


PUBLISHED = {"transformer_base": transformer_base, "transformer_big": transformer_big, "decoder_124m": gpt2}
"""Published models, with their own vocabulary and norms; for accelerators."""
WITHOUT_ENCODER = ("decoder_124m",)


def model_config(shape: str, **fields: Any) -> ModelConfig:
    """Return a published model, or a Pre-LN model with a vocabulary of 8,192; not resolved."""
    if shape in PUBLISHED:
        return PUBLISHED[shape](**fields)
    values: dict[str, Any] = {"vocab_size": 8192, "norm_position": "pre"}
    return ModelConfig(**(values | SHAPES[shape] | fields))
