"""preprocessor_config.json: how transformers' ViTImageProcessor makes pixel values of an image, beside our fields.

It scales an image to `size`, cuts out its centre if `do_center_crop`, multiplies the bytes by `rescale_factor`, and
subtracts `image_mean` and divides by `image_std`. A switch that is off leaves out its step. We divide bytes by 255, so
another factor becomes a part of `model.pixel_mean` and `pixel_std`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config import ModelConfig
from transformer_jax.config.model import parse_pixel_values
from transformer_jax.convert.folder_config import listing
from transformer_jax.errors import CheckpointError
from transformer_jax.readers import read_json_object

_BILINEAR = 2
_RESCALE = 1 / 255
_OF_VIT = ("ViTImageProcessor", "ViTImageProcessorFast", "ViTImageProcessorPil", "ViTFeatureExtractor")
"""The classes whose default values we know; all compute the same."""

_SWITCHES = {"do_resize": True, "do_rescale": True, "do_normalize": True, "do_center_crop": False, "do_pad": False}
_SAID = ("do_resize", "size", "do_rescale", "do_normalize", "image_mean", "image_std")
"""Keys that a file of another class must have, because its default values may be others."""
_NOTES = {
    **dict.fromkeys(
        ("image_processor_type", "feature_extractor_type", "processor_class", "_valid_processor_keys", "auto_map"),
        "a note about the file",
    ),
    **dict.fromkeys(
        ("data_format", "input_data_format", "disable_grouping", "device", "return_tensors", "use_fast"),
        "a setting of the library; here the source of the images has them in one form",
    ),
    "default_to_square": "says how a `size` of one number is meant",
}


class Preprocessing(NamedTuple):
    """The steps from an image to pixel values, in our fields.

    model: `pixel_mean` and `pixel_std` of the section `model`. resize: a value of `data.resize`. ignored: the keys that
    are not needed, with the reasons.
    """

    model: dict[str, str]
    resize: str
    ignored: dict[str, str]


def preprocessor(config: ModelConfig, resize: str = "squash") -> dict[str, Any]:
    """Return the keys of the file for a model that reads images; resize: a value of `data.resize`."""
    mean, std = (parse_pixel_values(text, config.image_channels) for text in (config.pixel_mean, config.pixel_std))
    square = {"height": config.image_size, "width": config.image_size}
    crop = {"size": {"shortest_edge": config.image_size}, "do_center_crop": True, "crop_size": square}
    return {
        **{"image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True},
        **{"resample": _BILINEAR, "rescale_factor": _RESCALE, "image_mean": [*mean], "image_std": [*std]},
        **(crop if resize == "crop" else {"size": square}),
    }


def read_preprocessor(path: Path, config: ModelConfig) -> Preprocessing:
    """Return the steps of a file; without a file, those of ViTImageProcessor.

    Raises: CheckpointError for a file that is damaged, or that names every key with which other pixel values come out
      than our fields can say.
    """
    if not path.exists():
        return Preprocessing({"pixel_mean": "0.5", "pixel_std": "0.5"}, "squash", {})
    try:
        values = read_json_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    # transformers takes null for a missing key.
    values = {name: value for name, value in values.items() if value is not None}
    problems: list[str] = []
    kind = values.get("image_processor_type", values.get("feature_extractor_type", _OF_VIT[0]))
    if kind not in _OF_VIT and (missing := [name for name in _SAID if name not in values]):
        problems.append(
            f"the default values of the class {kind!r} are unknown; add its values of {', '.join(missing)} to the file"
        )
    on = {}
    for name, default in _SWITCHES.items():
        on[name] = values.pop(name, default)
        if not isinstance(on[name], bool):
            problems.append(f"{name}={on[name]!r}: expected true or false")
    ignored: dict[str, str] = {}
    resize, wrong = _resize(values, on, config, ignored)
    model, wrong_numbers = _numbers(values, on, config, ignored)
    problems += [*wrong, *wrong_numbers]
    if on["do_pad"]:
        problems.append("do_pad=True: transformer_jax does not pad images")
    elif values.pop("pad_size", None) is not None:
        ignored["pad_size"] = "do_pad is false"
    if values.pop("do_convert_rgb", False) and config.image_channels != 3:
        problems.append(f"do_convert_rgb=True: config.json has num_channels={config.image_channels}, which is not RGB")
    ignored |= {name: reason for name, reason in _NOTES.items() if values.pop(name, None) is not None}
    if kind in _OF_VIT:
        ignored |= dict.fromkeys(values, "transformers does not read it for ViT")
    else:
        problems += [f"{name}={value!r}: unknown key of {kind!r}" for name, value in values.items()]
    if problems:
        raise CheckpointError(listing(f"{path}: transformer_jax cannot make the same pixel values", problems))
    return Preprocessing(model, resize, ignored)


def _resize(
    values: dict[str, Any], on: Mapping[str, Any], config: ModelConfig, ignored: dict[str, str]
) -> tuple[str, list[str]]:
    """Take the keys of scaling and cutting; return the value of `data.resize`, and what is wrong."""
    side = config.image_size
    size, crop = values.pop("size", side), values.pop("crop_size", None)
    resample, problems = values.pop("resample", _BILINEAR), []
    if resample != _BILINEAR and on["do_resize"]:
        ignored["resample"] = f"{resample!r} there; here images are scaled bilinearly, so that pixels differ a little"
    if not on["do_center_crop"]:
        if crop is not None:
            ignored["crop_size"] = "do_center_crop is false"
    elif _sides(crop) != (side, side):
        problems.append(f"crop_size={crop!r} differs from image_size={side} of config.json")
    if not on["do_resize"]:
        if on["do_center_crop"]:
            problems.append("do_center_crop=True with do_resize=False: here images are scaled before they are cut")
        return "none", problems
    is_edge = isinstance(size, Mapping) and {*size} == {"shortest_edge"}
    if is_edge or (type(size) is int and values.get("default_to_square") is False):
        edge = size["shortest_edge"] if isinstance(size, Mapping) else size
        if edge != side:
            problems.append(f"size={size!r}: differs from image_size={side} of config.json")
        elif not on["do_center_crop"]:
            problems.append(f"size={size!r} without do_center_crop: images would not become squares")
        return "crop", problems
    if _sides(size) != (side, side):
        problems.append(
            f"size={size!r} differs from image_size={side} of config.json; expected {{'height': {side}, "
            f"'width': {side}}}, or {{'shortest_edge': {side}}} with do_center_crop"
        )
    return "squash", problems


def _sides(size: Any) -> tuple[Any, Any] | None:
    """Return height and width of a size that says both; None for others."""
    if isinstance(size, Mapping) and {*size} == {"height", "width"}:
        return size["height"], size["width"]
    if isinstance(size, list) and len(size) == 2:
        return size[0], size[1]
    return (size, size) if type(size) is int else None


def _numbers(
    values: dict[str, Any], on: Mapping[str, Any], config: ModelConfig, ignored: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Take the keys of numbers; return `pixel_mean` and `pixel_std`, and what is wrong."""
    factor, problems = values.pop("rescale_factor", _RESCALE), []
    if not on["do_rescale"]:
        if not math.isclose(factor if isinstance(factor, float) else 1.0, _RESCALE):
            ignored["rescale_factor"] = "do_rescale is false"
        factor = 1.0
    if type(factor) not in (int, float) or not 0 < factor < math.inf:
        problems.append(f"rescale_factor={factor!r}: expected a number above 0")
        factor = _RESCALE
    found = {name: values.pop(f"image_{name}", 0.5) for name in ("mean", "std")}
    if not on["do_normalize"]:
        found = {"mean": 0.0, "std": 1.0}
    # (x factor - mean) / std = (x / 255 - mean scale) / (std scale), and 1 for all factors that are rounded 1 / 255.
    scale = 1.0 if math.isclose(factor, _RESCALE, rel_tol=1e-6) else _RESCALE / factor
    model = {}
    for name, numbers in found.items():
        text = _text(numbers, scale, config)
        if text is None or (name == "std" and min(parse_pixel_values(text, config.image_channels)) <= 0):
            above = " above 0" if name == "std" else ""
            problems.append(f"image_{name}={numbers!r}: expected one number{above}, or {config.image_channels} of them")
        else:
            model[f"pixel_{name}"] = text
    return model, problems


def _text(numbers: Any, scale: float, config: ModelConfig) -> str | None:
    """Return the value of `pixel_mean` or `pixel_std` for a number or a list of numbers; None for anything else."""
    numbers = [numbers] if type(numbers) in (int, float) else numbers
    if isinstance(numbers, Sequence) and all(type(number) in (int, float) for number in numbers):
        text = ",".join(str(float(number) * scale) for number in numbers)
        with contextlib.suppress(ValueError):
            values = parse_pixel_values(text, config.image_channels)
            return str(values[0]) if len({*values}) == 1 else text
    return None
