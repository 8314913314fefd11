"""Normalisation over the width of the model, or of every feature over the batch; always in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.batch_norm import RUNNING, STATISTICS, as_row, batch_norm, batch_statistics
from transformer_jax.nn.collected import collect, is_collecting
from transformer_jax.registry import Parts
from transformer_jax.typing import Array


def layer_norm(
    x: Float[Array, "*batch D"], scale: Float[Array, " D"], bias: Float[Array, " D"] | None, epsilon: float
) -> Float[Array, "*batch D"]:
    """Return (x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias over the last axis (Ba et al. 2016, equation 4).

    Args:
      x: [..., D]; scale, bias: [D].
    Returns: [..., D] in the type of x.
    """
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + epsilon) * as_row(scale, x)
    return (y if bias is None else y + as_row(bias, x)).astype(x.dtype)


def rms_norm(x: Float[Array, "*batch D"], scale: Float[Array, " D"], epsilon: float) -> Float[Array, "*batch D"]:
    """Return x / sqrt(mean(x^2) + epsilon) * scale over the last axis (Zhang and Sennrich 2019, equation 4).

    Args:
      x: [..., D]; scale: [D].
    Returns: [..., D] in the type of x.
    """
    x32 = x.astype(jnp.float32)
    y = x32 * jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + epsilon)
    return (y * as_row(scale, x)).astype(x.dtype)


class NormScale(NamedTuple):
    """The gains of a norm: a learned vector, plus a number.

    initial: the initial values of the vector; None if there is no vector. offset: the number.
    """

    initial: Callable[..., Array] | None
    offset: float


NORM_SCALES = {
    "learned": NormScale(nn.initializers.ones, 0.0),
    "none": NormScale(None, 1.0),
    "offset": NormScale(nn.initializers.zeros, 1.0),
}
"""By the values of `model.norm_scale`; `offset` as in Gemma's code: weight decay of its vector leads to gains of 1."""


def gains(module: nn.Module, kind: str, width: int) -> Float[Array, " width"]:
    """Return the gains of a norm; the vector is the parameter `scale` [width] of a compact module.

    Args: kind: a key of `NORM_SCALES`.
    """
    initial, offset = NORM_SCALES[kind]
    if initial is None:
        return jnp.full((width,), offset)
    scale = module.param("scale", initial, (width,))
    return scale + offset if offset else scale


class DynamicTanh(nn.Module):
    """tanh(alpha x) * scale + bias, with one number alpha, in place of a norm (Zhu et al. 2025, equation 1).

    Owns `alpha` [], initially 0.5, and scale and bias as `Norm`.
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch D"], is_token: Bool[Array, "*batch"] | None = None
    ) -> Float[Array, "*batch D"]:
        """Map x [..., D]; `is_token` has no effect."""
        config = self.config
        alpha = self.param("alpha", nn.initializers.constant(0.5), ())
        y = jnp.tanh(alpha * x.astype(jnp.float32)) * as_row(gains(self, config.norm_scale, config.emb_dim), x)
        if config.use_bias:
            y = y + as_row(self.param("bias", nn.initializers.zeros, (config.emb_dim,)), x)
        return y.astype(x.dtype)


class NormKind(NamedTuple):
    """The parts of a norm. A new norm is a new entry of `NORMS`, or `MODULE:OBJECT`.

    - function: of (x, scale, epsilon), with `bias` after scale if has_bias; None for the identity.
    - over_batch: whether the function gets mean and variance of every feature after x; see nn/batch_norm.py.
    - module: of (config), in place of a function, a `flax.linen.Module` that maps (x [..., D], is_token) to [..., D],
      with any parameters. is_token is as in `Norm`.
    - axes: axes of the parameters of the module, by the end of their paths.
    """

    function: Callable[..., Array] | None = None
    has_bias: bool = False
    over_batch: bool = False
    module: Callable[[ModelConfig], nn.Module] | None = None
    axes: Mapping[str, Axes] = {}


NORMS: Parts[NormKind] = Parts(
    "model.norm",
    NormKind,
    {
        "layernorm": NormKind(layer_norm, has_bias=True),
        "rmsnorm": NormKind(rms_norm),
        "batchnorm": NormKind(batch_norm, has_bias=True, over_batch=True),
        "dyt": NormKind(
            has_bias=True,
            module=DynamicTanh,
            axes={"alpha": Axes((), ()), "(scale|bias)": Axes((), (None,))},
        ),
        "none": NormKind(),
    },
    methods={"module": ("__call__",)},
)
"""By the values of `model.norm`."""


def make_norm(config: ModelConfig) -> nn.Module:
    """Return the module that normalises over the width of the model: `Norm`, or that of `model.norm` itself."""
    return (NORMS[config.norm].module or Norm)(config)


class Norm(nn.Module):
    """Owns `scale` [D] and, for LayerNorm and BatchNorm with biases, `bias` [D]; nothing if there is no norm.

    With `model.norm_scale=none` there is no `scale`.
    """

    config: ModelConfig

    @property
    def is_over_batch(self) -> bool:
        """Whether it has statistics over the batch, and so reads `is_token`."""
        return NORMS[self.config.norm].over_batch

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch D"], is_token: Bool[Array, "*batch"] | None = None
    ) -> Float[Array, "*batch D"]:
        """Normalise x [..., D].

        Args:
          is_token: [...], the places that statistics over the batch count; None: all.
        """
        config, kind = self.config, NORMS[self.config.norm]
        if kind.function is None:
            return x
        statistics = self._statistics(x, is_token) if self.is_over_batch else ()
        scale = gains(self, config.norm_scale, config.emb_dim)
        if not kind.has_bias:
            return kind.function(x, *statistics, scale, config.norm_epsilon)
        bias = self.param("bias", nn.initializers.zeros, (config.emb_dim,)) if config.use_bias else None
        return kind.function(x, *statistics, scale, bias, config.norm_epsilon)

    def _statistics(self, x: Array, is_token: Array | None) -> tuple[Array, Array]:
        """Return mean and variance [D]: in training those of the batch, collecting their sums, else running averages.

        Raises: ValueError if parameters without running averages are evaluated.
        """
        if is_collecting(self):
            statistics = batch_statistics(x, is_token)
            collect(self, STATISTICS, statistics.sums())
            return statistics.mean, statistics.variance
        if not self.has_variable("params", RUNNING[0]):
            raise ValueError(
                f"{'/'.join(self.path)}: no {RUNNING[0]}; evaluate the parameters of a state with norm='batchnorm' as "
                "TrainState.evaluated returns them"
            )
        mean, variance = (self.get_variable("params", name) for name in RUNNING)
        return mean, variance


def l2_norm(x: Float[Array, "*batch D"], epsilon: float) -> Float[Array, "*batch D"]:
    """Return x / sqrt(|x|^2 + epsilon) over the last axis, [..., D] in the type of x: length 1, and 0 for zeros."""
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.square(x32).sum(-1, keepdims=True) + epsilon)).astype(x.dtype)


class HeadNorm(nn.Module):
    """Owns `scale` [H], the gains of a norm over the features of one head, which all heads share.

    function: of (x, scale, epsilon), such as `rms_norm`. kind: of the gains, a key of `NORM_SCALES`.
    """

    width: int
    epsilon: float
    function: Callable[[Array, Array, float], Array] = rms_norm
    kind: str = "learned"

    @nn.compact
    def __call__(self, x: Float[Array, "*batch N H"]) -> Float[Array, "*batch N H"]:
        """Normalise every head of x by itself."""
        return self.function(x, gains(self, self.kind, self.width), self.epsilon)


class WideNorm(nn.Module):
    """Owns `scale` [N H], the gains of an RMSNorm over all heads of a token together (OLMo et al. 2025, OLMo 2).

    kind: of the gains, a key of `NORM_SCALES`.
    """

    epsilon: float
    kind: str = "learned"

    @nn.compact
    def __call__(self, x: Float[Array, "*batch N H"]) -> Float[Array, "*batch N H"]:
        """Normalise the heads of every token, joined in their order."""
        joined = x.reshape(*x.shape[:-2], -1)
        return rms_norm(joined, gains(self, self.kind, joined.shape[-1]), self.epsilon).reshape(x.shape)


class UnitNorm(nn.Module):
    """Gives every head the length 1 (Henry et al. 2020, section 3), and then its own factor if there are some.

    Owns `scale` [N], the factors, 10 at first; nothing without factors.
    """

    epsilon: float
    has_scale: bool

    @nn.compact
    def __call__(self, x: Float[Array, "*batch N H"]) -> Float[Array, "*batch N H"]:
        """Normalise every head of x by itself."""
        if not self.has_scale:
            return l2_norm(x, self.epsilon)
        scale = self.param("scale", nn.initializers.constant(10.0), x.shape[-2:-1])
        factors = scale.reshape((1,) * (x.ndim - 2) + (-1, 1))
        return (l2_norm(x.astype(jnp.float32), self.epsilon) * factors).astype(x.dtype)


PARAMETER_AXES = {f"(scale|bias|{'|'.join(RUNNING)})": Axes((), (None,))}
"""Axes of the parameters and running averages of `Norm`: vectors of the model's width are not divided."""


def parameter_axes(config: ModelConfig) -> Mapping[str, Axes]:
    """Return the axes of the parameters of `make_norm`, by the end of their paths."""
    kind = NORMS[config.norm]
    return PARAMETER_AXES if kind.module is None else kind.axes
