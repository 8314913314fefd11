"""Copying over a gap: random symbols, blanks, the end of the source, and then the same symbols.

The task is that of Hochreiter and Schmidhuber 1997 and of Arjovsky et al. 2016 (section 5.1), with fewer symbols. A
model that cannot look back over the gap guesses each symbol with probability 1 / 8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import Split
from transformer_jax.data.sources.source import divided, no_such_split
from transformer_jax.errors import ConfigError

SYMBOLS = "abcdefgh"
BLANK = "_"
COPIED = 5
"""Symbols of a sequence."""
VOCABULARY = 4 + len(SYMBOLS) + len(BLANK)
"""Ids of a tokenizer of words: special ones, symbols and the blank."""


def row_length(gap: int) -> int:
    """Return the tokens of a row: symbols, blanks, an end, symbols and an end."""
    return COPIED + gap + 1 + COPIED + 1


class Copying:
    """Sources `a c b b f _ _ _` with the symbols alone as targets; no sequence of symbols is in two splits.

    The gap fills a row: it has `data.max_length` - 12 blanks.
    """

    def __init__(self, config: DataConfig) -> None:
        """Draw the sequences; raise ConfigError if a row has no blank, or for more sequences than there are."""
        self.gap = config.max_length - row_length(0)
        if self.gap < 1:
            raise ConfigError(
                f"config: data.max_length={config.max_length}: a row of {COPIED} symbols and one blank has "
                f"{row_length(1)} tokens; increase it"
            )
        sizes = {"train": config.num_train_pairs, "valid": config.num_eval_pairs, "test": config.num_eval_pairs}
        total, known = sum(sizes.values()), len(SYMBOLS) ** COPIED
        if total > known:
            raise ConfigError(
                f"config: data.num_train_pairs={config.num_train_pairs} and twice data.num_eval_pairs="
                f"{config.num_eval_pairs} are more than {known:,}, the number of sequences; decrease them"
            )
        numbers = np.random.Generator(np.random.PCG64(0)).permutation(known)[:total]
        digits = numbers[:, None] // len(SYMBOLS) ** np.arange(COPIED) % len(SYMBOLS)  # [total, COPIED]
        targets = [" ".join(SYMBOLS[digit] for digit in row) for row in digits]
        blanks = f" {BLANK}" * self.gap
        self._splits: dict[str, Split] = {}
        for name, size in sizes.items():
            part, targets = targets[:size], targets[size:]
            self._splits[name] = Split({"inputs": [line + blanks for line in part], "targets": part})

    @property
    def split_names(self) -> tuple[str, ...]:
        return tuple(self._splits)

    def num_examples(self, name: str) -> int:
        return self.split(name).num_examples

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        return divided(self.split(name), size)

    def split(self, name: str) -> Split:
        if name not in self._splits:
            raise no_such_split(name, self._splits)
        return self._splits[name]

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        text = repr([part.features for part in self._splits.values()])
        return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "versions": {}}


def recalled(outputs: list[str], references: list[str]) -> float:
    """Return the percentage of the references' symbols that the outputs have at the same place."""
    pairs = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    right = sum(a == b for output, reference in pairs for a, b in zip(output, reference, strict=False))
    return 100.0 * right / sum(len(reference) for _, reference in pairs)
