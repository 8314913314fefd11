"""Attention of a recurrent decoder to the outputs of the encoder: additive, dot and general.

Letters as in `nn/recurrent.py`; A is the width of the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.initialisation import kernel_init
from transformer_jax.nn.linear import linear, product_float32
from transformer_jax.nn.places import at
from transformer_jax.nn.recurrent import Affine
from transformer_jax.nn.softmax import masked_softmax
from transformer_jax.typing import Array


class AttentionWeights(NamedTuple):
    """The arrays of an attention for every query; None for an array that its score does not have.

    query: [U, A], with bias [A]. score: [A].
    """

    query: Array | None = None
    bias: Array | None = None
    score: Array | None = None


class AttentionMemory(NamedTuple):
    """Encoder outputs [B, S, M], their keys [B, S, A], and which of them a query attends to.

    mask: bool [B, 1, S]; of packed rows [B, T, S]; None for all.
    """

    values: Array
    keys: Array
    mask: Array | None = None


class Context(NamedTuple):
    """The context of every query, [B, T, M], and its attention weights, float32 [B, T, S]."""

    context: Array
    weights: Array


def additive(
    query: Float[Array, "B T U"], keys: Float[Array, "B S A"], weights: AttentionWeights
) -> Float[Array, "B T S"]:
    """Return v tanh(W q + U m + b) (Bahdanau et al. 2015, section A.1.2), where `keys` are U m.

    The paper has no bias b; published implementations do.
    """
    assert weights.query is not None
    assert weights.score is not None
    own = linear(query, weights.query, weights.bias)  # [B, T, U] -> [B, T, A]
    hidden = jnp.tanh(own[:, :, None] + keys[:, None])  # [B, T, S, A]
    return product_float32("btsa,a->bts", hidden, weights.score.astype(hidden.dtype))


def product(
    query: Float[Array, "B T U"], keys: Float[Array, "B S U"], weights: AttentionWeights
) -> Float[Array, "B T S"]:
    """Return q k: q m for `dot`, whose keys are m, and q W m for `general` (Luong et al. 2015, section 3.1)."""
    return product_float32("btu,bsu->bts", query, keys)


class Attention(NamedTuple):
    """One attention: its score, whether it has a map to keys and one of queries, and its place.

    before_cell: the state before a step is the query, and the cell reads the context (Bahdanau et al. 2015). Otherwise
    the new state is the query, and the decoder predicts from tanh(W [context; state]) (Luong et al. 2015).
    """

    score: Callable[[Array, Array, AttentionWeights], Array]
    maps_keys: bool
    maps_queries: bool
    before_cell: bool


ATTENTIONS = {
    "none": None,
    "additive": Attention(additive, maps_keys=True, maps_queries=True, before_cell=True),
    "dot": Attention(product, maps_keys=False, maps_queries=False, before_cell=False),
    "general": Attention(product, maps_keys=True, maps_queries=False, before_cell=False),
}
"""By the values of `model.attention`."""


def attention_of(config: ModelConfig) -> Attention | None:
    """Return the attention of a config, or None."""
    return ATTENTIONS[config.attention]


def attend(
    config: ModelConfig, weights: AttentionWeights, query: Float[Array, "B T U"], memory: AttentionMemory
) -> Context:
    """Return the mean of the memory for every query, weighted by the softmax of the scores.

    A query that may attend to nothing has a context of zeros.
    """
    attention = attention_of(config)
    assert attention is not None
    logits = attention.score(query.astype(memory.values.dtype), memory.keys, weights)
    shares = at("weights", masked_softmax(logits, memory.mask))
    context = jnp.einsum("bts,bsm->btm", shares.astype(memory.values.dtype), memory.values)
    return Context(context, shares)


class RecurrentAttention(nn.Module):
    """Owns the maps that an attention has: `key` [M, U], `query` [U, U] with a bias, and `score` [U]."""

    config: ModelConfig

    def setup(self) -> None:
        config, attention = self.config, attention_of(self.config)
        assert attention is not None
        width = config.hidden_dim
        self.key = Affine(config, config.memory_dim, (width,), use_bias=False) if attention.maps_keys else None
        self.query = Affine(config, width, (width,)) if attention.maps_queries else None
        init = kernel_init(config)
        self.score = self.param("score", lambda key: init(key, (width,), width, 1)) if self.query is not None else None

    def weights(self) -> AttentionWeights:
        """Return the parameters that every query needs."""
        if self.query is None:
            return AttentionWeights()
        return AttentionWeights(self.query.kernel, self.query.bias, self.score)

    def memory(self, x: Float[Array, "B S M"], mask: Bool[Array, "B _ S"] | None) -> AttentionMemory:
        """Return the memory of encoder outputs, with keys that are computed once."""
        return AttentionMemory(x, x if self.key is None else self.key(x), mask)


PARAMETER_AXES = {
    "attention/key/kernel": Axes(("emb",), ("mlp",)),
    "attention/query/kernel": Axes(("emb",), ("mlp",)),
    "attention/query/bias": Axes((), ("mlp",)),
    "attention/score": Axes(("mlp",), ()),
}
"""Axes of the parameters of `RecurrentAttention`."""
