"""From a config to ids: the source, its tokenizer, its tokenised splits and the batches to train on."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import BatchPlan, PairsOfIds, TrainingBatches
from transformer_jax.data.packing import PackedPlan
from transformer_jax.data.sources import Source, Split, load_source
from transformer_jax.data.sources.base import no_such_split
from transformer_jax.data.token_cache import Say, open_split
from transformer_jax.data.token_ids import TokenizedSplit
from transformer_jax.data.tokenizers import Tokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from transformer_jax.data.tokenizers.words import read_vocabulary
from transformer_jax.errors import ConfigError

TOKENIZER_FILE = "tokenizer.model"
_CACHE_FOLDER = "token_cache"
_SAMPLED_CHUNK = 1 << 14


class TokenizedSplits:
    """The splits by name; each is opened, and tokenised if need be, when it is first asked for."""

    def __init__(self, source: Source, tokenizer: Tokenizer, directory: Path, say: Say | None) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._directory = directory
        self._say = say
        self._opened: dict[str, TokenizedSplit] = {}

    def __getitem__(self, name: str) -> TokenizedSplit:
        """Raises DataError if there is no such split, or it cannot be tokenised or cached."""
        if name not in self._source.split_names:
            raise no_such_split(name, self._source.split_names)
        if name not in self._opened:
            self._opened[name] = open_split(self._directory, self._source, name, self._tokenizer, self._say)
        return self._opened[name]

    def __contains__(self, name: object) -> bool:
        return name in self._source.split_names

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.split_names)

    def __len__(self) -> int:
        return len(self._source.split_names)


@dataclasses.dataclass(frozen=True)
class Data:
    """A corpus, as text and as ids."""

    source: Source
    tokenizer: Tokenizer
    splits: TokenizedSplits
    max_length: int

    def text(self, split: str) -> Split:
        """The pairs of a split as they were written: what evaluation compares with."""
        return self.source.split(split)

    def num_over_length(self, split: str) -> int:
        """Pairs with a side of more than `max_length` pieces, eos included; training leaves them out."""
        ids = self.splits[split]
        return int((np.maximum(ids.input_lengths, ids.target_lengths) > self.max_length).sum())


def prepare_data(
    config: ExperimentConfig,
    directory: str | Path,
    tokenizer: Tokenizer | None = None,
    say: Say | None = None,
    needed: Sequence[str] = (),
) -> Data:
    """Loads the source and its tokenizer; splits are tokenised when they are first used.

    Args:
      config: what to load.
      directory: holds `tokenizer.model`, which, if it is missing, is `config.data.vocabulary_file` or else trained on
        the training split; and the token cache unless `config.data.cache_dir` says where.
      tokenizer: used instead, for instance the one of a checkpoint; then `directory` gets no tokenizer.
      say: called as the tokenizer is trained, or a split tokenised, which may take minutes.
      needed: splits that there must be, asked for before anything takes long.

    Raises:
      ConfigError: `model.vocab_size` is not what the tokenizer has, or not one that the training split can fill.
      DataError: the corpus, the vocabulary or the tokenizer file is bad, or `directory` cannot be written.
    """
    directory = Path(directory)
    source = load_source(config.data)
    for name in needed:
        if name not in source.split_names:
            raise no_such_split(name, source.split_names)
    path = directory / TOKENIZER_FILE
    origin = str(path)
    if tokenizer is not None:
        origin = "the given tokenizer"
    elif path.exists():
        tokenizer = read_tokenizer(path)
    elif config.data.vocabulary_file:
        tokenizer = read_vocabulary(Path(os.path.expanduser(config.data.vocabulary_file)), config.model.vocab_size)
        write_tokenizer(path, tokenizer)
    else:
        tokenizer = _trained_tokenizer(config, source, say)
        write_tokenizer(path, tokenizer)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise ConfigError(
            f"config: model.vocab_size={config.model.vocab_size}: {origin} has {tokenizer.vocab_size} ids"
        )
    cache = Path(os.path.expanduser(config.data.cache_dir)) if config.data.cache_dir else directory / _CACHE_FOLDER
    return Data(source, tokenizer, TokenizedSplits(source, tokenizer, cache, say), config.data.max_length)


def plan_batches(config: ExperimentConfig, split: PairsOfIds) -> TrainingBatches:
    """The training batches of a split, in buckets or packed as `config.data.batching` says; see their classes."""
    data = config.data
    if data.batching == "packed":
        return PackedPlan(
            split,
            tokens_per_batch=data.tokens_per_batch,
            max_length=data.max_length,
            packed_length=data.packed_length,
            row_multiple=data.row_multiple,
            seed=config.seed,
        )
    return BatchPlan(
        split,
        tokens_per_batch=data.tokens_per_batch,
        max_length=data.max_length,
        row_multiple=data.row_multiple,
        num_buckets=data.num_buckets,
        seed=config.seed,
    )


def _trained_tokenizer(config: ExperimentConfig, source: Source, say: Say | None) -> Tokenizer:
    """A tokenizer of the training split, or the same one that another run has left in the common cache directory."""
    data, train = config.data, source.split_names[0]
    shared = None
    if data.cache_dir:
        versions = [importlib.metadata.version(library) for library in ("sentencepiece", "tokenizers")]
        made_of = [
            source.fingerprint()["sha256"],
            data.tokenizer,
            config.model.vocab_size,
            data.tokenizer_pairs,
            versions,
        ]
        name = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]
        shared = Path(os.path.expanduser(data.cache_dir)) / f"tokenizer-{name}.model"
        if shared.exists():
            return read_tokenizer(shared)
    num_examples = source.num_examples(train)
    if data.tokenizer != "words":  # which are counted, in no time; a sample would lack the rare ones
        num_examples = min(num_examples, data.tokenizer_pairs)
    if say is not None:
        say(f"training the tokenizer on {num_examples:,} examples")
    tokenizer = train_tokenizer(_sample(source, train, num_examples), data.tokenizer, config.model.vocab_size)
    if shared is not None:
        write_tokenizer(shared, tokenizer)
    return tokenizer


def _sample(source: Source, split: str, num_examples: int) -> Iterator[str]:
    """The texts of `num_examples` examples of a split at even distances."""
    total = source.num_examples(split)
    wanted = (index * total // num_examples for index in range(num_examples))
    row, first = next(wanted, None), 0
    for chunk in source.chunks(split, _SAMPLED_CHUNK):
        while row is not None and row < first + len(chunk.targets):
            if chunk.inputs:
                yield chunk.inputs[row - first]
            yield chunk.targets[row - first]
            row = next(wanted, None)
        first += len(chunk.targets)
