"""Translating text: any number of lines, in any order and length."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.checkpoints.checksums import by_path, checksums
from transformer_jax.config import EOS_ID, ExperimentConfig, ModelConfig
from transformer_jax.data.batching import length_batches
from transformer_jax.data.text_form import readable
from transformer_jax.data.tokenizers import EncodedTexts, Tokenizer
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.decoding.translation import translate
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.lengths import length_problems, position_capacity
from transformer_jax.evaluation.lines import Line, Output, Translation
from transformer_jax.evaluation.loading import load
from transformer_jax.models.encoder_decoder import decoding_params
from transformer_jax.typing import Params

CHUNK = 2_000
"""Lines that are sorted by length and translated together: bounds memory, and the wait for the first output."""


class Member(NamedTuple):
    """One more model of an ensemble."""

    model: ModelConfig
    params: Params


@dataclasses.dataclass(frozen=True)
class Translator:
    """Parameters and tokenizer, ready to translate; `config` is resolved, and its `decode` says how."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    others: tuple[Member, ...] = ()

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex digest of the tokenizer, the models and their parameters."""
        digest = hashlib.sha256(self.tokenizer.sha256.encode())
        for model, params in zip(self._models, (self.params, *(other.params for other in self.others)), strict=True):
            digest.update(json.dumps([dataclasses.asdict(model), checksums(by_path(params))], sort_keys=True).encode())
        return digest.hexdigest()

    @classmethod
    def from_checkpoint(
        cls, path: Path, overrides: Mapping[str, Any] | None = None, ensemble: Sequence[Path] = ()
    ) -> Translator:
        """The translator of a checkpoint; arguments and errors are those of `loading.load`.

        Args:
          ensemble: checkpoints whose log probabilities are averaged with this one's.
        Raises: ConfigError if their tokenizers differ.
        """
        loaded, others = load(path, overrides), []
        for other_path in ensemble:
            other = load(other_path, overrides)
            if other.tokenizer.sha256 != loaded.tokenizer.sha256:
                raise ConfigError(f"--ensemble: {other_path} has another tokenizer than {path}, so other pieces")
            others.append(Member(other.config.model, other.params))
        return cls(loaded.config, loaded.params, loaded.tokenizer, tuple(others))

    def translate(self, lines: Iterable[Line], first_number: int = 1) -> Iterator[list[Translation]]:
        """Translations in the order of the lines, a chunk of lines at a time; a line with a problem says so.

        Lines, prompts and translations are in the form of the corpus, `data.text_form`.

        Args:
          first_number: of the first line; random draws follow from the number of a line. Either all lines have a prompt
            or none.
        """
        numbered = enumerate(lines, start=first_number)
        while chunk := list(itertools.islice(numbered, CHUNK)):
            yield self.translate_chunk([line for _, line in chunk], chunk[0][0])

    def translate_all(self, lines: Sequence[str], prompts: Sequence[str] | None = None) -> list[str]:
        """The best translation of every line as one writes it, batched by length; an empty line stays empty.

        Args:
          prompts: what each translation begins with.
        Raises: DataError naming the number of a line that the model cannot take.
        """
        if prompts is not None and len(prompts) != len(lines):
            raise DataError(f"prompts: {len(prompts)} for {len(lines)} lines")
        given = [None] * len(lines) if prompts is None else prompts
        translations = self.translate_chunk([Line(*pair) for pair in zip(lines, given, strict=True)])
        for translation in translations:
            if translation.problem:
                raise DataError(f"line {translation.number}: {translation.problem}")
        return [readable(translation.text, self.config.data) for translation in translations]

    def translate_chunk(self, lines: Sequence[Line], first_number: int = 1) -> list[Translation]:
        """Translations of all lines, batched by length, in the corpus's own form; arguments as of `translate`."""
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
            min((c for c in map(position_capacity, self._models) if c is not None), default=None),
        ):
            chosen = wanted[batch.indices[batch.indices >= 0]]
            inputs = np.zeros((len(batch.indices), batch.width), np.int32)
            for row, index in enumerate(chosen):
                ids = sources.ids[sources.offsets[index] : sources.offsets[index + 1]]
                inputs[row, : len(ids) + 1] = [*ids, EOS_ID]
            numbers = np.zeros(len(inputs), np.int32)
            numbers[: len(chosen)] = first_number + chosen
            # Rows of padding have a prompt too, whichever.
            of_rows = None if prompts is None else [prompts[i] for i in np.resize(chosen, len(inputs))]
            generated = translate(self._models, self._decoding_params, self.config.decode, inputs, numbers, of_rows)
            for index, found in zip(chosen, self._outputs(jax.device_get(generated), of_rows), strict=False):
                outputs[index] = found
        return [Translation(first_number + i, outputs[i], problems.get(i)) for i in range(len(lines))]

    @property
    def _models(self) -> tuple[ModelConfig, ...]:
        return (self.config.model, *(other.model for other in self.others))

    @functools.cached_property
    def _decoding_params(self) -> tuple[Params, ...]:
        return tuple(decoding_params(params) for params in (self.params, *(other.params for other in self.others)))

    def _prompts(self, lines: Sequence[Line]) -> list[list[int]] | None:
        if all(line.prompt is None for line in lines):
            return None
        encoded = self.tokenizer.encode_batch([line.prompt or "" for line in lines])
        return [encoded.ids[a:b].tolist() for a, b in itertools.pairwise(encoded.offsets)]

    def _problems(
        self, lines: Sequence[Line], sources: EncodedTexts, prompts: Sequence[Sequence[int]] | None
    ) -> dict[int, str]:
        """Why a line cannot be translated, by its place among the lines."""
        problems: dict[int, str] = {}
        for model in self._models:
            problems |= length_problems(dataclasses.replace(self.config, model=model), np.diff(sources.offsets) + 1)
        capacity = min(model.max_length for model in self._models)
        for i, prompt in enumerate(prompts or ()):
            if lines[i].text.strip() and not prompt:
                problems[i] = "its prompt is empty"
            elif len(prompt) >= capacity:
                problems[i] = (
                    f"the {len(prompt)} pieces of its prompt leave no room for an output in model.max_length={capacity}"
                )
        return problems | {i: line.problem for i, line in enumerate(lines) if line.problem}

    def _outputs(self, generated: Generated, prompts: Sequence[Sequence[int]] | None) -> Iterator[list[Output]]:
        """The outputs of every row of a batch."""
        rows, num_outputs, _ = generated.ids.shape
        if prompts is None:
            texts = self.tokenizer.decode_batch(generated.ids.reshape(rows * num_outputs, -1))
        else:
            whole = [[*prompts[row], *ids.tolist()] for row in range(rows) for ids in generated.ids[row]]
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
