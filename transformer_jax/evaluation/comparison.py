"""Comparing checkpoints: whether their translations differ by more than the choice of sentences explains."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.run import Scorer
from transformer_jax.evaluation.significance import SAMPLES, SEED, PairedBootstrap, paired_bootstrap
from transformer_jax.evaluation.table import described, print_comparison, print_signatures

logger = logging.getLogger(__name__)


def compare(
    paths: Sequence[Path],
    splits: Sequence[str] = ("test",),
    overrides: Mapping[str, Any] | None = None,
    *,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> dict[str, PairedBootstrap]:
    """Compares the translations of checkpoints with those of the first, and prints a table for each split.

    A checkpoint's SPLIT.json and SPLIT.txt are written as `evaluate` does, and used if they are there already and are
    what translating would write. All models are in memory at once.

    Args:
      paths: two or more; overrides apply to all. samples, seed: as of `paired_bootstrap`.
    Raises: ConfigError, CheckpointError, DataError as `evaluate`; DataError if the references of a split differ. All of
      it before anything is translated.
    """
    if len(paths) < 2 or not splits:
        raise ConfigError(f"{len(paths)} checkpoints, {len(splits)} splits: expected two checkpoints and a split")
    scorers = [Scorer.from_checkpoint(path, overrides) for path in paths]
    for scorer in scorers:
        scorer.check_splits(splits)
        for split in splits:
            scorer.evaluator.check(split)
    names = [str(path) for path in paths]
    references = {split: _references(split, names, scorers) for split in splits}
    _warn_of_settings(names, scorers)
    results = {}
    for split in splits:
        translations = [scorer.translations(split) for scorer in scorers]
        results[split] = paired_bootstrap(translations, references[split], samples, seed)
    for split, result in results.items():
        print_comparison(f"{split}, {len(references[split]):,} pairs", names, result.scores)
        _warn_of_equals(split, names, result)
    of_systems = [described(dataclasses.asdict(scorer.loaded.config.decode.resolved())) for scorer in scorers]
    for name, decode in [("all", of_systems[0])] if len({*of_systems}) == 1 else zip(names, of_systems, strict=True):
        print(f"decode of {name}: {decode}")
    print_signatures(next(iter(results.values())).signatures)
    return results


def _references(split: str, names: Sequence[str], scorers: Sequence[Scorer]) -> list[str]:
    """The references of a split as one writes them, which have to be the same for all."""
    first, *others = (scorer.evaluator.references(split) for scorer in scorers)
    for name, other in zip(names[1:], others, strict=True):
        for number, (a, b) in enumerate(itertools.zip_longest(first, other), start=1):
            if a != b:
                there = ["nothing" if line is None else repr(line) for line in (a, b)]
                raise DataError(
                    f"split '{split}' of {names[0]} and of {name} has different references, so that scores cannot be "
                    f"compared: pair {number} has {there[0]} and {there[1]}"
                )
    return first


def _warn_of_equals(split: str, names: Sequence[str], result: PairedBootstrap) -> None:
    for number, name in enumerate(names):
        if equal := [metric for metric, scores in result.scores.items() if scores[number].always_equal]:
            logger.warning(
                "%s: %s scores as %s on every resample (%s); the p-value in parentheses says nothing",
                *(split, name, names[0], ", ".join(equal)),
            )


def _warn_of_settings(names: Sequence[str], scorers: Sequence[Scorer]) -> None:
    """Of checkpoints whose configs have them translated in different ways, which may be what is meant."""
    first, *others = (dataclasses.asdict(scorer.loaded.config.decode.resolved()) for scorer in scorers)
    for name, other in zip(names[1:], others, strict=True):
        for field in first:
            if first[field] != other[field]:
                values = first[field], names[0], other[field], name
                logger.warning("decode.%s is %s in %s and %s in %s; --decode.%s=... sets both", field, *values, field)
