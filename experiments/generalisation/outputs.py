"""Scores of outputs by the length of their references, with the length that a model chooses and with the right one."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.lines import Line


def exact_by_length(outputs: Sequence[str], references: Sequence[str], split: str, width: int) -> dict[str, float]:
    """Return the exact match in percent, in bins of the number of words of the references.

    Args:
      width: of a bin, in words: 8 gives 1-8, 9-16, ...
    Returns: scores by name, such as `test[9-16]/exact_match`. Empty bins are left out.
    """
    same: dict[int, list[bool]] = defaultdict(list)
    for output, reference in zip(outputs, references, strict=True):
        same[(len(reference.split()) - 1) // width].append(output == reference)
    return {
        f"{split}[{number * width + 1}-{(number + 1) * width}]/exact_match": 100.0 * sum(found) / len(found)
        for number, found in sorted(same.items())
    }


def ended_early(outputs: Sequence[str], references: Sequence[str]) -> float:
    """Return the percentage of outputs that are the beginning of their reference and lack its end."""
    words = [(output.split(), reference.split()) for output, reference in zip(outputs, references, strict=True)]
    early = sum(len(a) < len(b) and a == b[: len(a)] for a, b in words)
    return 100.0 * early / len(references)


def exact_at_right_length(scorer: Scorer, split: str) -> float:
    """Return the exact match in percent of outputs that end where their references do.

    Greedy search may not end an output, and each is then cut at the length of its reference: the "oracle" of Newman et
    al. 2020, section 3. A model that knows all actions of a long output, but ends it too early, is right here.
    """
    config, references = scorer.loaded.config, scorer.references(split) or []
    longest = max(len(reference.split()) for reference in references)
    decode = dataclasses.replace(config.decode, min_length=longest, max_new_tokens=longest)
    task, tokenizer = TASKS[config.task.name], scorer.evaluator.data.tokenizer
    generator = task.generator(dataclasses.replace(config, decode=decode), scorer.loaded.params, tokenizer)
    found = generator.generate_chunk([Line(text) for text in scorer.evaluator.data.text(split).features["inputs"]])
    pairs = [(line.text.split(), reference.split()) for line, reference in zip(found, references, strict=True)]
    right = sum(words[: len(reference)] == reference for words, reference in pairs)
    return 100.0 * right / len(references)
