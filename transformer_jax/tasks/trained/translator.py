"""Translation of lines of text, and the loss of given translations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.data.batching import BatchShape, EvaluationBatches, Rows
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.text_form import readable
from transformer_jax.data.token_cache import encode_in_memory
from transformer_jax.decoding.generate import Request, position_capacity
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks.batches.of_split import evaluation_batches
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.decode_requests import source_request
from transformer_jax.tasks.trained.length_limits import check_lengths, length_problems, position_table_rows
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.loss_sums import (
    by_example,
    log_probs_by_example,
    loss_sums_of_rows,
    split_for_evaluation,
)
from transformer_jax.tasks.trained.text_generator import Reading, TextGenerator, TokenLogProbs, check_several


class PairLosses(NamedTuple):
    """Cross-entropy of each target, in nats, and its number of tokens; both with end-of-sequence."""

    nll: Float[np.ndarray, " pairs"]
    tokens: Int[np.ndarray, " pairs"]

    @property
    def mean(self) -> float:
        """The loss of all pairs in nats per token, as `evaluate` reports it."""
        return float(self.nll.sum() / self.tokens.sum())


class SourceGenerator(TextGenerator):
    """Parameters and tokenizer of an encoder-decoder; a line is a source, and its prompt the beginning of the output.

    An empty line stays empty, whatever its prompt. With an empty prompt, the model begins the output itself.
    """

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source text as the encoder reads them; see `encode`.

        `task.source_prefix` and `text_start` are in front, and end-of-sequence at the end.
        """
        check_several("texts", texts)
        tokenizer, task = self.tokenizer.source, self.config.task
        ids, offsets = tokenizer.encode_batch([task.source_prefix + text for text in texts])
        start = [tokenizer.special_ids.required("start_of_text")] if task.text_start else []
        eos = tokenizer.special_ids.required("eos")
        return [[*start, *ids[a:b].tolist(), eos] for a, b in itertools.pairwise(offsets)]

    def _has_output(self, line: Line) -> bool:
        return bool(line.text.strip())

    def _read(self, lines: Sequence[Line]) -> Reading:
        ids = self.encode_sources([line.text for line in lines])
        prompts: list[list[int]] = [[] for _ in lines]
        if any(line.prompt is not None for line in lines):
            prompts = self.encode([line.prompt or "" for line in lines])
        lengths = np.array([len(row) for row in ids], np.int64)
        problems: dict[int, str] = {}
        for model in self._models:
            problems |= length_problems(dataclasses.replace(self.config, model=model), lengths)
        capacity = position_capacity(self._decoders)
        for i, prompt in enumerate(prompts):
            if capacity is not None and len(prompt) >= capacity:
                problems[i] = (
                    f"its prompt has {len(prompt)} tokens; model.max_length={capacity} leaves no room for an output"
                )
        return Reading(ids, prompts, lengths, problems)

    def _request(self, reading: Reading, chosen: np.ndarray, num_rows: int, width: int) -> Request:
        inputs = np.zeros((num_rows, width), np.int32)
        lengths = np.zeros(num_rows, np.int64)
        for row, index in enumerate(chosen):
            inputs[row, : reading.lengths[index]] = reading.ids[index]
        lengths[: len(chosen)] = reading.lengths[chosen]
        prompts = [reading.begins[i] for i in np.resize(chosen, num_rows)]  # any prompt works for rows of padding
        start_id = self.config.model.decoder_start_id
        return source_request(self._decoders, self.config.decode, start_id, inputs, lengths, prompts)


class Translator(SourceGenerator):
    """Parameters and tokenizer of a translation model; see `SourceGenerator`."""

    def batch(self, pairs: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
        """Return sources and targets as one padded batch, ready for the model; keys as in `transformer_jax.typing`.

        Raises: DataError if there are no pairs.
        """
        split, task = self._encoded(pairs), TASKS[self.config.task.name]
        widths = {name: int(lengths.max()) for name, lengths in task.lengths(self.config, split).items()}
        numbers = np.arange(len(pairs), dtype=np.int32)
        rows = Rows(numbers, np.ones_like(numbers), numbers, packed=False)
        return task.arrays(self.config, split, rows, BatchShape(len(pairs), tuple(widths.items())), None)

    def loss(self, pairs: Sequence[tuple[str, str]]) -> PairLosses:
        """Return the cross-entropy of each target given its source, by teacher forcing and without label smoothing.

        Raises: DataError if there are no pairs, or one is too long for the model; ConfigError for an ensemble.
        """
        batches = self._batches(pairs, "loss")
        static, hyper = split_for_evaluation(self.config)
        sums, examples = [], []
        for batch, of_rows in batches:
            sums.append(loss_sums_of_rows(static, self.params, batch, hyper))
            examples.append(of_rows)
        of_pairs = by_example(sums, examples)
        return PairLosses(of_pairs["nll"], of_pairs["weight"].astype(np.int64))

    def token_log_probs(self, pairs: Sequence[tuple[str, str]]) -> list[TokenLogProbs]:
        """Return the tokens of every target and the log probability of each, given the source and the tokens before.

        Their sum is minus the `nll` of `loss`; arguments and errors are those of `loss`.
        """
        batches = self._batches(pairs, "token_log_probs")
        return [self._named(*found) for found in log_probs_by_example(self.config, self.params, batches)]

    def _batches(self, pairs: Sequence[tuple[str, str]], method: str) -> EvaluationBatches:
        """Return the batches of pairs for a loss; errors are those of `loss`."""
        if self.others:
            raise ConfigError(f"{method}: an ensemble has none; call it on the translator of each checkpoint")
        split, task = self._encoded(pairs), TASKS[self.config.task.name]
        lengths = task.lengths(self.config, split)
        check_lengths(self.config, np.maximum.reduce([*lengths.values()]), lambda index: f"pair {index + 1}")
        return evaluation_batches(self.config, split, position_table_rows(self.config.model))

    def translate_all(self, lines: Sequence[str], prompts: Sequence[str] | None = None) -> list[str]:
        """Return the best translation of every line as plain text; an empty line stays empty.

        Args:
          prompts: the beginning of each translation; with an empty one, the model begins it itself.
        Raises: DataError for one line in place of a sequence, and, naming the line, if one cannot be translated.
        """
        check_several("lines", lines)
        check_several("prompts", prompts or ())
        if prompts is not None and len(prompts) != len(lines):
            raise DataError(f"prompts: {len(prompts)} for {len(lines)} lines; give one per line")
        given = [None] * len(lines) if prompts is None else prompts
        translations = self.generate_chunk([Line(*pair) for pair in zip(lines, given, strict=True)])
        for translation in translations:
            if translation.problem:
                raise DataError(f"line {translation.number}: {translation.problem}")
        return [readable(translation.text, self.config.data) for translation in translations]

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> EncodedSplit:
        if not pairs:
            raise DataError("pairs: there are none; expected one or more (source, target)")
        sources, targets = zip(*pairs, strict=True)
        features = {"inputs": list(sources), "targets": list(targets)}
        columns = TASKS[self.config.task.name].columns(self.config)
        return encode_in_memory(features, columns, self.tokenizer)
