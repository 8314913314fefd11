"""config.json beside our config, in both directions, by the table of a family.

Every key is used, ignored for a stated reason, or named in an error; so is every field of our config. A key that
transformers does not read changes nothing there, so it is ignored here.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.config import DROPOUT_RATES, ModelConfig, TaskConfig, field_types, nearest
from transformer_jax.convert import keys, layer_lists
from transformer_jax.convert.families import CLASSES, FAMILIES
from transformer_jax.convert.tables import (
    COMMON_IGNORED,
    COMMON_REQUIRED,
    GENERATION,
    LABEL_KEYS,
    LIBRARY,
    TRAINING_ONLY,
    Family,
)
from transformer_jax.errors import CheckpointError, ConfigError

_MAX_LISTED = 12
_WRITTEN = [family for family in CLASSES if not family.read_only]


def possible_classes(config: Mapping[str, Any], where: str) -> list[Family]:
    """Return the classes that a config.json may mean, the likeliest first.

    `architectures` names a class. Without it, all classes of its `model_type` may be meant; without both, all.

    Raises: CheckpointError if we have no class for its `model_type`, or none that `architectures` names.
    """
    name, named = config.get("model_type"), config.get("architectures")
    if name is not None and (not isinstance(name, str) or name not in FAMILIES):
        raise CheckpointError(
            f"{where}: model_type={name!r}: transformer_jax converts {', '.join(FAMILIES)}"
            f"{nearest(str(name), FAMILIES)}"
        )
    if not isinstance(named, list) or not named:
        return [family for family in CLASSES if name in (None, family.name)]
    meant = [family for family in CLASSES if named[0] in (family.class_name, *family.also)]
    # Old MarianMT folders have the model_type of BART; transformers takes the class that the user names.
    if found := [family for family in meant if name in (None, family.name, *family.once)]:
        return found
    of_type = [family for family in CLASSES if name in (None, family.name)]
    known = ", ".join(dict.fromkeys(cls for family in of_type for cls in (family.class_name, *family.also)))
    label = "all families" if name is None else FAMILIES[name].label
    raise CheckpointError(f"{where}: architectures={named}: of {label}, transformer_jax converts {known}")


def check_family(name: str) -> None:
    """Raise ConfigError if there is no family of this name."""
    if name not in FAMILIES:
        raise ConfigError(f"family='{name}': expected one of {', '.join(FAMILIES)}{nearest(name, FAMILIES)}")


def family_named(name: str, task: TaskConfig) -> Family:
    """Return the table of a family for a task; of several classes, the one with its head.

    Raises: ConfigError if there is no such family, or if none of its classes has the head of the task.
    """
    check_family(name)
    classes = [family for family in _WRITTEN if family.name == name]
    if fitting := [family for family in classes if task.name in family.tasks]:
        return min(fitting, key=lambda family: len(_other_head(family, task)))
    known = ", ".join(dict.fromkeys(name for family in classes for name in family.tasks))
    raise ConfigError(f"family='{name}': has no class for task.name='{task.name}'; it has some for {known}")


def usual_task(config: ModelConfig) -> TaskConfig:
    """Return the first task of the first family with the architecture and the inputs of a model."""
    alike = (family for family in _WRITTEN if family.architecture == config.architecture)
    names = (family.tasks[0] for family in alike if family.fixed.get("inputs", ModelConfig.inputs) == config.inputs)
    return TaskConfig(name=next(names, TaskConfig.name))


def read_task(family: Family, num_labels: int, name: str | None = None) -> TaskConfig:
    """Return a task of a class, with the fields that its head needs.

    Args:
      num_labels: 0 for a head without labels. name: of the task; default: the first of the class.
    Raises: ConfigError if the class has no head for the task.
    """
    if name is not None and name not in family.tasks:
        known = " or ".join(f"'{task}'" for task in family.tasks)
        raise ConfigError(f"task.name='{name}': {family.label} needs {known}{nearest(name, family.tasks)}")
    name = family.tasks[0] if name is None else name
    fields = dict(family.task_fields)
    if family.has_labels:
        fields["num_labels"] = num_labels
    if family.text_start and name == "text_to_text":
        fields["text_start"] = True
    return TaskConfig(name=name, **fields)


def read_model_config(family: Family, theirs: Mapping[str, Any], where: str) -> tuple[ModelConfig, dict[str, str]]:
    """Convert a config.json: return our config, resolved, and the reason for every key that was ignored.

    Raises: CheckpointError, which lists all keys that we cannot express and all sizes that are out of bounds.
    """
    values, ignored = _renamed(family, theirs)
    problems = [] if family.rope is None else family.rope.read(values, ignored)
    problems += family.adapt(values) if family.adapt else []
    problems += [*_beyond(family, values)]
    # A dropout rate without a key is 0 there.
    ours: dict[str, Any] = {"architecture": family.architecture, "init": family.init, "dropout_rate": 0.0}
    if family.has_labels and all(key.ours != "head_dropout_rate" for key in family.keys):
        ours["head_dropout_rate"] = 0.0
    if family.rope is not None:
        ours["rotary_base"] = values.pop(family.rope.base)
    ours |= {name: value for name, value in family.fixed.items() if not callable(value)}
    said: dict[str, str] = {}
    for key in family.keys:
        value = values.get(key.theirs, key.default)
        if value is ... or (value is None and key.ours in said):
            continue
        if key.values is not None and not (isinstance(value, str | bool) and value in key.values):
            problems.append(f"{key.theirs}={value!r}: expected one of {', '.join(map(repr, key.values))}")
            continue
        value = value if key.values is None else key.values[value]
        if key.ours in said and ours[key.ours] != value:
            problems.append(
                f"{key.theirs}={value!r} contradicts {said[key.ours]}={ours[key.ours]!r}; "
                "transformer_jax has one field for both"
            )
        ours[key.ours], said[key.ours] = value, key.theirs
    for key in family.keys:
        values.pop(key.theirs, None)
    num_layers = ours.get("num_decoder_layers")
    if family.layers is not None and not problems and type(num_layers) is int:  # of another type it is a problem below
        try:
            ours |= family.layers.read(values, num_layers)
        except ValueError as error:
            problems.append(str(error))
    for name, (allowed, because) in _requirements(family).items():
        value = values.pop(name, allowed[0])
        if value not in allowed:
            can = f"transformer_jax supports only {' or '.join(map(repr, allowed))}"
            problems.append(f"{name}={value!r}: {can}{because and '; '}{because}")
    if family.has_labels:  # `labels.labels_of_config` reads them
        has_kind = family.tasks[0] != "tagging" and not family.lacks
        read = (*LABEL_KEYS, "problem_type") if has_kind else LABEL_KEYS
        values = {name: value for name, value in values.items() if name not in read}
    ignored |= {name: why_ignored(family, name) for name in values}
    if not problems:
        problems = [*_config_problems(ours, said)]
    if problems:
        raise CheckpointError(listing(f"{where}: this {family.label} cannot be converted", problems))
    config = ModelConfig(**_with_floats(ours)).resolved()
    follows = {name: value(config) for name, value in family.fixed.items() if callable(value) and name not in said}
    return dataclasses.replace(config, **follows), ignored


def _requirements(family: Family) -> dict[str, tuple[tuple[Any, ...], str]]:
    """Return the values of keys that we can read, and what others say; see `Family.required`."""
    common = {name: values for name, values in COMMON_REQUIRED.items() if name != "is_causal" or family.has_decoder}
    return common | {name: (allowed, family.because.get(name, "")) for name, allowed in family.required.items()}


def why_ignored(family: Family, name: str) -> str:
    """Return why a key that is neither used nor refused is ignored."""
    reasons = {**COMMON_IGNORED, **family.ignored}
    if name in reasons:
        return reasons[name]
    if name in keys.of_generation():
        return GENERATION
    return LIBRARY if name in keys.of_library() else f"transformers does not read it for {family.label}"


def later_version(theirs: Mapping[str, Any], where: str) -> str | None:
    """Return a warning if a later transformers wrote a config.json than the one whose keys we know."""
    written = theirs.get("transformers_version")
    if not isinstance(written, str) or not keys.is_later(written):
        return None
    return (
        f"{where}: transformers {written} wrote it; transformer_jax knows the keys of transformers {keys.version()}. A "
        "newer key that changes the model would be among the ignored ones. Compare some outputs with those of "
        f"transformers, or save the folder again with transformers {keys.version()}"
    )


def _renamed(family: Family, theirs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys by the names of the table, and those whose value another name replaces."""
    values, replaced = dict(theirs), {}
    if theirs.get("model_type") in family.once and "decoder_start_token_id" not in values and "pad_token_id" in values:
        values["decoder_start_token_id"] = values["pad_token_id"]
    for name, other in family.repeats.items():
        if values.get(name) is None and other in values:
            values[name] = values[other]
    for alias, name in keys.aliases(family.name).items():
        if (value := values.pop(alias, None)) is None:
            continue
        if values.get(name, value) != value:
            replaced[name] = f"{alias}={value!r} takes its place, as in transformers"
        values[name] = value
    return values, replaced


_MOST = 2**31 - 1
_MOST_OF = {"num_encoder_layers": 10_000, "num_decoder_layers": 10_000}
_MOST_LABELS = 100_000


def _beyond(family: Family, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every size that is larger than any real one, and that would take the memory of any machine.

    Sizes within the bounds are compared with the tensors before they are used.
    """
    for key in family.keys:
        value, most = values.get(key.theirs), _MOST_OF.get(key.ours, _MOST)
        if isinstance(value, int) and value > most:
            yield f"{key.theirs}={value}: transformer_jax reads at most {most:,}"
    if not family.has_labels:
        return
    labels = values.get("id2label")
    ids = [int(id) for id in labels if re.fullmatch(r"[0-9]{1,30}", str(id))] if isinstance(labels, Mapping) else []
    for name, number in (("num_labels", values.get("num_labels")), ("id2label with the id", max(ids, default=0))):
        if isinstance(number, int) and number > _MOST_LABELS:
            yield f"{name}={number}: transformer_jax reads at most {_MOST_LABELS:,} labels"


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
    if "token_types" in said and not ours["token_types"]:
        yield f"{said['token_types']}=0: expected an integer, at least 1"
        return
    for problem in ModelConfig(**_with_floats(ours)).problems():
        name = problem.partition("=")[0]
        yield f"{said[name]}, read as model.{name}: {problem}" if name in said else problem


def _with_floats(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with integers as floats where the field is a float: JSON may have a rate of 0 for 0.0."""

    def is_float(name: str) -> bool:
        return float in (typing.get_args(types[name]) or (types[name],))

    types = field_types(ModelConfig)
    return {name: float(value) if type(value) is int and is_float(name) else value for name, value in ours.items()}


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


def write_model_config(family: Family, config: ModelConfig, task: TaskConfig) -> dict[str, Any]:
    """Return the keys of config.json that express our config.

    Args:
      task: whose head the model has.
    Raises: ConfigError, which names every field that the family cannot express, and a family that can.
    """
    problems = unsaid(family, config) + _other_head(family, task)
    if problems:
        same = (other for other in _WRITTEN if {*other.tasks} & {*family.tasks})
        others = dict.fromkeys(f"--family={other.name}" for other in same if not unsaid(other, config))
        advice = f"\nThis family can: {' or '.join(others)}" if others else ""
        raise ConfigError(listing(f"this model cannot be written as {family.label}", problems) + advice)
    result: dict[str, Any] = {"model_type": family.name, "architectures": [family.class_name]}
    for key in family.keys:
        value = getattr(config, key.ours)
        if key.values is not None:
            value = next(theirs for theirs, ours in key.values.items() if ours == value)
        result.setdefault(key.theirs, value)
    result |= {} if family.rope is None else family.rope.write(config)
    result |= {name: allowed[0] for name, allowed in family.required.items() if allowed[0] is not None}
    result |= {} if family.layers is None else family.layers.write(config)
    return result | dict(family.notes) | (family.also_written(config) if family.also_written else {})


def _other_head(family: Family, task: TaskConfig) -> list[str]:
    """Return a line for every field of a task with which its head is not that of a family."""
    return [
        f"task.{name}={getattr(task, name)!r}: {family.label} has {value!r}"
        for name, value in family.task_fields.items()
        if getattr(task, name) != value
    ]


def unsaid(family: Family, config: ModelConfig) -> list[str]:
    """Return a line for every field that a family cannot express."""
    first = {}
    problems = [] if family.layers is None else family.layers.problems(config, family.label)
    without = dataclasses.replace(config, **unnamed(family)).resolved()
    expected = {name: getattr(without, name) for name in unnamed(family)}
    expected |= {name: value(config) if callable(value) else value for name, value in family.fixed.items()}
    for name, value in expected.items():
        if getattr(config, name) != value:
            problems.append(f"model.{name}={getattr(config, name)!r}: {family.label} has {value!r}")
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


def closest(config: ModelConfig, task: TaskConfig) -> Family:
    """Return the class for a task that can express most of a config and its head, in doubt the first.

    Raises: ConfigError if no class has the head of the task.
    """
    candidates = [family for family in _WRITTEN if task.name in family.tasks]
    if not candidates:
        known = ", ".join(dict.fromkeys(name for family in _WRITTEN for name in family.tasks))
        raise ConfigError(f"task.name='{task.name}': no family has a head for it; there are some for {known}")
    return min(candidates, key=lambda family: len(unsaid(family, config)) + len(_other_head(family, task)))


_ELSEWHERE = (
    *("rotary_base", "relative_num_buckets", "relative_max_distance"),
    *("source_vocab_size", "tie_output", "output_bias", "scale_logits", "pixel_mean", "pixel_std"),
)
"""Fields that a family may leave unnamed: they are read with certain values of other fields alone, or tensors or
another file say them. `rotary_base` is written by `Family.rope`."""


def unnamed(family: Family) -> dict[str, Any]:
    """Return the defaults of the fields that models of a family read but its table does not name.

    It can express no other value; of a field that is derived from others, none but the derived one.
    """
    named = {*(key.ours for key in family.keys), *family.fixed, *TRAINING_ONLY, *_ELSEWHERE}
    named |= set() if family.layers is None else {*layer_lists.FIELDS}
    fields = dataclasses.fields(ModelConfig)
    return {field.name: field.default for field in fields if field.name not in named and _is_read(field, family)}


def _is_read(field: dataclasses.Field, family: Family) -> bool:
    """Return whether models with the architecture and the inputs of a family may read a field."""
    read_by, inputs = field.metadata.get("read_by", {}), family.fixed.get("inputs", ModelConfig.inputs)
    architectures = read_by.get("model.architecture", (family.architecture,))
    return family.architecture in architectures and inputs in read_by.get("model.inputs", (inputs,))


def fields_without_meaning(family: Family) -> set[str]:
    """Return the fields of ModelConfig that a family neither reads nor writes; the tests say why each is right."""
    known = {key.ours for key in family.keys} | set(family.fixed) | set(unnamed(family)) | set(TRAINING_ONLY)
    known |= set() if family.layers is None else {*layer_lists.FIELDS}
    return {field.name for field in dataclasses.fields(ModelConfig)} - known


def listing(heading: str, problems: Sequence[str]) -> str:
    lines = [f"  - {problem}" for problem in problems[:_MAX_LISTED]]
    if len(problems) > _MAX_LISTED:
        lines.append(f"  - and {len(problems) - _MAX_LISTED} more")
    return "\n".join([heading, *lines])
