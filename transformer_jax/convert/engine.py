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

from transformer_jax.config import DROPOUT_RATES, ModelConfig, TaskConfig, field_types, nearest
from transformer_jax.convert.families import CLASSES, FAMILIES
from transformer_jax.convert.layouts import halved, interleaved
from transformer_jax.convert.tables import COMMON_IGNORED, LABEL_KEYS, TRAINING_ONLY, Family, Tensor
from transformer_jax.convert.tensor_files import READ_TYPES, Outgoing, TensorFiles
from transformer_jax.errors import CheckpointError, ConfigError

Leaves = Mapping[str, Any]
"""Arrays, or their shapes, by path."""

_MAX_LISTED = 12


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Return the table of a config.json.

    Raises: CheckpointError if we have none for its `model_type`, or none for the class that `architectures` names.
    """
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointError(
            f"{where}: model_type={name!r}: we convert {', '.join(FAMILIES)}{nearest(str(name), FAMILIES)}"
        )
    named, classes = config.get("architectures"), [family for family in CLASSES if family.name == name]
    if not isinstance(named, list) or not named:
        return FAMILIES[name]
    for family in classes:
        if named[0] in (family.class_name, *family.also):
            return family
    known = ", ".join(cls for family in classes for cls in (family.class_name, *family.also))
    raise CheckpointError(f"{where}: architectures={named}: of {FAMILIES[name].label} we convert {known}")


def check_family(name: str) -> None:
    """Raise ConfigError if there is no family of this name."""
    if name not in FAMILIES:
        raise ConfigError(f"family='{name}': expected one of {', '.join(FAMILIES)}{nearest(name, FAMILIES)}")


def family_named(name: str, task: str) -> Family:
    """Return the table of a family for a task.

    Raises: ConfigError if there is no such family, or if none of its classes has the head of the task.
    """
    check_family(name)
    classes = [family for family in CLASSES if family.name == name]
    for family in classes:
        if task in family.tasks:
            return family
    known = ", ".join(task for family in classes for task in family.tasks)
    raise ConfigError(f"family='{name}': has no class for task.name='{task}'; it has some for {known}")


def read_task(family: Family, theirs: Mapping[str, Any]) -> TaskConfig:
    """Return the task of a config.json, with the fields that its head needs."""
    fields = dict(family.task_fields)
    if family.has_labels:
        fields["num_labels"] = len(label_names(theirs))
    return TaskConfig(name=family.tasks[0], **fields)


def label_names(theirs: Mapping[str, Any]) -> list[str]:
    """Return the names of labels of a config.json in the order of their ids; two numbered ones are the default."""
    names = theirs.get("id2label")
    if isinstance(names, Mapping) and sorted(names) == sorted(map(str, range(len(names)))):
        return [str(names[str(id)]) for id in range(len(names))]
    count = theirs.get("num_labels", 2)
    return [f"LABEL_{id}" for id in range(count if type(count) is int else 2)]


# Configs.


def read_model_config(family: Family, theirs: Mapping[str, Any], where: str) -> tuple[ModelConfig, dict[str, str]]:
    """Return our config of a config.json, resolved, and the keys that were ignored with the reasons.

    Raises: CheckpointError, which names every key that we cannot express or do not know.
    """
    values = _without_rope(dict(theirs)) if family.rope else dict(theirs)
    for name, other in family.repeats.items():
        if values.get(name) is None and other in values:
            values[name] = values[other]
    problems: list[str] = [values.pop("problem")] if "problem" in values else []
    # A dropout rate without a key is 0 there.
    ours: dict[str, Any] = {"architecture": family.architecture, "init": family.init, "dropout_rate": 0.0}
    if family.rope:
        ours["rotary_base"] = values.pop("rope_theta", 10_000.0)
    ours |= {name: value for name, value in family.fixed.items() if not callable(value)}
    said: dict[str, str] = {}
    for key in family.keys:
        value = values.get(key.theirs, key.default)
        if value is ... or (value is None and key.ours in said):
            continue
        if key.values is not None and not (isinstance(value, str) and value in key.values):
            problems.append(f"{key.theirs}={value!r}: expected one of {', '.join(map(repr, key.values))}")
            continue
        value = value if key.values is None else key.values[value]
        if key.ours in said and ours[key.ours] != value:
            problems.append(
                f"{key.theirs}={value!r} differs from {said[key.ours]}={ours[key.ours]!r}; we have one field"
            )
        ours[key.ours], said[key.ours] = value, key.theirs
    for key in family.keys:
        values.pop(key.theirs, None)
    for name, allowed in family.required.items():
        value = values.pop(name, allowed[0])
        if value not in allowed:
            problems.append(f"{name}={value!r}: our blocks can only say {' or '.join(map(repr, allowed))}")
    ignored = {}
    reasons = {**COMMON_IGNORED, **family.ignored}
    if family.has_labels:  # `label_names` reads them
        values = {name: value for name, value in values.items() if name not in LABEL_KEYS}
    for name in list(values):
        if name in reasons:
            ignored[name] = reasons[name]
            del values[name]
    problems += [f"{name}={value!r}: we do not know this key" for name, value in values.items() if value is not None]
    if not problems:
        problems = [*_config_problems(ours, said)]
    if problems:
        raise CheckpointError(_listing(f"{where}: this {family.label} cannot be converted", problems))
    config = ModelConfig(**ours).resolved()
    follows = {name: value(config) for name, value in family.fixed.items() if callable(value) and name not in said}
    return dataclasses.replace(config, **follows), ignored


def _config_problems(ours: Mapping[str, Any], said: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the fields that keys of theirs have set.

    Args:
      said: the keys by the names of our fields.
    """
    types = field_types(ModelConfig)
    wrong = [
        f"{theirs}={ours[name]!r}: expected {text}"
        for name, theirs in said.items()
        if (text := _wrong(name, ours[name], types[name]))
    ]
    if wrong:
        yield from wrong
        return
    for problem in ModelConfig(**ours).problems():
        name = problem.partition("=")[0]
        yield f"{said[name]} is our model.{problem}" if name in said else problem


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
        if given is not None and not isinstance(given, Mapping):
            values["problem"] = f"{name}={given!r}: expected an object"
            continue
        given = dict(given or {})
        kind = given.pop("rope_type", given.pop("type", "default"))
        if "rope_theta" in given:
            values["rope_theta"] = given.pop("rope_theta")
        if kind != "default" or given.pop("partial_rotary_factor", 1.0) != 1.0 or given:
            values["problem"] = f"{name} with rope_type='{kind}': our rotary positions cannot be scaled"
    return values


def write_model_config(family: Family, config: ModelConfig, task: TaskConfig) -> dict[str, Any]:
    """Return the keys of config.json that say what our config says.

    Args:
      task: whose head the model has.
    Raises: ConfigError, which names every field that the family cannot express, and a family that can.
    """
    problems = unsaid(family, config) + [
        f"task.{name}={getattr(task, name)!r}: {family.label} has {value!r}"
        for name, value in family.task_fields.items()
        if getattr(task, name) != value
    ]
    if problems:
        same = (other for other in CLASSES if {*other.tasks} & {*family.tasks})
        others = [f"--family={other.name}" for other in same if not unsaid(other, config)]
        advice = f"\nThis family can: {' or '.join(others)}" if others else ""
        raise ConfigError(_listing(f"{family.label} cannot say what this model is", problems) + advice)
    result: dict[str, Any] = {"model_type": family.name, "architectures": [family.class_name]}
    for key in family.keys:
        value = getattr(config, key.ours)
        if key.values is not None:
            value = next(theirs for theirs, ours in key.values.items() if ours == value)
        result.setdefault(key.theirs, value)
    if family.rope:
        result["rope_parameters"] = {"rope_type": "default", "rope_theta": config.rotary_base}
        result["rope_theta"] = config.rotary_base
    return result | {name: allowed[0] for name, allowed in family.required.items()}


def unsaid(family: Family, config: ModelConfig) -> list[str]:
    """Return a line for every field that a family cannot express."""
    problems, first = [], {}
    for name, value in family.fixed.items():
        expected = value(config) if callable(value) else value
        if getattr(config, name) != expected:
            problems.append(f"model.{name}={getattr(config, name)!r}: {family.label} has {expected!r}")
    for key in family.keys:
        other = first.setdefault(key.theirs, key.ours)
        if key.ours not in TRAINING_ONLY and getattr(config, other) != getattr(config, key.ours):
            problems.append(
                f"model.{key.ours}={getattr(config, key.ours)!r}: {family.label} has one number for it and "
                f"model.{other}={getattr(config, other)!r}"
            )
        if key.values is not None and getattr(config, key.ours) not in key.values.values():
            values = ", ".join(dict.fromkeys(key.values.values()))
            problems.append(f"model.{key.ours}={getattr(config, key.ours)!r}: {family.label} has {values}")
    return problems


def not_written(family: Family, config: ModelConfig) -> list[str]:
    """Return the dropout rates above 0 that a family has no key for."""
    known = {key.ours for key in family.keys if getattr(config, key.ours) == _written(family, config, key.theirs)}
    if "dropout_rate" in known and config.embedding_dropout_rate == config.dropout_rate:
        known.add("embedding_dropout_rate")
    left = (name for name in DROPOUT_RATES if name not in known and getattr(config, name))
    return [f"model.{name}={getattr(config, name)!r}" for name in left]


def _written(family: Family, config: ModelConfig, theirs: str) -> Any:
    """Return our value that is written as one of their keys: that of the first field."""
    return next(getattr(config, key.ours) for key in family.keys if key.theirs == theirs)


def closest(config: ModelConfig, task: str) -> Family:
    """Return the class for a task that can express most of a config, in doubt the first.

    Raises: ConfigError if no class has the head of the task.
    """
    candidates = [family for family in CLASSES if task in family.tasks]
    if not candidates:
        known = ", ".join(dict.fromkeys(name for family in CLASSES for name in family.tasks))
        raise ConfigError(f"task.name='{task}': no family has a head for it; there are some for {known}")
    return min(candidates, key=lambda family: len(unsaid(family, config)))


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
        elif original := _original(family, name, stored):
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
    """Return the names in the files by the full names of today."""
    stored = {}
    for name in files.tensors:
        today = name
        for old, new in family.renamed:
            today = today.removesuffix(old) + new if today.endswith(old) else today
        stored[today] = name
    if not family.prefix or any(name.startswith(family.prefix) for name in stored):
        return stored
    bare = {tensor.theirs for tensor in family.tensors if not tensor.theirs.startswith(family.prefix)} | {
        *family.copies
    }
    return {name if name in bare else family.prefix + name: old for name, old in stored.items()}


def _original(family: Family, name: str, stored: Mapping[str, str]) -> str | None:
    """Return the tensor that another one is a copy of, if there is one."""
    return next((other for other in family.copies.get(name, ()) if other in stored), None)


def with_optional_tensors(family: Family, config: ModelConfig, files: TensorFiles) -> ModelConfig:
    """Return the config with the fields of those tensors that a model without them would not have.

    These are tensors other than zeros, and an output projection that is not a copy of the embedding.
    """
    said = {field: True for name, field in family.zeros.items() if name in files.tensors and np.any(files.read(name))}
    original = _original(family, family.untied_by, {name: name for name in files.tensors})
    if family.untied_by in files.tensors and original is not None:
        equal = np.array_equal(files.read(family.untied_by), files.read(original))
        said |= {} if equal else {"tie_output": False}
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
