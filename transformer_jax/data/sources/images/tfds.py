"""Datasets of images of TensorFlow Datasets, prepared as array_record files; TensorFlow is not needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.images import Picture, decoded
from transformer_jax.data.sources.images.image_source import MODES, Example, ImageSource, Part
from transformer_jax.data.sources.tfds.records import Records
from transformer_jax.errors import DataError


def tfds_images(config: DataConfig) -> ImageSource:
    """Return the source of a prepared dataset.

    The image is the feature `data.input_feature`, by default `image`, and the label, whose names are texts,
    `data.target_feature`, by default `label`. Raises DataError if the dataset lacks a split or a feature.
    """
    import tensorflow_datasets as tfds

    records = Records(config)
    image, label = config.input_feature or "image", config.target_feature or "label"
    _feature(records, "input_feature", image, tfds.features.Image, "an image")
    name_of = _feature(records, "target_feature", label, tfds.features.ClassLabel, "a label").int2str
    splits = {}
    for split in records.infos:
        images = _RecordSet(records, split, (image, label), name_of, MODES[config.colours])
        splits[split] = [Part(images, range(len(images)))]
    return ImageSource(config, splits)


def _feature(records: Records, field: str, name: str, kind: type, described: str) -> Any:
    feature = records.features.get(name)
    if isinstance(feature, kind):
        return feature
    found = [key for key, value in records.features.items() if isinstance(value, kind)]
    problem = f"is {feature}, not {described}" if feature is not None else "does not exist"
    raise DataError(
        f"data.{field}={name!r}: this feature of {records.name} {problem}; features of this kind: "
        f"{', '.join(found) or 'none'}"
    )


class _RecordSet:
    """The images of a split."""

    def __init__(
        self, records: Records, split: str, features: tuple[str, str], name_of: Callable[[int], str], mode: str | None
    ) -> None:
        """features: of the image and of the label. name_of: the name of a label. mode: as in `images.decoded`."""
        self._records, self._split, self._features, self._name_of, self._mode = records, split, features, name_of, mode

    def __len__(self) -> int:
        return self._records.num_examples(self._split)

    def examples(self, places: range) -> Iterator[Example]:
        image, label = self._features
        for place, record in self._records.records(self._split, places, **{image: True}):
            name = f"{self._records.name}: image {place + 1:,} of split '{self._split}'"
            number = int(record[label])
            if number < 0:  # as in test splits without labels
                raise DataError(f"{name} has no label ({number})")
            yield Picture(name, functools.partial(decoded, record[image], self._mode)), self._name_of(number)

    @property
    def sha256(self) -> str:
        return self._records.sha256(self._split, *self._features)
