"""Attention of a model of images, laid over the picture: the class token's weights, and attention rollout."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.host.files import json_text
from transformer_jax.inspection.attention import capture
from transformer_jax.inspection.pictures import new_figure, save
from transformer_jax.readers import read_text
from transformer_jax.typing import Params

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = "inferno"
"""Colours of the weights of patches, from none to the greatest of a picture."""
_PANEL = 1.9  # inches
_HEADS_IN_A_ROW = 6
_LEAST_OPACITY, _OPACITY = 0.3, 0.75
"""Of the colour over a patch without weight, so that the picture can be seen there, and with the greatest weight."""
_PLACE = "__DATA__"
_KIND = "encoder_self_attention"


class ImageMaps(NamedTuple):
    """One image and its attention, with G x G patches.

    Attributes:
      pixels: uint8 [height, width, channels], as the model reads them.
      weights: float32 [L, N, T, T], of queries and keys; the class token is the first, if there is one.
      patches: float32 [L, N, G, G], the weights of every patch for the class token; without one, their means over all
        queries, as for `task.pooling=mean`.
      rollout: float64 [G, G], attention rollout to the same place.
    """

    pixels: np.ndarray
    weights: np.ndarray
    patches: np.ndarray
    rollout: np.ndarray


def image_maps(config: ModelConfig, params: Params, pixels: UInt8[np.ndarray, "height width channels"]) -> ImageMaps:
    """Return the attention of a model with these pixels; `config` is resolved."""
    return maps_of(config, pixels, capture(config, params, {"inputs": pixels[None]}).weights[_KIND][:, 0])


def maps_of(
    config: ModelConfig, pixels: UInt8[np.ndarray, "height width channels"], weights: Float[np.ndarray, "L N T S"]
) -> ImageMaps:
    """Return the maps of pixels whose attention weights are known."""
    grid = config.image_size // config.patch_size
    patches = _of_patches(weights, config.class_token).reshape(*weights.shape[:2], grid, grid)
    rolled = _of_patches(rollout(weights), config.class_token).reshape(grid, grid)
    return ImageMaps(pixels, weights, patches, rolled)


def _of_patches(weights: Float[np.ndarray, "*heads T S"], has_class_token: bool) -> Float[np.ndarray, "*heads patches"]:
    """Return the weights of the patches for the class token, or their means over all queries."""
    return weights[..., 0, 1:] if has_class_token else weights.mean(-2)


def rollout(weights: Float[np.ndarray, "L N T S"]) -> Float[np.ndarray, "T S"]:
    """Return how much of each input reaches each output: A_L ... A_1 with A_l = (I + mean over heads of W_l) / 2.

    The identity stands for the residual connection. Rows sum to 1. Source: Abnar and Zuidema 2020, section 3.

    Returns: float64.
    """
    result = np.eye(weights.shape[-1])
    for layer in weights.astype(np.float64):
        result = 0.5 * (layer.mean(0) + np.eye(len(result))) @ result
    return result


class ImageSelection(NamedTuple):
    """The layers and heads to show, counted from 0."""

    layers: list[int]
    heads: list[int]


def image_selection(model: ModelConfig, layer: int | None = None, head: int | None = None) -> ImageSelection:
    """Return all layers and heads of a model of images, or one layer and head.

    Raises: ConfigError if there is no such layer or head.
    """
    sizes = {"layer": (layer, model.num_encoder_layers), "head": (head, model.num_heads)}
    for name, (given, size) in sizes.items():
        if given is not None and not 0 <= given < size:
            raise ConfigError(f"--{name}={given}: the model has {name}s 0 to {size - 1}")
    return ImageSelection(*([i for i in range(n) if given in (None, i)] for given, n in sizes.values()))


def write_image_maps(maps: ImageMaps, shown: ImageSelection, folder: Path) -> list[Path]:
    """Write layer_LAYER.png and rollout.png, remove files of an earlier image, and return the new paths."""
    for old in folder.glob("layer_*.png"):
        old.unlink()
    paths = [save(layer_figure(maps, layer, shown.heads), folder / f"layer_{layer}.png") for layer in shown.layers]
    return [*paths, save(rollout_figure(maps), folder / "rollout.png")]


def layer_figure(maps: ImageMaps, layer: int, heads: Sequence[int]) -> Figure:
    """Return the figure of one layer: the weights of each head, over the picture. layer, heads: from 0."""
    panels = {f"head {head}": maps.patches[layer, head] for head in heads}
    return _figure(maps.pixels, f"layer {layer}", panels)


def rollout_figure(maps: ImageMaps) -> Figure:
    """Return the figure of the picture, and of attention rollout over it."""
    return _figure(maps.pixels, "attention rollout", {"image": None, "rollout": maps.rollout})


def _figure(pixels: np.ndarray, title: str, panels: Mapping[str, np.ndarray | None]) -> Figure:
    columns = min(len(panels), _HEADS_IN_A_ROW)
    rows = -(-len(panels) // columns)
    figure = new_figure(max(columns * _PANEL, 3.0), rows * (_PANEL + 0.2) + 0.3, layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in places:
        axes.set_axis_off()
    for axes, (name, patches) in zip(places, panels.items(), strict=False):
        _draw(axes, pixels, patches)
        axes.set_title(name, size=9)
    figure.suptitle(title, size=11)
    return figure


def _draw(axes: Axes, pixels: np.ndarray, patches: np.ndarray | None) -> None:
    """Draw the picture in grey and the weights over it, or the picture alone."""
    height, width = pixels.shape[:2]
    extent = (0, width, height, 0)
    colours = pixels if pixels.shape[-1] == 3 and patches is None else pixels[..., :3].mean(-1)
    axes.imshow(colours, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest")
    if patches is not None:
        greatest = float(patches.max())
        opacity = _LEAST_OPACITY + (_OPACITY - _LEAST_OPACITY) * patches / (greatest or 1.0)
        options: dict[str, Any] = {"cmap": COLOURS, "vmin": 0.0, "vmax": greatest, "alpha": opacity}
        axes.imshow(patches, extent=extent, interpolation="nearest", **options)


def image_page(maps: ImageMaps, shown: ImageSelection, about: Mapping[str, str]) -> str:
    """Return one self-contained HTML page, on which one can choose layer and head, or rollout, and read every weight.

    Args:
      about: lines above the picture, as name -> text.
    """
    data = {
        "about": list(about.items()),
        "picture": f"data:image/png;base64,{base64.b64encode(png_bytes(maps.pixels)).decode('ascii')}",
        "grid": len(maps.rollout),
        "layers": shown.layers,
        "heads": shown.heads,
        "weights": maps.patches[np.ix_(shown.layers, shown.heads)].round(6).tolist(),
        "rollout": maps.rollout.round(6).tolist(),
    }
    # HTML interprets `</script>` and `<!--` within a script element, even inside a JSON string.
    written = json_text(data).replace("<", "\\u003c")
    template = read_text(Path(__file__).parent / "image_page.html")
    before, _, after = template.partition(_PLACE)
    return before + written + after


def png_bytes(pixels: np.ndarray) -> bytes:
    """Return pixels [height, width, channels] as a PNG file: grey, or the first three channels as colours."""
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3]).save(data, "PNG")
    return data.getvalue()
