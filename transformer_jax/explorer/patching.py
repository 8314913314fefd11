"""Activation patching on the page: every value of the residual stream of another text, put in one at a time.

It is `inspection.patching.patch_effects` for padded texts, with the predictions after each pass; it can be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.explorer.passes import NUM_OF_LENS, Names, check_finite, patched, streams_of
from transformer_jax.tasks.trained.text_generator import TextGenerator
from transformer_jax.typing import Batch


class Side(NamedTuple):
    """One of the two texts: its ids, with the start token, and its padded batch."""

    ids: list[int]
    batch: Batch


def patch_shares(
    generator: TextGenerator, names: Names, text: Side, other: Side, cancelled: Callable[[], bool]
) -> dict[str, Any]:
    """Return what `ExploredLanguageModel.patch` says of two texts; errors are its."""
    count, other_count = len(text.ids), len(other.ids)
    if count != other_count:
        raise DataError(f"the texts have {count - 1} and {other_count - 1} tokens; patching needs equal numbers")
    model, params, tokens = generator.config.model, generator.params, generator.tokenizer.tokens
    streams = streams_of(model, names, params, other.batch)
    shape = len(names.streams), text.batch["decoder_inputs"].shape[1]

    def log_probs(put_in: np.ndarray) -> np.ndarray:
        if cancelled():
            raise CancelledError
        found = jax.device_get(patched(model, names, params, text.batch, streams, put_in, count - 1))
        check_finite(found)
        return found.astype(np.float64)

    def with_value(stream: int, place: int) -> np.ndarray:
        put_in = np.zeros(shape, bool)
        put_in[stream, place] = True
        return log_probs(put_in)

    before, after = log_probs(np.zeros(shape, bool)), log_probs(np.ones(shape, bool))
    best, best_before = int(after.argmax()), int(before.argmax())

    def number(found: np.ndarray) -> float:
        return float(found[best] - (found[best_before] if best != best_before else 0.0))

    def likely(found: np.ndarray) -> list[list[Any]]:
        most = np.argsort(-found)[:NUM_OF_LENS]
        return [[t, round(float(np.exp(found[i])), 5)] for t, i in zip(tokens(most.tolist()), most, strict=True)]

    value, difference = number(before), number(after) - number(before)
    if not difference:
        raise DataError("the two texts have the same prediction, so no value makes a difference")
    found = [[with_value(stream, place) for place in range(count)] for stream in range(shape[0])]
    of, against = tokens([best, best_before])
    return {
        "shares": [[round((number(x) - value) / difference, 5) for x in row] for row in found],
        "likely": [[likely(x) for x in row] for row in found],
        "of": of,
        "against": against if best != best_before else None,
        "value": round(value, 5),
        "other_value": round(number(after), 5),
        "tokens": tokens(text.ids),
        "other_tokens": tokens(other.ids),
    }
