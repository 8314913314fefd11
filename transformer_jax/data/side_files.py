"""The tokenizer and the labels in the side files of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from transformer_jax.data.labels import LABELS_FILE, parse_labels
from transformer_jax.data.tokenizers import SOURCE_TOKENIZER_FILE, TOKENIZER_FILE, Tokenizer, tokenizer_of_files


def stored_tokenizer(side_files: Mapping[str, bytes]) -> Tokenizer | None:
    """Return the tokenizer among side files, by name; None if the task has none. Raises CheckpointError."""
    if TOKENIZER_FILE not in side_files:
        return None
    names = [name for name in (TOKENIZER_FILE, SOURCE_TOKENIZER_FILE) if name in side_files]
    return tokenizer_of_files({name: side_files[name] for name in names})


def stored_labels(side_files: Mapping[str, bytes]) -> tuple[str, ...] | None:
    """Return the names of labels among side files, by name; None if the task has none. Raises CheckpointError."""
    return parse_labels(side_files[LABELS_FILE]) if LABELS_FILE in side_files else None
