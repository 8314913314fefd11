"""Losses of blocks, which a step adds to the loss of the task: sums over tokens that the blocks collect.

A loss that is a product of two means over the batch, such as a balance of load, is no sum over rows. It is one when a
factor without a gradient is that of the whole batch. So the step first adds such sums over devices and parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from transformer_jax.nn.collected import by_block, over_devices
from transformer_jax.training.hyper import Hyper
from transformer_jax.typing import Array, Params

BlockSums = Mapping[str, Array]


class BlockLoss(NamedTuple):
    """A loss that blocks emit.

    function: (sums, whole) -> [], the loss of a block as a sum over tokens, from what it stored with `collect`. A part
    of the batch gives `sums`; `whole` are those of the whole batch that `of_batch` names. With equal `whole`, the
    losses of two parts must add up to that of both. The arrays of L layers have one more axis, in front.
    weight: its factor in the loss that is differentiated.
    of_batch: names of sums; no gradient passes through them.
    """

    function: Callable[[BlockSums, BlockSums], Array]
    weight: Callable[[Hyper], Array | float]
    of_batch: tuple[str, ...] = ()


BLOCK_LOSSES: dict[str, BlockLoss] = {}
"""By the name under which blocks collect the sums; also the name of the metric, the loss per unit of weight."""


def batch_sums(collected: Params) -> Params:
    """Return, of what a part of a batch collected, the sums that losses need of the whole batch; without gradient."""
    needed = {
        name: {path: {key: sums[key] for key in loss.of_batch} for path, sums in by_block(collected, name).items()}
        for name, loss in BLOCK_LOSSES.items()
    }
    return jax.lax.stop_gradient(needed)


def block_losses(collected: Params, whole: Params | None = None) -> dict[str, Array]:
    """Return the losses that blocks emitted, [], by name, added over blocks; without their weights.

    Args:
      collected: of a part of a batch. whole: `batch_sums` of the whole batch; None: all rows of each device are here.
    """
    whole = over_devices(batch_sums(collected)) if whole is None else whole
    losses: dict[str, Any] = {}
    for name, loss in BLOCK_LOSSES.items():
        values = [loss.function(sums, whole[name][path]) for path, sums in by_block(collected, name).items()]
        if values:
            losses[name] = sum(values[1:], start=values[0])
    return losses
