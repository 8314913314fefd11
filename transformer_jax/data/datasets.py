"""The data of a config: the source, its tokenizer, its encoded splits and the training batches."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Arrays, BatchPlan, Lengths, TrainingBatches
from transformer_jax.data.columns import Column, EncodedSplit, TextColumn
from transformer_jax.data.labels import LABELS_FILE, check_more_than_one, check_number, labels_bytes, with_names
from transformer_jax.data.packing import PackedPlan
from transformer_jax.data.sources import Source, Split, load_source
from transformer_jax.data.sources.source import no_such_split
from transformer_jax.data.token_cache import Say, open_split
from transformer_jax.data.tokenizers import (
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    VOCABULARIES,
    NoText,
    Tokenizer,
    TokenizerPair,
    check_decode_ids,
    check_token_ids,
    read_tokenizer,
    tokenizer_by_file,
    train_tokenizer,
    trained_special_ids,
    with_added_tokens,
    write_tokenizer,
)
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import write_atomically
from transformer_jax.readers import read_bytes

_CACHE_FOLDER = "token_cache"
_SAMPLED_CHUNK = 1 << 14
_log = logging.getLogger(__name__)


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
        tokenizer = _tokenizer_of_directory(config, source, columns, added_tokens, directory, say)
    else:
        for side in _sides(config, columns, added_tokens):
            side.check(tokenizer.source if side.is_source else tokenizer, "the given tokenizer")
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
            seed=config.seed,
        )
    if data.batching == "packed":
        return PackedPlan(
            lengths,
            arrays,
            tokens_per_batch=data.tokens_per_batch,
            max_length=data.max_length,
            packed_length=data.packed_length,
            row_multiple=data.row_multiple,
            seed=config.seed,
        )
    return BatchPlan(
        lengths,
        arrays,
        tokens_per_batch=data.tokens_per_batch,
        max_length=data.max_length,
        row_multiple=data.row_multiple,
        num_buckets=data.num_buckets,
        seed=config.seed,
    )


class _Side(NamedTuple):
    """The texts that one tokenizer is for: both sides of all pairs, or one side.

    name: as messages say it. size: a field of `model`, and its value. columns: whose texts train the tokenizer.
    added_tokens: names of special tokens that it needs.
    """

    name: str
    file: str
    size: tuple[str, int]
    vocabulary_file: str
    columns: list[Column]
    added_tokens: tuple[str, ...]

    @property
    def is_source(self) -> bool:
        return self.file == SOURCE_TOKENIZER_FILE

    def check(self, tokenizer: Tokenizer, origin: str, trained: bool = False) -> None:
        """Raise ConfigError if the tokenizer has more ids than the model has, or fewer although it was trained here."""
        field, size = self.size
        if tokenizer.vocab_size > size or (trained and tokenizer.vocab_size < size):
            raise ConfigError(f"config: model.{field}={size}: {origin} has {tokenizer.vocab_size} ids")

    @contextlib.contextmanager
    def named(self) -> Generator[None]:
        """Name the fields of the source in errors of functions that name those of the target."""
        try:
            yield
        except (ConfigError, DataError) as error:
            if not self.is_source:
                raise
            message = str(error).replace("model.vocab_size", f"model.{self.size[0]}")
            raise type(error)(message.replace("data.vocabulary_file", "data.source_vocabulary_file")) from error


def _sides(config: ExperimentConfig, columns: Sequence[Column], added_tokens: Sequence[str]) -> list[_Side]:
    """Return the sides that have a tokenizer of their own: one, or source and target."""
    model, data, added = config.model, config.data, tuple(added_tokens)
    by_feature = {x.feature: x for x in columns if x.trains_tokenizer}

    def on(side: str) -> list[Column]:
        return [x for x in by_feature.values() if isinstance(x, TextColumn) and x.side == side]

    size = ("vocab_size", model.vocab_size)
    if not data.separate_tokenizers:
        return [_Side("tokenizer", TOKENIZER_FILE, size, data.vocabulary_file, list(by_feature.values()), added)]
    source_size = ("source_vocab_size", model.source_vocab_size)
    return [
        _Side("source tokenizer", SOURCE_TOKENIZER_FILE, source_size, data.source_vocabulary_file, on("source"), added),
        _Side("target tokenizer", TOKENIZER_FILE, size, data.vocabulary_file, on("target"), added),
    ]


def _tokenizer_of_directory(
    config: ExperimentConfig,
    source: Source,
    columns: Sequence[Column],
    added_tokens: Sequence[str],
    directory: Path,
    say: Say | None,
) -> Tokenizer:
    """Return the tokenizer of a work directory; read or train it, and write it, if its file is missing.

    A model that reads images has none.
    """
    if config.model.inputs != "tokens":
        return NoText()
    found: list[Tokenizer] = []
    for side in _sides(config, columns, added_tokens):
        path = directory / side.file
        if path.exists():
            tokenizer = read_tokenizer(path)
            side.check(tokenizer, str(path), trained=not side.vocabulary_file)
        else:
            with side.named():
                tokenizer = _new_tokenizer(config, source, side, say)
            write_tokenizer(path, tokenizer)
        found.append(tokenizer)
    return TokenizerPair(*found) if config.data.separate_tokenizers else found[0]


def _new_tokenizer(config: ExperimentConfig, source: Source, side: _Side, say: Say | None) -> Tokenizer:
    """Return the tokenizer of a vocabulary file, or a trained one."""
    if side.vocabulary_file:
        path = Path(os.path.expanduser(side.vocabulary_file))
        tokenizer = VOCABULARIES[config.data.tokenizer](path, side.size[1])
        check_token_ids(tokenizer, f"data.vocabulary_file: {path}")
        return with_added_tokens(tokenizer, side.added_tokens, side.size[1])
    check_decode_ids(config.decode, trained_special_ids(config.data.tokenizer))  # before training takes minutes
    return _trained_tokenizer(config, source, side, say)


def _trained_tokenizer(config: ExperimentConfig, source: Source, side: _Side, say: Say | None) -> Tokenizer:
    """Return a tokenizer of the training split, or the same one from the cache directory if another run has made it."""
    data, train, vocab_size = config.data, source.split_names[0], side.size[1]
    if not side.columns:
        task = config.task.name
        raise ConfigError(f"data.separate_tokenizers=true: task.name='{task}' has no texts for the {side.name}")
    shared = None
    if data.cache_dir:
        versions = [importlib.metadata.version(library) for library in ("sentencepiece", "tokenizers")]
        made_of = [
            source.fingerprint()["sha256"],
            [column.feature for column in side.columns],
            data.tokenizer,
            vocab_size,
            data.tokenizer_pairs,
            versions,
            *([side.added_tokens] if side.added_tokens else []),
        ]
        name = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
        shared = Path(os.path.expanduser(data.cache_dir)) / f"tokenizer-{name}.model"
        if (known := _read_shared(shared)) is not None:
            return known
    num_examples = source.num_examples(train)
    if data.tokenizer not in ("words", "char"):  # they only count, which is fast; a sample would lack the rare ones
        num_examples = min(num_examples, data.tokenizer_pairs)
    if say is not None:
        say(f"training the {side.name} on {num_examples:,} examples")
    texts = _sample(source, train, side.columns, num_examples)
    tokenizer = train_tokenizer(texts, data.tokenizer, vocab_size, side.added_tokens)
    if shared is not None:
        write_tokenizer(shared, tokenizer)
        write_atomically(_checksum_file(shared), f"{tokenizer.sha256}\n".encode())
    return tokenizer


def _checksum_file(tokenizer: Path) -> Path:
    return tokenizer.with_suffix(".sha256")


def _read_shared(path: Path) -> Tokenizer | None:
    """Return the tokenizer that runs share; None if there is none, or if it does not match its checksum."""
    if not path.exists():
        return None
    try:
        tokenizer = read_tokenizer(path)
        if read_bytes(_checksum_file(path)).decode().strip() == tokenizer.sha256:
            return tokenizer
        problem = "does not match its checksum"
    except (DataError, OSError, UnicodeDecodeError) as error:
        problem = f"cannot be checked ({error})"
    _log.warning("%s: %s; the tokenizer is trained again", path, problem)
    return None


def _sample(source: Source, split: str, columns: Collection[Column], num_examples: int) -> Iterator[str]:
    """Yield the texts of `num_examples` examples of a split at even distances."""
    total = source.num_examples(split)
    wanted = (index * total // num_examples for index in range(num_examples))
    row, first = next(wanted, None), 0
    for chunk in source.chunks(split, _SAMPLED_CHUNK):
        while row is not None and row < first + chunk.num_examples:
            for column in columns:
                yield column.training_text(chunk.features[column.feature][row - first])
            row = next(wanted, None)
        first += chunk.num_examples
