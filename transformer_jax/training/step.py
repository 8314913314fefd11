"""One update of the parameters, the same function for every launcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from transformer_jax.models.decoder_only import DecoderOnly
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.dropout import Dropout, fold
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.losses import LossSums, chunked_cross_entropy
from transformer_jax.training.optimizers import make_optimizer, updates_made
from transformer_jax.training.schedules import learning_rate
from transformer_jax.training.state import TrainState
from transformer_jax.typing import Array, Batch, Params

Metrics = dict[str, Array]
TrainStep = Callable[..., tuple[TrainState, Metrics]]
Architecture = type[EncoderDecoder] | type[DecoderOnly]


def make_loss(
    static: StaticConfig, architecture: Architecture = EncoderDecoder
) -> Callable[[Params, Batch, Array, Hyper], tuple[Array, LossSums]]:
    """Returns loss(params, batch, step, hyper) -> (sum of the batch's loss, all its sums)."""
    model = architecture(static.model)

    def loss(params: Params, batch: Batch, step: Array, hyper: Hyper) -> tuple[Array, LossSums]:
        dropout = None
        if any(rate is not None for rate in hyper.dropout):
            seed = fold(fold(jnp.uint32(0), hyper.seed), step)
            dropout = Dropout(seed, batch["row_ids"], hyper.dropout)
        x, _ = model.apply({"params": params}, batch, dropout, method=architecture.decoder_output)

        def logits(x: Array) -> Any:
            return model.apply({"params": params}, x, method=architecture.logits)

        sums = chunked_cross_entropy(logits, x, batch["targets"], hyper.label_smoothing, static.loss_chunks)
        return sums.loss, sums

    return loss


def make_gradient(
    static: StaticConfig, architecture: Architecture = EncoderDecoder
) -> Callable[[Params, Batch, Array, Hyper], tuple[Params, LossSums]]:
    """Returns gradient(params, batch, step, hyper) -> gradients of the summed loss, and the sums.

    With accumulation_steps > 1 the batch is computed in that many parts, whose sums are those of the whole.
    """
    value_and_grad = jax.value_and_grad(make_loss(static, architecture), has_aux=True)
    parts = static.accumulation_steps

    def gradient(params: Params, batch: Batch, step: Array, hyper: Hyper) -> tuple[Params, LossSums]:
        if parts == 1:
            (_, sums), grads = value_and_grad(params, batch, step, hyper)
            return grads, sums

        def add(total: tuple[Params, LossSums], part: Batch) -> tuple[tuple[Params, LossSums], None]:
            (_, sums), grads = value_and_grad(params, part, step, hyper)
            return jax.tree.map(jnp.add, total, (grads, sums)), None

        # Every parts-th row goes into one part, so that rows stay on the device that holds them.
        split = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), dict(batch))
        zeros = jax.tree.map(jnp.zeros_like, params), LossSums(*(jnp.zeros(()) for _ in LossSums._fields))
        return jax.lax.scan(add, zeros, split)[0]

    return gradient


def make_train_step(static: StaticConfig, architecture: Architecture = EncoderDecoder) -> TrainStep:
    """Returns train_step(state, batch, hyper, axis_name=None) -> (state, metrics).

    The batch is a dict of `inputs` [B, S], `targets` [B, T] and `row_ids` [B], int32; without `inputs` for an
    architecture that has no encoder. Under `axis_name` it is one
    device's part of a batch: gradients and sums are added over the axis before they are divided by the tokens of all.
    Metrics are float32 scalars: `loss` (label-smoothed) and `nll` in nats per target token, `accuracy` in percent,
    `gradient_norm` before clipping, `learning_rate`, `tokens` (targets without padding), `slots` of inputs
    and targets and `filled`, how many of them are no padding. With `skip_nonfinite` a step
    whose loss or gradient norm is not finite changes nothing but the number of the step.
    """
    gradient = make_gradient(static, architecture)

    def train_step(
        state: TrainState, batch: Batch, hyper: Hyper, axis_name: str | None = None
    ) -> tuple[TrainState, Metrics]:
        grads, sums = gradient(state.params, batch, state.step, hyper)
        sides = [batch[side] for side in ("inputs", "targets") if side in batch]
        filled = jnp.float32(sum(jnp.count_nonzero(ids) for ids in sides))
        slots = jnp.float32(sum(ids.size for ids in sides))
        if axis_name is not None:
            grads, sums, filled, slots = jax.lax.psum((grads, sums, filled, slots), axis_name)
        grads = jax.tree.map(lambda g: g / sums.weight, grads)
        updates, opt_state = make_optimizer(static.schedule, hyper).update(grads, state.opt_state, state.params)
        metrics = {
            "loss": sums.loss / sums.weight,
            "nll": sums.nll / sums.weight,
            "accuracy": 100.0 * sums.correct / sums.weight,
            "gradient_norm": optax.tree.norm(grads),
            "learning_rate": learning_rate(static.schedule, updates_made(state.opt_state) + 1, hyper),
            "tokens": sums.weight,
            "filled": filled,
            "slots": slots,
        }
        updated = jax.tree.map(jnp.add, state.params, updates), opt_state
        if static.skip_nonfinite:
            finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
            updated = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, tuple(state[1:]))
        return TrainState(state.step + 1, *updated), metrics

    return train_step
