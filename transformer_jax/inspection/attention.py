"""Attention weights of one pair of sentences, and how spread out they are.

The weights are those that the model itself computes, of every layer and head: the forward pass is run once more with
them returned. Nothing is smoothed, averaged or renormalised.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.generation import Translator
from transformer_jax.tasks.lengths import length_problems
from transformer_jax.tasks.lines import Line
from transformer_jax.typing import Array, Batch, Params

KINDS = {
    "encoder_self_attention": "Encoder self-attention",
    "decoder_self_attention": "Masked decoder self-attention",
    "decoder_cross_attention": "Cross-attention",
}
"""The three attentions of an encoder-decoder, by the names that the model returns their weights under."""

MAX_TOKENS = 120
"""Of either side: what a picture can show."""


class AttentionMaps(NamedTuple):
    """The attention weights of one pair of sentences.

    Attributes:
      source: S tokens that the encoder reads, the end mark last.
      read: T tokens that the decoder reads, the start mark first.
      predicted: T tokens that come next: the target of the decoder at each of its positions.
      weights: by name of `KINDS`, float32 [L, N, T, S], of queries T and keys S; layers from 0, as the model counts.
      target: the text of `predicted`.
      finished: whether the target has an end; a translation that was cut at its limit has none.
    """

    source: list[str]
    read: list[str]
    predicted: list[str]
    weights: dict[str, np.ndarray]
    target: str
    finished: bool

    def queries(self, kind: str) -> list[str]:
        """Return the label of each query; in the decoder the token that it reads and the token that comes next."""
        if kind == "encoder_self_attention":
            return self.source
        return [f"{read} → {said}" for read, said in zip(self.read, self.predicted, strict=True)]

    def keys(self, kind: str) -> list[str]:
        """Return the token of each key."""
        return self.read if kind == "decoder_self_attention" else self.source


def attention_maps(translator: Translator, text: str, target: str | None = None) -> AttentionMaps:
    """The attention of a text and its translation.

    Args:
      text: one line, as the model translates it.
      target: a translation to look at; default the translator's own, token by token as it was generated.
    Raises:
      DataError: a side is empty, has several lines, or has more tokens than the model or a picture can take.
      ConfigError: the model has no encoder that a decoder attends to.
    """
    check_model(translator.params)
    _check_line("text", text)
    eos = translator.tokenizer.special_ids.required("eos")
    source = [*translator.tokenizer.encode_batch([text]).ids.tolist(), eos]
    _check_length("--text", source, translator)
    if target is None:
        ids, shown = _translated(translator, text)
        _check_length("the translation of --text, instead of which --target=... gives another", ids, translator)
    else:
        _check_line("target", target)
        ids, shown = [*translator.tokenizer.encode_batch([target]).ids.tolist(), eos], target
        _check_length("--target", ids, translator)
    read = [translator.config.model.decoder_start_id, *ids[:-1]]
    batch = {"inputs": np.array([source], np.int32), "decoder_inputs": np.array([read], np.int32)}
    weights = {kind: w[:, 0] for kind, w in capture(translator.config.model, translator.params, batch)[1].items()}
    source, said = translator.tokenizer.tokens(source), translator.tokenizer.tokens(ids)
    start = translator.tokenizer.tokens([translator.config.model.decoder_start_id])
    return AttentionMaps(source, [*start, *said[:-1]], said, weights, shown, ids[-1] == eos)


def check_model(params: Params) -> None:
    """Raises ConfigError unless these are parameters of a model with the three attentions of `KINDS`."""
    if "encoder" not in params or "cross_attention" not in params.get("decoder", {}).get("layers", {}):
        raise ConfigError(
            f"the model has no decoder that attends to an encoder; its parts are {', '.join(params)}, and attention "
            "is shown of an encoder-decoder"
        )


def capture(
    config: ModelConfig, params: Params, batch: Mapping[str, Any]
) -> tuple[Float[Array, "B T V"], dict[str, np.ndarray]]:
    """Logits of a deterministic pass [B, T, V], and its attention weights by name of `KINDS`, float32 [L, B, N, T, S].

    Args:
      config: resolved; whatever its `attention_implementation`, the equation as written out computes the weights, since
        no fused kernel has them.
      batch: as of the architecture's module.
    """
    config = dataclasses.replace(config, attention_implementation="reference", remat="none")
    logits, weights = _forward(config, params, batch)
    return logits, {kind: np.asarray(weights[kind], np.float32) for kind in KINDS}


@functools.partial(jax.jit, static_argnames="config")
def _forward(config: ModelConfig, params: Params, batch: Batch) -> tuple[Array, dict[str, Any]]:
    module = ARCHITECTURES[config.architecture].module(config, return_weights=True)
    result: Any = module.apply({"params": params}, batch)
    return result


def mean_entropy(weights: Float[np.ndarray, "*heads T S"]) -> Float[np.ndarray, "*heads"]:
    """How spread out attention is: -sum_s w_ts ln w_ts of every query t, in nats, averaged over the queries.

    0: every query attends to one key. ln S: all attend to all S keys alike; under a causal mask query t = 0, 1, ... has
    t + 1 keys, and the most that there can be is the mean of ln (t + 1).

    Args:
      weights: [..., T, S], whose rows sum to 1.
    Returns: [...] float64.
    """
    w = weights.astype(np.float64)
    return np.asarray(-(w * np.log(np.where(w > 0, w, 1.0))).sum(-1).mean(-1))


def _translated(translator: Translator, text: str) -> tuple[list[int], str]:
    (translation,) = translator.translate_chunk([Line(text)])
    if translation.problem:
        raise DataError(f"--text: {translation.problem}")
    if not translation.outputs:
        raise DataError("--text: the model translates it by nothing; --target=... gives a translation to look at")
    return translation.outputs[0].ids, translation.text


def _check_line(flag: str, text: str) -> None:
    if not text.strip():
        raise DataError(f"--{flag} is empty; give a sentence")
    if len(text.splitlines()) > 1:
        raise DataError(f"--{flag} has {len(text.splitlines())} lines; attention is shown of one sentence at a time")


def _check_length(what: str, ids: list[int], translator: Translator) -> None:
    for problem in length_problems(translator.config, np.array([len(ids)])).values():
        raise DataError(f"{what}: {problem}")
    if len(ids) > MAX_TOKENS:
        raise DataError(f"{what}: {len(ids)} tokens with the end mark, and a picture shows at most {MAX_TOKENS}")


class Selection(NamedTuple):
    """The layers to show, by name of `KINDS`, and the heads; all from 0."""

    layers: dict[str, list[int]]
    heads: list[int]


def selection(model: ModelConfig, layer: int | None = None, head: int | None = None) -> Selection:
    """All layers and heads of a model, or those that are asked for, counted from 1.

    Raises: ConfigError if there is no such layer or head.
    """
    depths = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    if layer is not None and not 1 <= layer <= max(depths.values()):
        raise ConfigError(
            f"--layer={layer}: the encoder has layers 1 to {depths['encoder']}, the decoder 1 to {depths['decoder']}"
        )
    if head is not None and not 1 <= head <= model.num_heads:
        raise ConfigError(f"--head={head}: the model has heads 1 to {model.num_heads}")
    layers = {}
    for kind in KINDS:
        numbers = range(depths[kind.partition("_")[0]])
        layers[kind] = [number for number in numbers if layer in (None, number + 1)]
    return Selection(layers, [number for number in range(model.num_heads) if head in (None, number + 1)])
