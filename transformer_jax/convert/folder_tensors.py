"""Tensors of a folder beside our parameters, in both directions, by the table of a family.

Every tensor is used, ignored for a stated reason, or named in an error; so is every parameter.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.checkpoints.finite import check_finite
from transformer_jax.config import ModelConfig
from transformer_jax.convert.folder_config import listing
from transformer_jax.convert.layouts import halved, interleaved
from transformer_jax.convert.tables import UNTIED, Family, Tensor
from transformer_jax.convert.tensor_files import READ_TYPES, Outgoing, TensorFiles
from transformer_jax.errors import CheckpointError

_NO_HEAD = "; a base model has no output of its own, and by config.json (tie_word_embeddings) it is not the embedding"
Leaves = Mapping[str, Any]
"""Arrays, or their shapes, by path."""


def tensors_of(family: Family, config: ModelConfig) -> list[Tensor]:
    """Return the tensors that exist with a config, with their layouts in such a model."""
    existing = (t for t in family.tensors if all(getattr(config, name) == value for name, value in t.when.items()))
    return [tensor._replace(layout=tensor.layout.of(config)) for tensor in existing]


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
        ours += family.lacks
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
    match, stored = _Match(family, config, shapes), _with_prefix(family, files.tensors)
    result = {}
    for tensor in match.tensors:
        arrays = [_aligned(match.shapes[path]) for path in tensor.ours]
        for layer, name in enumerate(match.names(tensor)):
            x = files.read(stored[name])
            check_finite({stored[name]: x}, str(files.folder))
            parts = tensor.layout.split(x, match.parts(tensor))
            for array, part in zip(arrays, parts, strict=True):
                if family.sines_first and tensor.width is not None:
                    part = interleaved(part, tensor.width)
                array[layer if match.stacked(tensor) else ...] = part
            advance(x.nbytes)
        result |= {path: place(array) for path, array in zip(tensor.ours, arrays, strict=True)}
    result |= {path: place(np.zeros(match.shapes[path], np.float32)) for path in family.lacks}
    return result, ignored


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an uninitialised float32 array whose memory JAX can use on a CPU as it is, without a copy."""
    size = math.prod(shape)
    memory = np.empty(size + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    return memory[start : start + size].reshape(shape)


def unused_tensors(family: Family, config: ModelConfig, shapes: Leaves, files: TensorFiles) -> dict[str, str]:
    """Return the tensors that are not needed, with the reasons; raises CheckpointError as `read_params`."""
    match, stored = _Match(family, config, shapes), _with_prefix(family, files.tensors)
    problems, wanted = [], set()
    for tensor in match.tensors:
        for name in match.names(tensor):
            wanted.add(name)
            if name not in stored:
                problems.append(f"{name}: is missing{_NO_HEAD if tensor.when == UNTIED else ''}")
            elif files.tensors[stored[name]].dtype not in READ_TYPES:
                kind = files.tensors[stored[name]].dtype
                problems.append(f"{name}: has the type {kind}; expected {', '.join(READ_TYPES)}")
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
            problems.append(f"{name}: unknown tensor")
    if problems:
        raise CheckpointError(listing(f"{files.folder}: does not fit its config.json", problems))
    return ignored


def _with_prefix(family: Family, names: Iterable[str]) -> dict[str, str]:
    """Return the names in the files by the full names of today, for one family.

    Base models, such as BertModel, are saved without the prefix that the same tensors have beside a head.
    """
    stored = {}
    for name in names:
        today = name
        for old, new in family.renamed:
            today = today.removesuffix(old) + new if today.endswith(old) else today
        stored[today] = name
    if not family.prefix or any(name.startswith(family.prefix) for name in stored):
        return stored
    bare = {tensor.theirs for tensor in family.tensors if not tensor.theirs.startswith(family.prefix)} | {
        *family.copies
    }

    def has_none(name: str) -> bool:
        return name in bare or any(re.fullmatch(pattern, name) for pattern in family.computed)

    return {name if has_none(name) else family.prefix + name: old for name, old in stored.items()}


def fitting(classes: Sequence[Family], names: Iterable[str]) -> list[Family]:
    """Return the classes whose tensors are all among those of a folder, of several those with most.

    Tensors that some configs lack do not count, and of the layers only the first.
    """
    names = list(names)
    found: dict[int, list[Family]] = {}
    for family in classes:
        stored = _with_prefix(family, names)
        always = [t for t in family.tensors if all(family.fixed.get(name) == value for name, value in t.when.items())]
        wanted = [tensor.theirs.replace("{layer}", "0") for tensor in always]
        if all(name in stored for name in wanted):
            found.setdefault(len(wanted), []).append(family)
    return found[max(found)] if found else []


def check_layers(family: Family, config: ModelConfig, files: TensorFiles) -> None:
    """Raise CheckpointError if config.json has more layers than the folder. Called before names of tensors are made."""
    stored, problems = _with_prefix(family, files.tensors), []
    for side in ("encoder", "decoder"):
        starts = {t.theirs.partition("{layer}")[0] for t in family.tensors if t.ours[0].startswith(f"{side}/layers/")}
        rests = [name.removeprefix(start) for start in starts for name in stored if name.startswith(start)]
        found = {rest.partition(".")[0] for rest in rests}
        field = f"num_{side}_layers"
        if starts and found and getattr(config, field) > len(found):
            key = next((key.theirs for key in family.keys if key.ours == field), field)
            problems.append(f"{key}={getattr(config, field)}: the folder has the tensors of {len(found)} layers")
    if problems:
        raise CheckpointError(listing(f"{files.folder}: does not fit its config.json", problems))


def _original(family: Family, name: str, stored: Mapping[str, str]) -> str | None:
    """Return the tensor that another one is a copy of, if there is one."""
    return next((other for other in family.copies.get(name, ()) if other in stored), None)


def rows_of_head(family: Family, files: TensorFiles) -> int | None:
    """Return the number of labels that the head predicts; None if the class or the folder has no head for labels."""
    stored = _with_prefix(family, files.tensors)
    names = [tensor.theirs for tensor in family.tensors if tensor.ours == ("head/output/bias",)]
    shapes = [files.tensors[stored[name]].shape for name in names if name in stored]
    return shapes[0][0] if shapes and len(shapes[0]) == 1 else None


def with_optional_tensors(family: Family, config: ModelConfig, files: TensorFiles) -> ModelConfig:
    """Return the config with the fields of those tensors that a model without them would not have.

    These are tensors other than zeros, an output projection that is not a copy of the embedding, and tables of encoder
    and decoder that differ from the one of both.
    """
    stored = _with_prefix(family, files.tensors)
    said = {field: True for name, field in family.zeros.items() if name in stored and np.any(files.read(stored[name]))}
    if family.untied_by and family.untied_by not in stored:
        return dataclasses.replace(config, **said, tie_output=True)
    original = _original(family, family.untied_by, stored)
    if family.untied_by and original is not None:
        equal = np.array_equal(files.read(stored[family.untied_by]), files.read(stored[original]))
        said |= {} if equal else {"tie_output": False}
    config = dataclasses.replace(config, **said)
    if _has_own_tables(family, config) and all(name in stored for name in family.own_tables):
        originals = {name: _original(family, name, stored) for name in family.own_tables}
        if not all(
            original is not None and np.array_equal(files.read(stored[name]), files.read(stored[original]))
            for name, original in originals.items()
        ):
            return dataclasses.replace(config, share_embeddings=False, source_vocab_size=config.vocab_size)
    return config


def _has_own_tables(family: Family, config: ModelConfig) -> bool:
    """Return whether transformers has more tables than our model, which has one for both sides and the output."""
    return bool(family.own_tables) and config.share_embeddings and not config.tie_output


def outgoing(family: Family, config: ModelConfig, leaves: Leaves) -> list[Outgoing]:
    """Return the tensors to write for our parameters by path."""
    match = _Match(family, config, leaves)

    def numbers(tensor: Tensor, layer: int) -> np.ndarray:
        arrays = []
        for path in tensor.ours:
            x = np.asarray(leaves[path])  # no copy on a CPU
            x = x[layer] if match.stacked(tensor) else x
            if family.sines_first and tensor.width is not None:
                x = halved(x, tensor.width)
            arrays.append(x)
        return tensor.layout.join(arrays)

    def written_name(name: str) -> str:
        return name.removeprefix(family.prefix) if family.bare else name

    result = [
        Outgoing(written_name(name), match.shape(tensor), lambda tensor=tensor, layer=layer: numbers(tensor, layer))
        for tensor in match.tensors
        for layer, name in enumerate(match.names(tensor))
    ]
    if _has_own_tables(family, config):
        by_name = {tensor.name: tensor for tensor in result}
        originals = {name: next(x for x in family.copies[name] if x in by_name) for name in family.own_tables}
        result += [by_name[original]._replace(name=name) for name, original in originals.items()]
    written = {tensor.name for tensor in result}
    for name in family.zeros:
        if name not in written:
            tensor = next(t for t in family.tensors if t.theirs == name)
            shape = tensor.layout.shape((config.vocab_size,))
            result.append(Outgoing(name, shape, lambda shape=shape: np.zeros(shape, np.float32)))
    return sorted(result, key=lambda tensor: tensor.name)
