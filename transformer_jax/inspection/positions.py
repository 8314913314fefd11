"""Pictures of the position encoding of a model, for every value of `model.position_encoding`, as configured or trained.

The inner product of two encodings is the similarity of two positions before training. For sinusoids it depends only on
the distance d: PE(p) . PE(p + d) = sum_i cos(d / 10000^(2i/D)). Rotary encoding gives the same sum for a query and a
key, with its own base and with H in place of D. For learned tables it is the result of training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import RECURRENT, ModelConfig
from transformer_jax.inspection.pictures import SIGNED, new_figure, save
from transformer_jax.nn.positions import relative_buckets, rotary, sinusoidal, sinusoidal_2d
from transformer_jax.typing import Params

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STACKS = ("encoder", "decoder")
_STACKS_OF = {"encoder_only": ("encoder",), "decoder_only": ("decoder",)}
SHOWN = 512
"""Most positions to draw of an encoding that is defined for any position."""


def similarity_by_distance(table: np.ndarray) -> np.ndarray:
    """Return the inner products of the rows of a table by distance, [2 P - 1] for distances -(P - 1) to P - 1.

    Each is the mean over all pairs of rows at that distance, divided by the mean squared norm, so that it is 1 at
    distance 0.

    Args:
      table: [P, D].
    """
    table = table.astype(np.float64)
    products, length = table @ table.T, len(table)
    means = [np.diagonal(products, distance).mean() for distance in range(1 - length, length)]
    return np.array(means) / np.mean(np.sum(table**2, axis=-1))


def sinusoid_table(config: ModelConfig) -> np.ndarray:
    """Return the table that the model adds to its embeddings: [P, D] for the first P positions, at most `SHOWN`."""
    return np.asarray(sinusoidal(jnp.arange(min(config.num_positions, SHOWN)), config.emb_dim))


def rotary_table(config: ModelConfig) -> np.ndarray:
    """Return the pair (1, 0) of every plane, rotated by each position: [P, H] for the first P <= `SHOWN` positions.

    With a `rotary_fraction`, only the dimensions that it rotates.
    """
    length = min(config.num_positions, SHOWN)
    start = jnp.tile(jnp.array([1.0, 0.0]), config.rotary_dim // 2)
    heads = jnp.broadcast_to(start, (1, length, 1, config.rotary_dim))
    return np.asarray(rotary(heads, jnp.arange(length)[None], config.rotary_base)[0, :, 0])


def learned_tables(params: Params) -> dict[str, np.ndarray]:
    """Return the learned position tables [num_positions, D] by stack."""
    stacks = [stack for stack in STACKS if stack in params]
    tables = {stack: params[stack]["position_embedding"]["learned"]["embedding"] for stack in stacks}
    return {stack: np.asarray(table) for stack, table in tables.items()}


def relative_biases(config: ModelConfig, params: Params) -> dict[str, np.ndarray]:
    """Return the trained biases that are added to attention logits, by stack.

    Returns: [2 P - 1, N] for distances (key position - query position) -(P - 1) to P - 1, with P = max_length; NaN for
      distances that the decoder's mask excludes.
    """
    result = {}
    for stack in (stack for stack in STACKS if stack in params):
        table = np.asarray(params[stack]["relative_bias"]["embedding"], np.float64)
        biases = table[_buckets(config, stack)]
        if stack == "decoder":
            biases[config.num_positions :] = np.nan
        result[stack] = biases
    return result


def _distances(length: int) -> np.ndarray:
    return np.arange(1 - length, length)


def _buckets(config: ModelConfig, stack: str) -> np.ndarray:
    """Return the bucket of every distance, [2 P - 1]."""
    distances = jnp.asarray(_distances(config.num_positions), jnp.int32)
    sizes = config.relative_num_buckets, config.relative_max_distance
    return np.asarray(relative_buckets(distances, stack == "encoder", *sizes))


def write_positions(config: ModelConfig, params: Params | None, folder: Path) -> dict[Path, str]:
    """Write PNGs of the model's position encoding, and return a description of each by its path.

    A recurrent model has none.

    Args:
      params: those of the trained model; None to draw only what follows from the config.
    """
    if config.architecture == RECURRENT:
        return {}
    encoding = config.position_encoding
    if config.inputs == "patches" and (
        encoding == "sinusoidal_2d" or (config.has_position_table and params is not None)
    ):
        return _similarities(config, params, folder)
    if encoding == "sinusoidal":
        return _written(folder, "positions_sinusoidal", {"sinusoids": sinusoid_table(config)}, "dimension of the model")
    if encoding == "rotary":
        return _written(folder, "positions_rotary", {"rotated pairs": rotary_table(config)}, "dimension of a head")
    if config.has_position_table and params is not None:
        tables = {f"learned, {stack}": table for stack, table in learned_tables(params).items()}
        return _written(folder, "positions_learned", tables, "dimension of the model")
    if encoding == "relative":
        path = save(_buckets_figure(config), folder / "positions_relative_buckets.png")
        files = {path: "relative buckets by distance"}
        if params is not None:
            figure = _biases_figure(relative_biases(config, params))
            files[save(figure, folder / "positions_relative_biases.png")] = "trained biases by distance and head"
        return files
    return {}


def patch_table(config: ModelConfig, params: Params | None) -> np.ndarray:
    """Return the vectors of the positions of patches, [patches, D], without that of the class token."""
    if config.position_encoding == "sinusoidal_2d":
        table = np.asarray(sinusoidal_2d(config, jnp.arange(config.num_positions)))
    else:
        assert params is not None
        table = learned_tables(params)["encoder"]
    return table[int(config.class_token) :]


def similarities(table: np.ndarray) -> np.ndarray:
    """Return the cosines of all positions of G x G patches, [G, G, G, G] (Dosovitskiy et al. 2021, figure 7)."""
    unit = table.astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=-1, keepdims=True), 1e-12)
    grid = math.isqrt(len(table))
    return (unit @ unit.T).reshape(grid, grid, grid, grid)


def _similarities(config: ModelConfig, params: Params | None, folder: Path) -> dict[Path, str]:
    cosines = similarities(patch_table(config, params))
    grid = len(cosines)
    figure = new_figure(max(5.0, 0.5 * grid + 1.0), max(4.6, 0.5 * grid + 0.8), layout="constrained")
    places = figure.subplots(grid, grid, squeeze=False)
    for axes, values in zip(places.ravel(), cosines.reshape(-1, grid, grid), strict=True):
        image = axes.imshow(values, vmin=-1, vmax=1, cmap=SIGNED, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
    for number, (left, below) in enumerate(zip(places[:, 0], places[-1], strict=True), start=1):
        left.set_ylabel(number, size=8, rotation=0, ha="right", va="center")
        below.set_xlabel(number, size=8)
    figure.supxlabel("column of the patch", size=9)
    figure.supylabel("row of the patch", size=9)
    figure.colorbar(image, ax=places, shrink=0.6, aspect=30, label="cosine")
    figure.suptitle(f"{config.position_encoding}: cosine of every position with all others", size=9)
    what = "for every patch, the cosines of its position with those of all patches"
    return {save(figure, folder / "positions_of_patches.png"): what}


def _written(folder: Path, name: str, tables: Mapping[str, np.ndarray], dimension: str) -> dict[Path, str]:
    what = f"{' and '.join(tables)}: the table, and inner products by distance"
    return {save(table_figure(tables, dimension), folder / f"{name}.png"): what}


def table_figure(tables: Mapping[str, np.ndarray], dimension: str = "dimension") -> Figure:
    """Return a figure of tables [P, D] as heat maps, by name, each with its inner products by distance beside it."""
    figure = new_figure(11, 3.8 * len(tables), layout="constrained")
    panels = figure.subplots(len(tables), 2, squeeze=False)
    for (name, table), (left, right) in zip(tables.items(), panels, strict=True):
        _draw_table(left, table, name, dimension)
        right.plot(_distances(len(table)), similarity_by_distance(table), linewidth=1)
        right.axhline(0, color="gray", linewidth=0.5)
        right.set(
            title=f"{name}: mean inner product", xlabel="distance of two positions", ylabel="relative to distance 0"
        )
    return figure


def _draw_table(axes: Axes, table: np.ndarray, name: str, dimension: str) -> None:
    bound = float(np.abs(table).max()) or 1.0
    options: dict[str, Any] = {"cmap": SIGNED, "vmin": -bound, "vmax": bound, "aspect": "auto"}
    image = axes.imshow(table, interpolation="nearest", **options)
    axes.set(title=name, xlabel=dimension, ylabel="position")
    axes.figure.colorbar(image, ax=axes)


def _buckets_figure(config: ModelConfig) -> Figure:
    figure = new_figure(7, 3.8, layout="constrained")
    axes = figure.subplots()
    distances = _distances(config.num_positions)
    for stack in _STACKS_OF.get(config.architecture, STACKS):
        seen = distances <= 0 if stack == "decoder" else slice(None)
        axes.step(distances[seen], _buckets(config, stack)[seen], where="mid", label=stack)
    axes.set(title="Relative positions: buckets", xlabel="key position - query position", ylabel="bucket")
    axes.legend()
    return figure


def _biases_figure(biases: Mapping[str, np.ndarray]) -> Figure:
    figure = new_figure(11, 3.8, layout="constrained")
    panels = figure.subplots(1, len(biases), sharey=True, squeeze=False)[0]
    for axes, (stack, values) in zip(panels, biases.items(), strict=True):
        for head, line in enumerate(values.T, start=1):
            axes.step(_distances((len(values) + 1) // 2), line, where="mid", label=f"head {head}")
        axes.set(title=f"Relative biases, {stack}", xlabel="key position - query position", ylabel="added to the logit")
        axes.legend(fontsize=8, ncols=2)
    return figure
