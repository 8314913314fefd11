"""Losses of blocks, which a step adds to the loss of the task: sums over tokens that the blocks collect.

Such a loss is a mean over the tokens of a block, or a product of two means, such as a balance of load, so it is no sum
over rows. It is one when the divisors, and one factor without a gradient, are those of the whole batch. So the step
first adds these over devices and parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from transformer_jax.nn import experts
from transformer_jax.nn.collected import by_block
from transformer_jax.training.hyper import Hyper
from transformer_jax.typing import Array, Params

BlockSums = Mapping[str, Array]


class BlockLoss(NamedTuple):
    """A loss that blocks emit.

    function: (sums, whole) -> [], the share of a part of the batch in the loss of a block, from what the block stored
    with `collect`. The part gives `sums`; `whole` are those of the whole batch that `of_batch` names. With equal
    `whole`, the shares of two parts must add up to that of both. The arrays of L layers have one more axis, in front.
    weight: its factor in the loss that is differentiated, beside the mean loss of the task; None: the loss is off, and
    only reported.
    of_batch: names of sums; no gradient passes through them.
    """

    function: Callable[[BlockSums, BlockSums], Array]
    weight: Callable[[Hyper], Array | float | None]
    of_batch: tuple[str, ...] = ()


BLOCK_LOSSES: dict[str, BlockLoss] = {
    experts.BALANCE: BlockLoss(experts.balance_loss, lambda hyper: hyper.balance_loss, of_batch=("count", "tokens")),
    experts.ROUTER_Z: BlockLoss(experts.router_z_loss, lambda hyper: hyper.router_z_loss, of_batch=("tokens",)),
}
"""By the name under which blocks collect the sums; also the name of the metric, the loss before its weight."""


def batch_sums(collected: Params) -> Params:
    """Return, of what a part of a batch collected, the sums that losses need of the whole batch; without gradient."""
    needed = {
        name: {path: {key: sums[key] for key in loss.of_batch} for path, sums in by_block(collected, name).items()}
        for name, loss in BLOCK_LOSSES.items()
    }
    return jax.lax.stop_gradient(needed)


def block_losses(collected: Params, whole: Params) -> dict[str, Array]:
    """Return the losses that blocks emitted, [], by name, added over blocks; without their weights.

    Args:
      collected: of a part of a batch. whole: `batch_sums` of the whole batch.
    """
    losses: dict[str, Any] = {}
    for name, loss in BLOCK_LOSSES.items():
        values = [loss.function(sums, whole[name][path]) for path, sums in by_block(collected, name).items()]
        if values:
            losses[name] = sum(values[1:], start=values[0])
    return losses
