"""Models that read a whole text on the page: their labels, tags or masked tokens, with attributions of tokens."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import BatchShape, Rows
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.errors import DataError
from transformer_jax.evaluation.loading import Loaded
from transformer_jax.explorer.explored import Explored, likely
from transformer_jax.explorer.passes import Asked, Seen, check_finite
from transformer_jax.inspection.attribution import integrated_gradients
from transformer_jax.tasks.corrupted_text import required_mask
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.predictor import Predictor, check_text
from transformer_jax.tasks.trained.text_filler import Filler
from transformer_jax.typing import Array, Batch

NUM_LABELS = 10
"""Labels that are shown with their probabilities, the most probable first."""

POWER = 3
"""Of integrated gradients: embeddings near zero, where norms change most, have more of the points."""


class Unit(NamedTuple):
    """One prediction of a row: a name, and the place of its outputs; () if it is one of the whole row."""

    name: str
    place: tuple[int, ...]


class Row(NamedTuple):
    """One row as the model reads it.

    batch: with padding. padded: its places. tokens: the texts of those that are no padding. units: what is predicted.
    """

    batch: Batch
    padded: int
    tokens: list[str]
    units: list[Unit]

    @property
    def length(self) -> int:
        """The number of places without padding."""
        return len(self.tokens)


@dataclasses.dataclass(frozen=True)
class ExploredEncoder(Explored[Loaded]):
    """A model of one stack and a head, as the page shows it."""

    @functools.cached_property
    def head(self) -> nn.Module | None:
        config = self.trained.config
        return TASKS[config.task.name].head(config.task, config.model)

    @abc.abstractmethod
    def row(self, text: str, second: str = "") -> Row:
        """Return what the model reads; raise DataError for a text that it cannot read."""

    @abc.abstractmethod
    def class_names(self, ids: Sequence[int]) -> list[str]:
        """Return the names of classes."""

    def attributions(
        self, text: str, second: str = "", unit: int = 0, cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Return attributions of the log-probability of the predicted class to the tokens, by integrated gradients.

        Args: text, second: as of `look`. unit: the number of what is predicted. cancelled: asked before every pass.
        Returns: `by_token`; their `sum`, and `difference`, the log-probability less that of embeddings of zero, to
          which they would sum if the integral were exact; `of`, the name of the class, and `unit`.
        Raises: DataError as `look`, and for a unit that there is not; CancelledError.
        """
        row = self.row(text, second)
        place = _unit(row, unit).place
        best = int(self._seen(row, self._keep()).ids[place][0])

        def measure(outputs: Array) -> Array:
            if cancelled():
                raise CancelledError
            return log_prob_of(outputs, place, best)

        batch = {name: jnp.asarray(array) for name, array in row.batch.items()}
        found = integrated_gradients(self.model, self.trained.params, batch, measure, head=self.head, power=POWER)
        numbers = found.by_token[0, : row.length]
        check_finite(numbers)
        return {
            "by_token": np.round(numbers, 5).tolist(),
            "sum": round(float(numbers.sum()), 5),
            "difference": round(found.difference, 5),
            "of": self.class_names([best])[0],
            "unit": unit,
        }

    def _loss(self, row: Row, by_mean: bool, unit: int) -> tuple[Asked, Callable[[np.ndarray], float]]:
        place, keep = _unit(row, unit).place, self._keep()
        asked = self._asked(row, keep, by_mean)._replace(next_ids=self._seen(row, keep).ids[..., 0])
        return asked, lambda log_probs: float(-log_probs[place])

    def _shown(self, text: str, row: Row, found: Seen) -> dict[str, Any]:
        places = [unit.place for unit in row.units]
        return {
            "text": text,
            "tokens": {self._last: row.tokens},
            "predicted": self._last,
            "units": [{"name": unit.name, "place": unit.place[0] if unit.place else None} for unit in row.units],
            "predictions": [likely(self.class_names, found.ids[p], found.log_probs[p]) for p in places],
            "lens": [
                [likely(self.class_names, ids[p], log_probs[p]) for p in places]
                for ids, log_probs in zip(found.lens_ids, found.lens_log_probs, strict=True)
            ],
            "attention": self._attention({self._last: row.length}, found),
        }

    def _asked(self, row: Row, keep: np.ndarray, by_mean: bool = False) -> Asked:
        places = np.zeros(row.padded if row.units[0].place else (), np.int32)
        is_token = {self._last: np.arange(row.padded) < row.length}
        return Asked(row.batch, places, is_token, keep, np.float32(by_mean))

    def _padded(self, length: int) -> int:
        if length > self._most_tokens:
            raise DataError(
                f"the text has {length:,} tokens with its marks; the page shows at most {self._most_tokens}"
            )
        return super()._padded(length)


class ExploredLabels(ExploredEncoder):
    """A model that predicts the label of a text or of a pair of texts."""

    kind = "labels"
    most = NUM_LABELS

    @property
    def reads(self) -> tuple[str, ...]:
        return ("text", "second") if self.trained.config.data.second_feature else ("text",)

    @property
    def config(self) -> ExperimentConfig:
        """The config of the predictor."""
        return self.trained.config

    @functools.cached_property
    def predictor(self) -> Predictor[Any]:
        config, loaded = self.config, self.trained
        return TASKS[config.task.name].predictor(config, loaded.params, loaded.tokenizer, loaded.labels)

    def warm_up(self) -> None:
        self.look("a", second="a" if len(self.reads) > 1 else "")

    def class_names(self, ids: Sequence[int]) -> list[str]:
        return [self.trained.labels[i] for i in ids]

    def row(self, text: str, second: str = "") -> Row:
        if second and len(self.reads) == 1:
            raise DataError("the model reads one text")
        predictor, config = self.predictor, self.trained.config
        texts = (text, second) if len(self.reads) > 1 else text
        try:
            check_text(texts)
            features = predictor.features(texts)
        except ValueError as error:
            raise DataError(f"the text {error}") from error
        encoded, task = predictor.encoded([features]), predictor.task
        (length,) = (int(sizes[0]) for sizes in task.lengths(config, encoded).values())
        padded = self._padded(length)
        widths = task.widths(config, padded)
        assert widths is not None
        one = Rows(np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int32), False)
        arrays = task.arrays(config, encoded, one, BatchShape(1, tuple(widths.items())), None)
        batch: dict[str, Any] = {name: arrays[name] for name in _READ_BY_MODELS if name in arrays}
        tokens = self.trained.tokenizer.tokens(next(iter(batch.values()))[0, :length])
        return Row(batch, padded, tokens, self._units(features, encoded))

    def _units(self, features: Mapping[str, Any], encoded: EncodedSplit) -> list[Unit]:
        return [Unit("the text" if len(self.reads) == 1 else "the pair of texts", ())]


class ExploredTags(ExploredLabels):
    """A model that predicts a tag for every word."""

    kind = "tags"

    def _units(self, features: Mapping[str, Any], encoded: EncodedSplit) -> list[Unit]:
        words = features["words"]
        firsts = encoded.take("firsts", np.zeros(1, np.int64), len(words))[0]
        return [Unit(word, (int(first) + 1,)) for word, first in zip(words, firsts, strict=True)]


class ExploredMasked(ExploredEncoder):
    """A masked language model; the mask may stand in the text by its name."""

    kind = "masked"

    @functools.cached_property
    def _filler(self) -> Filler:
        loaded = self.trained
        return Filler(loaded.config, loaded.params, loaded.tokenizer, framed=True)

    @functools.cached_property
    def mask(self) -> str:
        """The name of the mask."""
        return self.class_names([required_mask(self.trained.config, self.trained.tokenizer.special_ids)])[0]

    def about(self) -> dict[str, Any]:
        return {**super().about(), "mask": self.mask}

    def warm_up(self) -> None:
        self.look(self.mask)

    def class_names(self, ids: Sequence[int]) -> list[str]:
        return self.trained.tokenizer.tokens(list(ids))

    def row(self, text: str, second: str = "") -> Row:
        if second:
            raise DataError("the model reads one text")
        try:
            check_text(text)
        except ValueError as error:
            raise DataError(f"the text {error}") from error
        (ids,) = self._filler.encode_sources([text])
        if not ids:
            raise DataError("the text has no tokens")
        padded = self._padded(len(ids))
        inputs = np.full((1, padded), self.trained.tokenizer.special_ids.pad or 0, np.int32)
        inputs[0, : len(ids)] = ids
        tokens = self.class_names(ids)
        batch: dict[str, Any] = {"inputs": inputs, "inputs_mask": np.arange(padded)[None] < len(ids)}
        return Row(batch, padded, tokens, [Unit(token, (place,)) for place, token in enumerate(tokens)])


def log_prob_of(outputs: Array, place: tuple[int, ...], number: int) -> Array:
    """Return the log-probability of a class at a place of the outputs of the first row, [C] or [T, C]."""
    return jax.nn.log_softmax(outputs[(0, *place)])[number]


_READ_BY_MODELS = ("inputs", "decoder_inputs", "inputs_mask", "types")


def _unit(row: Row, number: int) -> Unit:
    if not 0 <= number < len(row.units):
        raise DataError(f"there is no prediction {number}; the last one is {len(row.units) - 1}")
    return row.units[number]
