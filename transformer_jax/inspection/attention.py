"""Attention weights of one text, or of a sentence and its translation, and their entropy.

The weights are those that the model computes in every layer and head; they are read as named places of one more pass.
Nothing is smoothed, averaged or renormalised.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_jax.config import ATTENTION, LAYERS, RECURRENT, ModelConfig, layer_configs
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.places import places, run_with
from transformer_jax.tasks.batches.pair_rows import reads_source_two_way
from transformer_jax.tasks.trained.length_limits import length_problems
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.row_translator import RowTranslator
from transformer_jax.tasks.trained.text_generator import TextGenerator
from transformer_jax.tasks.trained.translator import Translator
from transformer_jax.typing import Array, Params

KINDS = {
    "encoder_self_attention": "Encoder self-attention",
    "decoder_self_attention": "Masked decoder self-attention",
    "decoder_cross_attention": "Cross-attention",
}
"""Titles of attentions, by stack and kind.

A decoder-only model has the second, a recurrent model with attention the third.
"""

MAX_TOKENS = 120
"""Most tokens of either side that a picture can show."""


class AttentionMaps(NamedTuple):
    """The tokens and attention weights of one sentence pair, or of one text of a language model.

    Attributes:
      source: the S tokens that the encoder reads, end-of-sequence last; empty without an encoder.
      read: the T tokens that the decoder reads, the start token first.
      predicted: the T tokens that the decoder should output, one at each position.
      weights: by name, those of `KINDS` that the model has, float32 [L, N, T, S], of queries T and keys S; layers from
        0, as in the model.
      target: the text of `predicted`.
      finished: whether the target ends with end-of-sequence; a translation cut off at the length limit does not.
    """

    source: list[str]
    read: list[str]
    predicted: list[str]
    weights: dict[str, np.ndarray]
    target: str
    finished: bool

    def queries(self, kind: str) -> list[str]:
        """Return the label of each query: its token; in the decoder, the token that it reads and the next token."""
        if kind == "encoder_self_attention":
            return self.source
        return [f"{read} → {said}" for read, said in zip(self.read, self.predicted, strict=True)]

    def keys(self, kind: str) -> list[str]:
        """Return the token of each key."""
        return self.read if kind == "decoder_self_attention" else self.source


def attention_maps(generator: TextGenerator, text: str, target: str | None = None) -> AttentionMaps:
    """Return the attention weights of a text and its translation or, of a language model, those of the text.

    Args:
      text: the source text, one line. Of a language model, the text.
      target: a translation; by default the translator's own, with exactly the tokens that were generated.
    Raises:
      DataError: a side is empty, has several lines, or has more tokens than the model or a picture can take.
      ConfigError: the model has no decoder, or a target is given for a language model.
    """
    check_model(generator.config.model, generator.params)
    _check_line("text", text)
    if isinstance(generator, RowTranslator):
        return _of_row(generator, text, target)
    if isinstance(generator, Translator):
        return _of_pair(generator, text, target)
    if target is not None:
        raise ConfigError("--target: a language model reads one text; leave it out")
    ids = generator.encode([text])[0]
    if (eos := generator.tokenizer.special_ids.eos) is not None:
        ids = [*ids, eos]
    _check_length("--text", ids, generator)
    start_id = generator.config.model.decoder_start_id
    weights = _weights(generator, {"decoder_inputs": np.array([[start_id, *ids[:-1]]], np.int32)})
    said = generator.tokenizer.tokens(ids)
    return AttentionMaps([], [*generator.tokenizer.tokens([start_id]), *said[:-1]], said, weights, text, True)


class _Pair(NamedTuple):
    """The ids of a source and of its translation, with end-of-sequence, and the text of the translation."""

    source: list[int]
    target: list[int]
    shown: str


def _pair(translator: Translator, text: str, target: str | None) -> _Pair:
    (source,) = translator.encode_sources([text])
    _check_length("--text", source, translator)
    if target is None:
        ids, shown = _translated(translator, text)
        _check_length("the translation of --text (pass --target to choose another)", ids, translator)
        return _Pair(source, ids, shown)
    _check_line("target", target)
    ids = [*translator.tokenizer.encode_batch([target]).ids.tolist(), translator.tokenizer.special_ids.required("eos")]
    _check_length("--target", ids, translator)
    return _Pair(source, ids, target)


def _of_row(translator: RowTranslator, text: str, target: str | None) -> AttentionMaps:
    """Return the weights of a decoder that reads source and translation in one row."""
    pair = _pair(translator, text, target)
    ids, start_id = [*pair.source, *pair.target], translator.config.model.decoder_start_id
    _check_length("--text and its translation", ids, translator)
    batch = {"decoder_inputs": np.array([[start_id, *ids[:-1]]], np.int32)}
    if reads_source_two_way(translator.config.task):
        batch["prefix_mask"] = np.arange(len(ids))[None] <= len(pair.source)
    said = translator.tokenizer.tokens(ids)
    finished = ids[-1] == translator.tokenizer.special_ids.required("eos")
    read = [*translator.tokenizer.tokens([start_id]), *said[:-1]]
    return AttentionMaps([], read, said, _weights(translator, batch), pair.shown, finished)


def _of_pair(translator: Translator, text: str, target: str | None) -> AttentionMaps:
    eos = translator.tokenizer.special_ids.required("eos")
    source, ids, shown = _pair(translator, text, target)
    read = [translator.config.model.decoder_start_id, *ids[:-1]]
    batch = {"inputs": np.array([source], np.int32), "decoder_inputs": np.array([read], np.int32)}
    weights = _weights(translator, batch)
    source, said = translator.tokenizer.source.tokens(source), translator.tokenizer.tokens(ids)
    start = translator.tokenizer.tokens([translator.config.model.decoder_start_id])
    return AttentionMaps(source, [*start, *said[:-1]], said, weights, shown, ids[-1] == eos)


def check_model(model: ModelConfig, params: Params) -> None:
    """Check that a model has a decoder with attention and, with an encoder, cross-attention; else raise ConfigError."""
    if model.architecture == RECURRENT:
        _recurrent_depths(model)
        return
    if model.is_transformer and "decoder" in model.stacks and not _attention_layers(model, "decoder"):
        raise ConfigError("no layer of this model has attention to show")
    folders = [part for name, part in params.get("decoder", {}).items() if name.split("_")[0] == LAYERS]
    parts = {name for layers in folders for name in layers}
    if "self_attention" not in parts or ("encoder" in params) != ("cross_attention" in parts):
        raise ConfigError(
            f"attention can be shown for encoder-decoders and decoder-only models; the parts of this model are "
            f"{', '.join(params)}"
        )


def _attention_layers(model: ModelConfig, stack: str) -> list[int]:
    """Return the numbers of the layers of a Transformer's stack that have attention."""
    layers = layer_configs(model, stack, getattr(model, f"num_{stack}_layers"))
    return [number for number, layer in enumerate(layers) if layer.mixer == ATTENTION]


def _weights(generator: TextGenerator, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights of the only row of a batch, [L, N, T, S] by kind."""
    captured = capture(generator.config.model, generator.params, batch)
    return {kind: weights[:, 0] for kind, weights in captured.weights.items()}


class Captured(NamedTuple):
    """Logits [B, T, V] of a pass without dropout, and its attention weights, float32 [L, B, N, T, S] by kind.

    Layers without attention have NaN.
    """

    logits: Array
    weights: dict[str, np.ndarray]


def capture(config: ModelConfig, params: Params, batch: Mapping[str, Any]) -> Captured:
    """Return the logits [B, T, V] of a pass without dropout, and its attention weights, float32 [L, B, N, T, S].

    The weights are by name of `KINDS`.

    Args:
      config: resolved.
      batch: the input of the architecture's module.
    """
    names = [name for name in places(config, batch) if name.endswith("attention/weights")]
    ran = run_with(config, params, batch, names)
    found: dict[str, dict[int, np.ndarray]] = {}
    for name in names:
        stack, *layer, part, _ = name.split("/")
        # A recurrent decoder has one attention, of one head, beside its layers.
        weights = np.asarray(ran.places[name], np.float32)
        found.setdefault(f"{stack}_{part}", {})[int(layer[0]) if layer else 0] = weights if layer else weights[:, None]
    shown = {kind: _of_all_layers(config, kind, found[kind]) for kind in KINDS if kind in found}
    return Captured(ran.outputs, shown)


def _of_all_layers(config: ModelConfig, kind: str, weights: Mapping[int, np.ndarray]) -> np.ndarray:
    """Return weights [L, ...] of all layers, NaN where a layer has no attention; weights: by the layer's number."""
    count = getattr(config, f"num_{kind.partition('_')[0]}_layers") if config.is_transformer else len(weights)
    missing = np.full_like(next(iter(weights.values())), np.nan)
    return np.stack([weights.get(layer, missing) for layer in range(count)])


def mean_entropy(weights: Float[np.ndarray, "*heads T S"]) -> Float[np.ndarray, "*heads"]:
    """Return the entropy of attention, -sum_s w_ts ln w_ts in nats, averaged over the queries t.

    It is 0 if every query attends to one key, and ln S if all attend to all S keys equally. Under a causal mask, query
    t = 0, 1, ... has t + 1 keys, and the maximum is the mean of ln (t + 1).

    Args:
      weights: [..., T, S], whose rows sum to 1.
    Returns: [...] float64.
    """
    w = weights.astype(np.float64)
    return np.asarray(-(w * np.log(np.where(w > 0, w, 1.0))).sum(-1).mean(-1))


def _translated(translator: Translator, text: str) -> tuple[list[int], str]:
    (translation,) = translator.generate_chunk([Line(text)])
    if translation.problem:
        raise DataError(f"--text: {translation.problem}")
    if not translation.outputs:
        raise DataError("--text: the model's translation is empty; pass --target to choose one")
    return translation.outputs[0].ids, translation.text


def _check_line(flag: str, text: str) -> None:
    if not text.strip():
        raise DataError(f"--{flag} is empty; give a sentence")
    if len(text.splitlines()) > 1:
        raise DataError(
            f"--{flag} has {len(text.splitlines())} lines; give one line: attention is shown for one sentence"
        )


def _check_length(what: str, ids: list[int], generator: TextGenerator) -> None:
    for problem in length_problems(generator.config, np.array([len(ids)])).values():
        raise DataError(f"{what}: {problem}")
    if len(ids) > MAX_TOKENS:
        raise DataError(
            f"{what}: {len(ids)} tokens, including end-of-sequence; a picture shows at most {MAX_TOKENS}; use a "
            "shorter text"
        )


class Selection(NamedTuple):
    """The layers, by name of `KINDS`, and the heads to show; both counted from 0."""

    layers: dict[str, list[int]]
    heads: list[int]


def selection(model: ModelConfig, layer: int | None = None, head: int | None = None) -> Selection:
    """Return the selection of all layers and heads of a model, or of one layer and head.

    Raises: ConfigError if there is no such layer or head, or the layer has no attention.
    """
    kinds, heads = [*KINDS], model.num_heads
    if model.architecture == RECURRENT:
        depths, kinds, heads = _recurrent_depths(model), ["decoder_cross_attention"], 1
    elif model.architecture == "decoder_only":
        depths, kinds = {"decoder": model.num_decoder_layers}, ["decoder_self_attention"]
    else:
        depths = {"encoder": model.num_encoder_layers, "decoder": model.num_decoder_layers}
    if layer is not None and not 0 <= layer < max(depths.values()):
        have = ", ".join(f"layers 0 to {depth - 1} of the {stack}" for stack, depth in depths.items())
        raise ConfigError(f"--layer={layer}: the model has {have}")
    if head is not None and not 0 <= head < heads:
        raise ConfigError(f"--head={head}: the model has heads 0 to {heads - 1}")
    layers = {}
    for kind in kinds:
        stack = kind.partition("_")[0]
        numbers = _attention_layers(model, stack) if model.is_transformer else range(depths[stack])
        layers[kind] = [number for number in numbers if layer in (None, number)]
    if layer is not None and not any(layers.values()):
        raise ConfigError(f"--layer={layer} has no attention; see `transformer-jax inspect` for the layers that have")
    return Selection(layers, [number for number in range(heads) if head in (None, number)])


def _recurrent_depths(model: ModelConfig) -> dict[str, int]:
    """Return the one layer of attention of a recurrent decoder; raises ConfigError if it has none."""
    if model.attention == "none":
        raise ConfigError(
            "model.attention='none': this recurrent model has no attention to show; train one with an encoder, a "
            "decoder and model.attention=additive, dot or general"
        )
    return {"decoder": 1}
