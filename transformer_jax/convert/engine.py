"""The engine that applies the table of a family in both directions.

Every tensor and every key of config.json is used, ignored for a stated reason, or named in an error; so is every field
of our config and every parameter.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.config import DROPOUT_RATES, ModelConfig, field_types, nearest
from transformer_jax.convert.families import COMMON_IGNORED, FAMILIES, TRAINING_ONLY, Family, Tensor
from transformer_jax.convert.layouts import halved, interleaved
from transformer_jax.convert.tensor_files import READ_TYPES, Outgoing, TensorFiles
from transformer_jax.errors import CheckpointError, ConfigError

Leaves = Mapping[str, Any]
"""Arrays, or their shapes, by path."""

_MAX_LISTED = 12


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Return the family of a config.json; raises CheckpointError if we have no table for its `model_type`."""
    name = config.get("model_type")
    if name not in FAMILIES:
        raise CheckpointError(
            f"{where}: model_type={name!r}: we convert {', '.join(FAMILIES)}{nearest(str(name), FAMILIES)}"
        )
    return FAMILIES[name]


def family_named(name: str) -> Family:
    """Return the family of a name; raises ConfigError if there is none."""
    if name not in FAMILIES:
        raise ConfigError(f"family='{name}': expected one of {', '.join(FAMILIES)}{nearest(name, FAMILIES)}")
    return FAMILIES[name]


# Configs.


def read_model_config(family: Family, theirs: Mapping[str, Any], where: str) -> tuple[ModelConfig, dict[str, str]]:
    """Return our config of a config.json, resolved, and the keys that were ignored with the reasons.

    Raises: CheckpointError, which names every key that we cannot express or do not know.
    """
    values = _without_rope(dict(theirs)) if family.rope else dict(theirs)
    for name, other in family.repeats.items():
        if not values.get(name) and other in values:
            values[name] = values[other]
    problems: list[str] = [values.pop("problem")] if "problem" in values else []
    # A dropout rate without a key is 0 there.
    ours: dict[str, Any] = {"architecture": family.architecture, "init": "normal", "dropout_rate": 0.0}
    if family.rope:
        ours["rotary_base"] = values.pop("rope_theta", 10_000.0)
    ours |= {name: value for name, value in family.fixed.items() if not callable(value)}
    said: dict[str, str] = {}
    for key in family.keys:
        value = values.pop(key.theirs, key.default)
        if value is ... or (value is None and key.ours in said):
            continue
        if key.values is not None and value not in key.values:
            problems.append(f"{key.theirs}={value!r}: expected one of {', '.join(map(repr, key.values))}")
            continue
        value = value if key.values is None else key.values[value]
        if key.ours in said and ours[key.ours] != value:
            problems.append(
                f"{key.theirs}={value!r} differs from {said[key.ours]}={ours[key.ours]!r}; we have one field"
            )
        ours[key.ours], said[key.ours] = value, key.theirs
    for name, allowed in family.required.items():
        value = values.pop(name, allowed[0])
        if value not in allowed:
            problems.append(f"{name}={value!r}: our blocks can only say {' or '.join(map(repr, allowed))}")
    ignored = {}
    reasons = {**COMMON_IGNORED, **family.ignored}
    for name in list(values):
        if name in reasons:
            ignored[name] = reasons[name]
            del values[name]
    problems += [f"{name}={value!r}: we do not know this key" for name, value in values.items() if value is not None]
    if not problems:
        problems = [*_config_problems(ours)]
    if problems:
        raise CheckpointError(_listing(f"{where}: this {family.label} cannot be converted", problems))
    return ModelConfig(**ours).resolved(), ignored


def _config_problems(ours: Mapping[str, Any]) -> Iterator[str]:
    types = field_types(ModelConfig)
    wrong = [
        f"{name}={value!r}: expected {text}"
        for name, value in ours.items()
        if (text := _wrong(name, value, types[name]))
    ]
    yield from wrong or ModelConfig(**ours).problems()


def _wrong(name: str, value: Any, annotation: Any) -> str | None:
    """Return what a field expects, if the value is something else; sizes are positive, ids and counts may be 0."""
    kinds = typing.get_args(annotation) or (annotation,)
    if value is None:
        return None if type(None) in kinds else "a value"
    if bool in kinds:
        return None if isinstance(value, bool) else "true or false"
    if int in kinds:
        least = min(ModelConfig.__dataclass_fields__[name].metadata["minimum"], 1)
        return None if type(value) is int and value >= least else f"an integer, at least {least}"
    if float in kinds:
        return None if type(value) in (int, float) and value >= 0 else "a number, at least 0"
    return None


def _without_rope(values: dict[str, Any]) -> dict[str, Any]:
    """Return the keys with one `rope_theta` for the forms of versions 4 and 5, and a `problem` if it is not enough."""
    new, old = values.pop("rope_parameters", None), values.pop("rope_scaling", None)
    for name, given in (("rope_parameters", new), ("rope_scaling", old)):
        given = dict(given or {})
        kind = given.pop("rope_type", given.pop("type", "default"))
        if "rope_theta" in given:
            values["rope_theta"] = given.pop("rope_theta")
        if kind != "default" or given.pop("partial_rotary_factor", 1.0) != 1.0 or given:
            values["problem"] = f"{name} with rope_type='{kind}': our rotary positions cannot be scaled"
    return values


def write_model_config(family: Family, config: ModelConfig) -> dict[str, Any]:
    """Return the keys of config.json that say what our config says.

    Raises: ConfigError, which names every field that the family cannot express, and a family that can.
    """
    if problems := unsaid(family, config):
        others = [f"--family={other.name}" for other in FAMILIES.values() if not unsaid(other, config)]
        advice = f"\nThis family can: {' or '.join(others)}" if others else ""
        raise ConfigError(_listing(f"{family.label} cannot say what this model is", problems) + advice)
    result: dict[str, Any] = {"model_type": family.name, "architectures": [family.class_name]}
    for key in family.keys:
        value = getattr(config, key.ours)
        if key.values is not None:
            value = next(theirs for theirs, ours in key.values.items() if ours == value)
        result[key.theirs] = value
    if family.rope:
        result["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
        result["rope_theta"] = config.rotary_base
    return result | {name: allowed[0] for name, allowed in family.required.items()}


def unsaid(family: Family, config: ModelConfig) -> list[str]:
    """Return a line for every field that a family cannot express."""
    problems = []
    for name, value in family.fixed.items():
        expected = value(config) if callable(value) else value
        if getattr(config, name) != expected:
            problems.append(f"model.{name}={getattr(config, name)!r}: {family.label} has {expected!r}")
    for key in family.keys:
        if key.values is not None and getattr(config, key.ours) not in key.values.values():
            values = ", ".join(dict.fromkeys(key.values.values()))
            problems.append(f"model.{key.ours}={getattr(config, key.ours)!r}: {family.label} has {values}")
    return problems


def not_written(family: Family, config: ModelConfig) -> list[str]:
    """Return the dropout rates above 0 that a family has no key for."""
    known = {key.ours for key in family.keys}
    if "dropout_rate" in known and config.embedding_dropout_rate == config.dropout_rate:
        known.add("embedding_dropout_rate")
    left = (name for name in DROPOUT_RATES if name not in known and getattr(config, name))
    return [f"model.{name}={getattr(config, name)!r}" for name in left]


def closest(config: ModelConfig) -> Family:
    """Return the family that can express most of a config, in doubt the first."""
    return min(FAMILIES.values(), key=lambda family: len(unsaid(family, config)))


# Parameters.


def tensors_of(family: Family, config: ModelConfig) -> list[Tensor]:
    """Return the tensors that exist with a config."""
    return [t for t in family.tensors if all(getattr(config, name) == value for name, value in t.when.items())]


def names_of(tensor: Tensor, num_layers: int) -> list[str]:
    """Return the names of a tensor in all layers; one name if it has no layers."""
    return [tensor.theirs.format(layer=i) for i in range(num_layers)] if "{layer}" in tensor.theirs else [tensor.theirs]


class _Match:
    """A family's tensors beside the shapes of our parameters."""

    def __init__(self, family: Family, config: ModelConfig, shapes: Leaves) -> None:
        self.family, self.tensors = family, tensors_of(family, config)
        self.shapes = {path: tuple(leaf.shape) for path, leaf in shapes.items()}
        ours = [path for tensor in self.tensors for path in tensor.ours]
        # The table is at fault here, not the user; the tests check it for every family.
        assert sorted(ours) == sorted(self.shapes), sorted(set(ours) ^ set(self.shapes))

    def stacked(self, tensor: Tensor) -> bool:
        return "{layer}" in tensor.theirs

    def parts(self, tensor: Tensor) -> list[tuple[int, ...]]:
        """Return the shapes of our arrays in one tensor."""
        return [self.shapes[path][1:] if self.stacked(tensor) else self.shapes[path] for path in tensor.ours]

    def names(self, tensor: Tensor) -> list[str]:
        return names_of(tensor, self.shapes[tensor.ours[0]][0]) if self.stacked(tensor) else [tensor.theirs]

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of one tensor of theirs."""
        shapes = [tensor.layout.shape(part) for part in self.parts(tensor)]
        axis, result = tensor.layout.features_axis, list(shapes[0])
        result[axis] = sum(shape[axis] for shape in shapes)
        return tuple(result)


def read_params(
    family: Family,
    config: ModelConfig,
    shapes: Leaves,
    files: TensorFiles,
    place: Callable[[np.ndarray], Any] = lambda x: x,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return our parameters by path, and the tensors that were not needed with the reasons.

    Args:
      shapes: of our parameters by path. place: is called with every float32 array; its result is kept instead.
      advance: is called with the number of bytes of every tensor read.
    Raises: CheckpointError, which names the tensors that are missing, unknown, or have another shape or type.
    """
    ignored = unused_tensors(family, config, shapes, files)
    match, stored = _Match(family, config, shapes), _with_prefix(family, files)
    result = {}
    for tensor in match.tensors:
        arrays = [_aligned(match.shapes[path]) for path in tensor.ours]
        for layer, name in enumerate(match.names(tensor)):
            x = files.read(stored[name])
            start = 0
            for array, shape in zip(arrays, match.parts(tensor), strict=True):
                axis = tensor.layout.features_axis
                width = tensor.layout.shape(shape)[axis]
                part = x[(slice(None),) * axis + (slice(start, start + width),)]
                start += width
                part = tensor.layout.to_ours(part, shape)
                if family.sines_first and tensor.width is not None:
                    part = interleaved(part, tensor.width)
                array[layer if match.stacked(tensor) else ...] = part
            advance(x.nbytes)
        result |= {path: place(array) for path, array in zip(tensor.ours, arrays, strict=True)}
    return result, ignored


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an uninitialised float32 array whose memory JAX can use on a CPU as it is, without a copy."""
    size = math.prod(shape)
    memory = np.empty(size + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + size].reshape(shape)


def unused_tensors(family: Family, config: ModelConfig, shapes: Leaves, files: TensorFiles) -> dict[str, str]:
    """Return the tensors that are not needed, with the reasons; raises CheckpointError as `read_params`."""
    match, stored = _Match(family, config, shapes), _with_prefix(family, files)
    problems, wanted = [], set()
    for tensor in match.tensors:
        for name in match.names(tensor):
            wanted.add(name)
            if name not in stored:
                problems.append(f"{name}: is missing")
            elif files.tensors[stored[name]].dtype not in READ_TYPES:
                kind = files.tensors[stored[name]].dtype
                problems.append(f"{name}: has the type {kind}; we read {', '.join(READ_TYPES)}")
            elif files.tensors[stored[name]].shape != match.shape(tensor):
                problems.append(
                    f"{name}: has the shape {files.tensors[stored[name]].shape}, config.json says {match.shape(tensor)}"
                )
    ignored = {}
    for name in stored:
        if name in wanted:
            continue
        pattern = next((pattern for pattern in family.computed if re.fullmatch(pattern, name)), None)
        if pattern is not None:
            ignored[name] = family.computed[pattern]
        elif original := next((other for other in family.copies.get(name, ()) if other in stored), None):
            if not np.array_equal(files.read(stored[name]), files.read(stored[original])):
                problems.append(f"{name}: differs from {original}, of which it is a copy by config.json")
            ignored[name] = f"the same numbers as {original}"
        elif name in family.zeros and not np.any(files.read(stored[name])):
            ignored[name] = "zeros"
        else:
            problems.append(f"{name}: we do not know this tensor")
    if problems:
        raise CheckpointError(_listing(f"{files.folder}: does not fit its config.json", problems))
    return ignored


def _with_prefix(family: Family, files: TensorFiles) -> dict[str, str]:
    """Return the names in the files by the full names."""
    if not family.prefix or any(name.startswith(family.prefix) for name in files.tensors):
        return {name: name for name in files.tensors}
    return {name if name == "lm_head.weight" else family.prefix + name: name for name in files.tensors}


def with_optional_tensors(family: Family, config: ModelConfig, files: TensorFiles) -> ModelConfig:
    """Return the config with the fields of those tensors that are not the zeros of a model without them."""
    said = {field: True for name, field in family.zeros.items() if name in files.tensors and np.any(files.read(name))}
    return dataclasses.replace(config, **said)


def outgoing(family: Family, config: ModelConfig, leaves: Leaves) -> list[Outgoing]:
    """Return the tensors to write for our parameters by path."""
    match = _Match(family, config, leaves)

    def numbers(tensor: Tensor, layer: int) -> np.ndarray:
        parts = []
        for path in tensor.ours:
            x = np.asarray(leaves[path])  # no copy on a CPU
            x = x[layer] if match.stacked(tensor) else x
            if family.sines_first and tensor.width is not None:
                x = halved(x, tensor.width)
            parts.append(tensor.layout.to_theirs(x))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, tensor.layout.features_axis)

    result = [
        Outgoing(name, match.shape(tensor), lambda tensor=tensor, layer=layer: numbers(tensor, layer))
        for tensor in match.tensors
        for layer, name in enumerate(match.names(tensor))
    ]
    written = {tensor.name for tensor in result}
    for name in family.zeros:
        if name not in written:
            tensor = next(t for t in family.tensors if t.theirs == name)
            shape = tensor.layout.shape((config.vocab_size,))
            result.append(Outgoing(name, shape, lambda shape=shape: np.zeros(shape, np.float32)))
    return sorted(result, key=lambda tensor: tensor.name)


def _listing(heading: str, problems: Sequence[str]) -> str:
    lines = [f"  - {problem}" for problem in problems[:_MAX_LISTED]]
    if len(problems) > _MAX_LISTED:
        lines.append(f"  - and {len(problems) - _MAX_LISTED} more")
    return "\n".join([heading, *lines])


def fields_without_meaning(family: Family) -> set[str]:
    """Return the fields of ModelConfig that a family neither reads nor writes; the tests say why each is right."""
    known = {key.ours for key in family.keys} | set(family.fixed) | set(TRAINING_ONLY)
    return {field.name for field in dataclasses.fields(ModelConfig)} - known
