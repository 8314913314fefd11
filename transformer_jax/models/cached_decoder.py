"""Decoding with a state per layer, for every architecture whose decoder is a stack of Transformer layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.core import Tracer

from transformer_jax.config import ATTENTION, LAYERS, ModelConfig, layer_configs, layer_folder
from transformer_jax.errors import ConfigError
from transformer_jax.models.decoder import TWO_WAY, Started, StepOutput, TokenDecoder
from transformer_jax.nn.kv_cache import KVCache, LayerCache, grown
from transformer_jax.nn.layer_inputs import LayerState
from transformer_jax.nn.masks import AttentionMask, cache_mask, prefix_mask
from transformer_jax.nn.mixers import MIXERS
from transformer_jax.nn.stack import StackState
from transformer_jax.typing import Array, Batch, Params


@dataclasses.dataclass(frozen=True)
class CachedDecoder(TokenDecoder):
    """The decoder of a module with a stack `decoder`, a method `decode` and, with an encoder, a method `memory`.

    The hypotheses of a row share the keys and values of attention: a step writes W tokens into W slots, and `visible`
    says which slots belong to a hypothesis. The states of other mixers are one per hypothesis: they are repeated after
    the prompts, and gathered by `reorder`.
    """

    module: type[nn.Module]
    has_encoder: bool

    @property
    def max_length(self) -> int | None:
        """The rows of a learned table or, with an encoder, `model.max_length` in any case; otherwise no bound."""
        bounded = self.has_encoder or self.config.has_position_table
        return self.config.max_length if bounded else None

    def prepare(self, params: Params) -> Params:
        """Return parameters with one tree per decoder layer, and with an output kernel [D, V] even if it is tied.

        This is a second copy, made once. Otherwise every token would split the stacked layers and transpose the
        embedding.

        Raises: ConfigError if the model has no decoder, or if the parameters are prepared already.
        """
        decoder = params.get("decoder")
        if decoder is None:
            raise ConfigError(f"the model has no decoder to generate with; its parts are {', '.join(params)}")
        if isinstance(decoder.get(LAYERS), tuple):
            raise ConfigError("params: they are prepared already; call `prepare` once")
        kinds = {name: part for name, part in decoder.items() if name in {*self._folders}}
        layers = []
        for index, name in enumerate(self._folders):
            row = self._folders[:index].count(name)
            layers.append(jax.tree.map(lambda p, row=row: p[row], kinds[name]))
        others = {name: part for name, part in decoder.items() if name not in kinds}
        return super().prepare({**params, "decoder": {**others, LAYERS: tuple(layers)}})

    @property
    def _configs(self) -> tuple[ModelConfig, ...]:
        return layer_configs(self.config, "decoder", self.config.num_decoder_layers)

    @property
    def _folders(self) -> tuple[str, ...]:
        return tuple(layer_folder(config) for config in self._configs)

    def start(self, params: Params, batch: Batch, slots: int, width: int) -> Started:
        """Encode `inputs`, if there is an encoder, and read the prompts without their last tokens.

        Raises:
          ConfigError: a prompt is longer than a learned position table, or the parameters are not prepared.
          DataError: inputs are longer than a learned position table.
        """
        cache = self.empty_cache(params, batch, slots)
        if TWO_WAY in batch:
            return self._read_two_way(params, cache, batch)
        prompts, lengths = batch["prompts"][:, :-1], batch["prompt_lengths"] - 1
        if prompts.shape[1]:
            cache = self.prefill(params, cache, prompts, lengths)[1]
        cache = _with_states(cache, lambda x: jnp.repeat(x, width, axis=1))
        return Started(cache, cache.positions >= 0, prompts.shape[1])

    def _read_two_way(self, params: Params, cache: KVCache, batch: Batch) -> Started:
        """Read whole prompts, whose first tokens attend to each other, and hide the slots of their last tokens.

        The search feeds the last token again: among the same tokens it gets the same keys and values.

        Raises: ConfigError if a layer has a state instead, which is read in one direction only.
        """
        if stateful := {config.mixer for config in self._configs} - {ATTENTION}:
            raise ConfigError(f"model.mixer='{', '.join(stateful)}' reads prompts in one direction only")
        prompts, lengths = batch["prompts"], batch["prompt_lengths"]
        self.check_positions(prompts.shape[1])
        columns = jnp.arange(prompts.shape[1], dtype=jnp.int32)[None]
        positions = jnp.where(columns < lengths[:, None], columns, -1)
        allowed = prefix_mask(columns < batch[TWO_WAY][:, None]).allowed[:, 0] & (positions >= 0)[:, None]  # [B, P, P]
        visible = jnp.pad(allowed, ((0, 0), (0, 0), (0, cache.capacity - prompts.shape[1])))
        cache = self.read(params, cache, prompts, positions, visible)[1]
        last = jnp.arange(cache.capacity)[None] == lengths[:, None] - 1
        cache = cache._replace(positions=jnp.where(last, -1, cache.positions))
        return Started(cache, cache.positions >= 0, prompts.shape[1])

    def empty_cache(self, params: Params, batch: Batch, slots: int) -> KVCache:
        """Encode `inputs` [B, S], if there is an encoder, and return a cache without tokens.

        Args:
          batch: without an encoder, `prompts` [B, P] gives the number of rows.
        """
        layers = params["decoder"].get(LAYERS)
        if not isinstance(layers, tuple):
            raise ConfigError("params: not prepared for decoding; pass the result of `prepare`")
        memory, memory_mask = (), None
        if self.has_encoder:
            memory, memory_mask = self._apply(params, batch, layers, method="memory")
        rows = batch["inputs" if self.has_encoder else "prompts"].shape[0]
        return KVCache(
            layers=tuple(MIXERS[config.mixer].start(config, rows, slots) for config in self._configs),
            memory=memory,
            memory_mask=memory_mask,
            positions=jnp.full((rows, slots), -1, jnp.int32),
            index=jnp.zeros((), jnp.int32),
        )

    def prefill(self, params: Params, cache: KVCache, prompts: Array, lengths: Array) -> StepOutput:
        """Feed the prompt of every row to the decoder at once.

        Args:
          prompts: [B, P] int32; lengths: [B] int32, the number of tokens in each row.
        Returns: logits [B, V] of the token after each row's last, zeros for a length of 0; and the cache, with P more
          slots in use.
        Raises: ConfigError if `read` does, or if a learned position table has fewer than P rows.
        """
        self.check_positions(prompts.shape[1])
        columns = jnp.arange(prompts.shape[1], dtype=jnp.int32)[None]
        positions = jnp.where(columns < lengths[:, None], columns, -1)
        logits, cache = self.read(params, cache, prompts, positions)
        last = (columns == lengths[:, None] - 1)[..., None]
        return StepOutput(jnp.where(last, logits, 0.0).sum(1), cache)

    def read(
        self, params: Params, cache: KVCache, ids: Array, positions: Array, visible: Array | None = None
    ) -> StepOutput:
        """Feed T tokens per row that follow each other, and write them into the next T slots of the cache.

        Args:
          ids: [B, T] int32; positions: [B, T] int32, -1 for padding.
          visible: [B, T, C] bool, the slots that each token attends to, including its own; by default all slots with a
            token at its position or before, which is right for rows of one hypothesis.
        Returns: logits [B, T, V] of the token after each, and the cache with the T tokens.
        Raises: ConfigError if there are no tokens, or not enough free slots. The second is checked only outside of jit.
          Under jit the caller must leave room, otherwise JAX overwrites the last slots.
        """
        return self._fed(params, cache, ids, positions, visible, steps=False)

    def step(self, params: Params, cache: KVCache, ids: Array, positions: Array, visible: Array) -> StepOutput:
        """Feed one token for each of W hypotheses per row, and write them into the next W slots; see `Decoder.step`.

        Raises: as `read`.
        """
        return self._fed(params, cache, ids, positions, visible, steps=True)

    def _fed(
        self, params: Params, cache: KVCache, ids: Array, positions: Array, visible: Array | None, *, steps: bool
    ) -> StepOutput:
        index = 0 if isinstance(cache.index, Tracer) else int(cache.index)
        if not ids.shape[1] or index + ids.shape[1] > cache.capacity:
            raise ConfigError(f"{ids.shape[1]} tokens do not fit into a cache with {cache.capacity - index} free slots")
        slot_positions = jax.lax.dynamic_update_slice_in_dim(cache.positions, positions, cache.index, axis=1)
        memory = cache.memory or (None,) * len(cache.layers)
        state = StackState(
            positions=positions,
            slot_positions=slot_positions,
            mask=cache_mask(positions, slot_positions) if visible is None else AttentionMask(visible[:, None]),
            layers=tuple(
                LayerState(own, cache.index, other, steps) for own, other in zip(cache.layers, memory, strict=True)
            ),
            memory_mask=None if cache.memory_mask is None else AttentionMask(cache.memory_mask),
        )
        logits, layers = self._apply(params, ids, state, params["decoder"][LAYERS], method="decode")
        return StepOutput(
            logits, cache._replace(layers=layers, positions=slot_positions, index=cache.index + ids.shape[1])
        )

    def reorder(self, cache: KVCache, parents: Array) -> KVCache:
        """Return the cache whose hypothesis w has the states of hypothesis parents[w] of its row; slots stay."""
        if all(config.mixer == ATTENTION for config in self._configs):
            return cache
        return _with_states(cache, lambda x: jnp.take_along_axis(x, parents[(..., *[None] * (x.ndim - 2))], axis=1))

    def grow(self, cache: KVCache, slots: int) -> KVCache:
        return grown(cache, slots)

    def check_positions(self, length: int) -> None:
        """Raise ConfigError if a learned position table has fewer than `length` rows.

        `nn.positions.check_positions` raises DataError, since a text of the corpus is too long there. Here the caller
        chose the length.
        """
        if self.config.has_position_table and length > self.config.max_length:
            raise ConfigError(
                f"decoding {length} positions exceeds the learned table, model.max_length={self.config.max_length}"
            )

    def _apply(self, params: Params, *args: Any, method: str) -> Any:
        """Call a method of the module, with the untied output that `prepare` made."""
        module = self.module(dataclasses.replace(self.config, tie_output=False))
        return module.apply({"params": params}, *args, method=method)


def _with_states(cache: KVCache, change: Callable[[Array], Array]) -> KVCache:
    """Return the cache with every state but keys and values changed, array by array."""
    layers = (x if isinstance(x, LayerCache) else jax.tree.map(change, x) for x in cache.layers)
    return cache._replace(layers=tuple(layers))
