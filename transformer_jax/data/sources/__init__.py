"""Where sentence pairs come from: the embedded corpus or parallel text files."""

from __future__ import annotations

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.base import Source, Split

__all__ = ["Source", "Split", "load_source"]


def load_source(config: DataConfig) -> Source:
    """The source that `config.source` names. Raises DataError if it cannot be used."""
    if config.source == "text":
        from transformer_jax.data.sources.text import TextSource

        return TextSource(
            config.dir,
            config.source_locale,
            config.target_locale,
            {"train": config.train_files, "valid": config.valid_files, "test": config.test_files},
        )
    from transformer_jax.data.sources.embedded import EmbeddedSource

    return EmbeddedSource(config.source_locale, config.target_locale, config.num_train_pairs, config.num_eval_pairs)
