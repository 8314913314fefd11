"""sacreBLEU's paired bootstrap of translations; bootstrap.py defines its numbers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from typing import Any

from transformer_jax.tasks.task import SAMPLES, SEED, PairedBootstrap, SystemScore

_SEED_VARIABLE = "SACREBLEU_SEED"


def paired_bootstrap(
    systems: Sequence[Sequence[str]], references: Sequence[str], samples: int = SAMPLES, seed: int = SEED
) -> PairedBootstrap:
    """Compare translations of the same sources with those of the first system, in sacreBLEU and chrF.

    Args:
      systems: two or more, each with a translation per reference.
      samples: number of draws, at least 1. Memory is about 0.1 kB per sentence and draw.
      seed: of the draws, at least 1; with 0, sacreBLEU's draws would not be repeatable.
    Raises: ValueError if an argument is outside these limits.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    if len(systems) < 2 or any(len(translations) != len(references) for translations in systems):
        raise ValueError(
            f"{[len(translations) for translations in systems]} translations, {len(references)} references; "
            "expected two or more systems with one translation per reference"
        )
    if samples < 1 or seed < 1:
        raise ValueError(f"samples={samples}, seed={seed}: expected at least 1")
    # The references are prepared once for all systems. `force` silences a warning, as in text.py.
    metrics = {"sacrebleu": BLEU(force=True, references=[references]), "chrf": CHRF(references=[references])}
    named = [(str(number), translations) for number, translations in enumerate(systems)]
    with _sacrebleu_seed(seed):
        test = PairedTest(named, metrics, references=None, test_type="bs", n_samples=samples, n_jobs=1)
        outcome: Any = test()  # its declared type includes text scores
    signatures, found = outcome
    names = [name for name in found if name != "System"]  # sacreBLEU's: BLEU, chrF2
    scores = {}
    for metric, name in zip(metrics, names, strict=True):
        first, *others = found[name]
        scores[metric] = [SystemScore(first.score, float(first.mean), float(first.ci), None, None)]
        for other in others:
            difference = other.score - first.score
            # No |d_n| is above the mean, so all are equal; they are zero unless every draw is the same.
            always_equal = difference == 0 and other.p_value == 1 / (samples + 1)
            values = other.score, float(other.mean), float(other.ci), difference, other.p_value
            scores[metric].append(SystemScore(*values, always_equal))
    return PairedBootstrap(scores, {metric: str(signatures[name]) for metric, name in zip(metrics, names, strict=True)})


@contextlib.contextmanager
def _sacrebleu_seed(seed: int) -> Generator[None, None, None]:
    """Set the environment variable with the seed; sacreBLEU has no argument for it."""
    before = os.environ.get(_SEED_VARIABLE)
    os.environ[_SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SEED_VARIABLE]
        else:
            os.environ[_SEED_VARIABLE] = before
