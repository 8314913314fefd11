"""What decoding takes, by length of the output, with the cache and without."""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.decode import median_seconds, uncached_decoder
from transformer_jax.evaluation.run import Scorer

LENGTHS = (16, 32, 64)
SENTENCES = 32
_SECONDS = 2.0


def milliseconds_per_sentence(scorer: Scorer) -> dict[str, float]:
    """Medians over batches of 32 sources of the split test, with outputs of exactly 16, 32 and 64 pieces.

    Returns: `decode[16]/ms` ..., as the config's `decode` says; of greedy search `decode[16]/ms_without_cache` ... too:
      a forward pass over all positions for every token.
    """
    import jax

    from transformer_jax.decoding.translation import translate
    from transformer_jax.models.encoder_decoder import decoding_params

    config, splits = scorer.loaded.config, scorer.evaluator.data.splits
    rows = np.arange(min(SENTENCES, len(splits["test"].input_lengths)))
    inputs = splits["test"].inputs(rows, int(splits["test"].input_lengths[rows].max()))
    params = jax.device_put((decoding_params(scorer.loaded.params),))
    model = dataclasses.replace(config.model, max_length=max(LENGTHS) + 1)
    found = {}
    for length in LENGTHS:
        decode = dataclasses.replace(config.decode, max_length=length, min_length=length)
        taken, _ = median_seconds(
            lambda d=decode: jax.block_until_ready(translate((model,), params, d, inputs)), _SECONDS
        )
        found[f"decode[{length}]/ms"] = 1e3 * taken / len(rows)
        if config.decode.method == "search" and config.decode.beam_size == 1:
            taken, _ = median_seconds(uncached_decoder(model, scorer.loaded.params, inputs, length), _SECONDS)
            found[f"decode[{length}]/ms_without_cache"] = 1e3 * taken / len(rows)
    return found
