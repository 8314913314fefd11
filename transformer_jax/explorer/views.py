"""Models that generate text on the page: their tokens with losses, and the likeliest tokens after each."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.explorer.explored import Explored, likely
from transformer_jax.explorer.generation import MAX_STEPS, MAX_WIDTH, followed
from transformer_jax.explorer.passes import Asked, Seen
from transformer_jax.explorer.patching import Side, patch_shares
from transformer_jax.inspection.head_scores import induction_score
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.text_generator import TextGenerator
from transformer_jax.tasks.trained.translator import SourceGenerator

REPEATED = 24
"""Random tokens that are repeated for the induction score."""


class Row(NamedTuple):
    """The ids that the stacks of a model read of a text, by stack, and the text of its target, if it has one."""

    ids: dict[str, list[int]]
    target: str = ""


@dataclasses.dataclass(frozen=True)
class ExploredGenerator(Explored[TextGenerator]):
    """A model that generates text as the page shows it."""

    needs_text = False

    @abc.abstractmethod
    def row(self, text: str, second: str = "") -> Row:
        """Return what the model reads; raise DataError for a text that is too long, or that it cannot read.

        Args: second: what the decoder of two stacks reads; empty: the output of the model with all heads.
        """

    def warm_up(self) -> None:
        self.look("")

    def _loss(self, row: Row, by_mean: bool, unit: int) -> tuple[Asked, Callable[[np.ndarray], float]]:
        if unit:
            raise DataError(f"there is no prediction {unit}; the loss is one of the whole text")
        count = len(row.ids[self._last])
        if count == 1:
            raise DataError("the text has no token whose loss could change")
        return self._asked(row, self._keep(), by_mean), lambda log_probs: float(-log_probs[: count - 1].mean())

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
        return {"text": text, **followed(self.trained, text, width, steps, cancelled)}

    @abc.abstractmethod
    def _check_generates(self, text: str, steps: int) -> None:
        """Raise DataError for a text that cannot be continued, or translated."""

    def _checked(self, what: str, ids: Sequence[int]) -> list[int]:
        if len(ids) > self._most_tokens:
            raise DataError(f"{what} has {len(ids) - 1:,} tokens; the page shows at most {self._most_tokens - 1}")
        return [*ids]

    def _asked(self, row: Row, keep: np.ndarray, by_mean: bool = False) -> Asked:
        padded, is_token = {}, {}
        for stack, ids in row.ids.items():
            length = self._padded(len(ids))
            padded[stack] = np.zeros(length, np.int32)
            padded[stack][: len(ids)] = ids
            is_token[stack] = np.arange(length) < len(ids)
        read = padded[self._last]
        next_ids = np.append(read[1:], np.int32(0))
        batch = {"decoder_inputs": read[None]}
        if "encoder" in padded:
            batch |= {"inputs": padded["encoder"][None], "inputs_mask": is_token["encoder"][None]}
        return Asked(batch, next_ids, is_token, keep, np.float32(by_mean))

    def _tokens(self, stack: str, ids: Sequence[int]) -> list[str]:
        tokenizer = self.trained.tokenizer
        return (tokenizer.source if stack != self._last else tokenizer).tokens(list(ids))

    def _shown(self, text: str, row: Row, found: Seen) -> dict[str, Any]:
        tokens, T = self.trained.tokenizer.tokens, len(row.ids[self._last])
        return {
            "text": text,
            "target": row.target,
            "tokens": {stack: self._tokens(stack, ids) for stack, ids in row.ids.items()},
            "predicted": self._last,
            "predictions": [likely(tokens, found.ids[t], found.log_probs[t]) for t in range(T)],
            "losses": [round(float(-p), 5) for p in found.of_next[: T - 1]],
            "lens": [
                [likely(tokens, ids[t], values[t]) for t in range(T)]
                for ids, values in zip(found.lens_ids, found.lens_log_probs, strict=True)
            ],
            "attention": self._attention({stack: len(ids) for stack, ids in row.ids.items()}, found),
        }


class ExploredLanguageModel(ExploredGenerator):
    """A language model; the page shows a text."""

    kind = "language"
    measures = ("induction", "effects")

    def row(self, text: str, second: str = "") -> Row:
        if second:
            raise DataError("a language model reads one text")
        ids = self.trained.encode([text])[0]
        return Row({"decoder": self._checked("the text", [self.model.decoder_start_id, *ids])})

    def _check_generates(self, text: str, steps: int) -> None:
        model, count = self.model, len(self.row(text).ids["decoder"]) - 1
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
        return patch_shares(self.trained, self.names, Side(ids, batch), Side(other_ids, other_batch), cancelled)

    @functools.cached_property
    def induction(self) -> dict[str, list[list[float]]]:
        """The induction scores of all heads (inspection/head_scores.py), on different random tokens repeated once.

        Raises: DataError for a model that reads too few tokens, or has too few.
        """
        special = self.trained.tokenizer.special_ids
        roles = {special.pad, special.eos, special.unk, special.bos, special.mask, special.cls, special.sep}
        ordinary = sorted({*range(self.model.vocab_size)} - roles - {*special.sentinels})
        count = min(REPEATED, (self._most_tokens - 1) // 2, len(ordinary))
        if count < 2:
            raise DataError("the model has too few tokens or positions for an induction score")
        once = np.random.default_rng(0).choice(ordinary, count, replace=False).tolist()
        ids = [self.model.decoder_start_id, *once, *once]
        read, is_token, size = np.array([ids]), np.ones((1, len(ids)), bool), len(ids)
        return {
            name: [
                np.round(induction_score(np.asarray(of_layer)[None, :, :size, :size], read, is_token), 5).tolist()
                for of_layer in weights
            ]
            for name, weights in self._seen(Row({"decoder": ids}), self._keep()).weights.items()
        }


class ExploredTranslator(ExploredGenerator):
    """An encoder-decoder of text; the page shows a source, and the model's output or a target that is given."""

    kind = "translation"

    @property
    def reads(self) -> tuple[str, ...]:
        return ("text", "target")

    def row(self, text: str, second: str = "") -> Row:
        generator = self.trained
        assert isinstance(generator, SourceGenerator)
        start, eos = generator.config.model.decoder_start_id, generator.tokenizer.special_ids.required("eos")
        (source,) = generator.encode_sources([text])
        if second:
            ids, target = [*generator.encode([second])[0], eos], second
        else:
            ids, target = self._outputs(text) if text.strip() else ([], "")
        read = [start, *ids]
        if len(read) == self._most_tokens + 1:
            read.pop()  # the last token is predicted, and needs no place
        return Row({"encoder": self._checked("the text", source), "decoder": self._checked("the target", read)}, target)

    def _check_generates(self, text: str, steps: int) -> None:
        if not text.strip():
            raise DataError("the text is empty; generation needs a source")
        generator = self.trained
        assert isinstance(generator, SourceGenerator)
        self._checked("the text", generator.encode_sources([text])[0])

    @functools.cached_property
    def _outputs(self) -> Callable[[str], tuple[list[int], str]]:
        """The function from a source to the ids and the text of the model's output; it remembers the latest."""

        @functools.lru_cache(maxsize=64)
        def output(text: str) -> tuple[list[int], str]:
            (found,) = self.trained.generate_chunk([Line(text)])
            if found.problem:
                raise DataError(f"the text: {found.problem}")
            return (found.outputs[0].ids, found.text) if found.outputs else ([], "")

        return output
