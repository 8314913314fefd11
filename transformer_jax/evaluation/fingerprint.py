"""The digest that files made from checkpoints have, so that those of other models are told apart."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from transformer_jax.checkpoints.checksums import by_path, checksums
from transformer_jax.config import ModelConfig
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.typing import Params

_LATER_FIELDS = (
    *("architecture", "init", "init_std", "output_bias", "source_vocab_size"),
    *("embedding_norm", "token_types", "scale_logits", "final_dropout_rate", "head_dropout_rate"),
    *("inputs", "image_size", "image_channels", "patch_size", "class_token", "pixel_mean", "pixel_std"),
    *("init_range", "cell", "hidden_dim", "cell_biases", "bidirectional", "bridge", "attention", "input_feeding"),
    *("feed_context", "deep_output", "teacher_forcing_rate"),
)


def fingerprint(tokenizer: Tokenizer, *models: tuple[ModelConfig, Params]) -> str:
    """Return the hex digest of a tokenizer, and of models and their parameters."""
    digest = hashlib.sha256(tokenizer.sha256.encode())
    for model, params in models:
        # Fields that older versions did not have are left out if they have their defaults: the model is the same.
        later = {name: getattr(ModelConfig, name) for name in _LATER_FIELDS}
        defaults = dataclasses.replace(model, **later).resolved()
        fields = {
            name: value
            for name, value in dataclasses.asdict(model).items()
            if name != "recurrent_implementation"  # one function, whichever computes it
            and (name not in _LATER_FIELDS or value != getattr(defaults, name))
        }
        digest.update(json.dumps([fields, checksums(by_path(params))], sort_keys=True).encode())
    return digest.hexdigest()
