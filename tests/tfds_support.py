"""Datasets of TFDS for the tests: really prepared, with their builders' features and a few examples."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow_datasets as tfds

from transformer_jax.data.sources.tfds.catalogue import ARRAY_RECORD, make_builder

PAIRS = [("ein Hund", "a dog"), ("zwei Häuser", "two houses"), ("drei\u2028Bäume", "three trees"), (" vier ", "four")]


def examples(first: str, second: str, pairs: Sequence[tuple[Any, Any]] = PAIRS) -> list[dict[str, Any]]:
    return [{first: a, second: b} for a, b in pairs]


def prepare(
    name: str, data_dir: Path, splits: Mapping[str, Sequence[dict[str, Any]]], file_format: str = ARRAY_RECORD
) -> Path:
    """Prepare a dataset of the catalogue with these examples instead of its own; return its folder."""
    tfds.disable_progress_bar()
    builder = make_builder(name, str(data_dir))
    generated = {split: enumerate(rows) for split, rows in splits.items()}
    logging.getLogger("absl").setLevel(logging.ERROR)
    with mock.patch.object(type(builder), "_split_generators", return_value=generated):
        builder.download_and_prepare(file_format=file_format)
    return Path(builder.data_dir)
