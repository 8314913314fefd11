"""Datasets of TensorFlow Datasets, read without TensorFlow from the array_record files that `prepare` writes.

A dataset is a folder, NAME/CONFIG/VERSION, which describes its own content: neither the code that made it nor a network
is needed. `data.train_split`, `valid_split` and `test_split` name TFDS's own splits or parts of them, such as
`train[:90%]` or `train+validation`; the rest of the project calls them `train`, `valid` and `test`.

Real datasets, such as wmt14_translate, have pairs without a text on one side. They are left out; one warning per split
has their number. Any other defect is a DataError.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.source import Split, joined
from transformer_jax.data.sources.tfds.records import Records
from transformer_jax.errors import DataError

_WHOLE_SPLIT = 1 << 16
_log = logging.getLogger(__name__)

_Texts = tuple[str, ...]


class TfdsSource:
    """A prepared dataset of TFDS; only the requested part is in memory."""

    def __init__(self, config: DataConfig) -> None:
        """Open the dataset; raise DataError if it does not exist, is not prepared, or lacks a split or a feature."""
        self._records = Records(config)
        self._label_names: dict[str, Callable[[int], str]] = {}
        self._features = {"inputs": self._feature("input_feature", config.input_feature or config.source_locale)}
        if config.target_feature != "":
            target = config.target_feature or config.target_locale
            self._features["targets"] = self._feature("target_feature", target, labels=True)
        if config.second_feature:
            self._features["second"] = self._feature("second_feature", config.second_feature)
        self._split_names = tuple(self._records.infos)
        self._told: set[str] = set()

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits that the config sets: train, valid, test, and test sets."""
        return self._split_names

    def num_examples(self, name: str) -> int:
        """Return the number of pairs, with those that `chunks` leaves out; raise DataError for an unknown split."""
        return self._records.num_examples(name)

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
        return {"sha256": self._records.sha256(split, *self._features.values()), "versions": {}}

    def _feature(self, field: str, name: str, labels: bool = False) -> str:
        """Check the name of a feature and return it. labels: it may be a class label, whose names are texts."""
        import tensorflow_datasets as tfds

        features, dataset = self._records.features, self._records.name
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
        if isinstance(feature, tfds.features.Image):
            have += "; images are read with data.source=tfds_images"
        raise DataError(f"data.{field}={name!r}: this feature of {dataset} {problem}; {have}")

    def _pairs(self, name: str) -> Iterator[_Texts]:
        kept = lacking = 0
        for index, record in self._records.records(name):
            pair = tuple(self._text(record, feature, name, index) for feature in self._features.values())
            if all(side.strip() for side in pair):
                kept += 1
                yield pair
            else:
                lacking += 1
        if not kept:
            raise DataError(f"split {name!r} of {self._records.name}: each of its {lacking} examples lacks a text")
        if lacking and name not in self._told:
            self._told.add(name)
            _log.warning(
                "left out %d of %d examples of split %s of %s: they have no text on one side",
                lacking,
                lacking + kept,
                name,
                self._records.name,
            )

    def _text(self, record: Mapping[str, Any], feature: str, name: str, index: int) -> str:
        where = f"{self._records.name}: example {index} of split {name!r}, feature {feature!r}"
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
