"""The optimizer: an Optax chain. All numbers of `Hyper` may be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import OptimizerConfig
from transformer_jax.errors import ConfigError
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.registry import Functions, Registry
from transformer_jax.training.freezing import LayerNumbers, multiplied, multipliers, trained_part, with_multipliers
from transformer_jax.training.hyper import Hyper
from transformer_jax.training.muon import adam_rates, partitioned, scale_by_muon
from transformer_jax.training.schedules import as_optax, learning_rate
from transformer_jax.typing import Array, Params

_LEAST_FACTORED = 128  # Shazeer and Stern factor all matrices; small ones gain nothing


def make_optimizer(
    static: OptimizerConfig, hyper: Hyper, numbers: LayerNumbers | None = None, axes: ParameterAxes | None = None
) -> optax.GradientTransformation:
    """Return the optimizer.

    It clips by global norm, then applies the rule of `OPTIMIZERS`, decoupled weight decay (Loshchilov and Hutter 2019),
    the learning rate and the multipliers of parameters: `adam_rate_factor`, `layer_decay` and `lr_multipliers`. Weight
    decay that is independent of the learning rate comes last.

    Its parameters are all of the model. Gradients, state and updates are trees like `trained_part` of them.

    Args:
      numbers: of the layers, as in `trained_part`. axes: of the parameters; `muon` needs them.
    """

    def trained(params: Params) -> Params:
        return trained_part(static.freeze, params, numbers)

    parts = [] if hyper.clip_norm is None else [optax.clip_by_global_norm(hyper.clip_norm)]
    parts += _rule(static, hyper, axes)
    if hyper.weight_decay is not None:
        # The place in the chain is a part of the paths in checkpoints.
        parts.append(optax.identity() if static.weight_decay_independent else _decayed(static, hyper.weight_decay))
    parts.append(optax.scale_by_learning_rate(as_optax(static.schedule, hyper)))
    if hyper.adam_rate_factor is not None:
        parts.append(adam_rates(hyper.adam_rate_factor, axes))
    chain = optax.chain(*parts)

    def init(params: Any) -> Any:
        multiplied(static, params, numbers)  # raises before anything is compiled
        return chain.init(trained(params))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        made = updates_made(state)
        updates, state = chain.update(updates, state, trained(params))
        if hyper.layer_decay is not None:
            factors = trained(multipliers(params, hyper.layer_decay, numbers))
            updates = jax.tree.map(jnp.multiply, updates, factors)
        if static.lr_multipliers:
            updates = with_multipliers(static, updates, params, hyper.lr_multipliers, numbers)
        if hyper.weight_decay is not None and static.weight_decay_independent:
            shape = learning_rate(static.schedule, made + 1, hyper._replace(learning_rate=1.0))
            updates = _with_decay(static, updates, trained(params), shape * hyper.weight_decay, sign=-1)
        return updates, state

    return optax.GradientTransformation(init, update)


def _decayed(static: OptimizerConfig, decay: Array | float) -> optax.GradientTransformation:
    """Return the transformation of updates u, before the learning rate, to u + decay w for parameters w."""
    if not static.weight_decay_cautious:
        return optax.add_decayed_weights(decay, mask=DECAY_MASKS[static.decay_mask])
    return optax.stateless(lambda updates, params: _with_decay(static, updates, params, decay, sign=1))


def _with_decay(static: OptimizerConfig, updates: Any, params: Any, decay: Array | float, sign: int) -> Any:
    """Return updates u + sign decay w for the parameters w of `decay_mask`.

    With `weight_decay_cautious`, elements where u and sign w have opposite signs do not decay: there the update moves
    the parameter away from zero (Chen et al. 2025, "Cautious Weight Decay"). An element with u = 0 decays.

    Args: sign: 1 for updates that will be subtracted from the parameters, -1 for those that will be added.
    """

    def of_leaf(decays: bool, u: Array, w: Array) -> Array:
        if not decays:
            return u
        change = sign * decay * w
        if static.weight_decay_cautious:
            change = jnp.where(sign * jnp.sign(u) * jnp.sign(w) >= 0, change, 0.0)
        return u + change

    return jax.tree.map(of_leaf, DECAY_MASKS[static.decay_mask](params), updates, params)


Rule = Callable[[OptimizerConfig, Hyper, ParameterAxes | None], list[optax.GradientTransformation]]


def _adam(static: OptimizerConfig, hyper: Hyper, axes: ParameterAxes | None) -> list[optax.GradientTransformation]:
    """m / (sqrt(v) + epsilon) with bias-corrected moments (Kingma and Ba 2015, algorithm 1)."""
    rule = optax.scale_by_adam(hyper.beta1, hyper.beta2, hyper.epsilon)
    return [_stored(rule, mu=static.momentum_dtype, nu=static.second_moment_dtype)]


def _sgd(static: OptimizerConfig, hyper: Hyper, axes: ParameterAxes | None) -> list[optax.GradientTransformation]:
    """m = beta1 m + g; with `nesterov`, g + beta1 m (Sutskever et al. 2013, section 2)."""
    return [_stored(optax.trace(hyper.beta1, nesterov=static.nesterov), trace=static.momentum_dtype)]


def _lion(static: OptimizerConfig, hyper: Hyper, axes: ParameterAxes | None) -> list[optax.GradientTransformation]:
    """sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g (Chen et al. 2023, algorithm 2)."""
    return [_stored(optax.scale_by_lion(hyper.beta1, hyper.beta2), mu=static.momentum_dtype)]


def _adafactor(static: OptimizerConfig, hyper: Hyper, axes: ParameterAxes | None) -> list[optax.GradientTransformation]:
    """g / sqrt(v) without momentum, its root mean square clipped to 1 (Shazeer and Stern 2018, algorithm 4).

    For matrices with two axes of 128 or more, v is the product of its averages over rows and columns.
    """
    parts = [
        optax.scale_by_factored_rms(decay_rate=static.decay_exponent, min_dim_size_to_factor=_LEAST_FACTORED),
        optax.clip_by_block_rms(1.0),
    ]
    return [*parts, optax.scale_by_param_block_rms()] if static.scale_by_parameter else parts


def _muon(static: OptimizerConfig, hyper: Hyper, axes: ParameterAxes | None) -> list[optax.GradientTransformation]:
    """Orthogonalised momentum for hidden matrices, Adam for all other parameters (Jordan et al. 2024)."""
    rule = scale_by_muon(hyper.muon_momentum, static.muon_scale, axes or {})
    [adam] = _adam(static, hyper, axes)
    return [partitioned(_stored(rule, momentum=static.momentum_dtype), adam, axes)]


OPTIMIZERS: Registry[Rule] = Functions(
    "optimizer.name",
    ("static", "hyper", "axes"),
    {"adam": _adam, "sgd": _sgd, "adafactor": _adafactor, "lion": _lion, "muon": _muon},
)
"""Update rules by the values of `optimizer.name`: transformations of clipped gradients to updates, before the decay.

A rule from outside may return one transformation in place of a list.
"""


def _rule(static: OptimizerConfig, hyper: Hyper, axes: ParameterAxes | None) -> list[optax.GradientTransformation]:
    """Return the transformations of the rule; raises ConfigError if it returns anything else."""
    found: Any = OPTIMIZERS[static.name](static, hyper, axes)
    parts = [found] if isinstance(found, optax.GradientTransformation) else found
    if isinstance(parts, list) and all(isinstance(part, optax.GradientTransformation) for part in parts):
        return parts
    raise ConfigError(
        f"config: optimizer.name='{static.name}' returned {type(found).__name__}; expected an "
        "optax.GradientTransformation, or a list of them"
    )


def _stored(rule: optax.GradientTransformation, **dtypes: str) -> optax.GradientTransformation:
    """Return the rule with fields of its state stored in other types; it computes in float32.

    Args:
      dtypes: type by name of the field.
    """
    narrow = {field: dtype for field, dtype in dtypes.items() if dtype != "float32"}
    if not narrow:
        return rule

    def cast(state: Any, dtype: str | None = None) -> Any:
        trees = {field: optax.tree.cast(getattr(state, field), dtype or stored) for field, stored in narrow.items()}
        return state._replace(**trees)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, state = rule.update(updates, cast(state, "float32"), params)
        return updates, cast(state)

    return optax.GradientTransformation(lambda params: cast(rule.init(params)), update)


def updates_made(opt_state: Any) -> Array:
    """Return the number of updates in the optimizer's state, int32 []; the schedule depends on it."""
    # The rule may have a schedule of its own; the learning rate comes last.
    return [part.count for part in opt_state if isinstance(part, optax.ScaleByScheduleState)][-1]


def _by_name(decays: Callable[[str], bool]) -> Callable[[Params], Any]:
    """Return the function from parameters to a tree of bools by the last part of their paths.

    Parameters are selected by name, not by rank: the scale of a norm has two axes where layers are stacked.
    """
    return lambda params: jax.tree_util.tree_map_with_path(lambda path, _: decays(path[-1].key), params)


DECAY_MASKS = {
    "matrices": _by_name(lambda name: name == "kernel"),
    "all_but_norms_and_biases": _by_name(lambda name: name not in ("scale", "bias", "sinks", "alpha")),
    "all": _by_name(lambda name: True),
}
"""By the values of `optimizer.decay_mask`: from parameters to a tree of bools, True for weight decay."""
