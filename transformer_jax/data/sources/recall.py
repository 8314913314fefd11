"""Drawn rows of keys and values, which are asked for later: associative recall, a corpus that needs no files.

A row of `recall_pairs` 2, `recall_questions` 2, `recall_gap` 3 and `recall_length` 14, in a random order:

    k7 v2 k0 v5 _ _ _ k0 v5 k7 v2 _ _ _

The keys of a row differ, and none is asked for twice; the value after a question is the answer. Values are drawn
independently of each other and of the keys. So a model that cannot see the pair of a question is right with probability
1 / `recall_keys`, whatever else it sees. Rows are as in Arora et al. 2023 (arXiv 2312.04927, multi-query associative
recall), who ask for all keys, at random places, and whose values differ within a row.

Let P be the number of pairs, Q that of questions and G the gap. From the value of pair i, from 0, to the key of
question j are G + 1 + 2 (P - 1 - i + j) words: in the kept order, where j = i, G + 2 P - 1; in a random one from G + 1
to G + 2 P + 2 Q - 3.
Gap, length and order change no key and no value, so rows with other ones can be compared one by one.

A row follows from its split and its number, not from the seed of a run. The hash of its pairs decides in which split it
may be, so no two splits have a row with the same pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import DataConfig
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.order import RECALL_STREAM, generator
from transformer_jax.data.sources.source import Split, joined, no_such_split
from transformer_jax.errors import DataError
from transformer_jax.host.files import json_sha256

FILLER = "_"
"""The word that fills gaps."""
_VERSION = 1
"""Increase it when another row is drawn for the same numbers."""
_SEED = 0
_DRAWN = 1024  # rows at a time; the rows of a split depend on it
_SLOTS = 4  # of the hash: one each for valid and test, the others for train


class Drawn(NamedTuple):
    """Rows without their words. keys, values: int [rows, P], from 0. order: int [rows, P], the pair of a question."""

    keys: np.ndarray
    values: np.ndarray
    order: np.ndarray


class RecallSource:
    """Drawn rows; see the module's docstring. An example has two features.

    `inputs` is the row as a text. `answers` has 1 for every word of it that is an answer, and 0 for the others.
    """

    def __init__(self, config: DataConfig) -> None:
        self._config = config
        self._gaps = config.recall_gaps()

    @property
    def split_names(self) -> tuple[str, ...]:
        """train, valid, test and the names of `test_sets`."""
        return tuple(self._gaps)

    def num_examples(self, name: str) -> int:
        """Return the number of rows of a split; raise DataError for an unknown name."""
        self._check(name)
        return self._config.num_train_pairs if name == CORPUS_SPLITS[0] else self._config.num_eval_pairs

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split in order, `size` rows at a time.

        Raises: DataError for an unknown name, and if there are too few different rows.
        """
        rows = self._rows(name)
        for start in range(0, self.num_examples(name), size):
            count = min(size, self.num_examples(name) - start)
            texts = [next(rows) for _ in range(count)]
            yield Split({"inputs": texts, "answers": [self._answers(self._gaps[name])] * count})

    def split(self, name: str) -> Split:
        """Return a whole split; errors as in `chunks`."""
        return joined(self.chunks(name, 1 << 16))

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the sha256 of all that the rows of the corpus, or of a test set, follow from; no library is used."""
        config, gap = self._config, self._gaps[split or CORPUS_SPLITS[0]]
        shape = (config.recall_pairs, config.recall_keys, config.recall_questions)
        shape = (*shape, gap, config.recall_length, config.recall_order)
        sizes = (config.num_train_pairs, config.num_eval_pairs)
        of_corpus = split is None or split in CORPUS_SPLITS
        drawn = {"recall": _VERSION, "seed": _SEED, "shape": shape, "sizes": sizes if of_corpus else sizes[1:]}
        return {"sha256": json_sha256(drawn), "versions": {}}

    def _check(self, name: str) -> None:
        if name not in self._gaps:
            raise no_such_split(name, self._gaps)

    def _answers(self, gap: int) -> list[int]:
        config = self._config
        before = 2 * config.recall_pairs + gap
        marks = [0] * before + [0, 1] * config.recall_questions
        return marks + [0] * (config.recall_length - len(marks))

    def _rows(self, name: str) -> Iterator[str]:
        """Yield the rows of a split without end."""
        config, gap = self._config, self._gaps[name]
        number = CORPUS_SPLITS.index(name if name in CORPUS_SPLITS else "test")
        names = (
            np.array([f"k{i}" for i in range(config.recall_keys)]),
            np.array([f"v{i}" for i in range(config.recall_keys)]),
        )
        words = 2 * (config.recall_pairs + config.recall_questions) + gap
        between, after = (FILLER,) * gap, (FILLER,) * (config.recall_length - words)
        part = 0
        while True:
            drawn = draw(number, part, config.recall_pairs, config.recall_keys)
            own = np.array([_split_of(pairs) == number for pairs in np.concatenate([drawn.keys, drawn.values], 1)])
            if not own.any():
                raise DataError(
                    f"data.recall_keys={config.recall_keys}, data.recall_pairs={config.recall_pairs}: too few "
                    f"different rows for the split '{name}'"
                )
            keys, values = (of_ids[ids[own]] for of_ids, ids in zip(names, drawn[:2], strict=True))
            order = ORDERS[config.recall_order](drawn)[own, : config.recall_questions]
            pairs = np.stack([keys, values], -1)
            asked = np.take_along_axis(pairs, order[..., None], 1)
            for told, questions in zip(pairs, asked, strict=True):
                yield " ".join((*told.flat, *between, *questions.flat, *after))
            part += 1


ORDERS: dict[str, Callable[[Drawn], np.ndarray]] = {
    "shuffled": lambda drawn: drawn.order,
    "kept": lambda drawn: np.broadcast_to(np.arange(drawn.keys.shape[1]), drawn.keys.shape),
}
"""Functions that return the pair of every question, int [rows, P], by the values of `data.recall_order`."""


def draw(number: int, part: int, pairs: int, keys: int) -> Drawn:
    """Return one part of the rows of a split, before those of other splits are left out.

    Args:
      number: of the split, from 0. part: of the rows, from 0.
    """
    random = generator(RECALL_STREAM, _SEED, number, part)
    uniform = random.random((3, _DRAWN, pairs))
    return Drawn(
        keys=_permuted(uniform[0], keys),
        values=(uniform[1] * keys).astype(np.int64),
        order=_permuted(uniform[2], pairs),
    )


def _permuted(uniform: Float[np.ndarray, "rows chosen"], count: int) -> Int[np.ndarray, "rows chosen"]:
    """Return different numbers below `count` in every row, all choices equally likely, from numbers in [0, 1).

    This is the algorithm of Fisher and Yates, on all rows at once.
    """
    rows, chosen = uniform.shape
    numbers, row = np.tile(np.arange(count), (rows, 1)), np.arange(rows)
    for place in range(chosen):
        other = place + (uniform[:, place] * (count - place)).astype(np.int64)
        numbers[row, place], numbers[row, other] = numbers[row, other], numbers[row, place]
    return numbers[:, :chosen]


def _split_of(pairs: np.ndarray) -> int:
    """Return the number of the only split that may have a row with these keys and values."""
    slot = hashlib.blake2b(pairs.astype("<i4").tobytes(), digest_size=1).digest()[0] % _SLOTS
    return slot if slot < len(CORPUS_SPLITS) else 0
