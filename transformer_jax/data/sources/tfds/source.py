"""Datasets of TensorFlow Datasets, read without TensorFlow from the array_record files that `prepare` writes.

A dataset is a folder, NAME/CONFIG/VERSION, which describes its own content: neither the code that made it nor a network
is needed. `data.train_split`, `valid_split` and `test_split` name TFDS's own splits or parts of them, such as
`train[:90%]` or `train+validation`; the rest of the project calls them `train`, `valid` and `test`.

Real datasets, such as wmt14_translate, have pairs without a text on one side. They are left out; one warning per split
has their number. Any other defect is a DataError.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig, nearest
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.sources.base import Split, joined, no_such_split
from transformer_jax.data.sources.tfds.catalogue import open_folder, prepared_folder
from transformer_jax.errors import DataError
from transformer_jax.files import sha256_of

_READ_RECORDS = 1 << 12
_WHOLE_SPLIT = 1 << 16
_log = logging.getLogger(__name__)

_Texts = tuple[str, ...]


class TfdsSource:
    """A prepared dataset of TFDS; only the requested part is in memory."""

    def __init__(self, config: DataConfig) -> None:
        """Open the dataset; raise DataError if it does not exist, is not prepared, or lacks a split or a feature."""
        folder = prepared_folder(config.dataset, config.dir)
        self._builder = open_folder(folder)
        self._label_names: dict[str, Callable[[int], str]] = {}
        self._features = {"inputs": self._feature("input_feature", config.input_feature or config.source_locale)}
        if config.target_feature != "":
            target = config.target_feature or config.target_locale
            self._features["targets"] = self._feature("target_feature", target, labels=True)
        if config.second_feature:
            self._features["second"] = self._feature("second_feature", config.second_feature)
        self._parts = config.split_texts()
        self._infos = {name: self._split_info(name, text) for name, text in self._parts.items()}
        if not self._infos:
            raise DataError(f"data.train_split is empty; {self._name} has {', '.join(self._builder.info.splits)}")
        self._told: set[str] = set()
        self._digests: dict[tuple[str, ...], str] = {}

    @property
    def _name(self) -> str:
        return self._builder.info.full_name

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits that the config sets: train, valid, test, and test sets."""
        return tuple(self._infos)

    def num_examples(self, name: str) -> int:
        """Return the number of pairs, with those that `chunks` leaves out; raise DataError for an unknown split."""
        return int(self._info(name).num_examples)

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split, `size` pairs at a time, in the order of the files.

        Raises: DataError for an unknown split, a file that cannot be read, a text that is not UTF-8 or has a NUL
        character, and a split in which every pair lacks a side.
        """
        pairs = self._pairs(name)
        while part := list(itertools.islice(pairs, size)):
            sides = (list(side) for side in zip(*part, strict=True))
            yield Split(dict(zip(self._features, sides, strict=True)))

    def split(self, name: str) -> Split:
        """Return a whole split in memory; errors as in `chunks`."""
        return joined(self.chunks(name, _WHOLE_SPLIT))

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the sha256 of the files of the splits, of the parts that are used, and of the names of the features.

        It is the same for a copy of the folder, and does not depend on libraries. Raises DataError if a file cannot be
        read.
        """
        of_corpus = tuple(name for name in self._infos if name in CORPUS_SPLITS)
        return {"sha256": self._sha256(of_corpus if split is None or split in of_corpus else (split,)), "versions": {}}

    def _sha256(self, names: tuple[str, ...]) -> str:
        if names not in self._digests:
            self._digests[names] = self._digest(names)
        return self._digests[names]

    def _digest(self, names: tuple[str, ...]) -> str:
        digest = hashlib.sha256("".join(f"{part}\n" for part in (self._name, *self._features.values())).encode())
        sha256 = functools.cache(_sha256)
        for name in names:
            for file in self._info(name).file_instructions:
                digest.update(f"{name} {file.skip} {file.take} {sha256(Path(file.filename))}\n".encode())
        return digest.hexdigest()

    def _feature(self, field: str, name: str, labels: bool = False) -> str:
        """Check the name of a feature and return it. labels: it may be a class label, whose names are texts."""
        import tensorflow_datasets as tfds

        described = self._builder.info.features
        features = dict(described.items()) if isinstance(described, tfds.features.FeaturesDict) else {}
        feature = features.get(name)
        if labels and isinstance(feature, tfds.features.ClassLabel):
            self._label_names[name] = feature.int2str
            return name
        kinds = (tfds.features.Text, tfds.features.ClassLabel) if labels else tfds.features.Text
        texts = [key for key, feature in features.items() if isinstance(feature, kinds)]
        if name in texts:
            return name
        kind = "a text or a label" if labels else "a text"
        problem = f"is {feature}, not {kind}" if name in features else "does not exist"
        kind = "texts and labels" if labels else "texts"
        have = f"its {kind} are {', '.join(texts)}" if texts else f"its features are {', '.join(features) or 'no dict'}"
        raise DataError(f"data.{field}={name!r}: this feature of {self._name} {problem}; {have}")

    def _split_info(self, name: str, text: str) -> Any:
        splits = self._builder.info.splits
        field = f"data.{name}_split={text!r}" if name in CORPUS_SPLITS else f"test set {name}={text}"
        have = f"{self._name} has {', '.join(splits)}"
        try:
            info = splits[text]
            num_examples = info.num_examples
        except (KeyError, ValueError, AssertionError) as error:
            base = text.partition("[")[0]
            hint = "" if base in splits else nearest(base, splits)
            raise DataError(f"{field}: no such split or part of one{hint}; {have}") from error
        if num_examples <= 0:
            raise DataError(f"{field}: this split is empty; {have}")
        for file in info.file_instructions:
            if not Path(file.filename).is_file():
                raise DataError(f"{field}: {file.filename} is missing; copy or prepare the dataset again")
        return info

    def _info(self, name: str) -> Any:
        if name not in self._infos:
            raise no_such_split(name, self._infos)
        return self._infos[name]

    def _pairs(self, name: str) -> Iterator[_Texts]:
        self._info(name)
        kept = lacking = 0
        for index, record in self._records(name):
            pair = tuple(self._text(record, feature, name, index) for feature in self._features.values())
            if all(side.strip() for side in pair):
                kept += 1
                yield pair
            else:
                lacking += 1
        if not kept:
            raise DataError(f"split {name!r} of {self._name}: each of its {lacking} examples lacks a text")
        if lacking and name not in self._told:
            self._told.add(name)
            _log.warning(
                "left out %d of %d examples of split %s of %s: they have no text on one side",
                lacking,
                lacking + kept,
                name,
                self._name,
            )

    def _records(self, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        with self._readable(name):
            records = self._builder.as_data_source(split=self._parts[name])
            total = len(records)
        for start in range(0, total, _READ_RECORDS):
            rows = range(start, min(start + _READ_RECORDS, total))
            with self._readable(name):
                read = records.__getitems__(list(rows))
            yield from zip(rows, read, strict=True)

    @contextlib.contextmanager
    def _readable(self, name: str) -> Generator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError, IndexError) as error:
            folder = self._builder.data_dir
            raise DataError(f"{folder}: split {name!r} is damaged or cannot be read: {error}") from error

    def _text(self, record: Mapping[str, Any], feature: str, name: str, index: int) -> str:
        where = f"{self._name}: example {index} of split {name!r}, feature {feature!r}"
        if feature in self._label_names:
            if record[feature] < 0:  # as in GLUE's test splits
                raise DataError(f"{where}: the example has no label ({record[feature]})")
            return self._label_names[feature](int(record[feature]))
        try:
            text = record[feature].decode("utf-8")
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"{where}: not UTF-8 at byte {error.start} (0x{byte:02x}): {error.reason}") from error
        if "\0" in text:
            raise DataError(f"{where}: a NUL character at {text.index(chr(0))}; this is not text")
        return text


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
