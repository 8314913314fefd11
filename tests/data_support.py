"""Shared by the tests of data: splits of pairs as text and as ids, and arguments of the translation task's batches."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Arrays, Batch, Lengths
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.datasets import Data, prepare_data
from transformer_jax.data.sources import Split
from transformer_jax.data.sources.source import divided
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS
from transformer_jax.tasks.task import TASKS

EOS_ID = OWN_SPECIAL_IDS.required("eos")
PAD_ID = OWN_SPECIAL_IDS.required("pad")


def pair_texts(inputs: list[str], targets: list[str], families: list[str] | None = None) -> Split:
    """Return a split as a source returns it."""
    return Split({"inputs": inputs, "targets": targets} | ({} if families is None else {"families": families}))


def encoded_pairs(inputs: RaggedIds, targets: RaggedIds) -> EncodedSplit:
    """Return a split as the token cache returns it."""
    return EncodedSplit({"inputs": inputs, "targets": targets}, OWN_SPECIAL_IDS)


def prepared(config: ExperimentConfig, directory: str | Path, *args: Any, **options: Any) -> Data:
    """Call `prepare_data` with the columns and the special tokens of the config's task."""
    task = TASKS[config.task.name]
    added = task.added_tokens(config)
    return prepare_data(config, task.columns(config), directory, *args, added_tokens=added, **options)


def plan_arguments(split: EncodedSplit) -> tuple[Lengths, Arrays]:
    """Return lengths and arrays of a translation plan."""
    config, task = ExperimentConfig(), TASKS["translation"]
    return task.lengths(config, split), functools.partial(task.arrays, config, split)


def two_widths(batch: Batch) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Return the shape of a batch of pairs as `BatchShape` has it."""
    rows, width = batch["inputs"].shape
    return rows, (("inputs", width), ("targets", batch["targets"].shape[1]))


def longest_of(split: EncodedSplit) -> np.ndarray:
    """Return the length of the longer side of every pair."""
    return np.maximum(split.lengths("inputs"), split.lengths("targets"))


class FakeSource:
    """A corpus with one split in memory, which counts how often it is read."""

    split_names = ("train",)

    def __init__(self, split: Split, sha256: str = "abc") -> None:
        self._split = split
        self._sha256 = sha256
        self.reads = 0

    def num_examples(self, name: str) -> int:
        return self._split.num_examples

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        self.reads += 1
        return divided(self._split, size)

    def split(self, name: str) -> Split:
        return self._split

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        return {"sha256": self._sha256, "versions": {}}
