"""Recurrent models: an encoder-decoder (Sutskever et al. 2014; Bahdanau et al. 2015), or either of its stacks alone.

The numbers of layers choose the stacks: without encoder layers it is a language model, without decoder layers an
encoder for labels and tags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models import recurrent_flops
from transformer_jax.models.architecture import Architecture, ModelModule, example_ids
from transformer_jax.models.decoder import TWO_WAY, Started, StepOutput, TokenDecoder
from transformer_jax.nn import embeddings, recurrent, recurrent_decoder
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.nn.dropout import Dropout, drop, fold, fold_dropout, keep_mask
from transformer_jax.nn.embeddings import OutputProjection, TokenEmbedding, has_output_parameters, token_logits
from transformer_jax.nn.masks import segment_mask
from transformer_jax.nn.places import at, inside
from transformer_jax.nn.recurrent import ExampleBounds, RecurrentEncoder
from transformer_jax.nn.recurrent_decoder import (
    Carry,
    DecoderOutput,
    EncodedSource,
    OwnOutput,
    RecurrentDecoder,
    feeds_back,
)
from transformer_jax.typing import Array, Batch, Params

_ENCODER, _DECODER, _TEACHER = range(3)
"""Numbers of the parts for dropout and random choices. They enter the masks: do not change them."""


class RecurrentCache(NamedTuple):
    """The state of every hypothesis, and the source, which the hypotheses of a row share."""

    carry: Carry
    source: EncodedSource


class Recurrent(ModelModule):
    """Maps source ids and shifted target ids to logits over the next target id; see `Architecture`.

    Without encoder layers there is no source, and without decoder layers the outputs are those of the source's tokens.
    """

    def setup(self) -> None:
        config = self.config
        self.embedding = TokenEmbedding(config)
        of_source = dataclasses.replace(config, vocab_size=config.source_vocab_size)
        separate = config.form == "encoder_decoder" and not config.share_embeddings
        self.source_embedding = TokenEmbedding(of_source) if separate else self.embedding
        self.encoder = RecurrentEncoder(config) if config.num_encoder_layers else None
        self.decoder = RecurrentDecoder(config) if config.num_decoder_layers else None
        of_output = dataclasses.replace(config, emb_dim=config.output_dim)
        self.output = OutputProjection(of_output) if has_output_parameters(config) else None

    def features(self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None) -> Array:
        """Return the vectors from which the model predicts, for every token of `decoder_inputs`.

        With a `teacher_forcing_rate`, a token after the first is replaced by the model's own likeliest output with
        probability 1 - rate, for every row and place by itself. Only tokens that are targets are replaced.

        Args:
          batch: `inputs` [B, S] with `inputs_mask`, `decoder_inputs` [B, T], as far as the model has the stacks; for
            packed rows also segment ids and positions.
          dropout: None for a deterministic pass, which reads only targets. hyper: may have `teacher_forcing_rate`.
        Returns: [B, T, R]; of an encoder alone, [B, S, M].
        Raises: DataError for sequences of length 0.
        """
        if self.decoder is None:
            return self.encode(batch, dropout).x
        _check_length(batch, "decoder_inputs")
        source = self.read_source(batch, dropout)
        dropout = fold_dropout(dropout, _DECODER)
        own = self._own_output(batch, dropout, hyper or {})
        x = self._dropped(self.embedding(batch["decoder_inputs"]), dropout, self.config.num_decoder_layers)
        with inside("decoder"):
            decoded = self.decoder(at("embedding", x), source, _begins(batch, "targets"), None, dropout, own)
            x = at("output", decoded.x)
            if decoded.shares is not None and feeds_back(self.config):
                at("cross_attention/weights", decoded.shares, is_result=True)
        return x

    def encode(self, batch: Batch, dropout: Dropout | None = None) -> recurrent.Read:
        """Return the encoder's outputs `x` [B, S, M] and its last states; raise DataError for sequences of length 0."""
        assert self.encoder is not None
        _check_length(batch, "inputs")
        dropout = fold_dropout(dropout, _ENCODER)
        x = self._dropped(self.source_embedding(batch["inputs"]), dropout, self.config.num_encoder_layers)
        with inside("encoder"):
            x, finals = self.encoder(
                at("embedding", x), batch.get("inputs_mask"), _begins(batch, "inputs"), _ends(batch), dropout
            )
            return recurrent.Read(at("output", x), finals)

    def outputs(self, x: Array, batch: Batch, dropout: Dropout | None = None) -> Array:
        """Map vectors [B, T, R] to logits [B, T, V] float32, or to the output of the head."""
        if self.head is not None:
            number = (self.config.num_decoder_layers or self.config.num_encoder_layers) + 2
            return self.head(x, batch, self.embedding.embedding, fold_dropout(dropout, number))
        return token_logits(self.config, x, self.embedding.embedding, self.output)

    def read_source(self, batch: Batch, dropout: Dropout | None = None) -> EncodedSource:
        """Return the source of a batch for the decoder; of packed rows, the source of every token of the decoder."""
        decoder = self.decoder
        assert decoder is not None
        if self.encoder is None:
            return decoder.no_source(len(batch["decoder_inputs"]))
        mask, segments = batch.get("inputs_mask"), batch.get("targets_segment_ids")
        visible = None if mask is None else mask[:, None]  # [B, 1, S]
        if segments is not None:
            visible = segment_mask(segments, batch["inputs_segment_ids"]).allowed[:, 0]  # [B, T, S]
        return decoder.source(self.encode(batch, dropout), visible)

    def begin(self, batch: Batch, width: int) -> RecurrentCache:
        """Return the state of `width` hypotheses per row after `prompts` [B, P] without their last tokens."""
        assert self.decoder is not None
        prompts, lengths = batch["prompts"][:, :-1], batch["prompt_lengths"] - 1
        source = self.read_source({**batch, "decoder_inputs": batch["prompts"]})
        carry = self.decoder.carry(source)
        if prompts.shape[1]:
            is_token = jnp.arange(prompts.shape[1])[None] < lengths[:, None]
            carry = self.decoder(self.embedding(prompts), source, mask=is_token).carry
        return RecurrentCache(jax.tree.map(lambda x: jnp.repeat(x, width, axis=1), carry), source)

    def step(self, ids: Array, cache: RecurrentCache) -> StepOutput:
        """Feed one token per hypothesis, [B, W]; return logits [B, W, V] and the new state."""
        assert self.decoder is not None
        decoded: DecoderOutput = self.decoder.step(self.embedding(ids), cache.carry, cache.source)
        logits = token_logits(self.config, decoded.x, self.embedding.embedding, self.output)
        return StepOutput(logits, cache._replace(carry=decoded.carry))

    def _dropped(self, x: Array, dropout: Dropout | None, number: int) -> Array:
        return drop(x, fold_dropout(dropout, number), "embedding")

    def _own_output(self, batch: Batch, dropout: Dropout | None, hyper: Mapping[str, Any]) -> OwnOutput | None:
        rate, ids = hyper.get("teacher_forcing_rate"), batch["decoder_inputs"]
        if rate is None or dropout is None:
            return None
        reads_own = keep_mask(fold(dropout.seed, _TEACHER), dropout.row_ids, ids.shape, rate)
        reads_own = reads_own.at[:, 0].set(False)
        if "weights" in batch:
            reads_own = reads_own & jnp.pad(batch["weights"][:, :-1] > 0, ((0, 0), (1, 0)))
        keep = None
        if dropout.rates.embedding is not None:
            ones = jnp.ones((*ids.shape, self.config.emb_dim), self.config.dtype)
            keep = self._dropped(ones, dropout, self.config.num_decoder_layers)
        return OwnOutput(reads_own, ids, self.embedding, lambda x: jax.lax.stop_gradient(self.outputs(x, batch)), keep)


def _check_length(batch: Batch, name: str) -> None:
    if not batch[name].shape[1]:
        raise DataError(f"{name}: sequences of length 0; a recurrent model reads at least one token")


def _begins(batch: Batch, name: str) -> Array | None:
    """Return True where an example of packed rows begins, in the shape of the ids; None if rows are not packed."""
    if f"{name}_segment_ids" not in batch:
        return None
    return (batch[f"{name}_positions"] == 0) & (batch[f"{name}_segment_ids"] > 0)


def _ends(batch: Batch) -> ExampleBounds | None:
    """Return the places of the last and first token of the source of every target token, in packed rows."""
    if "inputs_segment_ids" not in batch or "targets_segment_ids" not in batch:
        return None
    sources, targets = batch["inputs_segment_ids"], batch["targets_segment_ids"]
    same = targets[:, :, None] == sources[:, None]  # [B, T, S]
    places = jnp.arange(sources.shape[1], dtype=jnp.int32)[None, None]
    last = jnp.where(same, places, 0).max(-1)
    first = jnp.where(same, places, sources.shape[1] - 1).min(-1)
    return ExampleBounds(last, first)


@dataclasses.dataclass(frozen=True)
class StateDecoder(TokenDecoder):
    """Decoding with one recurrent state per hypothesis; it has no slots, and no greatest length."""

    def start(self, params: Params, batch: Batch, slots: int, width: int) -> Started:
        """Encode `inputs`, if there is an encoder, and read the prompts without their last tokens."""
        if TWO_WAY in batch:
            raise ConfigError("a recurrent decoder reads prompts in one direction only")
        cache = self._apply(params, batch, width, method="begin")
        rows, length = batch["prompts"].shape
        return Started(cache, jnp.zeros((rows, slots), bool), length - 1)

    def step(
        self, params: Params, cache: RecurrentCache, ids: Array, positions: Array, visible: Array | None = None
    ) -> StepOutput:
        """Feed one token per hypothesis; a recurrent state needs no positions and no visible slots."""
        return self._apply(params, ids, cache, method="step")

    def reorder(self, cache: RecurrentCache, parents: Array) -> RecurrentCache:
        """Return the cache whose hypothesis w has the state of hypothesis parents[w] of its row."""
        carry = jax.tree.map(lambda x: jnp.take_along_axis(x, parents[..., None], axis=1), cache.carry)
        return cache._replace(carry=carry)

    def _apply(self, params: Params, *args: Any, method: str) -> Any:
        """Call a method of the module, with the untied output that `prepare` made."""
        module = Recurrent(dataclasses.replace(self.config, tie_output=False))
        return module.apply({"params": params}, *args, method=method)


class RecurrentArchitecture(Architecture):
    """Recurrent encoder and decoder, or one of them."""

    def module(self, config: ModelConfig, head: nn.Module | None = None) -> Recurrent:
        return Recurrent(config, head)

    def example_batch(self, config: ModelConfig) -> Batch:
        names = (["inputs"] if config.num_encoder_layers else []) + (
            ["decoder_inputs"] if config.num_decoder_layers else []
        )
        return example_ids(*names)

    def decoder(self, config: ModelConfig) -> StateDecoder | None:
        return StateDecoder(config) if config.num_decoder_layers else None

    def train_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int], head: int | None = None) -> int:
        return recurrent_flops.train_flops(config, rows, widths, head)

    def activation_bytes(self, config: ModelConfig, rows: int, widths: Mapping[str, int], loss_chunks: int = 1) -> int:
        return recurrent_flops.activation_bytes(config, rows, widths, loss_chunks)

    def parameter_axes(self, config: ModelConfig) -> ParameterAxes:
        decoder = recurrent_decoder.PARAMETER_AXES if config.num_decoder_layers else {}
        return embeddings.PARAMETER_AXES | recurrent.PARAMETER_AXES | decoder

    def recurrent_stacks(self, config: ModelConfig) -> Mapping[str, bool]:
        stacks = {"recurrent encoder": True} if config.num_encoder_layers else {}
        if not config.num_decoder_layers:
            return stacks
        return stacks | {"recurrent decoder": config.teacher_forcing_rate == 1 and not feeds_back(config)}
