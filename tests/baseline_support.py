"""Shared by the tests of baselines: those of a corpus in memory."""

from pathlib import Path
from typing import Any

from data_support import prepared
from labelled_support import Corpus, config

from transformer_jax.data.tokenizers.words import MAGIC, WordTokenizer
from transformer_jax.evaluation.task_baselines import TaskBaselines

_PAIRS = {"source": "text", "dir": "unused", "format": "tsv", "second_feature": "3"}


def baselines(
    task: str, folder: Path, training: dict[str, list[Any]], valid: dict[str, list[Any]], **fields: Any
) -> TaskBaselines:
    """Return the baselines of two splits, train and valid; fields as in `TaskConfig`."""
    settings = config(task, _PAIRS if "second" in training else None, **fields)
    tokenizer = WordTokenizer(MAGIC + "".join(f"word{i}\n" for i in range(settings.model.vocab_size - 4)).encode())
    data = prepared(settings, folder, tokenizer, source=Corpus(train=training, valid=valid))
    return TaskBaselines(settings, data, folder / "baselines")
