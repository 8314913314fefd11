"""Named trees of `TrainState.extra`: how they start, follow the updates, and change the weights that are scored.

`evaluated` is the one definition of the weights that passes outside of training read: validations of a training and its
best checkpoint, `evaluate`, `generate`, `predict`, `score`, `compare`, `convert`, ensembles, averages of checkpoints
and `training.init_from`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from transformer_jax.checkpoints.checksums import by_path, tree_of
from transformer_jax.checkpoints.store import EXTRA, PARAMS
from transformer_jax.errors import CheckpointError
from transformer_jax.models.architecture import Initial
from transformer_jax.nn.batch_norm import STATISTICS, updated_running, with_running
from transformer_jax.training.hyper import Hyper
from transformer_jax.typing import Array, Params

RAW = "raw"
"""The kind of the weights that the optimizer updates, where another tree has those that are scored."""


AVERAGE = "average"
"""Name of the exponential moving average of the weights, and of the running averages of norms."""


def decay_at(number: Int[Array, ""], decay: Array | float) -> Float[Array, ""]:
    """Return the share that the average keeps at update t = `number`, from 1: min(decay, (1 + t) / (10 + t)), [].

    So it soon forgets the initial values. The rule is that of TensorFlow's `ExponentialMovingAverage`, `num_updates`.
    """
    return jnp.minimum(decay, (1 + number) / (10 + number))


def averaged(average: Params, params: Params, decay: Float[Array, ""]) -> Params:
    """Return decay * average + (1 - decay) * params, for every array.

    It is computed as params + decay * (average - params). So the average of weights that never change, such as frozen
    ones, equals them exactly.
    """
    return jax.tree.map(lambda old, new: new + decay * (old - new), average, params)


class Update(NamedTuple):
    """An update of the parameters.

    number: 1 for the first update of a run, int32 []; skipped steps do not count. statistics: the sums of norms over
    the batch.
    """

    number: Array
    statistics: Params
    hyper: Hyper


class Extra(NamedTuple):
    """A tree of the state beside the parameters. Its arrays have the paths under which a pass reads them.

    is_on: (initial, hyper) -> whether a run has this tree. init: (params, initial) -> the tree before the first update.
    update: (tree, params, update) -> the tree after an update. evaluated: (params, tree) -> the parameters that passes
    outside of training read. In all three, `params` are the new parameters with the trees of earlier entries of EXTRAS.
    field: the field of the config that turns the tree on. weights: what kind of weights `evaluated` returns, such as
    `averaged`; empty if it keeps the parameters.
    """

    is_on: Callable[[Initial, Hyper], bool]
    init: Callable[[Params, Initial], Any]
    update: Callable[[Any, Params, Update], Any]
    evaluated: Callable[[Params, Any], Params]
    field: str
    weights: str = ""


def _updated_average(average: Params, params: Params, update: Update) -> Params:
    decay = update.hyper.ema_decay
    assert decay is not None
    return averaged(average, params, decay_at(update.number, decay))


EXTRAS: dict[str, Extra] = {
    STATISTICS: Extra(
        is_on=lambda initial, hyper: bool(initial.running),
        init=lambda params, initial: initial.running,
        update=lambda running, params, update: updated_running(running, update.statistics),
        evaluated=with_running,
        field="model.norm=batchnorm",
    ),
    AVERAGE: Extra(
        is_on=lambda initial, hyper: hyper.ema_decay is not None,
        init=lambda params, initial: jax.tree.map(jnp.copy, params),
        update=_updated_average,
        evaluated=lambda params, average: average,
        field="training.ema_decay",
        weights="averaged",
    ),
}
"""The trees by their names in `TrainState.extra`, in the order in which they are updated and evaluated."""


def initial_extra(initial: Initial, hyper: Hyper) -> dict[str, Any]:
    """Return the trees of a run before its first update, by name; empty if all are off."""
    params, extra = initial.params, {}
    for name, kind in EXTRAS.items():
        if kind.is_on(initial, hyper):
            extra[name] = kind.init(params, initial)
            params = kind.evaluated(params, extra[name])
    return extra


def updated_extra(extra: Mapping[str, Any], params: Params, update: Update) -> dict[str, Any]:
    """Return the trees of a state after an update, by name, without those that EXTRAS does not have.

    Args:
      extra: before the update. params: after it.
    """
    new: dict[str, Any] = {}
    for name, kind in _in(extra):
        new[name] = kind.update(extra[name], params, update)
        params = kind.evaluated(params, new[name])
    return new


def evaluated(params: Params, extra: Mapping[str, Any], raw: bool = False) -> Params:
    """Return the parameters of a state as passes outside of training read them, with the running averages of norms.

    Args:
      raw: take the weights that the optimizer updates, even if a tree of `extra` replaces them.
    """
    for name, kind in _in(extra):
        if not (raw and kind.weights):
            params = kind.evaluated(params, extra[name])
    return params


def weights_of(extra: Iterable[str]) -> str:
    """Return the kind of weights that the trees of these names score in place of the parameters; empty if none does."""
    return next((kind.weights for name, kind in EXTRAS.items() if name in extra and kind.weights), "")


def stored_paths(paths: Iterable[str], raw: bool = False) -> dict[str, str]:
    """Return where a checkpoint stores the arrays of `evaluated`: the path in the state by the path in a pass.

    Args:
      paths: of the arrays of a state, such as `params/output/kernel` and `extra/statistics/encoder/norm/running_mean`.
    Raises: CheckpointError if no state has such paths.
    """
    try:
        tree = tree_of({path: path for path in paths if path.startswith((f"{PARAMS}/", f"{EXTRA}/"))})
        return by_path(evaluated(tree.get(PARAMS, {}), tree.get(EXTRA, {}), raw))
    except (AttributeError, TypeError) as error:  # an array where another path has a folder
        raise CheckpointError("its arrays have the paths of no training state") from error


def _in(extra: Mapping[str, Any]) -> list[tuple[str, Extra]]:
    return [(name, kind) for name, kind in EXTRAS.items() if name in extra]
