"""The line with the baselines of the validation split, which `transformer-jax train` prints when a run has finished."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.datasets import Data
from transformer_jax.evaluation.table import unknown_words
from transformer_jax.evaluation.task_baselines import Rows, TaskBaselines, why_no_baselines
from transformer_jax.tasks.task import TASKS

MOST_SECONDS = 20.0
"""Baselines that take longer to learn are left to `evaluate`."""
_VALID = "valid"
_METRICS = ("f1", "accuracy", "word_perplexity", "rougeL")
"""The line shows the first one that the model and all baselines have."""
_PAGES = {"language_model": "docs/language_models.md", "images": "docs/images.md", "text_to_text": "docs/summaries.md"}


def baselines_of_validation(
    config: ExperimentConfig, data: Data, workdir: Path, metrics: Mapping[str, Any]
) -> str | None:
    """Return a line with the baselines of the validation split and the score of the model.

    If a baseline is better than the model, another line says so. Baselines with unknown words are not compared: all of
    them are one word, whose spelling costs nothing.

    They are those of WORKDIR/evaluation/baselines/valid.json. If it does not have them, they are computed and written
    there. If that would take more than `MOST_SECONDS`, the line says which command computes them.

    Args:
      metrics: of the model, from the last validation.
    Returns: None if the task has no baselines, or no metric in common with them.
    Raises: as `TaskBaselines`.
    """
    if why_no_baselines(config):
        return None
    found = TaskBaselines(config, data, workdir / "evaluation" / "baselines")
    rows = found.known_scores(_VALID)
    if rows is None and found.seconds_to_learn() > MOST_SECONDS:
        return (
            "valid baselines: not computed, since it takes more than "
            f"{MOST_SECONDS:.0f} s; `transformer-jax evaluate "
            f"--checkpoint={quote(str(workdir))} --splits={_VALID} --baselines` computes them"
        )
    return _text(config.task.name, found.scores(_VALID) if rows is None else rows, metrics)


def _text(task: str, rows: Rows, metrics: Mapping[str, Any]) -> str | None:
    shared = (name for name in _METRICS if all(name in scores for scores in (metrics, *rows.values())))
    if (name := next(shared, None)) is None:
        return None
    spec = next(spec for spec in TASKS[task].metrics if spec.name == name)
    sign = 1 if spec.direction == "max" else -1
    model, scores = metrics[name], {baseline: row[name] for baseline, row in rows.items()}
    shown = ", ".join(f"{spec.format.format(score)} {baseline}" for baseline, score in scores.items())
    lines = [f"{spec.label} {shown}; the model: {spec.format.format(model)}"]
    if note := unknown_words(rows):
        lines.append(note)
    known = [baseline for baseline, row in rows.items() if not row.get("unknown_words")]
    best = max(known, key=lambda baseline: sign * scores[baseline], default=None)
    if best is not None and sign * model < sign * scores[best]:
        page = _PAGES.get(task, "docs/labelled_tasks.md")
        lines.append(f'{best} is better than the model; see section "Scores" of {page}')
    return "\n".join(f"valid baselines: {line}" for line in lines)
