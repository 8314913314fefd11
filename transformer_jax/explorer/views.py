"""What the page shows of a text: its tokens, their losses, attention, and what the model and each layer predict.

Everything is computed from named places (inspection/places.py), by one compiled program for each padded length.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.inspection.attention import mean_entropy
from transformer_jax.inspection.places import places, run_with
from transformer_jax.inspection.streams import mixed, put, stream_places
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.places import Replace
from transformer_jax.tasks.trained.text_generator import TextGenerator, stacks_text
from transformer_jax.typing import Array, Batch, Params

MULTIPLE = 16
"""Texts are padded to a multiple of so many tokens, so that few programs are compiled."""
MAX_TOKENS = 256
"""Most tokens of a text, with the start token."""
NUM_PREDICTIONS = 5
NUM_OF_LENS = 3
REPEATED = 24
"""Random tokens that are repeated for the induction score."""
_ONE = 65535
"""Weights are sent as 16-bit numbers: this is 1."""


class Head(NamedTuple):
    """A head of the self-attention of a layer, both counted from 0."""

    layer: int
    head: int


@dataclasses.dataclass(frozen=True)
class Names:
    """The places that the page reads, by what they are.

    heads, weights: of the self-attention of the layers that have it, by the layer's number. streams: the input of the
    first layer, and the output of every layer.
    """

    heads: tuple[tuple[int, str], ...]
    weights: tuple[tuple[int, str], ...]
    streams: tuple[str, ...]


def names_of(model: ModelConfig) -> Names:
    """Return the names of a decoder's places; raise ConfigError for a model whose layers have no residual stream."""
    streams = stream_places(model, ARCHITECTURES[model.architecture].example_batch(model))["decoder"]
    known = [name.split("/") for name in places(model)]

    def of_attention(part: str) -> tuple[tuple[int, str], ...]:
        found = [name for name in known if name[0] == "decoder" and name[2:] == ["self_attention", part]]
        return tuple((int(name[1]), "/".join(name)) for name in found)

    return Names(of_attention("heads"), of_attention("weights"), tuple(streams))


class Seen(NamedTuple):
    """Results of a pass over one text of T tokens.

    log_probs, ids: of the likeliest tokens after each, [T, `NUM_PREDICTIONS`]. of_next: of the next token of the text,
    [T]. lens_log_probs, lens_ids: the same of every stream, [P, T, `NUM_OF_LENS`]. weights: [L', N, T, T].
    """

    log_probs: Array
    ids: Array
    of_next: Array
    lens_log_probs: Array
    lens_ids: Array
    weights: Array


def _likeliest(logits: Array, number: int) -> tuple[Array, Array]:
    """Return the log-probabilities and ids of the likeliest tokens, [..., number] each."""
    values, ids = jax.lax.top_k(jax.nn.log_softmax(logits), number)
    return values, ids


class Asked(NamedTuple):
    """The arrays of a pass over one text of T tokens, with padding.

    read, next_ids: [T] int32, the tokens and the one after each; is_token: [T]. keep: [L', N], False for heads that are
    left out. mean_share: 1 if they are replaced by their mean over the text, 0 if by zeros.
    """

    read: Any
    next_ids: Any
    is_token: Any
    keep: Any
    mean_share: Any

    @property
    def batch(self) -> Batch:
        return {"decoder_inputs": self.read[None]}


def _without(model: ModelConfig, names: Names, params: Params, asked: Asked) -> dict[str, Replace]:
    """Return the functions that leave heads out, by place."""
    as_is = run_with(model, params, asked.batch, [name for _, name in names.heads]).places
    replace = {}
    for row, (_, name) in enumerate(names.heads):
        heads = as_is[name][0].astype(jnp.float32)  # [T, N, H]
        mean = (heads * asked.is_token[:, None, None]).sum(0) / asked.is_token.sum() * asked.mean_share
        replace[name] = mixed(asked.keep[row][:, None], mean)
    return replace


def _of_next(logits: Array, asked: Asked) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), asked.next_ids[:, None], axis=-1)[:, 0]


@functools.partial(jax.jit, static_argnames=("model", "names"))
def _seen(model: ModelConfig, names: Names, params: Params, asked: Asked) -> Seen:
    read = [*names.streams, *(name for _, name in names.weights)]
    ran = run_with(model, params, asked.batch, read, _without(model, names, params, asked))

    def ended(stream: Array) -> tuple[Array, Array]:
        ran = run_with(model, params, asked.batch, replace={names.streams[-1]: put(stream)})
        return _likeliest(ran.outputs[0], NUM_OF_LENS)

    lens_log_probs, lens_ids = jax.lax.map(ended, jnp.stack([ran.places[name] for name in names.streams]))
    log_probs, ids = _likeliest(ran.outputs[0], NUM_PREDICTIONS)
    weights = [ran.places[name][0] for _, name in names.weights]
    return Seen(
        log_probs,
        ids,
        _of_next(ran.outputs[0], asked),
        lens_log_probs,
        lens_ids,
        jnp.stack(weights) if weights else jnp.zeros((0, 0, 0, 0)),
    )


@functools.partial(jax.jit, static_argnames=("model", "names"))
def _log_probs(model: ModelConfig, names: Names, params: Params, asked: Asked) -> Array:
    """Return the log-probability of the next token at every place, [T]."""
    replace = _without(model, names, params, asked)
    return _of_next(run_with(model, params, asked.batch, replace=replace).outputs[0], asked)


@dataclasses.dataclass(frozen=True)
class Explored:
    """A language model as the page shows it."""

    generator: TextGenerator
    label: str

    @functools.cached_property
    def names(self) -> Names:
        return names_of(self.generator.config.model)

    def look(self, text: str, ablated: Iterable[Head] = (), by_mean: bool = False) -> dict[str, Any]:
        """Return what the page shows of a text, as JSON values.

        Args:
          ablated: heads that are left out, replaced by zeros or by their mean over the text.
        Raises: DataError for a text that is too long, and for a head that the model does not have.
        """
        read = self._read(text)
        return self._shown(text, read, self._seen(read, self._keep(ablated), by_mean))

    def effects(
        self, text: str, by_mean: bool = False, cancelled: Callable[[], bool] = lambda: False
    ) -> list[list[float]]:
        """Return by how much the loss rises without one head: nats per token, [layers with attention][heads].

        Args:
          text, by_mean: as of `look`. cancelled: asked before every pass.
        Raises: DataError for a text without a token, or one that is too long; CancelledError.
        """
        read = self._read(text)
        if len(read) == 1:
            raise DataError("the text has no token whose loss could change")
        model = self.generator.config.model

        def loss(keep: np.ndarray) -> float:
            if cancelled():
                raise CancelledError
            asked = self._asked(read, keep, by_mean)
            log_probs = jax.device_get(_log_probs(model, self.names, self.generator.params, asked))[: len(read) - 1]
            _check_finite(log_probs)
            return float(-log_probs.mean())

        before, heads = loss(self._keep()), range(model.num_heads)
        return [[round(loss(self._keep([Head(layer, n)])) - before, 5) for n in heads] for layer, _ in self.names.heads]

    @functools.cached_property
    def induction(self) -> list[list[float]]:
        """The induction score of every head: its mean weight, from a token that has occurred before, on the token after
        that first occurrence (Olsson et al. 2022), over different random tokens that are repeated once.

        Raises: DataError for a model that reads too few tokens, or has too few.
        """
        special = self.generator.tokenizer.special_ids
        roles = {special.pad, special.eos, special.unk, special.bos, special.mask, special.cls, special.sep}
        ordinary = sorted({*range(self.generator.config.model.vocab_size)} - roles - {*special.sentinels})
        count = min(REPEATED, (self._most_tokens - 1) // 2, len(ordinary))
        if count < 2:
            raise DataError("the model has too few tokens or positions for an induction score")
        once = np.random.default_rng(0).choice(ordinary, count, replace=False).tolist()
        seen = self._seen([self.generator.config.model.decoder_start_id, *once, *once], self._keep())
        queries = np.arange(count + 1, 2 * count + 1)
        return np.round(np.asarray(seen.weights, np.float64)[:, :, queries, queries - count + 1].mean(-1), 5).tolist()

    def _read(self, text: str) -> list[int]:
        """Return the ids that the model reads: the start token and those of the text."""
        ids = self.generator.encode([text])[0]
        if len(ids) + 1 > self._most_tokens:
            raise DataError(f"the text has {len(ids):,} tokens; the page shows at most {self._most_tokens - 1}")
        return [self.generator.config.model.decoder_start_id, *ids]

    def _keep(self, ablated: Iterable[Head] = ()) -> np.ndarray:
        """Return True for every head, [layers with attention, heads], and False for those that are left out."""
        model = self.generator.config.model
        keep = np.ones((len(self.names.heads), model.num_heads), bool)
        rows = {layer: row for row, (layer, _) in enumerate(self.names.heads)}
        for layer, head in ablated:
            if layer not in rows or not 0 <= head < model.num_heads:
                raise DataError(f"the model has no head {head + 1} in layer {layer + 1}")
            keep[rows[layer], head] = False
        return keep

    def _asked(self, read: Sequence[int], keep: np.ndarray, by_mean: bool = False) -> Asked:
        length = min(-(-len(read) // MULTIPLE) * MULTIPLE, self._most_tokens)
        ids = np.zeros((2, length), np.int32)
        ids[0, : len(read)], ids[1, : len(read) - 1] = read, read[1:]
        return Asked(ids[0], ids[1], np.arange(length) < len(read), keep, np.float32(by_mean))

    def _seen(self, read: Sequence[int], keep: np.ndarray, by_mean: bool = False) -> Seen:
        model = self.generator.config.model
        seen = jax.device_get(_seen(model, self.names, self.generator.params, self._asked(read, keep, by_mean)))
        for array in (seen.log_probs, seen.lens_log_probs, seen.weights):
            _check_finite(array)
        return seen

    @property
    def _most_tokens(self) -> int:
        model = self.generator.config.model
        return min(MAX_TOKENS, model.max_length) if model.position_encoding == "learned" else MAX_TOKENS

    def about(self) -> dict[str, Any]:
        """Return what the page says of the model, as JSON values."""
        model = self.generator.config.model
        return {
            "label": self.label,
            "stacks": stacks_text(model),
            "layers": len(self.names.streams) - 1,
            "heads": model.num_heads,
            "tokenizer": self.generator.tokenizer.sha256,
        }

    def _shown(self, text: str, read: Sequence[int], seen: Seen) -> dict[str, Any]:
        tokens, T = self.generator.tokenizer.tokens, len(read)
        weights = np.asarray(seen.weights, np.float64)[:, :, :T, :T]

        def likely(ids: Any, log_probs: Any) -> list[Any]:
            return [[t, round(float(np.exp(p)), 5)] for t, p in zip(tokens(ids.tolist()), log_probs, strict=True)]

        return {
            "text": text,
            "tokens": tokens(list(read)),
            "predictions": [likely(seen.ids[t], seen.log_probs[t]) for t in range(T)],
            "losses": [round(float(-p), 5) for p in seen.of_next[: T - 1]],
            "lens": [
                [likely(ids[t], values[t]) for t in range(T)]
                for ids, values in zip(seen.lens_ids, seen.lens_log_probs, strict=True)
            ],
            "attention": {
                "layers": [layer for layer, _ in self.names.weights],
                "heads": int(weights.shape[1]) if len(weights) else 0,
                "weights": base64.b64encode(np.round(weights * _ONE).astype("<u2").tobytes()).decode(),
                **head_numbers(weights),
            },
        }


def _check_finite(array: Any) -> None:
    if not np.isfinite(array).all():
        raise DataError("the model's outputs are not finite; its training has diverged")


def head_numbers(weights: np.ndarray) -> dict[str, list[list[float]]]:
    """Return numbers of heads from their weights [L, N, T, T], means over queries: entropy in nats, and mean weights.

    `previous`: on the token before; `first`: on the first token. A first query has neither.
    """
    T = weights.shape[-1]
    later = weights[:, :, 1:]
    previous = later[:, :, np.arange(T - 1), np.arange(T - 1)].mean(-1) if T > 1 else np.zeros(weights.shape[:2])
    first = later[..., 0].mean(-1) if T > 1 else np.zeros(weights.shape[:2])
    return {
        name: np.round(values, 5).tolist()
        for name, values in (("entropy", mean_entropy(weights)), ("previous", previous), ("first", first))
    }
