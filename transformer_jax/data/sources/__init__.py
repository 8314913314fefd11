"""Sources of text: the embedded corpus, text files and TensorFlow Datasets."""

from __future__ import annotations

import functools

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.base import Source, Split

__all__ = ["SOURCES", "Source", "Split", "load_source"]


def load_source(config: DataConfig) -> Source:
    """Return the source that `config.source` names. Raises DataError if it cannot be used."""
    return SOURCES[config.source](config)


def _text(config: DataConfig) -> Source:
    from transformer_jax.data.sources.text import TextSource

    return TextSource(config)


def _tfds(config: DataConfig) -> Source:
    from transformer_jax.data.sources.tfds.source import TfdsSource

    return TfdsSource(config)


def _embedded(config: DataConfig) -> Source:
    return _cached_embedded(config.source_locale, config.target_locale, config.num_train_pairs, config.num_eval_pairs)


SOURCES = {"embedded": _embedded, "text": _text, "tfds": _tfds}
"""By the values of `data.source`."""


@functools.lru_cache(maxsize=1)
def _cached_embedded(source_locale: str, target_locale: str, num_train_pairs: int, num_eval_pairs: int) -> Source:
    """Kept, since a process that trains and then evaluates asks for the same corpus twice."""
    from transformer_jax.data.sources.embedded import EmbeddedSource

    return EmbeddedSource(source_locale, target_locale, num_train_pairs, num_eval_pairs)
