"""The encoder-decoder Transformer (Vaswani et al. 2017): the module, and the functions that decode with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.core import Tracer

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.nn.activation_sharding import LOGITS, constrain
from transformer_jax.nn.attention import cache_layout
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.embeddings import OutputProjection, TokenEmbedding
from transformer_jax.nn.kv_cache import KVCache, empty_layer
from transformer_jax.nn.masks import AttentionMask, cache_mask, of_causality, of_padding, padding_mask, segment_mask
from transformer_jax.nn.positions import check_positions
from transformer_jax.nn.stacks import DecoderLayer, DecodingState, EncoderLayer, LayerInputs, Stack, folded
from transformer_jax.typing import Array, Batch, Params


def shift_right(targets: Array, start_id: int, segment_ids: Array | None = None) -> Array:
    """What the decoder reads to predict targets: the start id, then targets without their last, per segment.

    Args:
      targets: [B, T] int32; segment_ids: [B, T] int32 of packed rows.
    Returns: [B, T] int32.
    """
    shifted = jnp.pad(targets[:, :-1], ((0, 0), (1, 0)), constant_values=start_id)
    if segment_ids is None:
        return shifted
    previous = jnp.pad(segment_ids[:, :-1], ((0, 0), (1, 0)))
    return jnp.where(segment_ids == previous, shifted, start_id)


def token_positions(config: ModelConfig, batch: Batch, name: str) -> Array:
    """Positions of a packed batch, or 0, 1, 2, ...: [B, T] or [1, T].

    Raises: DataError if a learned position table has fewer rows than there are positions to count.
    """
    given = batch.get(f"{name}_positions")
    if given is not None:
        return given
    check_positions(config, batch[name].shape[1])
    return jnp.arange(batch[name].shape[1], dtype=jnp.int32)[None]


class EncoderDecoder(nn.Module):
    """Maps source ids and shifted target ids to logits over the next target id."""

    config: ModelConfig
    return_weights: bool = False

    def setup(self) -> None:
        config = self.config
        self.embedding = TokenEmbedding(config)
        self.source_embedding = self.embedding if config.share_embeddings else TokenEmbedding(config)
        self.encoder = Stack(config, EncoderLayer, config.num_encoder_layers, False, self.return_weights)
        self.decoder = Stack(config, DecoderLayer, config.num_decoder_layers, True, self.return_weights)
        if not config.tie_output:
            self.output = OutputProjection(config)

    def __call__(self, batch: Batch, dropout: Dropout | None = None) -> tuple[Array, dict[str, Any]]:
        """Logits of every target given the source and the targets before it: of what `decoder_output` returns.

        Returns: logits [B, T, V] float32, and the attention weights.
        """
        x, weights = self.decoder_output(batch, dropout)
        return self.logits(x), weights

    def decoder_output(self, batch: Batch, dropout: Dropout | None = None) -> tuple[Array, dict[str, Any]]:
        """What the decoder makes of the source and the targets before each target; `logits` maps it to logits.

        Args:
          batch: `inputs` [B, S] and `targets` [B, T] int32, 0 = padding; packed rows carry `inputs_segment_ids`,
            `inputs_positions`, `targets_segment_ids` and `targets_positions` of the same shapes; positions of a learned
            table are below `max_length`, which nothing checks here.
          dropout: None for a deterministic pass.
        Returns: [B, T, D] and, with `return_weights`, the attention weights
          `encoder_self_attention` [L, B, N, S, S], `decoder_self_attention` [L, B, N, T, T] and
          `decoder_cross_attention` [L, B, N, T, S].
        """
        memory, encoder_weights = self.encode(batch, dropout)
        segments = batch.get("targets_segment_ids")
        x = self.embedding(shift_right(batch["targets"], self.config.decoder_start_id, segments))
        mask, memory_mask = of_causality(x.shape[1]), of_padding(batch["inputs"])
        if segments is not None:
            mask = AttentionMask(mask.allowed & segment_mask(segments, segments))
            memory_mask = AttentionMask(segment_mask(segments, batch["inputs_segment_ids"]))
        positions = token_positions(self.config, batch, "targets")
        x, decoder_weights = self.decoder(x, positions, mask, folded(dropout, 1), memory, memory_mask)
        weights = {f"encoder_{k}": w for k, w in encoder_weights.items()}
        return x, weights | {f"decoder_{k}": w for k, w in decoder_weights.items()}

    def encode(self, batch: Batch, dropout: Dropout | None = None) -> tuple[Array, dict[str, Any]]:
        """The encoder's output [B, S, D], and its attention weights."""
        mask, segments = of_padding(batch["inputs"]), batch.get("inputs_segment_ids")
        if segments is not None:
            mask = AttentionMask(segment_mask(segments, segments))
        x = self.source_embedding(batch["inputs"])
        return self.encoder(x, token_positions(self.config, batch, "inputs"), mask, folded(dropout, 0))

    def logits(self, x: Array) -> Array:
        """Decoder output [B, T, D] -> [B, T, V] float32."""
        logits = self.embedding.logits(x) if self.config.tie_output else self.output(x)
        return constrain(logits, LOGITS)

    def embed_targets(self, ids: Array, positions: Array) -> Array:
        """Decoder inputs ids [B, T] at positions [B, T] -> [B, T, D]."""
        return self.decoder.embed_positions(self.embedding(ids), positions)

    def decoder_bias(self, query_positions: Array, key_positions: Array) -> Array | None:
        """Positions [B, T] and [B, S] -> additive bias [B, N, T, S] of the decoder's self-attention, or None."""
        return self.decoder.bias(query_positions, key_positions)

    def finish_decoder(self, x: Array) -> Array:
        """Output of the last decoder layer [B, T, D] -> logits [B, T, V] float32."""
        return self.logits(self.decoder.finish(x))


def _call(module: nn.Module, params: Params, method: Callable[..., Any], *args: Any) -> Any:
    """A method of a module as a function of its parameters."""
    return module.apply({"params": params}, *args, method=method)


def init_params(config: ModelConfig, seed: int | Array) -> Params:
    """Parameters of an EncoderDecoder, float32, as a nested dict of arrays."""
    ids = jnp.ones((1, 2), jnp.int32)
    key = jax.random.key(seed, impl="threefry2x32")
    config = dataclasses.replace(config, attention_implementation="reference")  # which takes any shape
    return EncoderDecoder(config).init(key, {"inputs": ids, "targets": ids})["params"]


def decoding_params(params: Params) -> Params:
    """The same parameters as decoding reads them: one tree per decoder layer instead of one stacked [L, ...], and the
    kernel [D, V] of `output` even where the embedding is used for it.

    A second copy, made once: otherwise the stacks would be taken apart, and the embedding turned around, for every
    token.

    Raises: ConfigError if the model has no decoder, or the parameters are such already.
    """
    decoder = params.get("decoder")
    if decoder is None:
        raise ConfigError(f"the model has no decoder to generate with; its parts are {', '.join(params)}")
    stacked = decoder["layers"]
    if isinstance(stacked, tuple):
        raise ConfigError("params: these are what decoding_params has returned already")
    num_layers = jax.tree.leaves(stacked)[0].shape[0]
    layers = tuple(jax.tree.map(lambda p, i=i: p[i], stacked) for i in range(num_layers))
    output = params.get("output", {"kernel": params["embedding"]["embedding"].T})
    return {**params, "decoder": {**decoder, "layers": layers}, "output": output}


def start_cache(
    config: ModelConfig, params: Params, inputs: Array, capacity: int, num_positions: int | None = None
) -> KVCache:
    """Encodes inputs [B, S] and returns a cache with room for `capacity` target tokens, none of them there yet.

    Args:
      params: as `decoding_params` returns them.
      num_positions: those that tokens may stand at; fewer than capacity where several tokens share one, as in a beam.
    Raises:
      ConfigError: a learned position table has fewer rows than positions, or `decoding_params` has not been called.
      DataError: inputs are longer than a learned position table.
    """
    if not isinstance(params["decoder"]["layers"], tuple):
        raise ConfigError("params: decoding needs them as decoding_params returns them")
    check_capacity(config, capacity if num_positions is None else num_positions)
    memory, _ = _call(EncoderDecoder(config), params, EncoderDecoder.encode, {"inputs": inputs})
    layer, layers = DecoderLayer(config), params["decoder"]["layers"]
    batch = inputs.shape[0]
    return KVCache(
        self_attention=tuple(empty_layer(config, batch, capacity) for _ in layers),
        cross_attention=tuple(cache_layout(_call(layer, p, DecoderLayer.project_memory, memory)) for p in layers),
        cross_mask=padding_mask(inputs),
        positions=jnp.full((batch, capacity), -1, jnp.int32),
        index=jnp.zeros((), jnp.int32),
    )


def check_capacity(config: ModelConfig, num_positions: int) -> None:
    """Raises ConfigError if the decoder cannot number so many positions."""
    if config.position_encoding == "learned" and num_positions > config.max_length:
        raise ConfigError(
            f"decoding {num_positions} positions exceeds the learned table, model.max_length={config.max_length}"
        )


def prefill(
    config: ModelConfig, params: Params, cache: KVCache, prompts: Array, lengths: Array
) -> tuple[Array, KVCache]:
    """Feeds the prompt of every row to the decoder at once.

    Args:
      params: as `decoding_params` returns them.
      prompts: [B, P] int32 decoder inputs, the start id first; lengths: [B] int32, how many of them are the row's.
    Returns: logits [B, V] of the token after each row's last, zeros for a length of 0; and the cache with P slots more.
    Raises: ConfigError as `decode_step`, or if a learned position table has fewer than P rows.
    """
    check_capacity(config, prompts.shape[1])
    columns = jnp.arange(prompts.shape[1], dtype=jnp.int32)[None]
    positions = jnp.where(columns < lengths[:, None], columns, -1)
    logits, cache = decode_step(config, params, cache, prompts, positions)
    last = (columns == lengths[:, None] - 1)[..., None]
    return jnp.where(last, logits, 0.0).sum(1), cache


def decode_step(
    config: ModelConfig,
    params: Params,
    cache: KVCache,
    ids: Array,
    positions: Array,
    visible: Array | None = None,
) -> tuple[Array, KVCache]:
    """Feeds T tokens per row to the decoder, into the next T slots of the cache.

    Args:
      params: as `decoding_params` returns them.
      ids: [B, T] int32 decoder inputs, the start id first.
      positions: [B, T] int32, -1 for padding.
      visible: [B, T, C] bool, the slots that each token attends to, its own among them; default all that hold a token
        at its position or before, as a row's tokens do that follow each other.
    Returns: logits [B, T, V] of the token after each, and the cache with the T tokens in it.
    Raises: ConfigError if there is no token, or no room for T more; the latter only outside of jit, where it is known.
      Within, keep `cache.index` and positions below what there is room for: JAX would write over the last slots.
    """
    index = 0 if isinstance(cache.index, Tracer) else int(cache.index)
    if not ids.shape[1] or index + ids.shape[1] > cache.capacity:
        raise ConfigError(f"{ids.shape[1]} tokens do not fit into a cache with {cache.capacity - index} free slots")
    model = EncoderDecoder(dataclasses.replace(config, tie_output=False))  # `decoding_params` has untied it
    known = jax.lax.dynamic_update_slice_in_dim(cache.positions, positions, cache.index, axis=1)
    mask = cache_mask(positions, known) if visible is None else visible[:, None]
    x = _call(model, params, EncoderDecoder.embed_targets, ids, jnp.maximum(positions, 0))
    bias = _call(model, params, EncoderDecoder.decoder_bias, positions, known)
    memory_mask = None if cache.cross_mask is None else AttentionMask(cache.cross_mask)
    inputs = LayerInputs(positions, AttentionMask(mask), bias, memory_mask=memory_mask)
    caches = []
    for p, own, cross in zip(params["decoder"]["layers"], cache.self_attention, cache.cross_attention, strict=True):
        state = DecodingState(own, cache.index)
        x, new = _call(DecoderLayer(config), p, DecoderLayer.decode, x, state, cross, inputs)
        caches.append(new)
    logits = _call(model, params, EncoderDecoder.finish_decoder, x)
    return logits, cache._replace(self_attention=tuple(caches), positions=known, index=cache.index + ids.shape[1])
