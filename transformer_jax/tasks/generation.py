"""Translation of any number of lines, of any length; they need not be sorted."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.data.batching import BatchShape, Rows, length_batches
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.text_form import readable
from transformer_jax.data.token_cache import encode_in_memory
from transformer_jax.data.tokenizers import EncodedTexts, Tokenizer
from transformer_jax.decoding.generate import generate, position_capacity
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.models.decoder import Decoder
from transformer_jax.tasks.base import TASKS
from transformer_jax.tasks.batches import evaluation_batches
from transformer_jax.tasks.decode_sources import ends_of, source_request
from transformer_jax.tasks.lengths import check_lengths, length_problems, position_table_rows
from transformer_jax.tasks.lines import Line, Output, Translated
from transformer_jax.tasks.loss_sums import by_example, loss_sums_of_rows, split_for_evaluation
from transformer_jax.typing import Params

CHUNK = 2_000
"""Number of lines that are sorted by length and translated together; bounds memory and the time to the first output."""


class Member(NamedTuple):
    """A model of an ensemble."""

    model: ModelConfig
    params: Params


class PairLosses(NamedTuple):
    """Cross-entropy of each target, in nats, and its number of tokens; both with end-of-sequence."""

    nll: Float[np.ndarray, " pairs"]
    tokens: Int[np.ndarray, " pairs"]

    @property
    def mean(self) -> float:
        """The loss of all pairs in nats per token, as `evaluate` reports it."""
        return float(self.nll.sum() / self.tokens.sum())


@dataclasses.dataclass(frozen=True, repr=False)
class Translator:
    """Parameters and tokenizer, ready to translate; `config` is resolved and has the settings in `decode`."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    others: tuple[Member, ...] = ()

    def __repr__(self) -> str:
        model, decode = self.config.model, self.config.decode
        count = sum(x.size for member in self.members for x in jax.tree.leaves(member.params))
        settings = [
            f"{field.name}={getattr(decode, field.name)}"
            for field in dataclasses.fields(decode)
            if getattr(decode, field.name) != field.default
        ]
        models = f"{len(self.members)} models, " if self.others else ""
        return (
            f"Translator: {models}{model.architecture} of {model.num_encoder_layers} + {model.num_decoder_layers} "
            f"layers, emb_dim {model.emb_dim}, {count:,} parameters\n"
            f"  tokenizer: {self.config.data.tokenizer}, {self.tokenizer.vocab_size:,} ids, sha256 "
            f"{self.tokenizer.sha256[:12]}\n"
            f"  decode: {', '.join(settings) or 'greedy search'}"
        )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without end-of-sequence; texts are in the form of the corpus."""
        ids, offsets = self.tokenizer.encode_batch(texts)
        return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]

    def decode(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        """Return the text of each row of ids up to its end-of-sequence, in the form of the corpus."""
        return self.tokenizer.decode_batch(rows)

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
        if self.others:
            raise ConfigError("loss: an ensemble has none; call it on the translator of each checkpoint")
        split, task = self._encoded(pairs), TASKS[self.config.task.name]
        lengths = task.lengths(self.config, split)
        check_lengths(self.config, np.maximum.reduce([*lengths.values()]), lambda index: f"pair {index + 1}")
        static, hyper = split_for_evaluation(self.config)
        sums, examples = [], []
        for batch, of_rows in evaluation_batches(self.config, split, position_table_rows(self.config.model)):
            sums.append(loss_sums_of_rows(static, self.params, batch, hyper))
            examples.append(of_rows)
        of_pairs = by_example(sums, examples)
        return PairLosses(of_pairs["nll"], of_pairs["weight"].astype(np.int64))

    def translate(self, lines: Iterable[Line], first_number: int = 1) -> Iterator[list[Translated]]:
        """Yield translations in the order of the lines, a chunk at a time; for a line with a problem, the problem.

        Lines, prompts and translations are in the form of the corpus, `data.text_form`.

        Args:
          lines: all with a prompt, or all without.
          first_number: number of the first line; random draws depend on the number of a line.
        """
        numbered = enumerate(lines, start=first_number)
        while chunk := list(itertools.islice(numbered, CHUNK)):
            yield self.translate_chunk([line for _, line in chunk], chunk[0][0])

    def translate_all(self, lines: Sequence[str], prompts: Sequence[str] | None = None) -> list[str]:
        """Return the best translation of every line as plain text; an empty line stays empty.

        Args:
          prompts: the beginning of each translation.
        Raises: DataError, which names the line, if a line cannot be translated.
        """
        if prompts is not None and len(prompts) != len(lines):
            raise DataError(f"prompts: {len(prompts)} for {len(lines)} lines; give one per line")
        given = [None] * len(lines) if prompts is None else prompts
        translations = self.translate_chunk([Line(*pair) for pair in zip(lines, given, strict=True)])
        for translation in translations:
            if translation.problem:
                raise DataError(f"line {translation.number}: {translation.problem}")
        return [readable(translation.text, self.config.data) for translation in translations]

    def translate_chunk(self, lines: Sequence[Line], first_number: int = 1) -> list[Translated]:
        """Return translations of all lines in the corpus's own form, batched by length; arguments as in `translate`."""
        eos, ends = self.tokenizer.special_ids.required("eos"), ends_of(self.tokenizer.special_ids)
        sources = self.tokenizer.encode_batch([line.text for line in lines])
        prompts = self._prompts(lines)
        problems = self._problems(lines, sources, prompts)
        outputs: list[list[Output]] = [[] for _ in lines]
        lengths = np.diff(sources.offsets) + 1
        wanted = np.array([i for i, line in enumerate(lines) if line.text.strip() and i not in problems], np.int64)
        for batch in length_batches(
            lengths[wanted],
            max(self.config.evaluation.tokens_per_batch // self.config.decode.num_hypotheses, 1),
            self.config.data.row_multiple,
            min((c for c in map(position_table_rows, self._models) if c is not None), default=None),
        ):
            chosen = wanted[batch.indices[batch.indices >= 0]]
            inputs = np.zeros((len(batch.indices), batch.width), np.int32)
            for row, index in enumerate(chosen):
                ids = sources.ids[sources.offsets[index] : sources.offsets[index + 1]]
                inputs[row, : len(ids) + 1] = [*ids, eos]
            source_lengths = np.zeros(len(inputs), np.int64)
            source_lengths[: len(chosen)] = lengths[chosen]
            numbers = np.zeros(len(inputs), np.int32)
            numbers[: len(chosen)] = first_number + chosen
            # Rows of padding need a prompt too; any prompt works.
            of_rows = None if prompts is None else [prompts[i] for i in np.resize(chosen, len(inputs))]
            request = source_request(
                self._decoders, self.config.decode, self.config.model.decoder_start_id, inputs, source_lengths, of_rows
            )
            generated = generate(self._decoders, self._decoding_params, self.config.decode, ends, request, numbers)
            for index, found in zip(chosen, self._outputs(jax.device_get(generated), of_rows), strict=False):
                outputs[index] = found
        return [Translated(first_number + i, outputs[i], problems.get(i)) for i in range(len(lines))]

    def _encoded(self, pairs: Sequence[tuple[str, str]]) -> EncodedSplit:
        if not pairs:
            raise DataError("pairs: there are none; expected one or more (source, target)")
        sources, targets = zip(*pairs, strict=True)
        features = {"inputs": list(sources), "targets": list(targets)}
        columns = TASKS[self.config.task.name].columns(self.config)
        return encode_in_memory(features, columns, self.tokenizer)

    @property
    def members(self) -> tuple[Member, ...]:
        """All models, including the first."""
        return (Member(self.config.model, self.params), *self.others)

    @property
    def _models(self) -> tuple[ModelConfig, ...]:
        return tuple(member.model for member in self.members)

    @functools.cached_property
    def _decoding_params(self) -> tuple[Params, ...]:
        params = (member.params for member in self.members)
        return tuple(decoder.prepare(p) for decoder, p in zip(self._decoders, params, strict=True))

    @functools.cached_property
    def _decoders(self) -> tuple[Decoder, ...]:
        decoders = [ARCHITECTURES[model.architecture].decoder(model) for model in self._models]
        if None in decoders:
            raise ConfigError(
                f"model.architecture='{self.config.model.architecture}' cannot generate: it has no decoder"
            )
        return tuple(decoder for decoder in decoders if decoder is not None)

    def _prompts(self, lines: Sequence[Line]) -> list[list[int]] | None:
        if all(line.prompt is None for line in lines):
            return None
        encoded = self.tokenizer.encode_batch([line.prompt or "" for line in lines])
        return [encoded.ids[a:b].tolist() for a, b in itertools.pairwise(encoded.offsets)]

    def _problems(
        self, lines: Sequence[Line], sources: EncodedTexts, prompts: Sequence[Sequence[int]] | None
    ) -> dict[int, str]:
        """Return the reasons why lines cannot be translated, by index."""
        problems: dict[int, str] = {}
        for model in self._models:
            problems |= length_problems(dataclasses.replace(self.config, model=model), np.diff(sources.offsets) + 1)
        capacity = position_capacity(self._decoders)
        for i, prompt in enumerate(prompts or ()):
            if lines[i].text.strip() and not prompt:
                problems[i] = "its prompt is empty"
            elif capacity is not None and len(prompt) >= capacity:
                problems[i] = (
                    f"its prompt has {len(prompt)} tokens; model.max_length={capacity} leaves no room for an output"
                )
        return problems | {i: line.problem for i, line in enumerate(lines) if line.problem}

    def _outputs(self, generated: Generated, prompts: Sequence[Sequence[int]] | None) -> Iterator[list[Output]]:
        """Yield the outputs of every row of a batch."""
        rows, num_outputs, _ = generated.ids.shape
        # Ids beyond an output's length are undefined; they are not the tokenizer's padding.
        whole = [
            [*(prompts[row] if prompts else ()), *generated.ids[row, n, : generated.lengths[row, n]].tolist()]
            for row in range(rows)
            for n in range(num_outputs)
        ]
        texts = self.tokenizer.decode_batch(whole)
        for row in range(rows):
            found = []
            for n in range(num_outputs):
                length = int(generated.lengths[row, n])
                if not length:
                    continue
                found.append(
                    Output(
                        texts[row * num_outputs + n],
                        generated.ids[row, n, :length].tolist(),
                        [round(float(x), 6) for x in generated.log_probs[row, n, :length]],
                        float(generated.scores[row, n]),
                        bool(generated.finished[row, n]),
                    )
                )
            yield found
