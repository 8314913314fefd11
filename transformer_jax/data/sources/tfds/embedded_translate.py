"""The embedded corpus as a dataset of TFDS, so that TFDS can be tried without a network.

A config is SOURCE-TARGET or SOURCE-TARGET-TRAIN-EVAL, such as en-de or pt_BR-it-5000-500: two locales, the number of
training pairs and that of each other split. Defaults are those of `data.num_train_pairs` and `data.num_eval_pairs`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow_datasets as tfds

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.embedded import EmbeddedSource
from transformer_jax.data.sources.source import Split
from transformer_jax.errors import DataError

_DEFAULT = f"{DataConfig.source_locale}-{DataConfig.target_locale}"
_CONFIG = re.compile(r"(\w+)-(\w+)(?:-(\d+)-(\d+))?")


@dataclasses.dataclass(eq=False)
class EmbeddedConfig(tfds.core.BuilderConfig):
    """The arguments of EmbeddedSource."""

    source_locale: str = DataConfig.source_locale
    target_locale: str = DataConfig.target_locale
    num_train_pairs: int = DataConfig.num_train_pairs
    num_eval_pairs: int = DataConfig.num_eval_pairs


def config_of_name(name: str) -> EmbeddedConfig:
    """Return the config of a name, the default one if it is empty; raise DataError for a bad name or locale."""
    name = name or _DEFAULT
    match = _CONFIG.fullmatch(name)
    if not match or match[1] == match[2]:
        raise DataError(
            f"config {name!r} of embedded_translate: expected two different locales, such as en-de, and "
            "optionally the numbers of training and of evaluation pairs, such as en-de-5000-500"
        )
    source, target, *sizes = match.groups()
    train, evaluation = (
        (int(size) for size in sizes) if sizes[0] else (DataConfig.num_train_pairs, DataConfig.num_eval_pairs)
    )
    _source(source, target, train, evaluation)
    return EmbeddedConfig(
        name=name, source_locale=source, target_locale=target, num_train_pairs=train, num_eval_pairs=evaluation
    )


@functools.lru_cache(maxsize=1)
def _source(source_locale: str, target_locale: str, num_train_pairs: int, num_eval_pairs: int) -> EmbeddedSource:
    """Return the corpus; cached, since checking the locales takes half of the time."""
    return EmbeddedSource(source_locale, target_locale, num_train_pairs, num_eval_pairs)


class EmbeddedTranslate(tfds.core.GeneratorBasedBuilder):
    """Sentence pairs with their family, in the order of EmbeddedSource."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar = {"1.0.0": "The splits of transformer_jax.data.sources.embedded."}
    BUILDER_CONFIGS: ClassVar = [EmbeddedConfig(name=_DEFAULT)]
    builder_config: EmbeddedConfig

    def _info(self) -> tfds.core.DatasetInfo:
        locales = self.builder_config.source_locale, self.builder_config.target_locale
        features = {name: tfds.features.Text() for name in (*locales, "family")}
        return tfds.core.DatasetInfo(
            builder=self,
            description="Sentences rendered in two locales from the Unicode CLDR and number words.",
            features=tfds.features.FeaturesDict(features),
            supervised_keys=locales,
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        config = self.builder_config
        source = _source(config.source_locale, config.target_locale, config.num_train_pairs, config.num_eval_pairs)
        return {name: self._generate_examples(source.split(name)) for name in source.split_names}

    def _generate_examples(self, split: Split) -> Iterator[tuple[int, dict[str, str]]]:
        config = self.builder_config
        rows = zip(*(split.features[name] for name in ("inputs", "targets", "families")), strict=True)
        for key, (source, target, family) in enumerate(rows):
            yield key, {config.source_locale: source, config.target_locale: target, "family": family}
