"""Evaluating a checkpoint: it alone tells model, tokenizer and corpus."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints.workdir import write_atomically
from transformer_jax.config import nearest
from transformer_jax.data.datasets import Data, prepare_data
from transformer_jax.errors import CheckpointError, DataError
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.evaluation.loading import Loaded, load
from transformer_jax.evaluation.table import print_table
from transformer_jax.kill_points import kill_point


def evaluate(
    path: Path,
    splits: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    generate: bool = True,
) -> dict[str, dict[str, Any]]:
    """Scores a checkpoint on splits of its corpus, prints a table and writes WORKDIR/evaluation/SPLIT.json for each.

    Args:
      splits: names; None means all but the training split.
      generate: translate too, not only teacher forcing.
    Returns: metrics by split; translations are written beside as SPLIT.txt.
    Raises: CheckpointError, ConfigError as `load`; DataError if the corpus is not the checkpoint's or lacks a split.
    """
    loaded = load(path, overrides)
    steps = ", ".join(map(str, loaded.steps))
    print(f"{loaded.directory}: step {steps}" + (" averaged" if len(loaded.steps) > 1 else ""), file=sys.stderr)
    workdir = _workdir(loaded.directory)
    data = prepare_data(loaded.config, workdir, loaded.tokenizer)
    _check_corpus(loaded, data)
    names = [name for name in data.source.split_names if name != "train"] if splits is None else list(splits)
    if not names:
        raise DataError("the corpus has no split but train; --splits=train scores that")
    evaluator = Evaluator(loaded.config, data)
    results = {}
    for name in names:
        if name not in data.source.split_names:
            raise DataError(
                f"no split '{name}'; there are {', '.join(data.source.split_names)}"
                f"{nearest(name, data.source.split_names)}"
            )
    for name in names:
        metrics: dict[str, Any] = {
            "split": name,
            "checkpoints": list(loaded.steps),
            **evaluator.losses(loaded.params, name),
        }
        if generate:
            scores, translations = evaluator.translation_scores(loaded.params, name)
            metrics |= scores
            metrics["evaluation"] = dataclasses.asdict(loaded.config.evaluation) | {"search": "greedy"}
            _write(workdir / "evaluation" / f"{name}.txt", "".join(f"{line}\n" for line in translations))
        _write(workdir / "evaluation" / f"{name}.json", json.dumps(metrics, indent=2, ensure_ascii=False) + "\n")
        kill_point("inside_evaluation", loaded.steps[-1])
        results[name] = metrics
    print_table(results)
    return results


def _workdir(checkpoints: Path) -> Path:
    """WORKDIR of WORKDIR/checkpoints; a folder of checkpoints elsewhere is its own."""
    return checkpoints.parent if checkpoints.name == "checkpoints" else checkpoints


def _check_corpus(loaded: Loaded, data: Data) -> None:
    now = data.source.fingerprint()
    if now["sha256"] != loaded.corpus["sha256"]:
        raise DataError(
            f"the corpus is not the one this checkpoint was trained on: sha256 {loaded.corpus['sha256'][:12]} then "
            f"({loaded.corpus['versions']}), {now['sha256'][:12]} now ({now['versions']})"
        )


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{file.parent}: cannot be made: {error.strerror}") from error
    write_atomically(file, text.encode())
