"""Evaluating a checkpoint: it alone tells model, tokenizer and corpus.

WORKDIR/evaluation/SPLIT.json             scores of WORKDIR's newest checkpoint, or of an average
WORKDIR/evaluation/SPLIT.txt              its translations, one per line, if it was asked to translate
WORKDIR/evaluation/step_STEP/SPLIT.json   the same of WORKDIR/checkpoints/STEP, when that was asked for
FOLDER/evaluation/COPY/SPLIT.json         the same of a copied checkpoint, FOLDER/COPY
"""

from __future__ import annotations

import dataclasses
import json
import math
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
from transformer_jax.evaluation.translate import on_one_line
from transformer_jax.kill_points import kill_point


def evaluate(
    path: Path,
    splits: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    generate: bool = True,
) -> dict[str, dict[str, Any]]:
    """Scores a checkpoint on splits of its corpus, prints a table and writes SPLIT.json for each.

    Args:
      splits: names; None means all but the training split.
      generate: translate too, not only teacher forcing. Without, the scores of translations that the files have of the
        same checkpoints stay in them.
    Returns: metrics by split; translations are written beside as SPLIT.txt.
    Raises: CheckpointError, ConfigError as `load`; DataError if the corpus is not the checkpoint's or lacks a split.
    """
    loaded = load(path, overrides)
    steps = ", ".join(map(str, loaded.steps))
    print(f"{loaded.directory}: step {steps}" + (" averaged" if len(loaded.steps) > 1 else ""), file=sys.stderr)
    workdir = _workdir(loaded.directory)
    data = prepare_data(loaded.config, workdir, loaded.tokenizer, _say)
    _check_corpus(loaded, data)
    names = [name for name in data.source.split_names if name != "train"] if splits is None else list(splits)
    if not names:
        raise DataError("the corpus has no split but train; --splits=train scores that")
    evaluator = Evaluator(loaded.config, data)
    for name in names:
        if name not in data.source.split_names:
            raise DataError(
                f"no split '{name}'; there are {', '.join(data.source.split_names)}"
                f"{nearest(name, data.source.split_names)}"
            )
    folder = workdir / "evaluation" / (loaded.name or "")
    results = {}
    for name in names:
        results[name] = _score(evaluator, loaded, name, folder, generate)
        kill_point("inside_evaluation", loaded.steps[-1])
    print_table(results)
    _tell(results, folder, loaded.config.data.max_length)
    return results


def _score(evaluator: Evaluator, loaded: Loaded, name: str, folder: Path, generate: bool) -> dict[str, Any]:
    """Scores one split and writes its files."""
    metrics: dict[str, Any] = {
        "split": name,
        "checkpoints": list(loaded.steps),
        **evaluator.losses(loaded.params, name),
        "over_length": evaluator.data.num_over_length(name),
    }
    text, file = folder / f"{name}.txt", folder / f"{name}.json"
    kept = {}
    if generate:
        scores, translations = evaluator.translation_scores(loaded.params, name)
        metrics |= scores
        metrics["evaluation"] = dataclasses.asdict(loaded.config.evaluation) | {"search": "greedy"}
        _write(text, "".join(f"{on_one_line(line)}\n" for line in translations))
    elif not (kept := _earlier_translation_scores(file, metrics)):
        _remove(text)
    _write(file, json.dumps(metrics | kept, indent=2, ensure_ascii=False) + "\n")
    return metrics


def _earlier_translation_scores(file: Path, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What a file of scores says of the translations of the same checkpoints; nothing if it is of others."""
    try:
        earlier = json.loads(file.read_bytes())
        # The loss tells another model of the same step.
        same = all(earlier[field] == metrics[field] for field in ("split", "checkpoints", "tokens"))
        same = same and math.isclose(earlier["loss"], metrics["loss"], rel_tol=1e-5)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    translated = same and "unfinished" in earlier
    return {field: value for field, value in earlier.items() if field not in metrics} if translated else {}


def _tell(results: Mapping[str, Mapping[str, Any]], folder: Path, max_length: int) -> None:
    for name, metrics in results.items():
        if metrics["over_length"]:
            print(
                f"{name}: {metrics['over_length']:,} pairs have a side of more than data.max_length={max_length} "
                "pieces; they are scored like the others",
                file=sys.stderr,
            )
    for name in results:
        files = [path for path in (folder / f"{name}.json", folder / f"{name}.txt") if path.exists()]
        print(f"{name}: {', '.join(map(str, files))}", file=sys.stderr)


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


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{file.parent}: cannot be made: {error.strerror}") from error
    write_atomically(file, text.encode())


def _remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise CheckpointError(f"{file}: is of another checkpoint and cannot be removed: {error.strerror}") from error
