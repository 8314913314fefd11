"""The cost of a training step, from the config alone: floating-point operations and memory of activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp

from transformer_jax.config import ModelConfig, layer_configs
from transformer_jax.nn import attention
from transformer_jax.nn.feed_forwards import FEED_FORWARDS
from transformer_jax.nn.mixers import MIXERS, Tokens
from transformer_jax.nn.residual import has_embedding_norm
from transformer_jax.nn.stack import kept_elements


class StackCost(NamedTuple):
    """A stack of layers and the sequences that it reads, padding included.

    layers: one config for each of the L layers; rows: B; length: T; causal: whether no query attends to a later key;
    memory_length: S of the memory that every layer attends to, 0 if there is none.
    """

    layers: tuple[ModelConfig, ...]
    rows: int
    length: int
    causal: bool
    memory_length: int = 0

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def seen(self) -> Tokens:
        """The tokens that the mixer of a layer reads."""
        return Tokens(self.rows, self.length, self.causal)


def encoder_decoder_stacks(config: ModelConfig, rows: int, widths: Mapping[str, int]) -> tuple[StackCost, ...]:
    """Return the encoder and the decoder, for `inputs` and `targets` of these widths."""
    source, target = widths["inputs"], widths["targets"]
    return (_encoder(config, rows, source), _decoder(config, rows, target, source))


def decoder_only_stacks(config: ModelConfig, rows: int, widths: Mapping[str, int]) -> tuple[StackCost, ...]:
    """Return the one stack, for `targets` of this width."""
    return (_decoder(config, rows, widths["targets"]),)


def encoder_only_stacks(config: ModelConfig, rows: int, widths: Mapping[str, int]) -> tuple[StackCost, ...]:
    """Return the one stack, for `inputs` of this width: of images, the patches and the class token."""
    return (_encoder(config, rows, widths["inputs"]),)


def _encoder(config: ModelConfig, rows: int, length: int) -> StackCost:
    return StackCost(layer_configs(config.resolved(), "encoder", config.num_encoder_layers), rows, length, False)


def _decoder(config: ModelConfig, rows: int, length: int, memory_length: int = 0) -> StackCost:
    layers = layer_configs(config.resolved(), "decoder", config.num_decoder_layers)
    return StackCost(layers, rows, length, True, memory_length)


def train_flops(config: ModelConfig, stacks: Sequence[StackCost], head: int | None = None) -> int:
    """Return the floating-point operations of one training step: three times its forward pass.

    With the letters of `transformer_jax.typing`, Hv for value_head_dim and M = 3 matrices in a gated feed-forward
    network, 2 in any other, the forward pass of the matrix products is, a multiply-add being 2 operations,

        layer           B T (project(1, 1) + 2 M D F) + attend(T, T), with attention and a dense network; else the
                        sum of `MIXERS` and `FEED_FORWARDS` of each layer
        cross-attention B T project(1, 0) + B S project(0, 1) + attend(T, S)
        patches         2 B P D of the P values of all patches of an image
        output          2 B T D V of the last stack, of images nothing; or `head`

        project(q, kv) = q 2 D N (H + Hv) + kv 2 D K (H + Hv)    queries and output; keys and values
        attend(T, S)   = 2 B N T S (H + Hv)                      in full, whatever the mask

    Embedding lookups, norms, softmax, other elementwise work, and recomputation in the backward pass are not counted.
    Of experts those of a token are counted, not all that are computed (`nn.experts.forward_flops`). The backward pass
    computes two products for each product of the forward pass: one gradient per factor.

    Args:
      head: operations of the forward pass of a task's head; None for logits over the vocabulary.
    """
    config = config.resolved()
    total = _patches(config, stacks[0].rows) + (_logits(config, stacks[-1]) if head is None else head)
    return 3 * (total + sum(_layer(layer, stack) for stack in stacks for layer in stack.layers))


def _layer(config: ModelConfig, stack: StackCost) -> int:
    """Return the operations of the forward pass of one layer of a stack."""
    total = MIXERS[config.mixer].flops(config, stack.seen)
    total += FEED_FORWARDS[config.feed_forward].flops(config, stack.tokens)
    if stack.memory_length:
        memory_tokens = stack.rows * stack.memory_length
        total += attention.forward_flops(config, stack.tokens, memory_tokens, stack.tokens * stack.memory_length)
    return total


def hidden_flops(stacks: Sequence[StackCost]) -> int:
    """Return the part of `train_flops` for pairs of a query and a key that self-attention hides in any text.

    A causal mask hides later keys, and a layer's window keys outside of it.
    """
    return 3 * sum(MIXERS[layer.mixer].hidden_flops(layer, stack.seen) for stack in stacks for layer in stack.layers)


def _patches(config: ModelConfig, rows: int) -> int:
    """Return the operations of the vectors of patches; 0 if the model reads tokens."""
    if config.inputs == "tokens":
        return 0
    return 2 * rows * config.image_size**2 * config.image_channels * config.emb_dim


def _logits(config: ModelConfig, stack: StackCost) -> int:
    """Return the operations of the logits of all tokens of a stack; 0 if the model reads patches."""
    return 2 * stack.tokens * config.emb_dim * config.vocab_size if config.inputs == "tokens" else 0


def palm_flops_per_token(config: ModelConfig, num_params: int, length: int) -> int:
    """Return 6 P + 12 L N H T, the operations per token of training a decoder-only model.

    Source: Chowdhery et al. 2022, appendix B.

    Args:
      num_params: P, without parameters that are in no matrix product, such as a table of positions.
      length: T, the length of a row.
    """
    config = config.resolved()
    return 6 * num_params + 12 * config.num_decoder_layers * config.num_heads * config.head_dim * length


def activation_bytes(config: ModelConfig, stacks: Sequence[StackCost], loss_chunks: int = 1) -> int:
    """Return roughly the bytes that one training step needs beside parameters, gradients and moments.

    It counts the values that XLA keeps for the backward pass. The formula was fitted to its allocations on CPU over
    depths, heads, lengths, feed-forward widths and vocabularies. With the letters of `transformer_jax.typing` and E
    bytes per element,

        layer           E (B T (14 D + M F) + 3 B N T^2)                           M = 2, gated 4
        with memory     E (B T (24 D + M F) + 3 B N (T^2 + T S))                   with attention weights
        norms inside    E 3 D B T of every sub-layer with another norm             `sandwich`, `peri`; not `output`
        other fields    E D B T of every sub-layer with `residual_scale`, and of every layer with `residual_lambdas`;
                        E -4 D B T of a layer with `parallel=one_norm`, -3 with `two_norms`; caps of logits and
                        norms of queries and keys as `nn.attention.activation_bytes` says
        embeddings      E 6 D B T, with a norm 9
        logits          12 B T V / loss_chunks                                     and their gradients, float32; none
                                                                                   of images

    and all of it is in memory at once. The terms of single fields were measured without a loop over layers; in a loop,
    caps and `residual_scale` add twice as much. With `remat` a layer keeps less, and either one layer or the logits are
    in memory in full:

        full            E D a token
        dots            E (6 D + M F / 2) a token, with a memory E (9 D + M F / 2), and E 2 D a token of the memory
        any other       as without `remat`, the upper bound of every policy

    Other backends fuse differently, and cuDNN's kernel keeps no attention weights. For the compiler's own figure, run
    `transformer-jax inspect --compile`.

    Args:
      stacks: the share of one device.
      loss_chunks: number of parts in which the logits are computed.
    """
    config = config.resolved()
    element, width = jnp.dtype(config.dtype).itemsize, config.emb_dim
    whole = [_whole_layer(layer, stack) for stack in stacks for layer in stack.layers]  # bytes of each layer
    embeddings = element * (9 if has_embedding_norm(config) else 6) * width * sum(stack.tokens for stack in stacks)
    logits = 12 * stacks[-1].tokens * config.vocab_size // loss_chunks if config.inputs == "tokens" else 0
    if config.remat not in ("dots", "full"):
        return sum(whole) + embeddings + logits
    kept = 0
    for stack in stacks:
        for layer in stack.layers:
            if config.remat == "full":
                kept += element * stack.tokens * width
                continue
            kept += element * stack.tokens * (9 if stack.memory_length else 6) * width
            kept += FEED_FORWARDS[layer.feed_forward].kept_bytes(layer, stack.tokens) // 2
            kept += element * stack.rows * stack.memory_length * 2 * width
    return kept + embeddings + max(logits, *whole)


def _whole_layer(config: ModelConfig, stack: StackCost) -> int:
    """Return the bytes that the backward pass of a layer needs."""
    width = (24 if stack.memory_length else 14) * config.emb_dim
    width += kept_elements(config, cross_attends=bool(stack.memory_length))
    total = jnp.dtype(config.dtype).itemsize * stack.tokens * width
    total += MIXERS[config.mixer].kept_bytes(config, stack.seen)
    if stack.memory_length:
        pairs = stack.tokens * stack.memory_length
        total += attention.activation_bytes(config, stack.tokens, stack.rows * stack.memory_length, pairs)
    return total + FEED_FORWARDS[config.feed_forward].kept_bytes(config, stack.tokens)
