"""Which page a trained model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.loading import Loaded, generator_of
from transformer_jax.explorer.encoders import ExploredEncoder, ExploredLabels, ExploredMasked, ExploredTags
from transformer_jax.explorer.explored import Explored
from transformer_jax.explorer.images import ExploredImages
from transformer_jax.explorer.views import ExploredGenerator, ExploredLanguageModel, ExploredTranslator
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.row_translator import RowTranslator
from transformer_jax.tasks.trained.text_generator import TextGenerator
from transformer_jax.tasks.trained.translator import SourceGenerator

ENCODERS: Mapping[str, type[ExploredEncoder]] = {
    "classification": ExploredLabels,
    "tagging": ExploredTags,
    "masked_lm": ExploredMasked,
    "images": ExploredImages,
}
"""By the name of the task."""
GENERATORS: Mapping[type[TextGenerator], type[ExploredGenerator]] = {
    LanguageModel: ExploredLanguageModel,
    SourceGenerator: ExploredTranslator,
}


def explored(trained: Loaded | TextGenerator, label: str) -> Explored[Any]:
    """Return a checkpoint, or a generator of text, as the page shows it; raise ConfigError for one that it does not."""
    if isinstance(trained, TextGenerator):
        found = _of_generator(trained, label)
    elif kind := ENCODERS.get(trained.config.task.name):
        found = kind(trained, label)
    elif not TASKS[trained.config.task.name].generates:
        raise _not_shown(trained, label)
    else:
        found = _of_generator(generator_of(trained), label)
    found.names  # a model without residual stream is refused at once  # noqa: B018
    return found


def _of_generator(generator: TextGenerator, label: str) -> ExploredGenerator:
    if isinstance(generator, RowTranslator):
        raise ConfigError(f"{label}: a decoder that reads source and translation in one row is not shown")
    for generates, kind in GENERATORS.items():
        if isinstance(generator, generates):
            return kind(generator, label)
    raise _not_shown(generator, label)


def _not_shown(trained: Loaded | TextGenerator, label: str) -> ConfigError:
    return ConfigError(
        f"{label}: models of task.name='{trained.config.task.name}' are not shown; shown are those of "
        f"{', '.join(ENCODERS)}, and those that generate text"
    )
