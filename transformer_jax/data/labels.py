"""Label names of a corpus, and the columns of labels.

The names are those of the training split: sorted, numbers by their value. A run that starts with the head of a
checkpoint takes the order of the checkpoint. The order gives the classes of the model, so it is stored in the work
directory and in every checkpoint, `labels.json`. A label that the training split lacks is an error.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from transformer_jax.config import nearest
from transformer_jax.data.columns import BadValueError, Column
from transformer_jax.data.sources import Source
from transformer_jax.data.tokenizers.tokenizer import EncodedTexts, Tokenizer
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import replace_file
from transformer_jax.readers import parse_json, read_bytes
from transformer_jax.readers.records import TEXT, expect, list_of

LABELS_FILE = "labels.json"
_CHUNK = 1 << 14


@dataclasses.dataclass(frozen=True)
class NamedLabels(Column):
    """The part that columns of labels have in common.

    names: of all labels; `prepare_data` sets them.
    """

    names: tuple[str, ...] = ()

    @abc.abstractmethod
    def labels(self, values: Sequence[Any]) -> Iterable[str]:
        """Return all labels of some examples."""

    def numbers(self, rows: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the numbers of all labels, int32, those of the first example first.

        Raises: BadValueError for a label that is none of the names.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        for index, row in enumerate(rows):
            for label in row:
                if label not in numbers:
                    raise BadValueError(
                        index,
                        f"the label {label!r} is not in the training split, which has {_listed(self.names)}"
                        f"{nearest(label, self.names)}",
                    )
        return np.array([numbers[label] for row in rows for label in row], np.int32)


@dataclasses.dataclass(frozen=True)
class LabelColumn(NamedLabels):
    """One label per example, as the number of its name."""

    def labels(self, values: Sequence[str]) -> Iterable[str]:
        return values

    def encode(self, values: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
        """Return the numbers, int32 [examples]; errors as `numbers`."""
        return self.numbers([[value] for value in values])


@dataclasses.dataclass(frozen=True)
class TagsColumn(NamedLabels):
    """One label per word of every example."""

    ragged: ClassVar[bool] = True

    def labels(self, values: Sequence[Sequence[str]]) -> Iterable[str]:
        return itertools.chain.from_iterable(values)

    def encode(self, values: Sequence[Sequence[str]], tokenizer: Tokenizer) -> EncodedTexts:
        """Return the numbers of the labels of all words, with the offsets of the examples; errors as `numbers`."""
        return EncodedTexts(self.numbers(values), np.cumsum([0, *map(len, values)], dtype=np.int64))


def with_names(
    columns: Sequence[Column],
    names: Sequence[str] | None,
    source: Source,
    directory: Path,
    order: Sequence[str] | None = None,
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """Return the columns with the names of their labels, and these names; none if no column has labels.

    Args:
      names: of a checkpoint. None: those of `labels.json`, or of the training split; then the file is written.
      order: the same names in another order, which the labels of the training split then get.
    Raises: DataError if the file is damaged, cannot be written, or the corpus has no feature of this name.
    """
    column = next((column for column in columns if isinstance(column, NamedLabels)), None)
    if column is None:
        return tuple(columns), ()
    path = directory / LABELS_FILE
    if names is None and path.exists():
        names = read_labels(path)
    elif names is None:
        names = in_order(_names_of(column, source), order)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            replace_file(path, labels_bytes(names))
        except OSError as error:
            raise DataError(f"{directory}: cannot write {LABELS_FILE}: {error.strerror}") from error
    named = tuple(dataclasses.replace(c, names=tuple(names)) if isinstance(c, NamedLabels) else c for c in columns)
    return named, tuple(names)


def in_order(names: Sequence[str], order: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names in an order; unchanged if it is None, or has other names."""
    return tuple(names if order is None or {*order} != {*names} else order)


def check_number(num_labels: int, names: Sequence[str]) -> None:
    """Raise ConfigError if `task.num_labels` is not the number of names."""
    if num_labels != len(names):
        raise ConfigError(
            f"config: task.num_labels={num_labels}: the training split has {len(names)} labels: {_listed(names)}; set "
            f"task.num_labels={len(names)}"
        )


def check_more_than_one(columns: Sequence[Column], source: Source) -> None:
    """Raise DataError if a column with named labels has only one: then a model has nothing to learn."""
    for column in columns:
        if isinstance(column, NamedLabels) and len(column.names) == 1:
            split, [name] = source.split_names[0], column.names
            examples = f"{source.num_examples(split):,} training examples"
            all_have = f"words of the {examples} have the tag" if column.ragged else f"{examples} have the label"
            raise DataError(
                f"all {all_have} {name!r}, so there is nothing to learn; check data.train_split and the labels of the "
                "corpus"
            )


def labels_bytes(names: Sequence[str]) -> bytes:
    """Return the content of `labels.json`."""
    return (json.dumps({"labels": [*names]}, ensure_ascii=False) + "\n").encode()


def parse_labels(content: bytes) -> tuple[str, ...]:
    """Return the names of `labels.json`; raise DataError if it is damaged."""
    try:
        names = expect(parse_json(content), {"labels": list_of(TEXT)})["labels"]
        if not names or len({*names}) < len(names):
            raise ValueError
    except ValueError as error:
        raise DataError(f"{LABELS_FILE} is damaged: expected different names of labels") from error
    return tuple(names)


def read_labels(path: Path) -> tuple[str, ...]:
    """Return the names of a file; raise DataError, which names it, if it cannot be read or is damaged."""
    try:
        return parse_labels(read_bytes(path))
    except OSError as error:
        raise DataError(f"{path}: cannot read the labels: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{path.parent}: {error}") from error


def _names_of(column: NamedLabels, source: Source) -> list[str]:
    names: set[str] = set()
    for chunk in source.chunks(source.split_names[0], _CHUNK):
        if column.feature not in chunk.features:
            raise DataError(
                f"the corpus has no feature '{column.feature}', which has the labels; it has "
                f"{', '.join(chunk.features)}"
            )
        names.update(column.labels(chunk.features[column.feature]))
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"the label {name!r} cannot be written as UTF-8; give it another name") from error
    numbers = all(name.isdecimal() for name in names)
    return sorted(names, key=lambda name: (int(name) if numbers else 0, name))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f", ... ({len(names)} labels)" if len(names) > 20 else "")
