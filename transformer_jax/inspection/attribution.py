"""Where a logit comes from: the terms of the residual stream, and the embeddings by gradients."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.inspection.ablation import Measure
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import Put, known_places, places_of, put
from transformer_jax.typing import Array, Batch, Params

_SUMS = ("pre", "sandwich", "output", "peri")
_NORMS = ("layernorm", "rmsnorm", "none")


def logit_attributions(
    model: ModelConfig, params: Params, batch: Batch, position: int, token: int, other: int | None = None
) -> dict[str, float]:
    """Return the terms of a logit of the first row, in the order of the pass; their sum is the logit.

    The residual stream is a sum of terms. With the mean and the scale of the final norm held at their values, a logit
    is a sum of such terms too (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). They are
    `STACK/embedding`; `STACK/LAYER/PART/heads/N` of heads from 0 and `.../bias`, the rest of that part; or, for a part
    without heads or with a norm of its output, `STACK/LAYER/PART`; and `bias`, of the final norm and of the output.

    Args:
      position: from 0, or from the end if negative. token: the id of the logit. other: an id whose logit is subtracted.
    Raises: ConfigError for a model whose stream is not such a sum, or whose logits are not linear in it.
    """
    _check(model)
    known = known_places(model, batch, None)
    stack = model.stacks[-1]
    layers = [name for name in known if name.startswith(f"{stack}/") and name.count("/") == 3]
    streams = [name for name in layers if name.endswith("/stream")]
    before = [f"{stack}/embedding", *streams[:-1]]
    output = f"{stack}/output"
    has_inside = model.norm_position != "pre"
    heads = [] if has_inside else [name for name in places_of(model, batch, "heads") if name in layers]
    read = run_with(model, params, batch, [*before[:1], *streams, *heads, output]).places
    functional = _Functional(model, params, batch, stack, streams[-1], position, (token, other), read)

    def added(keep: Array) -> list[Array]:
        """Return what every part adds to the stream, with these heads of every layer alone."""
        only = {name: Put(_heads, new=read[name], keep=keep[: known[name][2]]) for name in heads}
        values = run_with(model, params, batch, [*before[:1], *streams], only).places
        return [values[after] - values[start] for start, after in zip(before, streams, strict=True)]

    most = max((known[name][2] for name in heads), default=0)
    whole = [read[after] - read[start] for start, after in zip(before, streams, strict=True)]
    rest = added(jnp.zeros(most, bool)) if heads else whole
    by_head = [added(jnp.arange(most) == number) for number in range(most)]
    terms = {before[0]: functional.of(read[before[0]])}
    for index, stream in enumerate(streams):
        part = stream.removesuffix("/stream")
        if f"{part}/heads" not in heads:
            terms[part] = functional.of(whole[index])
            continue
        for number in range(known[f"{part}/heads"][2]):
            terms[f"{part}/heads/{number}"] = functional.of(by_head[number][index] - rest[index])
        terms[f"{part}/bias"] = functional.of(rest[index])
    return {**terms, "bias": functional.bias}


def _check(model: ModelConfig) -> None:
    """Raise ConfigError for a model whose logits are not a sum of terms of its residual stream."""
    reasons = {
        "norm_position": None if model.norm_position in _SUMS else f"expected one of {', '.join(_SUMS)}",
        "norm": None if model.norm in _NORMS else f"expected one of {', '.join(_NORMS)}",
        "output_logit_cap": "logits with a cap are no sum" if model.output_logit_cap else None,
        "residual_lambdas": "the stream of a layer is not the sum of what is before"
        if model.residual_lambdas
        else None,
    }
    for name, reason in reasons.items():
        if reason:
            raise ConfigError(f"model.{name}={getattr(model, name)}: a logit has no terms by head and part: {reason}")


class _Functional:
    """The linear function of a term [B, T, D] of the last stream that is its part of the logit, and the bias.

    The gain and the bias of the final norm are found by two vectors: 0, whose norm is 0, and one of 1 and -1 in turn.
    """

    def __init__(
        self,
        model: ModelConfig,
        params: Params,
        batch: Batch,
        stack: str,
        last: str,
        position: int,
        tokens: tuple[int, int | None],
        read: dict[str, Array],
    ) -> None:
        token, other = tokens
        output = f"{stack}/output"
        self._model, self._position = model, position

        def logit(of_output: Array) -> Array:
            logits = run_with(model, params, batch, (), {output: put(of_output)}).outputs[0, position]
            return logits[token] - (0.0 if other is None else logits[other])

        def ended(vector: Array) -> Array:
            stream = jnp.broadcast_to(vector, read[last].shape)
            return run_with(model, params, batch, [output], {last: put(stream)}).places[output][0, position]

        value, gradient = jax.value_and_grad(logit)(read[output])
        weights = gradient[0, position]
        turns = jnp.asarray(np.where(np.arange(model.emb_dim) % 2, -1.0, 1.0), jnp.float32)
        norm_bias = ended(jnp.zeros(model.emb_dim))
        gain = (ended(turns) - norm_bias) / (self._centred(turns) / self._scale(turns))
        self._weights = weights * gain / self._scale(read[last][0, position])
        self.bias = float(value - weights @ read[output][0, position] + weights @ norm_bias)

    def of(self, term: Array) -> float:
        """Return the part of the logit of a term [B, T, D]."""
        return float(self._weights @ self._centred(term[0, self._position]))

    def _centred(self, x: Float[Array, " D"]) -> Float[Array, " D"]:
        return x - x.mean() if self._model.norm == "layernorm" else x

    def _scale(self, x: Float[Array, " D"]) -> Array:
        if self._model.norm == "none":
            return jnp.ones(())
        return jnp.sqrt(jnp.square(self._centred(x)).mean() + self._model.norm_epsilon)


def _heads(value: Array, new: Array, keep: Array) -> Array:
    return jnp.where(keep[:, None], new, jnp.zeros_like(value))


class InputAttributions(NamedTuple):
    """Attributions [B, T, D] of a number to the embeddings; `difference` is what integrated ones sum to."""

    values: Float[np.ndarray, "B T D"]
    difference: float

    @property
    def by_token(self) -> Float[np.ndarray, "B T"]:
        """Return the sums over the features of every token."""
        return self.values.sum(-1)


def input_gradients(
    model: ModelConfig, params: Params, batch: Batch, measure: Measure, head: nn.Module | None = None
) -> Float[np.ndarray, "B T D"]:
    """Return the gradient of a number of the outputs to the input of the first layer of the first stack.

    Raises: ConfigError for a model without a residual stream.
    """
    return np.asarray(_gradient(model, params, batch, measure, head)(_embedded(model, params, batch, head)))


def integrated_gradients(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    measure: Measure,
    steps: int = 32,
    head: nn.Module | None = None,
    power: int = 1,
) -> InputAttributions:
    """Return attributions by integrated gradients on the line from zero (Sundararajan et al. 2017, equation 1).

    The integral is the Gauss-Legendre rule of `steps` points. Where they suffice, the attributions sum to `difference`:
    the number of the text less that of embeddings of zero.

    Args:
      measure: the number of the outputs. head: of the task.
      power: the place on the line is the variable of the rule to this power. A norm of the embeddings changes most near
        zero; with a power of 3 more of the points are there.
    Raises: ConfigError for a model without a residual stream, and for fewer steps than 1 or a lower power.
    """
    for name, value in (("steps", steps), ("power", power)):
        if value < 1:
            raise ConfigError(f"{name}={value}: expected 1 or more")
    embedded = _embedded(model, params, batch, head)
    gradient = _gradient(model, params, batch, measure, head)
    points, weights = np.polynomial.legendre.leggauss(steps)
    total = np.zeros(embedded.shape)
    for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
        share = weight * power * point ** (power - 1)
        total += share * np.asarray(gradient(embedded * jnp.float32(point**power)), np.float64)
    measured = _measured(model, params, batch, measure, head)
    difference = float(measured(embedded)) - float(measured(jnp.zeros_like(embedded)))
    return InputAttributions(total * np.asarray(embedded), difference)


def _embedding(model: ModelConfig) -> str:
    return f"{model.stacks[0]}/embedding"


def _embedded(model: ModelConfig, params: Params, batch: Batch, head: nn.Module | None) -> Array:
    known_places(model, batch, head)
    return run_with(model, params, batch, [_embedding(model)], None, head).places[_embedding(model)]


def _measured(model: ModelConfig, params: Params, batch: Batch, measure: Measure, head: nn.Module | None) -> Measure:
    def of(embedded: Array) -> Array:
        return measure(run_with(model, params, batch, (), {_embedding(model): put(embedded)}, head).outputs)

    return of


def _gradient(model: ModelConfig, params: Params, batch: Batch, measure: Measure, head: nn.Module | None) -> Measure:
    return jax.grad(_measured(model, params, batch, measure, head))
