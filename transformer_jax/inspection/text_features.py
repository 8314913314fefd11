"""Hidden states of texts, one vector of each text and layer, for a model of any task that reads one text at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import length_batches
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.loading import Loaded
from transformer_jax.inspection.probes import text_states
from transformer_jax.tasks.batches.pair_rows import reads_source_two_way
from transformer_jax.tasks.masked_lm import MaskedLM
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.length_limits import length_problems, position_table_rows
from transformer_jax.tasks.trained.predictor import Classifier
from transformer_jax.tasks.trained.row_translator import RowTranslator
from transformer_jax.tasks.trained.text_filler import Filler
from transformer_jax.tasks.trained.translator import SourceGenerator


def text_features(
    loaded: Loaded, texts: Sequence[str], pooling: str = "mean", place: Callable[[int], str] = "text {}".format
) -> dict[str, np.ndarray]:
    """Return `text_states` of every text, float32 [texts, D] by place, in batches of texts of about one length.

    A text is read as the model reads it: a source with its end-of-sequence, the text of a language model after the
    start, which does not count, a text to classify or with masks between its marks.

    Args: place: name of text i in errors, such as "line 3".
    Raises: DataError for a text that is empty or too long; ConfigError for a model that does not read single texts, or
      has no residual stream, and for another pooling.
    """
    config, found = loaded.config, {}
    head = TASKS[config.task.name].head(config.task, config.model)
    skip, batches = _batches(loaded, texts, place)
    for batch, examples in batches:
        is_text, arrays = examples >= 0, {name: jnp.asarray(array) for name, array in batch.items()}
        for name, vectors in text_states(config.model, loaded.params, arrays, pooling, head, skip).items():
            rows = found.setdefault(name, np.zeros((len(texts), vectors.shape[-1]), np.float32))
            rows[examples[is_text]] = vectors[is_text]
    return found


class _Batches(NamedTuple):
    """Batches with the number of the text of every row, -1 for an empty one; tokens in front that are of no text."""

    skip: int
    batches: Iterable[tuple[Any, np.ndarray]]


def _batches(loaded: Loaded, texts: Sequence[str], place: Callable[[int], str]) -> _Batches:
    config = loaded.config
    if predictor := _classifier(loaded):
        given = predictor.readable(texts)
        for index, problem in given.problems.items():
            raise DataError(f"{place(index)}: {problem}")
        return _Batches(0, () if given.encoded is None else predictor.batches(given.encoded))
    read, limit = _read(loaded, texts), position_table_rows(config.model)
    for index, ids in enumerate(read.ids):
        if len(ids) <= read.start:
            raise DataError(f"{place(index)}: has no tokens")
        if read.start and limit is not None and len(ids) > limit:
            raise DataError(
                f"{place(index)}: its {len(ids) - 1} tokens and the start exceed the positions of the model, "
                f"model.max_length={limit}; shorten it"
            )
    lengths = np.array([len(ids) for ids in read.ids])
    for index, problem in length_problems(config, lengths).items():
        raise DataError(f"{place(index)}: {problem}")
    return _Batches(read.start, _padded(config, read, lengths))


def _padded(config: ExperimentConfig, read: _Read, lengths: np.ndarray) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Yield the batches of `_Batches`."""
    for rows, width in length_batches(
        lengths, config.evaluation.tokens_per_batch, config.data.row_multiple, position_table_rows(config.model)
    ):
        ids, sizes = np.zeros((len(rows), width), np.int32), np.where(rows < 0, 0, lengths[rows])
        for row, index in enumerate(rows):
            if index >= 0:
                ids[row, : sizes[row]] = read.ids[index]
        is_token = np.arange(width) < sizes[:, None]
        if config.model.stacks[0] == "encoder":
            batch = {"inputs": ids, "inputs_mask": is_token}
            if config.model.stacks[-1] == "decoder":  # which is run, but not read
                batch["decoder_inputs"] = np.full((len(rows), 1), config.model.decoder_start_id, np.int32)
        else:
            batch = {"decoder_inputs": ids, "targets_mask": is_token}
            if read.two_way:
                batch["prefix_mask"] = is_token
        yield batch, rows


class _Read(NamedTuple):
    """The ids of texts; the number of tokens in front that are of no text; whether all tokens attend to each other."""

    ids: list[list[int]]
    start: int
    two_way: bool = False


def _read(loaded: Loaded, texts: Sequence[str]) -> _Read:
    config, tokenizer = loaded.config, loaded.tokenizer
    task, start = TASKS[config.task.name], config.model.decoder_start_id
    if task.generates:
        generator = task.generator(config, loaded.params, tokenizer)
        if isinstance(generator, RowTranslator):
            rows = [[start, *ids] for ids in generator.encode_sources(texts)]
            return _Read(rows, 1, reads_source_two_way(config.task))
        if isinstance(generator, SourceGenerator):
            return _Read(generator.encode_sources(texts), 0)
        if isinstance(generator, LanguageModel):
            return _Read([[start, *ids] for ids in generator.encode(texts)], 1)
    if isinstance(task, MaskedLM):
        return _Read(Filler(config, loaded.params, tokenizer, framed=True).encode_sources(texts), 0)
    raise ConfigError(
        f"task.name='{config.task.name}': its model does not read single texts; expected a language model, a model of "
        "source and target, a masked language model or a classifier of texts"
    )


def _classifier(loaded: Loaded) -> Classifier | None:
    """Return the classifier of texts of a checkpoint; None for another task."""
    config, task = loaded.config, TASKS[loaded.config.task.name]
    if config.model.inputs != "tokens":
        raise ConfigError(f"task.name='{config.task.name}' reads images; expected a model of text")
    if task.generates or isinstance(task, MaskedLM):
        return None
    predictor = task.predictor(config, loaded.params, loaded.tokenizer, loaded.labels)
    if not isinstance(predictor, Classifier):
        return None
    if config.data.second_feature:
        raise ConfigError(
            f"data.second_feature={config.data.second_feature}: the model reads pairs of texts; expected one that "
            "reads single texts"
        )
    return predictor
