"""Paired bootstrap resampling of corpus scores (Koehn 2004, "Statistical significance tests for machine translation
evaluation"), as sacreBLEU implements it.

The sentences of the test set are drawn anew, with replacement, N times; every system is scored on the same draws. With
d the difference to the first system on the test set and d_n that on draw n, sacreBLEU's p-value is

    p = (1 + number of draws with |d_n| - mean of |d_n| > |d|) / (N + 1)

It estimates the chance of a difference as large as d, in either direction, if both systems were equally good: the draws
show how far a difference strays from its mean. It is never below 1 / (N + 1). It speaks of the choice of sentences
alone; that another seed of the training would give the same difference is for other runs to show.

Of two systems that score the same on every draw, because they translate alike or get all right or all wrong, p is
1 / (N + 1) as well, by design of sacreBLEU: no chance is in their difference of zero. It does not make them different.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

SAMPLES = 1000
SEED = 12345  # sacreBLEU's own, so that its command line gives the same numbers
METRICS = ("sacrebleu", "chrf")

_SEED_VARIABLE = "SACREBLEU_SEED"


class SystemScore(NamedTuple):
    """One system in one metric, 0 to 100.

    mean: over the draws. interval: half the width of the 95 % interval of a draw's score. difference: to the first
    system. p_value: see above. always_equal: whether it scores as the first system on every draw, so that the p-value
    says nothing. The first system has no difference and no p-value.
    """

    score: float
    mean: float
    interval: float
    difference: float | None
    p_value: float | None
    always_equal: bool = False


class PairedBootstrap(NamedTuple):
    """scores: by metric, one per system. signatures: by metric, with the seed and the number of draws."""

    scores: dict[str, list[SystemScore]]
    signatures: dict[str, str]


def paired_bootstrap(
    systems: Sequence[Sequence[str]], references: Sequence[str], samples: int = SAMPLES, seed: int = SEED
) -> PairedBootstrap:
    """Compares translations of the same sources with those of the first system, in sacreBLEU and chrF.

    Args:
      systems: two or more, each with a translation per reference.
      samples: N, at least 1. Memory grows with it: about 0.1 kB for every sentence of every draw.
      seed: of the draws, at least 1; 0 would leave sacreBLEU's draws to chance.
    Raises: ValueError for arguments that are not so.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    if len(systems) < 2 or any(len(translations) != len(references) for translations in systems):
        raise ValueError(
            f"{[len(translations) for translations in systems]} translations, {len(references)} references"
        )
    if samples < 1 or seed < 1:
        raise ValueError(f"samples={samples}, seed={seed}: expected at least 1")
    # The references are prepared once for all systems. `force` is no score: it silences a warning, as in scores.py.
    metrics = {"sacrebleu": BLEU(force=True, references=[references]), "chrf": CHRF(references=[references])}
    named = [(str(number), translations) for number, translations in enumerate(systems)]
    with _sacrebleu_seed(seed):
        test = PairedTest(named, metrics, references=None, test_type="bs", n_samples=samples, n_jobs=1)
        outcome: Any = test()  # declared as though a score could be text
    signatures, found = outcome
    names = [name for name in found if name != "System"]  # sacreBLEU's: BLEU, chrF2
    scores = {}
    for metric, name in zip(METRICS, names, strict=True):
        first, *others = found[name]
        scores[metric] = [SystemScore(first.score, float(first.mean), float(first.ci), None, None)]
        for other in others:
            difference = other.score - first.score
            # No |d_n| is above the mean: all are equal, and to zero unless every draw is the same.
            always_equal = difference == 0 and other.p_value == 1 / (samples + 1)
            values = other.score, float(other.mean), float(other.ci), difference, other.p_value
            scores[metric].append(SystemScore(*values, always_equal))
    return PairedBootstrap(scores, {metric: str(signatures[name]) for metric, name in zip(METRICS, names, strict=True)})


@contextlib.contextmanager
def _sacrebleu_seed(seed: int) -> Generator[None, None, None]:
    """sacreBLEU takes the seed from the environment and from nowhere else."""
    before = os.environ.get(_SEED_VARIABLE)
    os.environ[_SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED_VARIABLE]
        else:
            os.environ[_SEED_VARIABLE] = before
