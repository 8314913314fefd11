"""A beam search token by token: the hypotheses that are kept after each step, and which one each of them continues.

The steps are those of the library's own search (decoding/beam_search.py), so the best path is its output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.decoding.beam_search import Beam, Rules, penalty
from transformer_jax.decoding.generate import BatchSearch
from transformer_jax.errors import DataError
from transformer_jax.explorer.passes import check_finite
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.text_generator import TextGenerator

MAX_WIDTH = 8
"""Most hypotheses that are continued."""
MAX_STEPS = 40
"""Most tokens of an output."""
GREEDY = Rules(length_penalty="none", early_stop="first")
"""Rules with which a beam of one is greedy search."""

Ids = tuple[int, ...]


class Kept(NamedTuple):
    """A hypothesis: its tokens, log P of the last one, its score (see `Rules`), and whether it has ended."""

    ids: Ids
    log_prob: float
    score: float
    finished: bool


def followed(
    generator: TextGenerator, text: str, width: int, steps: int, cancelled: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Return a beam search for the output of a text, as JSON values; its other settings are those of the generator.

    `steps`: for each, the hypotheses that are kept, best first. Each has the number `parent` of the hypothesis of the
    step before that it continues (None in the first step), its last token with log P, and score and text of the whole.
    `best`: the output; its `path` has the number of its hypothesis in each step. `penalty`: the length penalty's name.

    Args:
      cancelled: asked before every step.
    Raises: DataError for a text that cannot be read, and if outputs are not finite; CancelledError.
    """
    search = _search(generator, text, width, steps)
    rules = search.settings.rules
    assert rules is not None
    found: list[list[Kept]] = []
    for state in search.steps():
        assert isinstance(state, Beam)
        last = state
        small = jax.device_get(state._replace(hypotheses=state.hypotheses._replace(cache=None)))
        if small.hypotheses.length:
            found.append(kept(small, rules, search.values.alpha))
        if cancelled():
            raise CancelledError
    numbers = [{hypothesis.ids: number for number, hypothesis in enumerate(step)} for step in found]
    best = jax.device_get(search.outputs_of(last))
    ids = tuple(best.ids[0, 0, : best.lengths[0, 0]].tolist())
    texts = iter(generator.decode([hypothesis.ids for step in found for hypothesis in step] + [ids]))
    tokens = generator.tokenizer.tokens

    def shown(hypothesis: Kept, step: int) -> dict[str, Any]:
        return {
            "id": hypothesis.ids[-1],
            "token": tokens([hypothesis.ids[-1]])[0],
            "parent": numbers[step - 1][hypothesis.ids[:-1]] if step else None,
            "log_prob": round(hypothesis.log_prob, 5),
            "score": round(hypothesis.score, 5),
            "finished": hypothesis.finished,
            "text": next(texts),
        }

    return {
        "penalty": rules.length_penalty,
        "steps": [[shown(hypothesis, number) for hypothesis in step] for number, step in enumerate(found)],
        "best": {
            "ids": [*ids],
            "path": [numbers[number][ids[: number + 1]] for number in range(len(ids))],
            "score": round(float(best.scores[0, 0]), 5) if ids else None,
            "finished": bool(best.finished[0, 0]),
            "text": next(texts),
        },
    }


def kept(state: Any, rules: Rules, alpha: Any) -> list[Kept]:
    """Return the hypotheses of one input that the latest step has made, best first: live ones, and those that ended.

    Args:
      state: a `Beam` on the host, of one input, after a step.
    Raises: DataError if a score is not finite.
    """
    length = int(state.hypotheses.length)
    live, ended = state.hypotheses, state.ended
    scores = state.scores[0] / float(penalty(rules, np.float32(length), alpha))
    exists = ~np.isneginf(scores)
    check_finite(scores[exists])

    def of(ids: Any, log_probs: Any, score: Any, finished: bool) -> Kept:
        return Kept(tuple(ids[:length].tolist()), float(log_probs[length - 1]), float(score), finished)

    found = [of(live.ids[0, w], live.log_probs[0, w], scores[w], False) for w in np.flatnonzero(exists)]
    known = {hypothesis.ids for hypothesis in found}
    for w in np.flatnonzero((ended.lengths[0] == length) & ~np.isneginf(ended.scores[0])):
        hypothesis = of(ended.ids[0, w], ended.log_probs[0, w], ended.scores[0, w], bool(ended.finished[0, w]))
        if hypothesis.ids not in known:  # one that is cut at the limit is live too
            found.append(hypothesis)
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def _search(generator: TextGenerator, text: str, width: int, steps: int) -> BatchSearch:
    """Return the search of a text, with room for `MAX_STEPS` tokens: other numbers of them need no other program."""
    decode = dataclasses.replace(
        generator.config.decode, method="search", beam_size=width, num_best=1, max_new_tokens=steps
    )
    own = dataclasses.replace(generator, config=dataclasses.replace(generator.config, decode=decode))
    try:
        search = own.search(Line(text))
    except DataError as error:
        raise DataError(f"the text: {error}") from None
    settings = search.settings
    settings = dataclasses.replace(settings, rules=settings.rules or GREEDY)
    return search._replace(settings=settings, limit=MAX_STEPS)
