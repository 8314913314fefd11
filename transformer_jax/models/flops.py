"""What a training step costs, from the config alone: operations, and memory for activations."""

from __future__ import annotations

from typing import NamedTuple

from transformer_jax.config import ModelConfig


def train_flops(config: ModelConfig, batch: int, source_length: int, target_length: int) -> int:
    """Floating-point operations of one training step of the encoder-decoder: three times its forward pass.

    With the letters of `transformer_jax.typing`, Hv for value_head_dim and G = 3 matrices in a gated feed-forward
    network, 2 in any other, the forward pass of the matrix products is, a multiply-add being 2 operations,

        encoder layer   B S (project(1, 1) + 2 G D F) + attend(S, S)
        decoder layer   B T (project(1, 1) + project(1, 0) + 2 G D F) + B S project(0, 1) + attend(T, T) + attend(T, S)
        output          2 B T D V

        project(q, kv) = q 2 D N (H + Hv) + kv 2 D K (H + Hv)    queries and output; keys and values
        attend(T, S)   = 2 B N T S (H + Hv)                      in full, whatever the mask

    Embedding lookups, norms, softmax and other elementwise work are not counted, nor what is computed again in the
    backward pass. For the gradient with respect to each of its two factors, a product is done once more.

    Args:
      batch: sentence pairs, B; source_length, target_length: tokens of each, S and T, padding included.
    """
    config = config.resolved()
    queries, keys, mlp, attend = _costs(config)
    source, target = batch * source_length, batch * target_length
    encoder = source * (queries + keys + mlp) + batch * attend * source_length**2
    decoder = target * (2 * queries + keys + mlp) + source * keys
    decoder += batch * attend * target_length * (target_length + source_length)
    output = 2 * target * config.emb_dim * config.vocab_size
    return 3 * (config.num_encoder_layers * encoder + config.num_decoder_layers * decoder + output)


def decoder_only_train_flops(config: ModelConfig, batch: int, length: int) -> int:
    """The same of `models.decoder_only`, for B rows of T tokens: 3 (L encoder layers with S = T, + 2 B T D V)."""
    config = config.resolved()
    queries, keys, mlp, attend = _costs(config)
    tokens = batch * length
    layer = tokens * (queries + keys + mlp) + batch * attend * length**2
    return 3 * (config.num_decoder_layers * layer + 2 * tokens * config.emb_dim * config.vocab_size)


class _Costs(NamedTuple):
    """Forward operations: of a token for queries and output, for keys and values, for the feed-forward network; and of
    a pair of tokens for attention."""

    queries: int
    keys: int
    mlp: int
    attend: int


def _costs(config: ModelConfig) -> _Costs:
    width, head = config.emb_dim, config.head_dim + config.value_head_dim
    return _Costs(
        queries=2 * width * config.num_heads * head,
        keys=2 * width * config.num_kv_heads * head,
        mlp=2 * (3 if config.activation in ("swiglu", "geglu") else 2) * width * config.mlp_dim,
        attend=2 * config.num_heads * head,
    )


def palm_flops_per_token(config: ModelConfig, num_params: int, length: int) -> int:
    """6 N + 12 L H Q T: operations per token of training a decoder-only model (Chowdhery et al. 2022, appendix B).

    Args:
      num_params: N, without those that no product is made with, as a table of positions.
      length: T, of the rows.
    """
    config = config.resolved()
    return 6 * num_params + 12 * config.num_decoder_layers * config.num_heads * config.head_dim * length


def activation_bytes(
    config: ModelConfig, batch: int, source_length: int, target_length: int, loss_chunks: int = 1
) -> int:
    """Roughly the memory that one training step needs beside parameters, gradients and moments.

    What XLA keeps for the backward pass, fitted to its allocations on CPU over depths, heads, lengths,
    feed-forward widths and vocabularies; with the letters of `transformer_jax.typing` and E bytes per element,

        encoder layer   E (B S (14 D + M F) + 3 B N S^2)                           M = 2, gated 4
        decoder layer   E (B T (24 D + M F) + 3 B N (T^2 + T S))                   with attention weights
        embeddings      E 6 D B (S + T)
        logits          12 B T V / loss_chunks                                     and their gradients, float32

    and all of it is there at once. With `remat` a layer keeps less; one layer, or the logits, are in full in turn:

        full            E D a token
        dots            E (6 D + M F / 2) a token of the encoder, E (9 D + M F / 2) of the decoder, E 2 D for its source

    Other backends fuse differently, and cuDNN's kernel keeps no attention weights; `transformer-jax inspect --compile`
    asks the compiler.

    Args:
      batch: sentence pairs of one device, B; source_length, target_length: tokens of each, S and T.
      loss_chunks: parts that the logits are computed in.
    """
    config = config.resolved()
    element = 2 if config.dtype == "bfloat16" else 4
    width, num_encoder, num_decoder = config.emb_dim, config.num_encoder_layers, config.num_decoder_layers
    mlp = (4 if config.activation in ("swiglu", "geglu") else 2) * config.mlp_dim
    source, target = batch * source_length, batch * target_length
    weights = 3 * batch * config.num_heads
    encoder = element * (source * (14 * width + mlp) + weights * source_length**2)
    decoder = element * (target * (24 * width + mlp) + weights * target_length * (target_length + source_length))
    embeddings = element * 6 * width * (source + target)
    logits = 12 * target * config.vocab_size // loss_chunks
    if config.remat == "none":
        return num_encoder * encoder + num_decoder * decoder + embeddings + logits
    kept = num_encoder * source * width + num_decoder * target * width
    if config.remat == "dots":
        kept = num_encoder * source * (6 * width + mlp // 2)
        kept += num_decoder * (target * (9 * width + mlp // 2) + source * 2 * width)
    return element * kept + embeddings + max(encoder, decoder, logits)
