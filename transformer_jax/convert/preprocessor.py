"""preprocessor_config.json: how transformers' ViTImageProcessor makes pixel values of an image, beside our fields."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.config.model import parse_pixel_values
from transformer_jax.errors import CheckpointError
from transformer_jax.readers import read_json

_BILINEAR = 2
_RESCALE = 1 / 255
_IGNORED = {
    **dict.fromkeys(("image_processor_type", "feature_extractor_type", "processor_class"), "a note about the file"),
    **dict.fromkeys(("do_resize", "resample"), "here images are scaled by data.resize, bilinearly"),
    **dict.fromkeys(("do_convert_rgb", "data_format", "input_data_format"), "here that is the source of the images"),
}


def preprocessor(config: ModelConfig) -> dict[str, Any]:
    """Return the keys of the file for a model that reads images."""
    mean, std = (parse_pixel_values(text, config.image_channels) for text in (config.pixel_mean, config.pixel_std))
    return {
        **{"image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True},
        **{"resample": _BILINEAR, "rescale_factor": _RESCALE, "image_mean": [*mean], "image_std": [*std]},
        "size": {"height": config.image_size, "width": config.image_size},
    }


def read_preprocessor(path: Path, config: ModelConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Return `pixel_mean` and `pixel_std` of the file, and the keys that are ignored with the reasons.

    Without a file, the values are those of ViTImageProcessor: 0.5.

    Raises: CheckpointError for a file that is damaged, of another size, or says what our blocks cannot.
    """
    if not path.exists():
        return {"pixel_mean": "0.5", "pixel_std": "0.5"}, {}
    try:
        values = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{path}: holds no object")
    values = dict(values)
    size = values.pop("size", config.image_size)
    sides = {*size.values()} if isinstance(size, Mapping) else {size}
    if sides != {config.image_size}:
        raise CheckpointError(f"{path}: size={size!r} differs from image_size={config.image_size} of config.json")
    factor = values.pop("rescale_factor", _RESCALE)
    scales = values.pop("do_rescale", True)
    if not scales or not isinstance(factor, float) or not math.isclose(factor, _RESCALE, rel_tol=1e-6):
        raise CheckpointError(f"{path}: do_rescale={scales}, rescale_factor={factor}: we divide pixels by 255")
    found = {name: values.pop(f"image_{name}", [0.5] * config.image_channels) for name in ("mean", "std")}
    if not values.pop("do_normalize", True):
        found = {"mean": [0.0], "std": [1.0]}
    pixels = {f"pixel_{name}": _text(path, f"image_{name}", numbers, config) for name, numbers in found.items()}
    ignored = {name: _IGNORED[name] for name in [*values] if name in _IGNORED}
    unknown = [f"{name}={value!r}" for name, value in values.items() if name not in ignored and value is not None]
    if unknown:
        raise CheckpointError(f"{path}: we do not know {', '.join(unknown)}")
    return pixels, ignored


def _text(path: Path, name: str, numbers: Any, config: ModelConfig) -> str:
    """Return the value of `pixel_mean` or `pixel_std` for a list of numbers."""
    if isinstance(numbers, Sequence) and all(type(number) in (int, float) for number in numbers):
        text = ",".join(str(float(number)) for number in numbers)
        with contextlib.suppress(ValueError):
            values = parse_pixel_values(text, config.image_channels)
            return str(values[0]) if len({*values}) == 1 else text
    raise CheckpointError(f"{path}: {name}={numbers!r}: expected one number, or {config.image_channels} of them")
