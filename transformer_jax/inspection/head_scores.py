"""Scores of attention heads: how much a head attends to the token before, and to what followed a token earlier.

With weights A [T, S] of a head on a text x of T tokens, each score is a mean over queries t (Olsson et al. 2022,
"In-context Learning and Induction Heads", section "Model Analysis Table"):

    previous token    mean of A[t, t - 1] over t >= 1
    induction         mean of the sum of A[t, s] over all 1 <= s <= t with x[s - 1] = x[t],
                      over the t whose token has occurred before

The second is their prefix matching score. On random tokens that are repeated once, the only such s is the place after
the first occurrence. Both are from 0 to 1.
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import known_places
from transformer_jax.typing import Array, Batch, Params

_END = "/self_attention/weights"
Mask = Bool[np.ndarray, "B T"]


def induction_scores(
    model: ModelConfig, params: Params, batch: Batch | None = None, head: nn.Module | None = None
) -> dict[str, Float[np.ndarray, " N"]]:
    """Return the induction scores [N] of all heads of self-attention, by part: `decoder/1/self_attention`.

    The score of a head is the mean, over the tokens that have occurred before, of the weight on the tokens after these
    occurrences: prefix matching (Olsson et al. 2022). An induction head is near 1.

    Args:
      model, params, head: as of `run_with`.
      batch: as the model reads it; tokens outside of `inputs_mask` do not count. Default: `repeated_tokens(model)`.
    Raises: ConfigError for a model without self-attention over tokens; DataError if no token occurs twice.
    """
    batch = repeated_tokens(model) if batch is None else batch
    read = _weights(model, params, batch, head)
    return {part: induction_score(weights, *_tokens(model, batch, part)) for part, weights in read.items()}


def previous_token_scores(
    model: ModelConfig, params: Params, batch: Batch | None = None, head: nn.Module | None = None
) -> dict[str, Float[np.ndarray, " N"]]:
    """Return the mean weights on the token before, [N], of all heads of self-attention, by part.

    Arguments and errors are those of `induction_scores`, but no token has to occur twice. DataError if no row has two
    tokens.
    """
    batch = repeated_tokens(model) if batch is None else batch
    read = _weights(model, params, batch, head)
    return {part: previous_token_score(weights, _tokens(model, batch, part)[1]) for part, weights in read.items()}


def repeated_tokens(model: ModelConfig, count: int = 24, rows: int = 4, seed: int = 0) -> dict[str, Array]:
    """Return a batch whose rows are `count` different random tokens, twice; a decoder reads its start id first.

    A model with fewer tokens or positions gets fewer. All ids of the vocabulary but 0 to 3 and the start id are drawn,
    because the first ids often have roles. If those of a tokenizer are others, write the batch by hand.

    Raises: ConfigError for a model that reads images, or has room for less than two tokens and their repetition.
    """
    if model.inputs != "tokens":
        raise ConfigError(f"model.inputs={model.inputs} has no tokens that could be repeated")
    room = model.num_positions if model.has_position_table else 2 * count + 1
    size = min(model.vocab_size, model.source_vocab_size or model.vocab_size)
    ids = np.setdiff1d(np.arange(4, size), [model.decoder_start_id])
    count = min(count, (room - 1) // 2, len(ids))
    if count < 2:
        raise ConfigError(
            f"model.vocab_size={model.vocab_size} and {room} positions have no room for two tokens and their repetition"
        )
    rng = np.random.default_rng(seed)
    once = np.stack([rng.choice(ids, count, replace=False) for _ in range(rows)])
    twice = np.concatenate([once, once], 1)
    started = np.concatenate([np.full((rows, 1), model.decoder_start_id), twice], 1)
    of_stacks = {"encoder": ("inputs", twice), "decoder": ("decoder_inputs", started)}
    return {name: jnp.asarray(row, jnp.int32) for name, row in map(of_stacks.__getitem__, model.stacks)}


def induction_score(
    weights: Float[np.ndarray, "B N T T"], ids: Int[np.ndarray, "B T"], is_token: Mask
) -> Float[np.ndarray, " N"]:
    """Return the induction score of every head; raise DataError if no token of a row occurs twice.

    Args: ids: that queries and keys are of. is_token: False for padding, which does not count.
    """
    length = ids.shape[1]
    earlier = np.tril(np.ones((length, length), bool), -1)  # the place of s - 1 is before t
    occurred = (ids[:, :, None] == ids[:, None, :]) & earlier & is_token[:, :, None] & is_token[:, None, :]
    after = np.pad(occurred[:, :, :-1], ((0, 0), (0, 0), (1, 0)))  # [B, t, s]
    queries = occurred.any(-1)
    if not queries.any():
        raise DataError("no token of a row occurs twice, so there is no induction score")
    total = np.einsum("bnts,bts->n", weights.astype(np.float64), after.astype(np.float64))
    return np.asarray(total / queries.sum())


def previous_token_score(weights: Float[np.ndarray, "B N T T"], is_token: Mask) -> Float[np.ndarray, " N"]:
    """Return the mean weight of every head on the token before; raise DataError if no row has two tokens."""
    both = is_token[:, 1:] & is_token[:, :-1]
    if not both.any():
        raise DataError("no row has two tokens, so there is no token before another one")
    before = np.diagonal(weights.astype(np.float64), -1, 2, 3)  # [B, N, T - 1]
    return np.asarray(np.einsum("bnt,bt->n", before, both.astype(np.float64)) / both.sum())


def _weights(model: ModelConfig, params: Params, batch: Batch, head: nn.Module | None) -> dict[str, np.ndarray]:
    """Return the weights [B, N, T, T] of every self-attention, by part."""
    if model.inputs != "tokens":
        raise ConfigError(f"model.inputs={model.inputs} has no tokens that could be repeated")
    names = [name for name in known_places(model, batch, head) if name.endswith(_END)]
    if not names:
        raise ConfigError("the model has no self-attention")
    read = run_with(model, params, batch, names, None, head).places
    return {name.removesuffix("/weights"): np.asarray(read[name], np.float32) for name in names}


def _tokens(model: ModelConfig, batch: Batch, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that a part of a stack reads, and which are tokens, both [B, T]."""
    stack = part.partition("/")[0]
    ids = np.asarray(batch["inputs" if stack == "encoder" else "decoder_inputs"])
    mask = batch.get("inputs_mask") if stack == model.stacks[0] else None  # in a batch of two stacks, of the source
    return ids, np.ones(ids.shape, bool) if mask is None else np.asarray(mask)
