"""Floating-point operations of the optimizer, counted in its program."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.config import ExperimentConfig, layer_numbers
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.nn.axes import axes_of
from transformer_jax.tasks.task import param_shapes
from transformer_jax.training.freezing import trained_part
from transformer_jax.training.hyper import split
from transformer_jax.training.muon import MUON, newton_schulz_flops, routes
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.state import state_shapes

_PER_OUTPUT = {
    *("add", "sub", "mul", "div", "max", "min", "neg", "sign", "abs", "square", "sqrt", "rsqrt", "pow", "integer_pow"),
    *("exp", "log", "log1p", "expm1", "tanh", "logistic"),
}
_PER_INPUT = {"reduce_sum", "reduce_max", "reduce_min"}


def optimizer_flops(config: ExperimentConfig) -> int:
    """Return the operations of one update: clipping, update rule, decay, and the sum with the parameters.

    A multiply-add of a matrix product counts as 2, and any other arithmetic function as 1 per element. Choices between
    values, copies and conversions are not counted. Of branches, the longest is.
    """
    static, hyper = split(config)
    state = state_shapes(static, hyper)
    numbers = layer_numbers(static.model)
    axes, freeze = parameter_axes(static.model), config.optimizer.freeze
    optimizer = make_optimizer(static.optimizer, hyper, numbers, axes)

    def update(gradients: Any, opt_state: Any, params: Any) -> Any:
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return jax.tree.map(jnp.add, trained_part(freeze, params, numbers), updates), opt_state

    gradients = jax.eval_shape(lambda params: trained_part(freeze, params, numbers), state.params)
    return _operations(jax.make_jaxpr(update)(gradients, state.opt_state, state.params).jaxpr)


def muon_flops(config: ExperimentConfig) -> int:
    """Return the part of `optimizer_flops` for the matrix products of Muon; 0 for another rule."""
    rules, axes = optimizer_rules(config), parameter_axes(config.model)
    if MUON not in rules.values():
        return 0
    assert axes is not None
    total = 0
    for path, x in _trained_shapes(config).items():
        if rules[path] == MUON and (own := axes_of(path, axes)) is not None:
            total += newton_schulz_flops(x.shape, own)
    return total


def optimizer_rules(config: ExperimentConfig) -> dict[str, str]:
    """Return the update rule of every parameter by its path; that of a parameter frozen as a whole is `none`."""
    trained = _trained_shapes(config)
    found = dict.fromkeys(trained, config.optimizer.name)
    if config.optimizer.name == MUON:
        found = routes(trained, parameter_axes(config.model))
    return {path: found.get(path, "none") for path in _by_path(param_shapes(config))}


def _trained_shapes(config: ExperimentConfig) -> dict[str, Any]:
    """Return shapes and types of the trained parts of parameters by path."""
    shapes, numbers = param_shapes(config), layer_numbers(config.model)
    return _by_path(jax.eval_shape(lambda params: trained_part(config.optimizer.freeze, params, numbers), shapes))


def _by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _operations(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "integer_pow" and equation.params["y"] == 1:  # Optax writes m's gradient as a power of 1
            continue
        if name in _PER_OUTPUT:
            total += equation.outvars[0].aval.size
        elif name in _PER_INPUT:
            total += equation.invars[0].aval.size
        elif name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        values = jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: _inner(value) is not None)
        inner = [_operations(_inner(value)) for value in values if _inner(value) is not None]
        if name == "cond":
            total += max(inner, default=0)
        else:
            total += equation.params.get("length", 1) * sum(inner) if name == "scan" else sum(inner)
    return total


def _inner(value: Any) -> Any:
    """Return the program in a parameter of an equation; None if it holds none."""
    return getattr(value, "jaxpr", value if hasattr(value, "eqns") else None)
