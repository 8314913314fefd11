"""Decoding with an encoder-decoder: source ids in, target ids out."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from transformer_jax.config import PAD_ID, ModelConfig
from transformer_jax.decoding.greedy import Generated, greedy
from transformer_jax.models.encoder_decoder import decode, start_cache, unstack_layers
from transformer_jax.typing import Array, Params


@functools.partial(jax.jit, static_argnames=("config", "max_extra_length"))
def translate_greedily(config: ModelConfig, params: Params, inputs: Array, max_extra_length: int) -> Generated:
    """Greedy translations of inputs [B, S] int32, compiled once per shape.

    A translation has at most as many tokens as its source plus `max_extra_length` (Vaswani et al. 2017, section 6.1),
    and at most model.max_length; one cut there is returned unfinished.
    """
    limit = min(inputs.shape[1] + max_extra_length, config.max_length)
    lengths = (inputs != PAD_ID).sum(-1)
    max_lengths = jnp.where(lengths > 0, jnp.minimum(lengths + max_extra_length, limit), 0)
    layers = unstack_layers(params)
    cache = start_cache(config, params, layers, inputs, limit)
    start_ids = jnp.full(inputs.shape[:1], config.decoder_start_id, jnp.int32)
    return greedy(
        lambda ids, positions, cache: decode(config, params, layers, cache, ids, positions),
        cache,
        start_ids,
        max_lengths,
        limit,
    )
