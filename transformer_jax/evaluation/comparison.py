"""Comparison of checkpoints: paired bootstrap tests show whether their scores differ significantly."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config.task import RULES_OF_SCORES
from transformer_jax.data.sources import TestFiles
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.evaluation.significance import compare_statistics
from transformer_jax.evaluation.table import described, print_comparison, print_signatures
from transformer_jax.tasks.task import SAMPLES, SEED, PairedBootstrap

logger = logging.getLogger(__name__)


def compare(
    paths: Sequence[Path | str],
    splits: Sequence[str] = ("test",),
    overrides: Mapping[str, Any] | None = None,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
    files: TestFiles | None = None,
    trust: str | Sequence[str] = (),
) -> dict[str, PairedBootstrap]:
    """Compare checkpoints with the first, and print a table for each split.

    If the task compares outputs, SPLIT.json and SPLIT.txt of each checkpoint are written as by `evaluate`; existing
    files are reused if they are the same as `evaluate` would write. Otherwise, the statistics of every example are
    computed. All models are in memory at once.

    Args:
      paths: two or more; overrides apply to all. samples, seed: of the paired bootstrap.
      files: a test set to compare on in place of the corpus; `splits` is its name.
      trust: as in `load`.
    Raises: ConfigError, CheckpointError, DataError as `evaluate`; ConfigError if the tasks differ, or the rules by
      which they score; DataError if the references of a split differ, or the task has no metric with a direction. All
      of these are raised before anything is scored. DataError after the statistics are computed, if no metric with a
      direction follows from them.
    """
    if len(paths) < 2 or not splits:
        raise ConfigError(
            f"{len(paths)} checkpoints, {len(splits)} splits: expected two checkpoints and a split, or more"
        )
    scorers = [Scorer.from_checkpoint(path, overrides, files, trust=trust) for path in paths]
    task = scorers[0].evaluator.task
    for path, scorer in zip(paths, scorers, strict=True):
        if scorer.evaluator.task is not task:
            tasks = [other.loaded.config.task.name for other in (scorers[0], scorer)]
            raise ConfigError(
                f"{paths[0]} has task '{tasks[0]}' and {path} task '{tasks[1]}': scores cannot be compared"
            )
        _check_rules(str(paths[0]), scorers[0], str(path), scorer)
        scorer.check_splits(splits)
        for split in splits:
            scorer.evaluator.check(split)
    names = [str(path) for path in paths]
    if not any(spec.direction for spec in task.metrics):
        raise DataError(
            f"task '{scorers[0].loaded.config.task.name}': none of its metrics has a direction, so that checkpoints "
            "cannot be compared"
        )
    references = {split: _references(split, names, scorers) for split in splits}
    if task.compares_outputs:
        _warn_of_settings(names, scorers)
    results = {}
    for split in splits:
        if task.compares_outputs:
            outputs = [scorer.outputs(split) for scorer in scorers]
            results[split] = task.compare_outputs(
                scorers[0].loaded.config, outputs, references[split] or [], samples, seed
            )
        else:
            statistics = [task.statistics(s.evaluator, s.loaded.params, split) for s in scorers]
            results[split] = compare_statistics(task, statistics, samples, seed)
        for scorer in scorers:
            scorer.evaluator.forget()  # the task's own `statistics` may have called `made_once`
        if not results[split].scores:
            raise DataError(f"split '{split}': no metric with a direction follows from its statistics")
    for split, result in results.items():
        count = scorers[0].evaluator.data.splits[split].num_examples
        print_comparison(f"{split}, {count:,} pairs", names, result.scores, task.metrics)
        _warn_of_equals(split, names, result)
    if task.compares_outputs:
        _print_decode(names, scorers)
    print_signatures(next(iter(results.values())).signatures)
    return results


def _check_rules(first_name: str, first: Scorer, name: str, other: Scorer) -> None:
    for field in RULES_OF_SCORES:
        a, b = (getattr(scorer.loaded.config.task, field.removeprefix("task.")) for scorer in (first, other))
        if a != b:
            raise ConfigError(
                f"{field} is {a} in {first_name} and {b} in {name}, so that scores cannot be compared; "
                f"--{field}=... sets both"
            )


def _references(split: str, names: Sequence[str], scorers: Sequence[Scorer]) -> Sequence[Any] | None:
    """Return the references of a split, which must be the same for all; None if the task has no reference texts."""
    first, *others = (scorer.references(split) for scorer in scorers)
    for number, (name, other) in enumerate(zip(names[1:], others, strict=True), start=1):
        if first is None or other is None:
            if scorers[0].corpus(split) != scorers[number].corpus(split):
                raise DataError(f"{names[0]} and {name} have different corpora, so that scores cannot be compared")
            continue
        for line, (a, b) in enumerate(itertools.zip_longest(first, other), start=1):
            if a != b:
                there = ["nothing" if text is None else repr(text) for text in (a, b)]
                raise DataError(
                    f"split '{split}' of {names[0]} and of {name} has different references, so that scores cannot be "
                    f"compared: pair {line} has {there[0]} and {there[1]}"
                )
    return first


def _print_decode(names: Sequence[str], scorers: Sequence[Scorer]) -> None:
    of_systems = [described(dataclasses.asdict(scorer.loaded.config.decode.resolved())) for scorer in scorers]
    for name, decode in [("all", of_systems[0])] if len({*of_systems}) == 1 else zip(names, of_systems, strict=True):
        print(f"decode of {name}: {decode}")


def _warn_of_equals(split: str, names: Sequence[str], result: PairedBootstrap) -> None:
    for number, name in enumerate(names):
        if equal := [metric for metric, scores in result.scores.items() if scores[number].always_equal]:
            logger.warning(
                "%s: %s scores the same as %s on every resample (%s); the p-value in parentheses is meaningless",
                *(split, name, names[0], ", ".join(equal)),
            )


def _warn_of_settings(names: Sequence[str], scorers: Sequence[Scorer]) -> None:
    """Warn if the decode settings of the checkpoints differ, which may be intended."""
    first, *others = (dataclasses.asdict(scorer.loaded.config.decode.resolved()) for scorer in scorers)
    for name, other in zip(names[1:], others, strict=True):
        for field in first:
            if first[field] != other[field]:
                values = first[field], names[0], other[field], name
                logger.warning("decode.%s is %s in %s and %s in %s; --decode.%s=... sets both", field, *values, field)
