"""Time of decoding by output length, with and without the KV cache."""

from __future__ import annotations

import dataclasses

import numpy as np

from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.inspection.decoding_speed import cached_decoder, median_seconds, uncached_decoder
from transformer_jax.tasks.trained.decode_requests import ends_of

LENGTHS = (16, 32, 64)
SENTENCES = 32
_SECONDS = 2.0


def milliseconds_per_sentence(scorer: Scorer) -> dict[str, float]:
    """Return the median time per sentence for outputs of exactly 16, 32 and 64 tokens.

    One batch of 32 sources of the split test is decoded repeatedly.

    Returns: `decode[16]/ms` ..., with the config's `decode` settings; for greedy search also
      `decode[16]/ms_without_cache` ..., with a forward pass over all positions for every token.
    """
    config, split = scorer.loaded.config, scorer.evaluator.data.splits["test"]
    rows = np.arange(min(SENTENCES, split.num_examples))
    lengths = split.lengths("inputs")[rows]
    inputs = split.take("inputs", rows, int(lengths.max()))
    params = scorer.loaded.params
    ends = ends_of(scorer.loaded.tokenizer, config.model.vocab_size)
    model = dataclasses.replace(config.model, max_length=max(LENGTHS) + 1)
    found = {}
    for length in LENGTHS:
        decode = dataclasses.replace(config.decode, max_new_tokens=length, min_length=length)
        taken, _ = median_seconds(cached_decoder(model, params, inputs, lengths, decode, ends), _SECONDS)
        found[f"decode[{length}]/ms"] = 1e3 * taken / len(rows)
        if config.decode.method == "search" and config.decode.beam_size == 1:
            taken, _ = median_seconds(uncached_decoder(model, params, inputs, lengths, length), _SECONDS)
            found[f"decode[{length}]/ms_without_cache"] = 1e3 * taken / len(rows)
    return found
