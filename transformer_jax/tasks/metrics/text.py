"""Scores of translations against references: BLEU and chrF by sacreBLEU, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
