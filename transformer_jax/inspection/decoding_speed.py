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
from transformer_jax.tasks.decode_requests import source_request


def cached_decoder(
    config: ModelConfig, params: Any, inputs: np.ndarray, lengths: np.ndarray, decode: DecodeConfig, ends: Ends
) -> Callable[[], Any]:
    """Return a function that decodes sources [B, S] of these lengths [B] as `decode` says, with a cache."""
    decoder = ARCHITECTURES[config.architecture].decoder(config)
    assert decoder is not None, f"model.architecture='{config.architecture}' does not generate"
    prepared = jax.device_put((decoder.prepare(params),))
    request = source_request((decoder,), decode, config.decoder_start_id, inputs, lengths)
    return lambda: jax.block_until_ready(generate((decoder,), prepared, decode, ends, request))


def uncached_decoder(
    config: ModelConfig,
    params: Any,
    inputs: np.ndarray,
    lengths: np.ndarray,
    length: int,
    num_tokens: int | None = None,
) -> Callable[[], Any]:
    """Return a function that decodes greedily without a cache: every token is a forward pass over all positions.

    Args:
      inputs: [B, S] int32, the sources; lengths: [B], tokens of each.
      length: number of target positions of each forward pass.
      num_tokens: number of tokens that are decoded; None for `length`.
    """

    module = ARCHITECTURES[config.architecture].module(config)
    sources = {"inputs": inputs, "inputs_mask": np.arange(inputs.shape[1]) < lengths[:, None]}

    def shifted(targets: jax.Array) -> jax.Array:
        return jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=config.decoder_start_id)

    @jax.jit
    def decode(params: Any, sources: Any) -> jax.Array:
        def body(t: jax.Array, targets: jax.Array) -> jax.Array:
            logits, _ = module.apply({"params": params}, {**sources, "decoder_inputs": shifted(targets)})
            best = jnp.argmax(jax.lax.dynamic_index_in_dim(logits, t, axis=1), axis=-1).astype(jnp.int32)
            return jax.lax.dynamic_update_slice_in_dim(targets, best, t, axis=1)

        return jax.lax.fori_loop(0, num_tokens or length, body, jnp.ones((len(inputs), length), jnp.int32))

    return lambda: jax.block_until_ready(decode(params, sources))


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
