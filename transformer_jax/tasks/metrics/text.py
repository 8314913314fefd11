"""Scores of translations against references: BLEU and chrF by sacreBLEU, and exact match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.tasks.task import ExampleSums

_CHARACTERS = 6
"""Longest n-grams of chrF."""


def translation_scores(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus scores of detokenised text.

    Returns: `exact_match`, percent of translations equal to their reference; `sacrebleu` and `chrf`, 0 to 100, with
      the signatures that make them comparable, `sacrebleu_signature` and `chrf_signature`.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    same = sum(t == r for t, r in zip(translations, references, strict=True))
    # Without `force`, sacreBLEU warns on stderr about sentences that end in a detached full stop.
    bleu, chrf = BLEU(force=True), CHRF()
    return {
        "exact_match": 100.0 * same / len(references),
        "sacrebleu": bleu.corpus_score(translations, [references]).score,
        "chrf": chrf.corpus_score(translations, [references]).score,
        "sacrebleu_signature": str(bleu.get_signature()),
        "chrf_signature": str(chrf.get_signature()),
    }


def example_sums(translations: Sequence[str], references: Sequence[str]) -> dict[str, ExampleSums]:
    """Return `exact_match`, `sacrebleu` and `chrf` of `translation_scores` as functions of sums over sentences."""
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(force=True)
    pairs = list(zip(translations, references, strict=True))
    of_sentences = [bleu.corpus_score([translation], [[reference]]) for translation, reference in pairs]
    counts = np.array([[*of.counts, *of.totals, of.sys_len, of.ref_len] for of in of_sentences], np.float64)
    same = np.array([[translation == reference, 1.0] for translation, reference in pairs])
    return {
        "exact_match": ExampleSums(same, percent),
        "sacrebleu": ExampleSums(counts, _bleu_of_sums),
        "chrf": ExampleSums(np.array([_character_ngrams(*pair) for pair in pairs]), _chrf_of_sums),
    }


def percent(sums: Float[np.ndarray, "*draws 2"]) -> Float[np.ndarray, "*draws"]:
    """Return 100 times the ratio of two sums."""
    return np.asarray(100.0 * sums[..., 0] / sums[..., 1])


def _bleu_of_sums(sums: Float[np.ndarray, "*draws 10"]) -> Float[np.ndarray, "*draws"]:
    """Return sacreBLEU of sums of right and of all n-grams, n = 1 to 4, and of words of outputs and references."""
    from sacrebleu.metrics.bleu import BLEU

    rows = np.rint(sums).astype(int).reshape(-1, sums.shape[-1]).tolist()
    scores = [BLEU.compute_bleu(row[:4], row[4:8], row[8], row[9], smooth_method="exp").score for row in rows]
    return np.array(scores).reshape(sums.shape[:-1])


def _character_ngrams(translation: str, reference: str) -> list[float]:
    """Return the numbers of character n-grams of output and reference, and of common ones, for n = 1 to 6."""
    texts = ["".join(text.split()) for text in (translation, reference)]
    counts: list[float] = []
    for n in range(1, _CHARACTERS + 1):
        ours, theirs = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in texts)
        # As sacreBLEU, without those of an output whose reference is too short to have any.
        counts += [float(ours.total() if theirs else 0), float(theirs.total()), float((ours & theirs).total())]
    return counts


def _chrf_of_sums(sums: Float[np.ndarray, "*draws 18"]) -> Float[np.ndarray, "*draws"]:
    """Return chrF2, of precision and recall averaged over the lengths n that both sides have, of sums of n-grams."""
    ours, theirs, common = np.moveaxis(sums.reshape(*sums.shape[:-1], _CHARACTERS, 3), -1, 0)
    there = (ours > 0) & (theirs > 0)
    lengths = np.maximum(there.sum(-1), 1)
    precision = np.where(there, common / np.maximum(ours, 1), 0.0).sum(-1) / lengths
    recall = np.where(there, common / np.maximum(theirs, 1), 0.0).sum(-1) / lengths
    below = 4 * precision + recall
    return np.asarray(100.0 * 5 * precision * recall / np.where(below > 0, below, 1.0))


def tokenized_scores(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return corpus scores of tokenised text, as papers on such corpora report them.

    Returns: `exact_match`, percent of translations with the tokens of their reference; `tokenized_bleu`, 0 to 100, of
      the given tokens, in lower case; `tokenized_bleu_signature`. `tokenized_bleu` equals the score of
      `multi-bleu.perl -lc`, and of fairseq's scorer on lower-case text, unless a count of n-grams is zero: these two do
      not smooth.
    """
    from sacrebleu.metrics.bleu import BLEU

    same = sum(t.split() == r.split() for t, r in zip(translations, references, strict=True))
    bleu = BLEU(lowercase=True, tokenize="none", force=True)
    return {
        "exact_match": 100.0 * same / len(references),
        "tokenized_bleu": bleu.corpus_score(translations, [references]).score,
        "tokenized_bleu_signature": str(bleu.get_signature()),
    }


def family_scores(
    translations: Sequence[str], references: Sequence[str], families: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return exact match in percent and the number of pairs for every template family, by name."""
    counts: dict[str, list[int]] = {}
    for translation, reference, family in zip(translations, references, families, strict=True):
        count = counts.setdefault(family, [0, 0])
        count[0] += translation == reference
        count[1] += 1
    return {
        name: {"exact_match": 100.0 * same / total, "pairs": total} for name, (same, total) in sorted(counts.items())
    }
