"""Translating text: any number of lines, in any order and length."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.config import EOS_ID, ExperimentConfig
from transformer_jax.data.batching import length_batches
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.decoding.translation import translate_greedily
from transformer_jax.evaluation.lengths import check_lengths, position_capacity
from transformer_jax.evaluation.loading import load
from transformer_jax.typing import Params

CHUNK = 10_000
"""Lines that are sorted by length and translated together: bounds memory, and the wait for the first output."""


class Translations(NamedTuple):
    """lines: one translation per source, in the same order, without line breaks.

    unfinished: numbers of the lines that came to the length limit and end there, ascending.
    """

    lines: list[str]
    unfinished: list[int]


@dataclasses.dataclass(frozen=True)
class Translator:
    """Parameters and tokenizer, ready to translate; `config` is resolved."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer

    @classmethod
    def from_checkpoint(cls, path: Path, overrides: Mapping[str, Any] | None = None) -> Translator:
        """The translator of a checkpoint; arguments and errors are those of `loading.load`."""
        loaded = load(path, overrides)
        return cls(loaded.config, loaded.params, loaded.tokenizer)

    def translate(self, lines: Iterable[str]) -> Iterator[Translations]:
        """Translations in the order of the lines, a chunk of lines at a time; an empty line stays empty.

        Raises: DataError naming the number of a line that is too long for the model.
        """
        numbered = enumerate(lines, start=1)
        while chunk := list(itertools.islice(numbered, CHUNK)):
            yield self.translate_all([line for _, line in chunk], first_number=chunk[0][0])

    def translate_all(self, lines: Sequence[str], first_number: int = 1) -> Translations:
        """Translates all lines, batched by length.

        Args:
          first_number: what errors, and `unfinished` of the result, call the first line.
        Raises: DataError naming the number of a line that is too long for the model.
        """
        encoded = self.tokenizer.encode_batch(lines)
        lengths = np.diff(encoded.offsets) + 1
        check_lengths(self.config, lengths, lambda index: f"line {first_number + index}")
        results, unfinished = [""] * len(lines), []
        wanted = np.array([i for i, line in enumerate(lines) if line.strip()], np.int64)
        for batch in length_batches(
            lengths[wanted],
            self.config.evaluation.tokens_per_batch,
            self.config.data.row_multiple,
            position_capacity(self.config.model),
        ):
            chosen = wanted[batch.indices[batch.indices >= 0]]
            inputs = np.zeros((len(batch.indices), batch.width), np.int32)
            for row, index in enumerate(chosen):
                ids = encoded.ids[encoded.offsets[index] : encoded.offsets[index + 1]]
                inputs[row, : len(ids) + 1] = [*ids, EOS_ID]
            generated = jax.device_get(
                translate_greedily(self.config.model, self.params, inputs, self.config.evaluation.max_extra_length)
            )
            unfinished += (first_number + chosen[~generated.finished[: len(chosen)]]).tolist()
            texts = self.tokenizer.decode_batch(generated.ids[: len(chosen)])
            for index, text in zip(chosen, texts, strict=True):
                results[index] = text
        return Translations(results, sorted(unfinished))


def on_one_line(text: str) -> str:
    """Text with a space in place of whatever a program may take for the end of a line.

    A tokenizer that falls back to bytes lets a model write any character; line n of the output has to stay line n of
    the input all the same.
    """
    return " ".join(text.splitlines())
