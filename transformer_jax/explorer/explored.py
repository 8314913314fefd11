"""What the page shows of any model: its attention, its predictions from every layer, and passes without some heads.

Everything is computed from named places (inspection/places.py), by the passes of passes.py.
"""

from __future__ import annotations

import abc
import base64
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, ClassVar, Generic, TypeVar

import flax.linen as nn
import jax
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.evaluation.loading import Loaded
from transformer_jax.explorer.passes import (
    NUM_PREDICTIONS,
    Asked,
    Head,
    Names,
    Seen,
    check_finite,
    names_of,
    next_log_probs,
    seen,
)
from transformer_jax.inspection.attention import mean_entropy
from transformer_jax.tasks.trained.text_generator import TextGenerator, stacks_text

MULTIPLE = 16
"""Texts are padded to a multiple of so many tokens, so that few programs are compiled."""
MAX_TOKENS = 256
"""Most tokens of a text, with the start token."""
TITLES = {
    "decoder/self_attention": "decoder self-attention",
    "decoder/cross_attention": "cross-attention",
    "encoder/self_attention": "encoder self-attention",
}
_ONE = 65535
"""Weights are sent as 16-bit numbers: this is 1."""

T = TypeVar("T", bound=TextGenerator | Loaded)


@dataclasses.dataclass(frozen=True)
class Explored(abc.ABC, Generic[T]):
    """A trained model as the page shows it."""

    trained: T
    label: str
    kind: ClassVar[str]
    """Names what the page shows."""
    measures: ClassVar[tuple[str, ...]] = ("effects",)
    """Numbers of heads that need further passes; each is a method or attribute of this name."""
    needs_text: ClassVar[bool] = True
    """Whether there is nothing to show without its texts."""
    most: ClassVar[int] = NUM_PREDICTIONS
    """Predictions that are shown at a place."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the one or two texts that it reads."""
        return ("text",)

    @property
    def model(self) -> ModelConfig:
        return self.trained.config.model

    @property
    def head(self) -> nn.Module | None:
        """The head of the task; None for a model that predicts tokens."""
        return None

    @functools.cached_property
    def names(self) -> Names:
        return names_of(self.model, self.head)

    @abc.abstractmethod
    def row(self, text: str, second: str = "") -> Any:
        """Return what the model reads; raise DataError for texts that are too long, or that it cannot read."""

    @abc.abstractmethod
    def warm_up(self) -> None:
        """Compile the program of short texts."""

    def about(self) -> dict[str, Any]:
        """Return what the page says of the model, as JSON values."""
        return {
            "label": self.label,
            "kind": self.kind,
            "stacks": stacks_text(self.model),
            "reads": self.reads,
            "needs_text": self.needs_text,
            "measures": self.measures,
            "attentions": [
                {"name": name, "title": TITLES.get(name, name), "layers": layers, "heads": self.model.num_heads}
                for name, layers in self.names.attentions.items()
            ],
            "tokenizer": self.trained.tokenizer.sha256,
        }

    def look(self, text: str, ablated: Iterable[Head] = (), by_mean: bool = False, second: str = "") -> dict[str, Any]:
        """Return what the page shows of a text, as JSON values.

        Args:
          text, second: as `reads` names them.
          ablated: heads that are left out, replaced by zeros or by their mean over the text.
        Raises: DataError for a text that is too long, and for a head that the model does not have.
        """
        row = self.row(text, second)
        return self._shown(text, row, self._seen(row, self._keep(ablated), by_mean))

    def effects(
        self,
        text: str,
        by_mean: bool = False,
        second: str = "",
        cancelled: Callable[[], bool] = lambda: False,
        unit: int = 0,
    ) -> dict[str, list[list[float]]]:
        """Return by how much a loss rises without one head, in nats, [layers][heads] by attention.

        It is the loss per token of a model that generates text; else, that of the class which is predicted.

        Args:
          text, by_mean, second: as of `look`. cancelled: asked before every pass.
          unit: the number of what is predicted, such as a word.
        Raises: DataError as `look`, for a text without a token, and for a unit that there is not; CancelledError.
        """
        asked, loss_of = self._loss(self.row(text, second), by_mean, unit)

        def loss(*ablated: Head) -> float:
            if cancelled():
                raise CancelledError
            without = asked._replace(keep=self._keep(ablated))
            found = loss_of(jax.device_get(next_log_probs(self.model, self.names, self.trained.params, without)))
            check_finite(found)
            return found

        before, heads = loss(), range(self.model.num_heads)
        return {
            name: [[round(loss(Head(name, layer, n)) - before, 5) for n in heads] for layer in layers]
            for name, layers in self.names.attentions.items()
        }

    @abc.abstractmethod
    def _loss(self, row: Any, by_mean: bool, unit: int) -> tuple[Asked, Callable[[np.ndarray], float]]:
        """Return the arrays of a pass, and the function from log-probabilities of its `next_ids` to the loss."""

    @abc.abstractmethod
    def _shown(self, text: str, row: Any, found: Seen) -> dict[str, Any]:
        """Return the results of a pass over a row of `row` as JSON values."""

    @abc.abstractmethod
    def _asked(self, row: Any, keep: np.ndarray, by_mean: bool = False) -> Asked:
        """Return the arrays of a pass over a row of `row`, with padding."""

    @property
    def _last(self) -> str:
        """The stack whose tokens are predicted."""
        return self.model.stacks[-1]

    @property
    def _most_tokens(self) -> int:
        return min(MAX_TOKENS, self.model.max_length) if self.model.position_encoding == "learned" else MAX_TOKENS

    def _padded(self, length: int) -> int:
        """Return the places of a row of this length with padding."""
        return min(-(-length // MULTIPLE) * MULTIPLE, self._most_tokens)

    def _keep(self, ablated: Iterable[Head] = ()) -> np.ndarray:
        return self.names.keep(self.model.num_heads, ablated)

    def _seen(self, row: Any, keep: np.ndarray, by_mean: bool = False) -> Seen:
        asked = self._asked(row, keep, by_mean)
        found = jax.device_get(seen(self.model, self.names, self.trained.params, asked, self.most))
        for array in (found.log_probs, found.lens_log_probs, *found.weights.values()):
            check_finite(array)
        return found

    def _attention(self, counts: Mapping[str, int], found: Seen) -> dict[str, dict[str, Any]]:
        """Return the weights of every attention. counts: tokens by stack, without padding."""
        return {
            name: self._weights(name, layers, counts, found.weights[name])
            for name, layers in self.names.attentions.items()
        }

    def _weights(self, name: str, layers: Sequence[int], counts: Mapping[str, int], weights: Any) -> dict[str, Any]:
        stack, _, part = name.partition("/")
        of_keys = "encoder" if part == "cross_attention" else stack
        weights = np.asarray(weights, np.float64)[:, :, : counts[stack], : counts[of_keys]]
        return {
            "queries": stack,
            "keys": of_keys,
            "causal": (stack, part) == ("decoder", "self_attention"),
            "layers": layers,
            "heads": int(weights.shape[1]),
            "weights": base64.b64encode(np.round(weights * _ONE).astype("<u2").tobytes()).decode(),
            **head_numbers(weights, is_of_one_text=stack == of_keys),
        }


def likely(names: Callable[[list[int]], list[str]], ids: Any, log_probs: Any) -> list[list[Any]]:
    """Return the names of some predictions [K] with their probabilities, as JSON values."""
    return [[name, round(float(np.exp(p)), 5)] for name, p in zip(names(ids.tolist()), log_probs, strict=True)]


def head_numbers(weights: np.ndarray, is_of_one_text: bool = True) -> dict[str, list[list[float]]]:
    """Return numbers of heads from their weights [L, N, T, S], means over queries: entropy in nats, and mean weights.

    `first`: on the first key. `previous`: on the token before, if queries and keys are of one text. If they are, the
    first query has neither.
    """
    found = {"entropy": mean_entropy(weights)}
    if is_of_one_text:
        count = weights.shape[-1] - 1
        later = weights[:, :, 1:]
        found["previous"] = (
            later[:, :, np.arange(count), np.arange(count)].mean(-1) if count else np.zeros(weights.shape[:2])
        )
        weights = later
    found["first"] = weights[..., 0].mean(-1) if weights.shape[2] else np.zeros(weights.shape[:2])
    return {name: np.round(values, 5).tolist() for name, values in found.items()}
