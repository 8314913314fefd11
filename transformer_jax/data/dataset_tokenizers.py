"""The tokenizers of a config: read from a work directory or a vocabulary, shared by runs, or trained on the texts."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
from collections.abc import Collection, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.columns import Column, TextColumn
from transformer_jax.data.sources import Source
from transformer_jax.data.token_cache import Say
from transformer_jax.data.tokenizers import (
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    VOCABULARIES,
    NoText,
    Tokenizer,
    TokenizerPair,
    VocabularyFileError,
    VocabularySizeError,
    check_decode_ids,
    check_token_ids,
    read_tokenizer,
    train_tokenizer,
    trained_special_ids,
    with_added_tokens,
    write_tokenizer,
)
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import write_atomically
from transformer_jax.readers import read_bytes

_SAMPLED_CHUNK = 1 << 14
_log = logging.getLogger(__name__)


class _Side(NamedTuple):
    """The texts that one tokenizer is for: both sides of all pairs, or one side.

    name: as messages say it. file: in the work directory. size_field, file_field: the fields of `vocab_size` and
    `vocabulary_file`. columns: whose texts train the tokenizer.
    """

    name: str
    file: str
    size_field: str
    vocab_size: int
    file_field: str
    vocabulary_file: str
    columns: list[Column]

    def check(self, tokenizer: Tokenizer, origin: str, trained: bool = False) -> None:
        """Raise ConfigError if the tokenizer has more ids than the model has, or fewer although it was trained here."""
        if tokenizer.vocab_size > self.vocab_size or (trained and tokenizer.vocab_size < self.vocab_size):
            problem = f"{origin} has {tokenizer.vocab_size} ids"
            raise VocabularySizeError(self.vocab_size, problem, self.size_field)

    @contextlib.contextmanager
    def named(self) -> Generator[None]:
        """Name this side's fields in the errors of a vocabulary."""
        try:
            yield
        except VocabularySizeError as error:
            raise VocabularySizeError(self.vocab_size, error.problem, self.size_field) from error
        except VocabularyFileError as error:
            raise VocabularyFileError(error.problem, self.file_field) from error


def _sides(config: ExperimentConfig, columns: Sequence[Column]) -> list[_Side]:
    """Return the sides that have a tokenizer of their own: one, or source and target."""
    model, data = config.model, config.data
    by_feature = {x.feature: x for x in columns if x.trains_tokenizer}

    def on(side: str) -> list[Column]:
        return [x for x in by_feature.values() if isinstance(x, TextColumn) and x.side == side]

    fields = "model.vocab_size", model.vocab_size, "data.vocabulary_file", data.vocabulary_file
    if not data.separate_tokenizers:
        return [_Side("tokenizer", TOKENIZER_FILE, *fields, list(by_feature.values()))]
    of_source = (
        *("model.source_vocab_size", model.source_vocab_size),
        *("data.source_vocabulary_file", data.source_vocabulary_file),
    )
    return [
        _Side("source tokenizer", SOURCE_TOKENIZER_FILE, *of_source, on("source")),
        _Side("target tokenizer", TOKENIZER_FILE, *fields, on("target")),
    ]


def check_given(tokenizer: Tokenizer, config: ExperimentConfig, columns: Sequence[Column]) -> None:
    """Raise ConfigError if a tokenizer has more ids than the model."""
    for side in _sides(config, columns):
        side.check(tokenizer.source if side.file == SOURCE_TOKENIZER_FILE else tokenizer, "the given tokenizer")


def tokenizer_of_directory(
    config: ExperimentConfig,
    source: Source,
    columns: Sequence[Column],
    added_tokens: Sequence[str],
    directory: Path,
    say: Say | None,
) -> Tokenizer:
    """Return the tokenizer of a work directory; read or train it, and write it, if its file is missing.

    A model that reads images has none. Arguments and errors are those of `datasets.prepare_data`.
    """
    if config.model.inputs != "tokens":
        return NoText()
    found: list[Tokenizer] = []
    for side in _sides(config, columns):
        path = directory / side.file
        if path.exists():
            tokenizer = read_tokenizer(path)
            side.check(tokenizer, str(path), trained=not side.vocabulary_file)
        else:
            with side.named():
                tokenizer = _new_tokenizer(config, source, side, tuple(added_tokens), say)
            write_tokenizer(path, tokenizer)
        found.append(tokenizer)
    return TokenizerPair(*found) if config.data.separate_tokenizers else found[0]


def _new_tokenizer(
    config: ExperimentConfig, source: Source, side: _Side, added_tokens: tuple[str, ...], say: Say | None
) -> Tokenizer:
    """Return the tokenizer of a vocabulary file, or a trained one."""
    if side.vocabulary_file:
        path = Path(os.path.expanduser(side.vocabulary_file))
        tokenizer = VOCABULARIES[config.data.tokenizer](path, side.vocab_size)
        check_token_ids(tokenizer, f"{side.file_field}: {path}")
        return with_added_tokens(tokenizer, added_tokens, side.vocab_size)
    check_decode_ids(config.decode, trained_special_ids(config.data.tokenizer))  # before training takes minutes
    return _trained_tokenizer(config, source, side, added_tokens, say)


def _trained_tokenizer(
    config: ExperimentConfig, source: Source, side: _Side, added_tokens: tuple[str, ...], say: Say | None
) -> Tokenizer:
    """Return a tokenizer of the training split, or the same one from the cache directory if another run has made it."""
    data, train = config.data, source.split_names[0]
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
            side.vocab_size,
            data.tokenizer_pairs,
            versions,
            *([added_tokens] if added_tokens else []),
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
    tokenizer = train_tokenizer(texts, data.tokenizer, side.vocab_size, added_tokens)
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
