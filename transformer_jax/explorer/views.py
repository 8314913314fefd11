"""What the page shows of a text: its tokens with their losses, attention, and the predictions of every layer.

Everything is computed from named places (inspection/places.py), by the passes of passes.py.
"""

from __future__ import annotations

import abc
import base64
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.explorer.generation import MAX_STEPS, MAX_WIDTH, followed
from transformer_jax.explorer.passes import (
    Asked,
    Head,
    Names,
    Seen,
    check_finite,
    names_of,
    next_log_probs,
    seen,
)
from transformer_jax.explorer.patching import Side, patch_shares
from transformer_jax.inspection.attention import mean_entropy
from transformer_jax.inspection.head_scores import induction_score
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.row_translator import RowTranslator
from transformer_jax.tasks.trained.text_generator import TextGenerator, stacks_text
from transformer_jax.tasks.trained.translator import SourceGenerator

MULTIPLE = 16
"""Texts are padded to a multiple of so many tokens, so that few programs are compiled."""
MAX_TOKENS = 256
"""Most tokens of a text, with the start token."""
REPEATED = 24
"""Random tokens that are repeated for the induction score."""
TITLES = {
    "decoder/self_attention": "decoder self-attention",
    "decoder/cross_attention": "cross-attention",
    "encoder/self_attention": "encoder self-attention",
}
_ONE = 65535
"""Weights are sent as 16-bit numbers: this is 1."""


class Row(NamedTuple):
    """The ids that the stacks of a model read of a text, by stack, and the text of its target, if it has one."""

    ids: dict[str, list[int]]
    target: str = ""


@dataclasses.dataclass(frozen=True)
class Explored(abc.ABC):
    """A model that generates text as the page shows it."""

    generator: TextGenerator
    label: str
    kind: ClassVar[str]
    measures: ClassVar[tuple[str, ...]] = ("effects",)
    """Numbers of heads that need further passes; each is a method or attribute of this name."""

    @functools.cached_property
    def names(self) -> Names:
        return names_of(self.generator.config.model)

    @abc.abstractmethod
    def row(self, text: str, target: str = "") -> Row:
        """Return what the model reads; raise DataError for a text that is too long, or that it cannot read."""

    def about(self) -> dict[str, Any]:
        """Return what the page says of the model, as JSON values."""
        model = self.generator.config.model
        return {
            "label": self.label,
            "kind": self.kind,
            "stacks": stacks_text(model),
            "measures": self.measures,
            "attentions": [
                {"name": name, "title": TITLES.get(name, name), "layers": layers, "heads": model.num_heads}
                for name, layers in self.names.attentions.items()
            ],
            "tokenizer": self.generator.tokenizer.sha256,
        }

    def look(self, text: str, ablated: Iterable[Head] = (), by_mean: bool = False, target: str = "") -> dict[str, Any]:
        """Return what the page shows of a text, as JSON values.

        Args:
          ablated: heads that are left out, replaced by zeros or by their mean over the text.
          target: what the decoder of two stacks reads; empty: the output of the model with all heads.
        Raises: DataError for a text that is too long, and for a head that the model does not have.
        """
        row = self.row(text, target)
        return self._shown(text, row, self._seen(row, self._keep(ablated), by_mean))

    def effects(
        self, text: str, by_mean: bool = False, target: str = "", cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, list[list[float]]]:
        """Return by how much the loss rises without one head: nats per token, [layers][heads] by attention.

        Args:
          text, by_mean, target: as of `look`. cancelled: asked before every pass.
        Raises: DataError for a text without a token, or one that is too long; CancelledError.
        """
        row = self.row(text, target)
        count = len(row.ids[self._last])
        if count == 1:
            raise DataError("the text has no token whose loss could change")
        model = self.generator.config.model

        def loss(*ablated: Head) -> float:
            if cancelled():
                raise CancelledError
            asked = self._asked(row, self._keep(ablated), by_mean)
            log_probs = jax.device_get(next_log_probs(model, self.names, self.generator.params, asked))[: count - 1]
            check_finite(log_probs)
            return float(-log_probs.mean())

        before, heads = loss(), range(model.num_heads)
        return {
            name: [[round(loss(Head(name, layer, n)) - before, 5) for n in heads] for layer in layers]
            for name, layers in self.names.attentions.items()
        }

    def generate(
        self, text: str, width: int, steps: int, cancelled: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Return a beam search token by token, as `generation.followed`: the model's outputs of at most `steps` tokens.

        Args:
          text: a source, or the beginning of a text. width: hypotheses that are continued, 1 to `MAX_WIDTH`.
          steps: 1 to `MAX_STEPS`. cancelled: asked before every step.
        Raises: DataError for a number out of range, an empty source, and a text that is too long; CancelledError.
        """
        for name, value, most in (("beams", width, MAX_WIDTH), ("tokens", steps, MAX_STEPS)):
            if not 1 <= value <= most:
                raise DataError(f"generation with {value} {name}: expected 1 to {most}")
        self._check_generates(text, steps)
        return {"text": text, **followed(self.generator, text, width, steps, cancelled)}

    @abc.abstractmethod
    def _check_generates(self, text: str, steps: int) -> None:
        """Raise DataError for a text that cannot be continued, or translated."""

    @property
    def _last(self) -> str:
        """The stack whose tokens are predicted."""
        return self.generator.config.model.stacks[-1]

    @property
    def _most_tokens(self) -> int:
        model = self.generator.config.model
        return min(MAX_TOKENS, model.max_length) if model.position_encoding == "learned" else MAX_TOKENS

    def _checked(self, what: str, ids: Sequence[int]) -> list[int]:
        if len(ids) > self._most_tokens:
            raise DataError(f"{what} has {len(ids) - 1:,} tokens; the page shows at most {self._most_tokens - 1}")
        return [*ids]

    def _keep(self, ablated: Iterable[Head] = ()) -> np.ndarray:
        return self.names.keep(self.generator.config.model.num_heads, ablated)

    def _asked(self, row: Row, keep: np.ndarray, by_mean: bool = False) -> Asked:
        padded, is_token = {}, {}
        for stack, ids in row.ids.items():
            length = min(-(-len(ids) // MULTIPLE) * MULTIPLE, self._most_tokens)
            padded[stack] = np.zeros(length, np.int32)
            padded[stack][: len(ids)] = ids
            is_token[stack] = np.arange(length) < len(ids)
        read = padded[self._last]
        next_ids = np.append(read[1:], np.int32(0))
        batch = {"decoder_inputs": read[None]}
        if "encoder" in padded:
            batch |= {"inputs": padded["encoder"][None], "inputs_mask": is_token["encoder"][None]}
        return Asked(batch, next_ids, is_token, keep, np.float32(by_mean))

    def _seen(self, row: Row, keep: np.ndarray, by_mean: bool = False) -> Seen:
        model = self.generator.config.model
        found = jax.device_get(seen(model, self.names, self.generator.params, self._asked(row, keep, by_mean)))
        for array in (found.log_probs, found.lens_log_probs, *found.weights.values()):
            check_finite(array)
        return found

    def _tokens(self, stack: str, ids: Sequence[int]) -> list[str]:
        tokenizer = self.generator.tokenizer
        return (tokenizer.source if stack != self._last else tokenizer).tokens(list(ids))

    def _shown(self, text: str, row: Row, found: Seen) -> dict[str, Any]:
        tokens, T = self.generator.tokenizer.tokens, len(row.ids[self._last])

        def likely(ids: Any, log_probs: Any) -> list[Any]:
            return [[t, round(float(np.exp(p)), 5)] for t, p in zip(tokens(ids.tolist()), log_probs, strict=True)]

        return {
            "text": text,
            "target": row.target,
            "tokens": {stack: self._tokens(stack, ids) for stack, ids in row.ids.items()},
            "predicted": self._last,
            "predictions": [likely(found.ids[t], found.log_probs[t]) for t in range(T)],
            "losses": [round(float(-p), 5) for p in found.of_next[: T - 1]],
            "lens": [
                [likely(ids[t], values[t]) for t in range(T)]
                for ids, values in zip(found.lens_ids, found.lens_log_probs, strict=True)
            ],
            "attention": {
                name: self._attention(name, layers, row, found.weights[name])
                for name, layers in self.names.attentions.items()
            },
        }

    def _attention(self, name: str, layers: Sequence[int], row: Row, weights: Any) -> dict[str, Any]:
        stack, _, part = name.partition("/")
        of_keys = "encoder" if part == "cross_attention" else stack
        weights = np.asarray(weights, np.float64)[:, :, : len(row.ids[stack]), : len(row.ids[of_keys])]
        return {
            "queries": stack,
            "keys": of_keys,
            "causal": (stack, part) == ("decoder", "self_attention"),
            "layers": layers,
            "heads": int(weights.shape[1]),
            "weights": base64.b64encode(np.round(weights * _ONE).astype("<u2").tobytes()).decode(),
            **head_numbers(weights, is_of_one_text=stack == of_keys),
        }


class ExploredLanguageModel(Explored):
    """A language model; the page shows a text."""

    kind = "language"
    measures = ("induction", "effects")

    def row(self, text: str, target: str = "") -> Row:
        if target:
            raise DataError("a language model reads one text")
        ids = self.generator.encode([text])[0]
        return Row({"decoder": self._checked("the text", [self.generator.config.model.decoder_start_id, *ids])})

    def _check_generates(self, text: str, steps: int) -> None:
        model, count = self.generator.config.model, len(self.row(text).ids["decoder"]) - 1
        if model.position_encoding == "learned" and count + steps > model.max_length:
            raise DataError(
                f"the text has {count} tokens, and {steps} more exceed the {model.max_length} positions of the model"
            )

    def patch(self, text: str, other: str, cancelled: Callable[[], bool] = lambda: False) -> dict[str, Any]:
        """Return what one value of the run on another text changes in the run on a text (activation patching).

        The number is the log-probability of the other text's likeliest next token less that of the text's; if they are
        one token, its log-probability.

        Args: cancelled: asked before every pass.
        Returns: `shares` [streams][tokens] of the difference between the runs, and `likely` tokens after them with
          their probabilities; `of` and `against`, the two tokens; `value` and `other_value`, the number of both runs;
          `tokens` and `other_tokens`.
        Raises: DataError for texts of different lengths, or whose runs have the same number; CancelledError.
        """
        rows = [self.row(text), self.row(other)]
        batch, other_batch = (self._asked(row, self._keep()).batch for row in rows)
        ids, other_ids = (row.ids["decoder"] for row in rows)
        return patch_shares(self.generator, self.names, Side(ids, batch), Side(other_ids, other_batch), cancelled)

    @functools.cached_property
    def induction(self) -> dict[str, list[list[float]]]:
        """The induction scores of all heads (inspection/head_scores.py), on different random tokens repeated once.

        Raises: DataError for a model that reads too few tokens, or has too few.
        """
        special = self.generator.tokenizer.special_ids
        roles = {special.pad, special.eos, special.unk, special.bos, special.mask, special.cls, special.sep}
        ordinary = sorted({*range(self.generator.config.model.vocab_size)} - roles - {*special.sentinels})
        count = min(REPEATED, (self._most_tokens - 1) // 2, len(ordinary))
        if count < 2:
            raise DataError("the model has too few tokens or positions for an induction score")
        once = np.random.default_rng(0).choice(ordinary, count, replace=False).tolist()
        ids = [self.generator.config.model.decoder_start_id, *once, *once]
        read, is_token, size = np.array([ids]), np.ones((1, len(ids)), bool), len(ids)
        return {
            name: [
                np.round(induction_score(np.asarray(of_layer)[None, :, :size, :size], read, is_token), 5).tolist()
                for of_layer in weights
            ]
            for name, weights in self._seen(Row({"decoder": ids}), self._keep()).weights.items()
        }


class ExploredTranslator(Explored):
    """An encoder-decoder of text; the page shows a source, and the model's output or a target that is given."""

    kind = "translation"

    def row(self, text: str, target: str = "") -> Row:
        generator = self.generator
        assert isinstance(generator, SourceGenerator)
        start, eos = generator.config.model.decoder_start_id, generator.tokenizer.special_ids.required("eos")
        (source,) = generator.encode_sources([text])
        if target:
            ids = [*generator.encode([target])[0], eos]
        else:
            ids, target = self._outputs(text) if text.strip() else ([], "")
        read = [start, *ids]
        if len(read) == self._most_tokens + 1:
            read.pop()  # the last token is predicted, and needs no place
        return Row({"encoder": self._checked("the text", source), "decoder": self._checked("the target", read)}, target)

    def _check_generates(self, text: str, steps: int) -> None:
        if not text.strip():
            raise DataError("the text is empty; generation needs a source")
        generator = self.generator
        assert isinstance(generator, SourceGenerator)
        self._checked("the text", generator.encode_sources([text])[0])

    @functools.cached_property
    def _outputs(self) -> Callable[[str], tuple[list[int], str]]:
        """The function from a source to the ids and the text of the model's output; it remembers the latest."""

        @functools.lru_cache(maxsize=64)
        def output(text: str) -> tuple[list[int], str]:
            (found,) = self.generator.generate_chunk([Line(text)])
            if found.problem:
                raise DataError(f"the text: {found.problem}")
            return (found.outputs[0].ids, found.text) if found.outputs else ([], "")

        return output


def explored(generator: TextGenerator, label: str) -> Explored:
    """Return a model as the page shows it; raise ConfigError for one that it does not show."""
    if isinstance(generator, RowTranslator):
        raise ConfigError(f"{label}: a decoder that reads source and translation in one row is not shown")
    kinds: Mapping[type[TextGenerator], type[Explored]] = {
        LanguageModel: ExploredLanguageModel,
        SourceGenerator: ExploredTranslator,
    }
    for generates, kind in kinds.items():
        if isinstance(generator, generates):
            found = kind(generator, label)
            found.names  # a model without residual stream is refused at once  # noqa: B018
            return found
    raise ConfigError(f"{label}: models of task.name='{generator.config.task.name}' are not shown")


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
