"""The digest of a model, which generated files and scores record. It shows whether they are of this model."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from transformer_jax.checkpoints.checksums import by_path, checksums
from transformer_jax.config import ModelConfig
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.typing import Params


def fingerprint(tokenizer: Tokenizer, *models: tuple[ModelConfig, Params]) -> str:
    """Return the hex digest of a tokenizer, and of models and their parameters."""
    digest = hashlib.sha256(tokenizer.sha256.encode())
    for model, params in models:
        # Fields with their defaults are left out, so that a new field does not change the digest of an old model.
        fields = {
            field.name: value
            for field in dataclasses.fields(model)
            if (value := getattr(model, field.name)) != field.default
            and field.name != "recurrent_implementation"  # one function, whichever computes it
        }
        digest.update(json.dumps([fields, checksums(by_path(params))], sort_keys=True).encode())
    return digest.hexdigest()
