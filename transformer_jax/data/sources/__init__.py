"""Where text comes from: the embedded corpus, text files or TensorFlow Datasets."""

from __future__ import annotations

import functools

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.base import Source, Split

__all__ = ["Source", "Split", "load_source"]


def load_source(config: DataConfig) -> Source:
    """The source that `config.source` names. Raises DataError if it cannot be used."""
    if config.source == "text":
        from transformer_jax.data.sources.text import TextSource

        return TextSource(config)
    if config.source == "tfds":
        from transformer_jax.data.sources.tfds.source import TfdsSource

        return TfdsSource(config)
    return _embedded(config.source_locale, config.target_locale, config.num_train_pairs, config.num_eval_pairs)


@functools.lru_cache(maxsize=1)
def _embedded(source_locale: str, target_locale: str, num_train_pairs: int, num_eval_pairs: int) -> Source:
    """Kept, since a process that trains and then evaluates asks for the same corpus twice."""
    from transformer_jax.data.sources.embedded import EmbeddedSource

    return EmbeddedSource(source_locale, target_locale, num_train_pairs, num_eval_pairs)
