"""Pictures of positions, masks and the learning-rate schedule, drawn from the functions that training calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import RECURRENT, ExperimentConfig
from transformer_jax.inspection.drawing import write_drawing
from transformer_jax.inspection.mask_drawing import masks_drawing
from transformer_jax.inspection.pictures import new_figure, save
from transformer_jax.inspection.positions import write_positions
from transformer_jax.training.hyper import split
from transformer_jax.training.schedules import learning_rate
from transformer_jax.typing import Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 2000


def write_plots(config: ExperimentConfig, params: Params | None, folder: Path) -> dict[Path, str]:
    """Write PNGs of positions, masks and schedule, and return a description of each by its path.

    A recurrent model has neither positions nor masks.

    Args:
      config: resolved. params: those of the trained model; None to draw only what follows from the config.
    """
    files = write_positions(config.model, params, folder)
    if config.model.architecture != RECURRENT:
        file = write_drawing(masks_drawing(), folder / "masks.png")
        files[file] = "masks of encoder, decoder, cross-attention, packed rows and prefixes"
    files[save(schedule_figure(config), folder / "learning_rate.png")] = (
        f"{config.optimizer.schedule}, warm-up {config.optimizer.warmup_steps:,} of "
        f"{config.training.num_train_steps:,} steps, highest rate {schedule(config).rates.max():.3g}"
    )
    return files


class Schedule(NamedTuple):
    """Numbers of updates, from 1, and their learning rates; both [updates]."""

    steps: np.ndarray
    rates: np.ndarray


def schedule(config: ExperimentConfig) -> Schedule:
    """Return numbers of updates, from 1 to the last, and their learning rates, for about 2,000 updates at most.

    The first update, the last one, the one at the end of the warm-up and the last one before the decay of `wsd` are
    always included.
    """
    total, hyper, optimizer = config.training.num_train_steps, split(config)[1], config.optimizer
    steps = np.unique(np.linspace(1, total, min(total, _POINTS)).astype(np.int64))
    corners = [optimizer.warmup_steps, *([optimizer.decay_start] if optimizer.schedule == "wsd" else [])]
    steps = np.union1d(steps, [corner for corner in corners if 1 <= corner <= total]).astype(np.int64)
    rates = learning_rate(config.optimizer.schedule, jnp.asarray(steps, jnp.float32), hyper)
    return Schedule(steps, np.broadcast_to(np.asarray(rates), steps.shape))


def schedule_figure(config: ExperimentConfig) -> Figure:
    """Return a figure of the learning rate during training."""
    figure = new_figure(7, 3.8, layout="constrained")
    axes = figure.subplots()
    axes.plot(*schedule(config))
    axes.set(xlabel="update", ylabel="learning rate", xlim=(0, config.training.num_train_steps), ylim=(0, None))
    axes.set_title(f"Learning rate: {config.optimizer.schedule}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return figure
