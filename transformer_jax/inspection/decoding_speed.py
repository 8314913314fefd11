"""Timing of decoding: a timer, and greedy search without a cache for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import DecodeConfig, ModelConfig
from transformer_jax.decoding.generate import generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.trained.decode_requests import prompt_request, source_request


def cached_decoder(
    config: ModelConfig, params: Any, ids: np.ndarray, lengths: np.ndarray, decode: DecodeConfig, ends: Ends
) -> Callable[[], Any]:
    """Return a function that decodes as `decode` says, with a cache.

    Args:
      ids: [B, S] int32, the sources of an encoder-decoder, or the prompts of a decoder-only model with the start id.
      lengths: [B], tokens of each.
      decode: for a decoder-only model, `max_new_tokens` is set.
    """
    decoder = ARCHITECTURES[config.architecture].decoder(config)
    assert decoder is not None, f"model.architecture='{config.architecture}' does not generate"
    prepared = jax.device_put((decoder.prepare(params),))
    if _has_encoder(config):
        request = source_request((decoder,), decode, config.decoder_start_id, ids, lengths)
    else:
        prompts = [row[1:length].tolist() for row, length in zip(ids, lengths, strict=True)]
        request = prompt_request(config.decoder_start_id, prompts, np.full(len(ids), decode.max_new_tokens))
    return lambda: jax.block_until_ready(generate((decoder,), prepared, decode, ends, request))


def uncached_decoder(
    config: ModelConfig,
    params: Any,
    ids: np.ndarray,
    lengths: np.ndarray,
    length: int,
    num_tokens: int | None = None,
) -> Callable[[], Any]:
    """Return a function that decodes greedily without a cache: every token is a forward pass over all positions.

    Args:
      ids, lengths: as for `cached_decoder`; prompts are of equal length.
      length: number of new positions of each forward pass.
      num_tokens: number of tokens that are decoded; None for `length`.
    """
    module = ARCHITECTURES[config.architecture].module(config)
    if _has_encoder(config):
        sources, prompts = {"inputs": ids, "inputs_mask": np.arange(ids.shape[1]) < lengths[:, None]}, ids[:, :0]
    else:
        sources, prompts = {}, ids[:, 1:]
    first = prompts.shape[1]

    def shifted(targets: jax.Array) -> jax.Array:
        return jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=config.decoder_start_id)

    @jax.jit
    def decode(params: Any, sources: Any, prompts: jax.Array) -> jax.Array:
        def body(t: jax.Array, targets: jax.Array) -> jax.Array:
            logits = module.apply({"params": params}, {**sources, "decoder_inputs": shifted(targets)})
            best = jnp.argmax(jax.lax.dynamic_index_in_dim(logits, t, axis=1), axis=-1).astype(jnp.int32)
            return jax.lax.dynamic_update_slice_in_dim(targets, best, t, axis=1)

        targets = jnp.concatenate([prompts, jnp.ones((len(ids), length), jnp.int32)], axis=1)
        return jax.lax.fori_loop(first, first + (num_tokens or length), body, targets)[:, first:]

    return lambda: jax.block_until_ready(decode(params, sources, prompts))


def _has_encoder(config: ModelConfig) -> bool:
    return "inputs" in ARCHITECTURES[config.architecture].example_batch(config)


class Timing(NamedTuple):
    """The median time of a run in seconds, and the number of runs."""

    seconds: float
    runs: int


def median_seconds(run: Callable[[], Any], seconds: float) -> Timing:
    """Return the median time of a run and the number of runs: at least 5, and as many as fit into `seconds`.

    An additional first run is not counted, because it compiles.
    """
    run()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return Timing(float(np.median(times)), len(times))
