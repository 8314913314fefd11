"""A baseline for masked language models: trigrams on both sides of a missing token.

The probability of a token w between its neighbours l and r is a mixture of four estimates from counts c of the training
split,

    p(w | l, r) = a1 (c(w) + 1) / (N + V) + a2 c(l w) / c(l) + a3 c(w r) / c(r) + a4 c(l w r) / c(l . r)

An estimate whose denominator is 0 is replaced by the first. The weights a depend on c(l . r) alone, in classes 0, 1, 2
to 3, 4 to 7, and so on, and maximise the likelihood of the validation split (by expectation maximisation), as in the
interpolation of Jelinek and Mercer (1980). N is the number of tokens, V the size of the vocabulary.

It is scored on the tokens that an evaluation of the task masks. It sees both neighbours as they are in the text, even
where the model sees a mask.

    python -m transformer_jax.evaluation.trigram_baseline --checkpoint=runs/masked_lm --splits=valid,test
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Rows
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.tasks.batches.of_split import evaluation_batches
from transformer_jax.tasks.corrupted_text import CorruptedText, taken, with_marks
from transformer_jax.tasks.masked_lm import MaskedLM
from transformer_jax.tasks.task import TASKS

_ROUNDS = 200
_TEXTS = 4096  # read at a time


class Places(NamedTuple):
    """Tokens between their neighbours, int64 [n] each."""

    left: np.ndarray
    token: np.ndarray
    right: np.ndarray


class Counts:
    """The number of times that each key occurs; the keys are sorted, and found by bisection."""

    def __init__(self, keys: Int[np.ndarray, " n"]) -> None:
        self._keys, self._counts = np.unique(keys, return_counts=True)

    def of(self, keys: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        """Return the number of times that each key was counted."""
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[place] == keys, self._counts[place], 0)


class TwoSidedTrigrams:
    """Counts of a training split, and weights for each class of c(l . r); see the module's docstring."""

    def __init__(self, training: Places, vocab_size: int) -> None:
        """training: all tokens of the split, at least one, with their neighbours."""
        self._vocab_size = vocab_size
        self._size = size = vocab_size + 1  # with an id for no neighbour
        left, token, right = training
        self._left, self._tokens, self._right = (np.bincount(side, minlength=size) for side in training)
        self._left_token = Counts(left * size + token)
        self._token_right = Counts(token * size + right)
        self._around = Counts(left * size + right)
        self._all = Counts((left * size + token) * size + right)
        self.weights = np.full((64, 4), 0.25)

    def estimates(self, places: Places) -> Float[np.ndarray, "n 4"]:
        """Return the four estimates of the probability of every token."""
        left, token, right = places
        size = self._size
        one = (self._tokens[token] + 1.0) / (self._tokens.sum() + self._vocab_size)
        counted = (
            (self._left_token.of(left * size + token), self._left[left]),
            (self._token_right.of(token * size + right), self._right[right]),
            (self._all.of((left * size + token) * size + right), self._around.of(left * size + right)),
        )
        return np.stack([one, *(np.where(n > 0, k / np.maximum(n, 1), one) for k, n in counted)], axis=1)

    def classes(self, places: Places) -> Int[np.ndarray, " n"]:
        """Return the class of every place: 0 for c(l . r) = 0, and 1 + floor(log2 c)."""
        counts = self._around.of(places.left * self._size + places.right)
        return np.where(counts > 0, 1 + np.floor(np.log2(np.maximum(counts, 1))), 0).astype(np.int64)

    def fit(self, places: Places) -> None:
        """Set the weights to those that maximise the likelihood of these tokens; classes without any keep theirs."""
        estimates, classes = self.estimates(places), self.classes(places)
        seen = np.unique(classes)
        for _ in range(_ROUNDS):
            shares = self.weights[classes] * estimates
            shares /= shares.sum(1, keepdims=True)
            for number in seen:
                self.weights[number] = shares[classes == number].mean(0)

    def log_probs(self, places: Places) -> Float[np.ndarray, " n"]:
        """Return the natural logarithm of the probability of every token."""
        return np.log((self.weights[self.classes(places)] * self.estimates(places)).sum(1))


def masked_places(config: ExperimentConfig, split: EncodedSplit) -> Places:
    """Return the tokens that an evaluation of this split predicts, with their neighbours in the text."""
    found = []
    for batch, _ in evaluation_batches(config, split):
        whole, used = batch["inputs"].astype(np.int64), batch["weights"] > 0
        row, place = np.nonzero(used)[0], batch["places"][used]
        whole[row, place] = batch["targets"][used]
        found.append(_between(whole, row, place, config.model.vocab_size))
    return Places(*np.concatenate(found, axis=1))


def all_places(config: ExperimentConfig, split: EncodedSplit) -> Places:
    """Return every token of a split with its neighbours, in the texts that the task makes of it."""
    task = TASKS[config.task.name]
    assert isinstance(task, CorruptedText)
    texts = task.texts(config, split)
    found = []
    for first in range(0, texts.num_examples, _TEXTS):
        numbers = np.arange(first, min(first + _TEXTS, texts.num_examples))
        rows = Rows(numbers, np.ones_like(numbers), numbers.astype(np.int32), packed=False)
        ids, lengths = with_marks(taken(texts, rows), texts.special_ids)
        first_token = 0 if texts.special_ids.start_of_text is None else 1
        column = np.arange(ids.shape[1])
        row, place = np.nonzero((column >= first_token) & (column < lengths[:, None] - 1))
        found.append(_between(ids.astype(np.int64), row, place, config.model.vocab_size))
    return Places(*np.concatenate(found, axis=1))


def _between(ids: np.ndarray, row: np.ndarray, place: np.ndarray, nothing: int) -> np.ndarray:
    """Return left neighbours, tokens and right neighbours, [3, n]; `nothing` is left of a row without a start."""
    left = np.where(place > 0, ids[row, np.maximum(place - 1, 0)], nothing)
    return np.stack([left, ids[row, place], ids[row, place + 1]])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the baseline's scores of some splits of a checkpoint's corpus."""
    parser = argparse.ArgumentParser(description="two-sided trigrams on the masked tokens of an evaluation")
    parser.add_argument("--checkpoint", required=True, help="work directory or checkpoint of task.name='masked_lm'")
    parser.add_argument("--splits", default="valid,test", help="splits to score, separated by commas")
    options = parser.parse_args(argv)
    try:
        scorer = Scorer.from_checkpoint(Path(options.checkpoint))
        config, data = scorer.loaded.config, scorer.evaluator.data
        if not isinstance(TASKS[config.task.name], MaskedLM):
            raise ConfigError(f"{options.checkpoint}: task.name='{config.task.name}', expected 'masked_lm'")
        names = options.splits.split(",")
        scorer.check_splits(names)
        model = TwoSidedTrigrams(all_places(config, data.splits["train"]), config.model.vocab_size)
        model.fit(masked_places(config, data.splits["valid"]))
        for name in names:
            log_probs = model.log_probs(masked_places(config, data.splits[name]))
            loss = -float(log_probs.mean())
            print(f"{name}: loss {loss:.4f}, perplexity {np.exp(loss):.3f}, {len(log_probs):,} masked tokens")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
