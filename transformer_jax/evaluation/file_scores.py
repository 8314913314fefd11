"""Scores of one file that is not part of the corpus, with a model that is already loaded."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.data.datasets import prepare_data
from transformer_jax.data.sources import source_of_file
from transformer_jax.errors import DataError
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.evaluation.scoring import check_finite_scores
from transformer_jax.tasks.trained.predictor import Predictor

_COMPARED = 1000
"""Number of examples whose labels are compared with their texts, for a wrong column."""


def scores_of_file(predictor: Predictor[Any], reading: DataConfig, path: Path, name: str) -> dict[str, Any]:
    """Return the scores of a file as `evaluate --input` has them; nothing is written beside the checkpoint.

    Args:
      reading: says how the file is read, with the column of its labels. name: of the file in errors.
    Raises: DataError if the file has no labels, or others than the model; if an example cannot be read or is too long;
      CheckpointError if a score is not finite.
    """
    config = predictor.config
    as_it_is = dataclasses.replace(reading, coarse_labels=False, label_names="", input_template="")
    for first in source_of_file(as_it_is, name, path).chunks(name, _COMPARED):
        if first.features["targets"] in (first.features["inputs"], first.features.get("second")):
            raise DataError(f"{path}: the labels would be read from the column of the text")
        break
    source = source_of_file(reading, name, path)
    without_cache = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_dir=""))
    with tempfile.TemporaryDirectory() as folder:
        columns = predictor.task.columns(config)
        labels = predictor.labels or None
        data = prepare_data(without_cache, columns, folder, predictor.tokenizer, source=source, labels=labels)
        metrics = Evaluator(config, data).score(predictor.params, name, generate=False).metrics
    check_finite_scores(str(path), metrics)
    return metrics
