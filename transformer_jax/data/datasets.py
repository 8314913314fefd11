"""The data of a config: the source, its tokenizer, its encoded splits and the training batches."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Arrays, BatchPlan, Lengths, TrainingBatches
from transformer_jax.data.columns import Column, EncodedSplit
from transformer_jax.data.dataset_tokenizers import check_given, tokenizer_of_directory
from transformer_jax.data.labels import LABELS_FILE, check_more_than_one, check_number, labels_bytes, with_names
from transformer_jax.data.packing import PackedPlan
from transformer_jax.data.sources import Source, Split, load_source
from transformer_jax.data.sources.source import no_such_split
from transformer_jax.data.token_cache import Say, open_split
from transformer_jax.data.tokenizers import (
    Tokenizer,
    check_decode_ids,
    tokenizer_by_file,
)
from transformer_jax.errors import ConfigError

_CACHE_FOLDER = "token_cache"


class EncodedSplits:
    """The splits by name. A split is opened, and encoded if necessary, at its first use."""

    def __init__(
        self, source: Source, tokenizer: Tokenizer, columns: Sequence[Column], directory: Path, say: Say | None
    ) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._columns = columns
        self._directory = directory
        self._say = say
        self._opened: dict[str, EncodedSplit] = {}

    def __getitem__(self, name: str) -> EncodedSplit:
        """Return a split; raise DataError if there is none of that name, or if it cannot be encoded or cached."""
        if name not in self._source.split_names:
            raise no_such_split(name, self._source.split_names)
        if name not in self._opened:
            self._opened[name] = open_split(
                self._directory, self._source, name, self._tokenizer, self._columns, self._say
            )
        return self._opened[name]

    def __contains__(self, name: object) -> bool:
        return name in self._source.split_names

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.split_names)

    def __len__(self) -> int:
        return len(self._source.split_names)


@dataclasses.dataclass(frozen=True)
class Data:
    """A corpus: its source, and its encoded columns."""

    source: Source
    tokenizer: Tokenizer
    splits: EncodedSplits
    max_length: int
    labels: tuple[str, ...] = ()
    """Names of the labels, in the order of the model's classes; empty if no column has labels."""

    def text(self, split: str) -> Split:
        """Return the examples of a split as text, for comparison with outputs."""
        return self.source.split(split)

    def side_files(self) -> dict[str, bytes]:
        """Return the files with which a checkpoint reads and writes text, by name."""
        files = {name: part.model_bytes for name, part in tokenizer_by_file(self.tokenizer).items()}
        return files | ({LABELS_FILE: labels_bytes(self.labels)} if self.labels else {})


def prepare_data(
    config: ExperimentConfig,
    columns: Sequence[Column],
    directory: str | Path,
    tokenizer: Tokenizer | None = None,
    say: Say | None = None,
    needed: Sequence[str] = (),
    source: Source | None = None,
    labels: Sequence[str] | None = None,
    added_tokens: Sequence[str] = (),
    label_order: Sequence[str] | None = None,
) -> Data:
    """Load the source and its tokenizer; splits are encoded when they are first used.

    Args:
      config: names the source and the tokenizer.
      columns: the columns of an example; see `Column.trains_tokenizer` for those that train the tokenizer, or those of
        a side its own tokenizer.
      directory: holds `tokenizer.model`, and with `config.data.separate_tokenizers` also `source_tokenizer.model`. If
        a file is missing, it is made from `config.data.vocabulary_file` or `source_vocabulary_file`, or trained on the
        training split. It also holds `labels.json` and the token cache, unless `config.data.cache_dir` names another
        folder for this.
      tokenizer: used instead, for instance that of a checkpoint; then no tokenizer is written.
      say: called before a tokenizer is trained or a split encoded, which may take minutes.
      needed: splits that must exist; checked before anything takes long. With `train`, and without the labels of a
        checkpoint, the training split must have more than one label.
      source: used instead of the one that the config names.
      labels: names of the labels, for instance those of a checkpoint; see `labels.with_names`.
      added_tokens: names of special tokens that a trained tokenizer gets, `Task.added_tokens`; one that is read from a
        vocabulary gets those that it lacks if `model.vocab_size` has room.
      label_order: names of labels in the order of a head that is trained on; see `labels.with_names`.

    Raises: ConfigError if the field of a needed split is empty, the tokenizer has more ids than `model.vocab_size` or
      `source_vocab_size`, the training split cannot fill it, `task.num_labels` is not the number of its labels, or
      `decode.prefix_ids` contains padding or end-of-sequence; DataError if the corpus, the vocabulary or the tokenizer
      file is bad, all training examples have the same label, or `directory` cannot be written.
    """
    directory = Path(directory)
    source = load_source(config.data) if source is None else source
    for name in needed:
        if name in source.split_names:
            continue
        if getattr(config.data, f"{name}_split") == "":
            raise ConfigError(
                f"data.{name}_split is empty, but training needs it; name a split, or a part of one, such as "
                "data.train_split=train[:90%] and data.valid_split=train[90%:]"
            )
        raise no_such_split(name, source.split_names)
    columns, names = with_names(columns, labels, source, directory, label_order)
    if "train" in needed and labels is None:
        check_more_than_one(columns, source)
    if names:
        check_number(config.task.num_labels, names)
    if tokenizer is None:
        tokenizer = tokenizer_of_directory(config, source, columns, added_tokens, directory, say)
    else:
        check_given(tokenizer, config, columns)
    check_decode_ids(config.decode, tokenizer.special_ids)
    cache = Path(os.path.expanduser(config.data.cache_dir)) if config.data.cache_dir else directory / _CACHE_FOLDER
    splits = EncodedSplits(source, tokenizer, columns, cache, say)
    return Data(source, tokenizer, splits, config.data.max_length, names)


def plan_batches(config: ExperimentConfig, lengths: Lengths, arrays: Arrays) -> TrainingBatches:
    """Return training batches, in buckets, packed or with equal rows (`config.data.batching`); see their classes.

    Args:
      lengths: of the training split's examples, all equal for `rows`; arrays: makes a batch.
    """
    data = config.data
    if data.batching not in ("buckets", "packed", "rows"):
        raise ValueError(f"data.batching='{data.batching}' is not implemented")
    if data.batching == "rows":
        (length,) = {int(n) for values in lengths.values() for n in np.unique(values)}
        return BatchPlan(
            lengths,
            arrays,
            tokens_per_batch=data.rows_per_batch * length,
            max_length=length,
            row_multiple=data.row_multiple,
            num_buckets=1,
            seed=config.data_seed,
        )
    if data.batching == "packed":
        return PackedPlan(
            lengths,
            arrays,
            tokens_per_batch=data.tokens_per_batch,
            max_length=data.max_length,
            packed_length=data.packed_length,
            row_multiple=data.row_multiple,
            seed=config.data_seed,
        )
    return BatchPlan(
        lengths,
        arrays,
        tokens_per_batch=data.tokens_per_batch,
        max_length=data.max_length,
        row_multiple=data.row_multiple,
        num_buckets=data.num_buckets,
        seed=config.data_seed,
    )
