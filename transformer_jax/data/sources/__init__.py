"""Sources of text: the embedded corpus, rows of keys and values, text files and TensorFlow Datasets; and of images."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import DataConfig
from transformer_jax.config.data import IMAGE_SOURCES, RECALL
from transformer_jax.data.sources.source import Source, Split
from transformer_jax.data.sources.templates import rewritten
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.registry import Factories

__all__ = ["SOURCES", "Source", "Split", "TestFiles", "load_source", "open_test_set"]


def load_source(config: DataConfig) -> Source:
    """Return the source that `config.source` names.

    Raises: DataError if it cannot be used, ConfigError if it lacks a part of `Source`.
    """
    return rewritten(SOURCES.make(config.source, config), config)


class TestFiles(NamedTuple):
    """A test set that is not part of a corpus.

    name: of the split. input: a file of inputs, or of documents for a language model; a file with both sides,
    FILE.tsv, FILE.jsonl, FILE.conll, FILE.conllu or FILE.json (SQuAD), or any file if the config reads `labelled`
    files; or tfds:DATASET:SPLIT. reference: the file of targets (line i belongs to line i of `input`); None if `input`
    has both sides, or the task reads no targets.
    columns: TSV columns (from 1), JSONL keys or TFDS features of inputs and targets. Default: those of the config if
    it reads the same format, or if both are tables whose columns have names; else columns 1 and 2, or the locales.
    """

    name: str
    input: str
    reference: str | None = None
    columns: tuple[str, str] | None = None


_OF_SUFFIX = {"tsv": "tsv", "jsonl": "jsonl", "conll": "conll", "conllu": "conllu", "json": "squad"}
"""Formats by the suffix of a file that has both sides."""


UNREAD = {
    "csv": "is CSV, a format that this package does not know; write it with tabs between the columns, for example with "
    "python -c 'import csv, sys; "
    '[print(*(" ".join(cell.split()) for cell in row), sep="\\t") for row in csv.reader(open(sys.argv[1], '
    """encoding="utf-8-sig", newline=""))]' {path} > {stem}.tsv""",
    "xlsx": "is a spreadsheet; save it as text with tabs between the columns, {stem}.tsv",
    "parquet": "is Parquet, a format that this package does not know; write its rows as {stem}.jsonl",
}
"""Formats of tables that no config reads, with the remedy."""


def why_unread(path: str | Path) -> str:
    """Return that a table has an unknown format, and how to write it in a known one; empty for other files."""
    stem, _, suffix = str(path).removesuffix(".gz").rpartition(".")
    if suffix not in UNREAD:
        return ""
    gunzip = f"; first gunzip {shlex.quote(str(path))}" if str(path).endswith(".gz") else ""
    return f"{path} {UNREAD[suffix].format(path=shlex.quote(f'{stem}.{suffix}'), stem=shlex.quote(stem))}{gunzip}"


def format_of(path: str) -> str | None:
    """Return the format of a file that has both sides, from its suffix; None if no format has this suffix.

    A final `.gz` is ignored.

    Raises: DataError for a table in an unknown format, such as CSV.
    """
    if problem := why_unread(path):
        raise DataError(problem)
    return next((f for suffix, f in _OF_SUFFIX.items() if re.search(rf"\.{suffix}(\.gz)?$", path)), None)


def reading_file(config: DataConfig, format: str) -> DataConfig:
    """Return the config that reads a file of a format; columns that are not of this format get their defaults."""
    columns = {} if _has_columns_of(config, format) else {"input_feature": None, "target_feature": None}
    return dataclasses.replace(config, source="text", format=format, text_lists=_has_lists(config), **columns)


def _has_lists(config: DataConfig) -> bool:
    """Return whether the examples of a corpus have lists of texts, which JSON lines may then have too."""
    return config.text_lists or (config.source == "embedded" and config.target_feature == "headlines")


def _has_columns_of(config: DataConfig, format: str) -> bool:
    """Return whether the columns of a config are also those of a format; TSV and JSON lines share names."""
    if config.source != "text":
        return False
    tables = {"tsv", "jsonl"}
    is_named = config.input_feature is not None and not config.input_feature.isdecimal()
    return config.format == format or (is_named and {config.format, format} == tables)


def source_of_file(config: DataConfig, name: str, path: Path) -> Source:
    """Return a source with one split, a file that `config` says how to read; see `reading_file`."""
    from transformer_jax.data.sources.text import TextSource

    return rewritten(TextSource.of_files(config, name, path), config)


def open_test_set(config: DataConfig, files: TestFiles, has_targets: bool = True) -> Source:
    """Return a source with one split, a test set.

    Args:
      config: locales, features, text form and the folder of TFDS datasets.
      has_targets: whether the task reads targets. Without them a file of inputs has documents, and no reference.
    Raises: ConfigError if a reference is missing or has no use; DataError if the data cannot be found.
    """
    name, input, reference, columns = files
    if config.source in IMAGE_SOURCES:
        raise ConfigError(
            f"--input={input}: is for text; a further set of images is a split, as in --data.test_sets={name}=SET"
        )
    if config.source == RECALL:
        raise ConfigError(
            f"--input={input}: a file does not say which words are answers; another gap is a test set, as in "
            f"--data.test_sets={name}=GAP"
        )
    format = format_of(input) or "parallel"
    if format == "parallel" and config.format == "labelled":
        format = "labelled"
    of_tfds = input.startswith("tfds:")
    of_documents = format == "parallel" and not of_tfds and not has_targets
    if reference and not has_targets:
        raise ConfigError(f"--reference={reference}: the task reads no targets; leave it out")
    if (format == "parallel" and not of_tfds) != bool(reference) and not of_documents:
        problem = "has both sides; leave --reference out" if reference else "needs --reference=FILE, the translations"
        raise ConfigError(f"--input={input}: {problem}")
    same = config.source == "tfds" if of_tfds else _has_columns_of(config, format)
    config = dataclasses.replace(config, text_lists=_has_lists(config))
    if columns or not same:
        inputs, targets = columns or (None, None)
        config = dataclasses.replace(config, input_feature=inputs, target_feature=targets)
    if not has_targets:
        config = dataclasses.replace(config, target_feature="")
    if of_tfds:
        from transformer_jax.data.sources.tfds.source import TfdsSource

        dataset, _, split = input.removeprefix("tfds:").partition(":")
        if not dataset or not split:
            raise ConfigError(f"--input={input}: expected tfds:DATASET:SPLIT, as in tfds:wmt14_translate/de-en:test")
        names = dict.fromkeys(("train_split", "valid_split", "test_split"), "")
        of_split = dataclasses.replace(config, dataset=dataset, test_sets=f"{name}={split}", **names)
        return rewritten(TfdsSource(of_split), config)
    from transformer_jax.data.sources.text import TextSource

    if columns and format not in ("tsv", "jsonl"):
        raise ConfigError("--columns is for TSV, JSONL and TFDS; a file of inputs has one sentence per line")
    paths = [Path(file).expanduser() for file in (input, reference) if file]
    if of_documents:
        from transformer_jax.data.sources.documents import DocumentSource

        return rewritten(DocumentSource.of_file(config, name, *paths), config)
    return rewritten(TextSource.of_files(dataclasses.replace(config, format=format), name, *paths), config)


def embedded_source(config: DataConfig) -> Source:
    """Return the embedded corpus; with labels in place of translations if `data.target_feature` names them."""
    source = _cached_embedded(config.source_locale, config.target_locale, config.num_train_pairs, config.num_eval_pairs)
    if not config.target_feature:
        return source
    from transformer_jax.data.sources.embedded.labelled import LabelledSource

    return LabelledSource(source, config.target_feature)


def text_source(config: DataConfig) -> Source:
    """Return the text files of a config, as examples of a format or as documents."""
    from transformer_jax.data.sources.documents import DocumentSource
    from transformer_jax.data.sources.text import TextSource

    return DocumentSource(config) if config.format == "documents" else TextSource(config)


SOURCES = Factories(
    "data.source",
    Source,
    {
        "embedded": "transformer_jax.data.sources:embedded_source",
        "text": "transformer_jax.data.sources:text_source",
        "recall": "transformer_jax.data.sources.recall:RecallSource",
        "tfds": "transformer_jax.data.sources.tfds.source:TfdsSource",
        "shapes": "transformer_jax.data.sources.images.shapes:shapes_source",
        "image_folder": "transformer_jax.data.sources.images.folder:image_folder",
        "npz": "transformer_jax.data.sources.images.npz:npz_source",
        "tfds_images": "transformer_jax.data.sources.images.tfds:tfds_images",
    },
)
"""Classes and functions that make a source from the section `data`, by the values of `data.source`."""


@functools.lru_cache(maxsize=1)
def _cached_embedded(source_locale: str, target_locale: str, num_train_pairs: int, num_eval_pairs: int) -> Source:
    """Return the embedded corpus; cached, since a process that trains and then evaluates uses it twice."""
    from transformer_jax.data.sources.embedded import EmbeddedSource

    return EmbeddedSource(source_locale, target_locale, num_train_pairs, num_eval_pairs)
