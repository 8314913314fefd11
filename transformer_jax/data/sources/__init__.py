"""Sources of text: the embedded corpus, text files and TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.base import Source, Split
from transformer_jax.errors import ConfigError
from transformer_jax.registry import Factories

__all__ = ["SOURCES", "Source", "Split", "TestFiles", "load_source", "open_test_set"]


def load_source(config: DataConfig) -> Source:
    """Return the source that `config.source` names.

    Raises: DataError if it cannot be used, ConfigError if it lacks a part of `Source`.
    """
    return SOURCES.make(config.source, config)


class TestFiles(NamedTuple):
    """A test set that is not part of a corpus.

    name: of the split. input: a file of inputs; FILE.tsv or FILE.jsonl with both sides; or tfds:DATASET:SPLIT.
    reference: the file of targets (line i belongs to line i of `input`); None if `input` has both sides.
    columns: TSV columns (from 1), JSONL keys or TFDS features of inputs and targets. Default: those of the config if
    it reads the same format, else columns 1 and 2, or the locales.
    """

    name: str
    input: str
    reference: str | None = None
    columns: tuple[str, str] | None = None


def open_test_set(config: DataConfig, files: TestFiles) -> Source:
    """Return a source with one split, a test set.

    Args:
      config: locales, features, text form and the folder of TFDS datasets.
    Raises: ConfigError if a reference is missing or has no use; DataError if the data cannot be found.
    """
    name, input, reference, columns = files
    format = next((f for f in ("tsv", "jsonl") if re.search(rf"\.{f}(\.gz)?$", input)), "parallel")
    of_tfds = input.startswith("tfds:")
    if (format == "parallel" and not of_tfds) != bool(reference):
        problem = "has both sides; leave --reference out" if reference else "needs --reference=FILE, the translations"
        raise ConfigError(f"--input={input}: {problem}")
    same = config.source == "tfds" if of_tfds else (config.source, config.format) == ("text", format)
    if columns or not same:
        inputs, targets = columns or (None, None)
        config = dataclasses.replace(config, input_feature=inputs, target_feature=targets)
    if of_tfds:
        from transformer_jax.data.sources.tfds.source import TfdsSource

        dataset, _, split = input.removeprefix("tfds:").partition(":")
        if not dataset or not split:
            raise ConfigError(f"--input={input}: expected tfds:DATASET:SPLIT, as in tfds:wmt14_translate/de-en:test")
        names = dict.fromkeys(("train_split", "valid_split", "test_split"), "")
        return TfdsSource(dataclasses.replace(config, dataset=dataset, test_sets=f"{name}={split}", **names))
    from transformer_jax.data.sources.text import TextSource

    if columns and format == "parallel":
        raise ConfigError("--columns is for TSV, JSONL and TFDS; a file of inputs has one sentence per line")
    paths = [Path(file).expanduser() for file in (input, reference) if file]
    return TextSource.of_files(dataclasses.replace(config, format=format), name, *paths)


def embedded_source(config: DataConfig) -> Source:
    """Return the embedded corpus of a config."""
    return _cached_embedded(config.source_locale, config.target_locale, config.num_train_pairs, config.num_eval_pairs)


def text_source(config: DataConfig) -> Source:
    """Return the text files of a config, as pairs or as documents."""
    from transformer_jax.data.sources.documents import DocumentSource
    from transformer_jax.data.sources.text import TextSource

    return DocumentSource(config) if config.format == "documents" else TextSource(config)


SOURCES = Factories(
    "data.source",
    Source,
    {
        "embedded": "transformer_jax.data.sources:embedded_source",
        "text": "transformer_jax.data.sources:text_source",
        "tfds": "transformer_jax.data.sources.tfds.source:TfdsSource",
    },
)
"""Classes and functions that make a source from the section `data`, by the values of `data.source`."""


@functools.lru_cache(maxsize=1)
def _cached_embedded(source_locale: str, target_locale: str, num_train_pairs: int, num_eval_pairs: int) -> Source:
    """Return the embedded corpus; cached, since a process that trains and then evaluates uses it twice."""
    from transformer_jax.data.sources.embedded import EmbeddedSource

    return EmbeddedSource(source_locale, target_locale, num_train_pairs, num_eval_pairs)
