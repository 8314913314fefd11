"""Translation of any number of lines, of any length; they need not be sorted."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.data.batching import length_batches
from transformer_jax.data.text_form import readable
from transformer_jax.data.tokenizers import EncodedTexts, Tokenizer
from transformer_jax.decoding.generate import generate, position_capacity
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.models.decoder import Decoder
from transformer_jax.tasks.decode_sources import ends_of, source_request
from transformer_jax.tasks.lengths import length_problems, position_table_rows
from transformer_jax.tasks.lines import Line, Output, Translated
from transformer_jax.typing import Params

CHUNK = 2_000
"""Number of lines that are sorted by length and translated together; bounds memory and the time to the first output."""


class Member(NamedTuple):
    """A model of an ensemble."""

    model: ModelConfig
    params: Params


@dataclasses.dataclass(frozen=True)
class Translator:
    """Parameters and tokenizer, ready to translate; `config` is resolved and has the settings in `decode`."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    others: tuple[Member, ...] = ()

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
