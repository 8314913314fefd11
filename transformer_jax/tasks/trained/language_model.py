"""Continuation of texts by a language model, and the probability of given texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import EvaluationBatches
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.token_cache import encode_in_memory
from transformer_jax.decoding.generate import Request, position_capacity
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks.batches.windows import scoring_windows, windows_in_batches
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.decode_requests import prompt_request
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.loss_sums import (
    by_example,
    log_probs_by_example,
    loss_sums_of_rows,
    split_for_evaluation,
)
from transformer_jax.tasks.trained.text_generator import Reading, TextGenerator, TokenLogProbs, check_several


class TextScores(NamedTuple):
    """Natural logarithms of the probabilities of texts, and their numbers of tokens; both with end-of-sequence."""

    log_probs: Float[np.ndarray, " texts"]
    tokens: Int[np.ndarray, " texts"]

    @property
    def loss(self) -> float:
        """The loss of all texts in nats per token."""
        return float(-self.log_probs.sum() / self.tokens.sum())


class LanguageModel(TextGenerator):
    """Parameters and tokenizer of a language model; a line is a prompt, and an output repeats it and goes on.

    An empty prompt is continued from the start id alone.
    """

    def continue_all(self, prompts: Sequence[str]) -> list[str]:
        """Return the best continuation of every prompt, with the prompt in front.

        Raises: DataError for one prompt in place of a sequence, and, naming the prompt, if one cannot be continued.
        """
        check_several("prompts", prompts)
        outputs = self.generate_chunk([Line(prompt) for prompt in prompts])
        for output in outputs:
            if output.problem:
                raise DataError(f"prompt {output.number}: {output.problem}")
        return [output.text for output in outputs]

    def score(self, texts: Sequence[str], end: bool = True) -> TextScores:
        """Return the log probability of every text after the start id.

        A text above `evaluation.max_length` tokens is scored in windows, as in an evaluation.

        Args:
          end: count the end-of-sequence too. Without it, an empty text has the log probability 0.
        Raises: DataError if there are no texts, or one text in place of a sequence; ConfigError for an ensemble.
        """
        config, windows, batches = self._scoring(texts, end, "score")
        log_probs, tokens = np.zeros(len(texts)), np.zeros(len(texts), np.int64)
        if windows.num_examples:
            static, hyper = split_for_evaluation(config)
            sums, examples = [], []
            for batch, of_rows in batches:
                sums.append(loss_sums_of_rows(static, self.params, batch, hyper))
                examples.append(of_rows)
            of_windows = by_example(sums, examples)
            text = windows.values("text", np.arange(windows.num_examples))
            np.add.at(log_probs, text, -of_windows["nll"])
            np.add.at(tokens, text, of_windows["weight"].astype(np.int64))
        return TextScores(log_probs, tokens)

    def token_log_probs(self, texts: Sequence[str], end: bool = True) -> list[TokenLogProbs]:
        """Return the tokens of every text and the log probability of each, given the start id and the tokens before.

        Their sum is the log probability of `score`; arguments and errors are those of `score`.
        """
        config, windows, batches = self._scoring(texts, end, "token_log_probs")
        of_windows = log_probs_by_example(config, self.params, batches) if windows.num_examples else []
        text = windows.values("text", np.arange(windows.num_examples))
        found = []
        for number in range(len(texts)):
            own = [of_windows[window] for window in np.flatnonzero(text == number)]
            ids = np.concatenate([np.zeros(0, np.int32), *(part.ids for part in own)])
            found.append(self._named(ids, np.concatenate([np.zeros(0), *(part.log_probs for part in own)])))
        return found

    def _scoring(
        self, texts: Sequence[str], end: bool, method: str
    ) -> tuple[ExperimentConfig, EncodedSplit, EvaluationBatches]:
        """Return config, windows and batches that score texts; arguments and errors are those of `score`."""
        if self.others:
            raise ConfigError(f"{method}: an ensemble has no such scores; call it on the model of each checkpoint")
        check_several("texts", texts)
        if not len(texts):
            raise DataError("texts: there are none; expected one or more")
        # A text alone has no prefix and no marked answers: every token is predicted.
        config = dataclasses.replace(self.config, task=dataclasses.replace(self.config.task, prefix="none"))
        columns = [column for column in TASKS[config.task.name].columns(config) if column.feature == "inputs"]
        encoded = encode_in_memory({"inputs": list(texts)}, columns, self.tokenizer)
        windows = scoring_windows(config, encoded, stream=False, end=end)
        return config, windows, windows_in_batches(config, windows, config.evaluation.tokens_per_batch)

    def check_limit(self) -> None:
        """Raise ConfigError if outputs are longer than the positions of the model, whatever the prompt."""
        wanted, capacity = self._max_new_tokens, position_capacity(self._decoders)
        if capacity is not None and wanted > capacity:
            name = "max_extra_length" if self.config.decode.max_new_tokens is None else "max_new_tokens"
            raise ConfigError(
                f"decode.{name}={wanted}: so many new tokens exceed the positions of the model, "
                f"model.max_length={capacity}; set decode.max_new_tokens to less"
            )

    def _read(self, lines: Sequence[Line]) -> Reading:
        self.check_limit()
        ids = self.encode([line.text for line in lines])
        wanted, capacity = self._max_new_tokens, position_capacity(self._decoders)
        problems: dict[int, str] = {}
        for index, line in enumerate(lines):
            if line.prompt is not None:
                problems[index] = "a language model continues the line itself; it takes no prompt beside it"
            elif capacity is not None and len(ids[index]) + wanted > capacity:
                problems[index] = (
                    f"its {len(ids[index])} tokens and {wanted} new ones exceed the positions of the model, "
                    f"model.max_length={capacity}; shorten it, or set decode.max_new_tokens"
                )
        return Reading(ids, ids, np.array([len(row) + 1 for row in ids], np.int64), problems)

    @property
    def _max_new_tokens(self) -> int:
        decode = self.config.decode
        return decode.max_extra_length if decode.max_new_tokens is None else decode.max_new_tokens

    def _request(self, reading: Reading, chosen: np.ndarray, num_rows: int, width: int) -> Request:
        prompts = [reading.ids[i] for i in np.resize(chosen, num_rows)]  # any prompt works for rows of padding
        limits = np.where(np.arange(num_rows) < len(chosen), self._max_new_tokens, 0)
        two_way = self.config.task.prefix != "none"
        return prompt_request(self.config.model.decoder_start_id, prompts, limits, two_way)
