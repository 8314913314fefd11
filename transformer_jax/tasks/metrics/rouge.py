"""ROUGE of texts against one or several references (Lin 2004), by the library `rouge-score`.

ROUGE-1 and ROUGE-2 count common words and pairs of words; ROUGE-L is from the longest common subsequence of words. Each
is the F1 of precision and recall, and the score of a corpus is the mean over its examples. Words are runs of the
letters a to z and of digits, in lower case; with a stemmer, words of more than three letters lose their endings
(Porter 1980).

ROUGE-L is that of the whole text, `rougeL` of the library. Papers on summaries of several sentences often give the one
by sentences, `rougeLsum`, which is higher.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_jax.config import TaskConfig
from transformer_jax.tasks.metrics.bootstrap import paired_bootstrap_of_sums
from transformer_jax.tasks.metrics.text import percent
from transformer_jax.tasks.task import SAMPLES, SEED, ExampleSums, PairedBootstrap

logger = logging.getLogger(__name__)

ROUGES = ("rouge1", "rouge2", "rougeL")
_LETTER = re.compile(r"[^\W\d_]")
_MOST_OTHER_LETTERS = 0.01


class Rules(NamedTuple):
    """How outputs are scored; see the fields `task.rouge_stemmer` and `task.best_reference`."""

    stemmer: bool
    best_reference: str

    @property
    def signature(self) -> str:
        """The rules and the library's version as text."""
        stem = "yes" if self.stemmer else "no"
        return f"words:a-z0-9|stem:{stem}|best:{self.best_reference}|version:{version('rouge-score')}"


def rules_of(task: TaskConfig) -> Rules:
    """Return the rules of a config."""
    return Rules(task.rouge_stemmer, task.best_reference)


def example_scores(
    outputs: Sequence[str], references: Sequence[Sequence[str]], rules: Rules
) -> dict[str, Float[np.ndarray, " N"]]:
    """Return the scores of every output, from 0 to 1: `exact_match` with one of its references, and those of `ROUGES`.

    Of several references the best one counts: for each score by itself, or for all of them that of the best ROUGE-1
    (`rules.best_reference`). An output without a word has ROUGE 0.

    Args:
      outputs, references: N each; one or more references per output.
    Raises: ValueError if their numbers differ, or an output has no reference.
    """
    if len(outputs) != len(references) or not all(references):
        raise ValueError(
            f"{len(outputs)} outputs, {len(references)} lists of references; expected one or more for each"
        )
    pick = _PICKS[rules.best_reference]
    rows = [
        pick(np.array([_f1(reference, output, rules.stemmer) for reference in texts]))
        for output, texts in zip(outputs, references, strict=True)
    ]
    same = [output in texts for output, texts in zip(outputs, references, strict=True)]
    columns = np.array(rows, np.float64).reshape(-1, len(ROUGES)).T
    return {"exact_match": np.array(same, np.float64), **dict(zip(ROUGES, columns, strict=True))}


def best_of(candidates: Sequence[str], references: Sequence[str], rules: Rules) -> str:
    """Return the first of the texts with the best ROUGE-1 against any of the references."""
    scorer = _scorer(rules.stemmer, ROUGES[:1])
    return max(candidates, key=lambda text: max(scorer.score(x, text)[ROUGES[0]].fmeasure for x in references))


def corpus_scores(outputs: Sequence[str], references: Sequence[Sequence[str]], rules: Rules) -> dict[str, Any]:
    """Return `exact_match` in percent and the ROUGE scores, from 0 to 100, as means over examples; `empty`; signatures.

    `empty` is the number of outputs without any text.

    Args and errors: as of `example_scores`.
    """
    scores = example_scores(outputs, references, rules)
    return {
        **{name: 100.0 * float(values.mean()) for name, values in scores.items()},
        "empty": sum(not output.strip() for output in outputs),
        **{f"{name}_signature": rules.signature for name in ROUGES},
    }


def example_sums(outputs: Sequence[str], references: Sequence[Sequence[str]], rules: Rules) -> dict[str, ExampleSums]:
    """Return `exact_match` and ROUGE of `corpus_scores` as functions of sums over examples; arguments as there."""
    scores, ones = example_scores(outputs, references, rules), np.ones(len(references))
    return {name: ExampleSums(np.stack([values, ones], axis=-1), percent) for name, values in scores.items()}


def paired_bootstrap(
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    rules: Rules,
    samples: int = SAMPLES,
    seed: int = SEED,
) -> PairedBootstrap:
    """Compare outputs for the same sources with those of the first system, in exact match and ROUGE.

    Args:
      systems: two or more, each with an output per example. samples, seed: of the draws, each at least 1.
    Raises: ValueError as `example_scores` and `bootstrap.paired_bootstrap_of_sums`.
    """
    of_systems = [example_sums(outputs, references, rules) for outputs in systems]
    scores = {
        name: paired_bootstrap_of_sums([x[name].values for x in of_systems], percent, samples, seed)
        for name in of_systems[0]
    }
    draws = f"bs:{samples}|seed:{seed}"
    signatures = {name: f"{draws}|{rules.signature}" if name in ROUGES else draws for name in scores}
    return PairedBootstrap(scores, signatures)


def warn_of_letters(split: str, references: Sequence[Sequence[str]]) -> None:
    """Warn if ROUGE leaves out more than 1 % of the letters of the references: all but a to z."""
    letters = [letter for texts in references for text in texts for letter in _LETTER.findall(text.lower())]
    others = sum(not letter.isascii() for letter in letters)
    if others > _MOST_OTHER_LETTERS * len(letters):
        logger.warning(
            "%s: %.0f %% of the letters of the references are not a to z; ROUGE leaves them out and divides words "
            "there, so that its scores say little in this language",
            split,
            100.0 * others / len(letters),
        )


@functools.cache
def _scorer(stemmer: bool, names: tuple[str, ...] = ROUGES) -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer([*names], use_stemmer=stemmer)


def _f1(reference: str, output: str, stemmer: bool) -> list[float]:
    scores: Mapping[str, Any] = _scorer(stemmer).score(reference, output)
    return [float(scores[name].fmeasure) for name in ROUGES]


_PICKS = {
    "each": lambda scores: scores.max(0),
    "rouge1": lambda scores: scores[scores[:, 0].argmax()],
}
"""From scores by reference, [references, ROUGES], those of the best one, by the values of `task.best_reference`."""
