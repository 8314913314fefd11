"""Pictures of masks and of the learning-rate schedule, drawn from the functions that training calls."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import RECURRENT, ExperimentConfig
from transformer_jax.inspection.pictures import MASKED, label_ticks, new_figure, save
from transformer_jax.inspection.positions import write_positions
from transformer_jax.nn.masks import causal_mask, padding_mask, segment_mask
from transformer_jax.training.hyper import split
from transformer_jax.training.schedules import learning_rate
from transformer_jax.typing import Params

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 2000
_ATTENDED = "#08519c"
_SOURCE = ["the", "dog", "bites", "</s>", "<pad>", "<pad>"]
_PACKED = ["zwei", "Liter", "</s>", "drei", "</s>", "<pad>"]
_SEGMENTS = [1, 1, 1, 2, 2, 0]


def write_plots(config: ExperimentConfig, params: Params | None, folder: Path) -> dict[Path, str]:
    """Write PNGs of positions, masks and schedule, and return a description of each by its path.

    A recurrent model has neither positions nor masks.

    Args:
      config: resolved. params: those of the trained model; None to draw only what follows from the config.
    """
    files = write_positions(config.model, params, folder)
    if config.model.architecture != RECURRENT:
        files[save(masks_figure(), folder / "masks.png")] = "masks for padding, causality and packed segments"
    files[save(schedule_figure(config), folder / "learning_rate.png")] = (
        f"{config.optimizer.schedule}, warm-up {config.optimizer.warmup_steps:,} of "
        f"{config.training.num_train_steps:,} steps, highest rate {schedule(config).rates.max():.3g}"
    )
    return files


def example_masks() -> dict[str, tuple[list[str], np.ndarray]]:
    """Return tokens and mask [T, T] of three examples, by title; True: the query of a row may attend to the key."""
    is_token = jnp.array([[token != "<pad>" for token in _SOURCE]])
    length, segments = len(_SOURCE), jnp.array([_SEGMENTS])
    padding = np.broadcast_to(np.asarray(padding_mask(is_token).allowed)[0, 0], (length, length))
    causal = np.asarray(causal_mask(length).allowed)[0, 0]
    packed = causal & np.asarray(segment_mask(segments, segments).allowed)[0, 0]
    return {
        "padding: encoder, cross-attention": (_SOURCE, padding),
        "causal: decoder": ([f"t = {t}" for t in range(length)], causal),
        "causal, two packed sentences": (_PACKED, packed),
    }


def masks_figure() -> Figure:
    """Return a figure of the masks of `example_masks`, dark where a query may attend."""
    from matplotlib.colors import ListedColormap

    figure = new_figure(10.5, 4, layout="constrained")
    for axes, (title, (tokens, mask)) in zip(figure.subplots(1, 3), example_masks().items(), strict=True):
        axes.imshow(mask, cmap=ListedColormap([MASKED, _ATTENDED]), vmin=0, vmax=1)
        label_ticks(axes, tokens, tokens, size=10)
        axes.set_xticks(np.arange(len(tokens) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(tokens) + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)
        axes.set_xlabel(title)
    figure.suptitle("Masks: a query (row) may attend to the keys (columns) that are dark")
    return figure


class Schedule(NamedTuple):
    """Numbers of updates, from 1, and their learning rates; both [updates]."""

    steps: np.ndarray
    rates: np.ndarray


def schedule(config: ExperimentConfig) -> Schedule:
    """Return numbers of updates, from 1 to the last, and their learning rates, for about 2,000 updates at most.

    The first update, the last one, and the one at the end of the warm-up are always included.
    """
    total, hyper = config.training.num_train_steps, split(config)[1]
    steps = np.unique(np.linspace(1, total, min(total, _POINTS)).astype(np.int64))
    if 1 <= config.optimizer.warmup_steps <= total:
        steps = np.union1d(steps, [config.optimizer.warmup_steps])
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
