"""Muon: the momentum of hidden matrices, made nearly orthogonal; all other parameters have AdamW.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon, with the code of its repository. Which parameters
are hidden matrices follows from their axes (nn/axes.py). The matrices of an array, such as the layers of a stack, the
experts and the gates of a recurrent cell, are orthogonalised one by one; the heads of a layer are one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float

from transformer_jax.errors import ConfigError
from transformer_jax.nn.axes import Axes, ParameterAxes, axes_of
from transformer_jax.typing import Array, Params

MUON, ADAM = "muon", "adam"
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
_LEAST_NORM = 1e-7


def orthogonalised(x: Float[Array, "*maps m n"]) -> Float[Array, "*maps m n"]:
    """Return five steps of a Newton-Schulz iteration for every matrix of x, in the type of x.

        X = x / (|x| + 1e-7) with the Frobenius norm; then five times
        A = X X^T,  X = a X + (b A + c A A) X

    The singular vectors stay. A singular value of at least 0.01 of the norm becomes one between 0.68 and 1.14. These
    coefficients do not converge to 1: they are chosen for small values to grow quickly (Jordan et al. 2024).
    """
    a, b, c = COEFFICIENTS
    norm = jnp.sqrt(jnp.square(x).sum((-2, -1), keepdims=True))
    is_tall = x.shape[-2] > x.shape[-1]  # then the products X^T X are smaller

    def step(x: Array, _: None) -> tuple[Array, None]:
        gram = x @ x.mT
        return a * x + (b * gram + c * (gram @ gram)) @ x, None

    x = x / (norm + _LEAST_NORM)
    y, _ = jax.lax.scan(step, x.mT if is_tall else x, None, length=STEPS)
    return y.mT if is_tall else y


def _spectral(inputs: int, outputs: int) -> float:
    """sqrt(max(1, outputs / inputs)) (Jordan et al. 2024): the best learning rate hardly depends on the width."""
    return math.sqrt(max(1.0, outputs / inputs))


def _rms(inputs: int, outputs: int) -> float:
    """0.2 sqrt(max(inputs, outputs)) (Liu et al. 2025, section 2.2): numbers as large as those of Adam's updates."""
    return 0.2 * math.sqrt(max(inputs, outputs))


SCALES: dict[str, Callable[[int, int], float]] = {"rms": _rms, "spectral": _spectral}
"""By the values of `optimizer.muon_scale`: the factor of an update of a matrix [inputs, outputs]."""


class MuonState(NamedTuple):
    """The momentum of every matrix."""

    momentum: Params


def scale_by_muon(momentum: Array | float, scale: str, table: ParameterAxes) -> optax.GradientTransformation:
    """Return the rule for hidden matrices, which are all of its parameters.

        m = mu m + (1 - mu) g,  u = mu m + (1 - mu) g    (Nesterov's momentum, as the code has it)
        update = factor orthogonalised(u)

    Args:
      momentum: mu; scale: key of `SCALES`.
    """

    def averaged(old: Array, gradient: Array) -> Array:
        return momentum * old + (1.0 - momentum) * gradient

    def of_leaf(path: jax.tree_util.KeyPath, x: Array) -> Array:
        axes = axes_of(_path(path), table)
        assert axes is not None
        return _by_matrix(lambda m: SCALES[scale](*m.shape[-2:]) * orthogonalised(m), x, axes)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, MuonState]:
        new = jax.tree.map(averaged, state.momentum, updates)
        ahead = jax.tree.map(averaged, new, updates)
        return jax.tree_util.tree_map_with_path(of_leaf, ahead), MuonState(new)

    return optax.GradientTransformation(lambda params: MuonState(jax.tree.map(jnp.zeros_like, params)), update)


def partitioned(
    matrices: optax.GradientTransformation, others: optax.GradientTransformation, table: ParameterAxes | None
) -> optax.GradientTransformation:
    """Return the rule that updates hidden matrices by one rule and all other parameters by another; see `routes`."""
    return optax.partition({MUON: matrices, ADAM: others}, lambda params: routes(params, table))


def adam_rates(factor: Array | float, table: ParameterAxes | None) -> optax.GradientTransformation:
    """Return the multiplication of the updates of Adam's parameters."""

    def scaled(updates: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda x, name: factor * x if name == ADAM else x, updates, routes(updates, table))

    return optax.stateless(scaled)


def routes(params: Params, table: ParameterAxes | None) -> Any:
    """Return a tree with `muon` for hidden matrices and `adam` for all other parameters, those of a head too.

    Raises:
      ConfigError: there are no axes, or no hidden matrix is trained. ValueError: a parameter has no entry in the table,
        or more than one.
    """
    if table is None:
        raise ConfigError(
            "optimizer.name='muon' needs to know which parameters are matrices, but this architecture does not define "
            "Architecture.parameter_axes; choose another optimizer"
        )

    def of_leaf(path: jax.tree_util.KeyPath, _: Any) -> str:
        axes = axes_of(_path(path), table)
        return MUON if axes is not None and axes.is_hidden else ADAM

    result = jax.tree_util.tree_map_with_path(of_leaf, params)
    if MUON not in jax.tree.leaves(result):
        raise ConfigError(
            "optimizer.name='muon': no hidden matrix is trained, so all updates would be Adam's; choose "
            "optimizer.name='adam', or freeze less"
        )
    return result


def newton_schulz_flops(shape: Sequence[int], axes: Axes) -> int:
    """Return the operations of the products in an update of an array: 5 (4 m^2 n + 2 m^3) per matrix, m <= n."""
    names = len(axes.names)
    own = shape[len(shape) - names :]
    inputs, outputs = math.prod(own[: len(axes.inputs)]), math.prod(own[names - len(axes.outputs) :])
    m, n = sorted((inputs, outputs))
    return math.prod(shape) // (m * n) * STEPS * (4 * m**2 * n + 2 * m**3)


def _by_matrix(function: Callable[[Array], Array], x: Array, axes: Axes) -> Array:
    """Return function([..., rows, columns]) of an array, in the layout of the array."""
    inputs, maps = len(axes.inputs), len(axes.maps)
    first = x.ndim - len(axes.names)
    between, front = range(first + inputs, first + inputs + maps), range(first, first + maps)
    moved = jnp.moveaxis(x, between, front)  # [..., *inputs, *maps, *outputs] -> [..., *maps, *inputs, *outputs]
    rows = math.prod(moved.shape[first + maps : first + maps + inputs])
    y = function(moved.reshape(*moved.shape[: first + maps], rows, -1))
    return jnp.moveaxis(y.reshape(moved.shape), front, between)


def _path(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
