"""Layers that differ: `model.layer_pattern` and `model.layer_kinds`. No other field is named here.

A pattern is a text of letters, one for a layer. It is repeated from layer 0 on and cut at the depth of the stack.
Letters behind `|` are those of the last layers. The kinds say what a letter changes:

    layer_pattern = "SSSL"                  layers S S S L S S S L ...
    layer_pattern = "SSSL|L"                the same, but the last layer is L
    layer_pattern = "encoder: SL; decoder: SSSL"
    layer_kinds = "S: attention_window=256; L: attention_rotates=false"
    layer_kinds = "S: attention_window=256; L: mixer=mymodule:MyMixer"

Only fields that are marked `per_layer` can differ.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from transformer_jax.config.problems import unread_fields, value_problem
from transformer_jax.config.sections import base_type, field_types
from transformer_jax.config.similar_names import nearest

Config = TypeVar("Config")  # ModelConfig, which imports this module, or a subclass

STACKS = ("encoder", "decoder")
LAYERS = "layers"
"""The folder of the parameters of a stack's layers, with the layer as their first axis."""


class Pattern(NamedTuple):
    """Letters that repeat, and those of the last layers."""

    repeated: str
    last: str = ""

    def letters(self, num_layers: int) -> str:
        """Return one letter for each of so many layers."""
        before = num_layers - len(self.last)
        return (self.repeated * num_layers)[:before] + self.last


def layer_letters(config: Any, stack: str, num_layers: int) -> str:
    """Return the kind of every layer of a stack, one letter each; empty if its layers have no pattern.

    Args:
      config: a valid ModelConfig; stack: `encoder` or `decoder`; num_layers: L.
    """
    pattern = parse_pattern(config.layer_pattern).get(stack)
    return "" if pattern is None else pattern.letters(num_layers)


def layer_configs(config: Config, stack: str, num_layers: int) -> tuple[Config, ...]:
    """Return the config of every layer of a stack: that of the model, with the values of the layer's kind.

    Args: as in `layer_letters`.
    """
    return _layer_configs(config, stack, num_layers)  # ty: ignore[invalid-argument-type]


@functools.lru_cache(maxsize=256)
def _layer_configs(config: Any, stack: str, num_layers: int) -> tuple[Any, ...]:
    kinds = _kind_configs(config)
    return tuple(kinds[letter] for letter in layer_letters(config, stack, num_layers)) or (kinds[""],) * num_layers


def _kind_configs(config: Any) -> dict[str, Any]:
    """Return the config of every kind by its letter, and by an empty text the one without a kind."""
    plain = config
    if config.layer_pattern or config.layer_kinds:
        plain = dataclasses.replace(config, layer_pattern="", layer_kinds="")
    kinds = parse_kinds(type(config), config.layer_kinds)
    return {"": plain, **{letter: dataclasses.replace(plain, **values) for letter, values in kinds.items()}}


def layer_folder(config: Any) -> str:
    """Return the name of the folder of the parameters of a layer: `layers`, or by what its kind has, `layers_MIXER`.

    Of `MODULE:OBJECT` every character but letters and digits becomes `_`.
    Layers of one stack with equal folders have parameters of equal shapes, stacked in the order of the layers.
    """
    values = [value for field, value in _structure(config) if value != field.default]
    return "_".join([LAYERS, *(re.sub(r"\W", "_", value) for value in values)])


def _structure(config: Any) -> list[tuple[dataclasses.Field, Any]]:
    """Return the fields that decide which parameters a layer has, with their values."""
    return [(f, getattr(config, f.name)) for f in dataclasses.fields(config) if f.metadata.get("structure")]


def layer_numbers(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the layers whose parameters are in a folder, by its path, such as `decoder/layers`.

    Args:
      config: a valid ModelConfig. Empty for an architecture that is none of `model.TRANSFORMERS`.
    """
    numbers: dict[str, tuple[int, ...]] = {}
    for stack in config.stacks if config.is_transformer else ():
        for index, layer in enumerate(layer_configs(config, stack, getattr(config, f"num_{stack}_layers"))):
            path = f"{stack}/{layer_folder(layer)}"
            numbers[path] = (*numbers.get(path, ()), index)
    return numbers


def parse_pattern(text: str) -> dict[str, Pattern]:
    """Return the pattern of every stack that has one, by `encoder` and `decoder`.

    Raises: ValueError, whose text says what is wrong.
    """
    if not text:
        return {}
    if ":" not in text:
        return dict.fromkeys(STACKS, _pattern(text))
    patterns: dict[str, Pattern] = {}
    for part in text.split(";"):
        stack, colon, pattern = (piece.strip() for piece in part.partition(":"))
        if not colon or stack not in STACKS or stack in patterns:
            raise ValueError("expected one pattern, or 'encoder: PATTERN; decoder: PATTERN'")
        patterns[stack] = _pattern(pattern)
    return patterns


def _pattern(text: str) -> Pattern:
    match = re.fullmatch(r"([A-Za-z]+)(?:\|([A-Za-z]+))?", text.strip())
    if match is None:
        raise ValueError(
            f"{text.strip()!r} is no pattern; expected letters that repeat, such as SSSL, and maybe those of the last "
            "layers, such as SSSL|L"
        )
    return Pattern(match[1], match[2] or "")


@functools.lru_cache(maxsize=256)
def parse_kinds(config_class: Any, text: str) -> Mapping[str, Mapping[str, Any]]:
    """Return what every kind of `model.layer_kinds` sets: values by field, by letter.

    Raises: ValueError, whose text says what is wrong.
    """
    return {
        letter: {name: _value(config_class, letter, name, value) for name, value in settings.items()}
        for letter, settings in kind_settings(text).items()
    }


def kind_settings(text: str) -> dict[str, dict[str, str]]:
    """Return the texts of the values of `model.layer_kinds` by field, by letter; errors as `parse_kinds`.

    The first colon of a kind ends its letter, so a value may have one, as `MODULE:OBJECT` has.
    """
    kinds: dict[str, dict[str, str]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        letter, colon, settings = (piece.strip() for piece in part.partition(":"))
        if not colon or not re.fullmatch("[A-Za-z]", letter):
            raise ValueError(f"{part!r} is no kind; expected a letter and values, such as 'S: attention_window=256'")
        if letter in kinds:
            raise ValueError(f"kind {letter} is defined twice")
        kinds[letter] = {}
        for setting in filter(None, (piece.strip() for piece in settings.split(","))):
            name, equals, value = (piece.strip() for piece in setting.partition("="))
            if not equals or name in kinds[letter]:
                raise ValueError(f"kind {letter}: {setting!r}: expected every field once, as NAME=VALUE")
            kinds[letter][name] = value
    return kinds


def per_layer_fields(config_class: Any) -> dict[str, dataclasses.Field]:
    """Return the fields that may differ between layers, by name."""
    return {field.name: field for field in dataclasses.fields(config_class) if field.metadata.get("per_layer")}


def _value(config_class: Any, letter: str, name: str, text: str) -> Any:
    """Return the value of a field of a kind, of the field's type."""
    fields, per_layer = {field.name for field in dataclasses.fields(config_class)}, per_layer_fields(config_class)
    if name not in per_layer:
        what = "is the same in all layers" if name in fields else f"is no field{nearest(name, per_layer)}"
        raise ValueError(f"kind {letter}: {name} {what}; layers can differ in {', '.join(per_layer)}")
    annotation = field_types(config_class)[name]
    value = _parsed(base_type(annotation), text)
    if problem := value_problem(per_layer[name], annotation, value):
        raise ValueError(f"kind {letter}: {name}={text}: {problem}")
    return value


def _parsed(expected: type, text: str) -> Any:
    """Return a text as a value of the type that is expected; another value if it is none."""
    if expected is str:
        return text
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return float(value) if expected is float and type(value) is int else value


def layer_problems(config: Any) -> Iterator[str]:
    """Yield what is wrong with the pattern and the kinds of a ModelConfig; see `ModelConfig.problems`."""
    if not config.layer_pattern and not config.layer_kinds:
        return
    try:
        kinds = parse_kinds(type(config), config.layer_kinds)
    except ValueError as error:
        yield f"layer_kinds={config.layer_kinds!r}: {error}"
        return
    try:
        patterns = parse_pattern(config.layer_pattern)
    except ValueError as error:
        yield f"layer_pattern={config.layer_pattern!r}: {error}"
        return
    if ":" not in config.layer_pattern:
        patterns = {stack: pattern for stack, pattern in patterns.items() if stack in config.stacks}
    for stack, pattern in patterns.items():
        what = f"layer_pattern={config.layer_pattern!r}"
        if stack not in config.stacks:
            yield f"{what}: architecture='{config.architecture}' has no {stack}"
        elif len(pattern.last) > (num_layers := getattr(config, f"num_{stack}_layers")):
            yield f"{what}: {len(pattern.last)} last layers, but num_{stack}_layers={num_layers}"
        for letter in dict.fromkeys(pattern.repeated + pattern.last):
            if letter not in kinds:
                yield f"{what}: unknown letter {letter}; layer_kinds defines {', '.join(kinds) or 'none'}"
    for letter in kinds:
        if not any(letter in pattern.repeated + pattern.last for pattern in patterns.values()):
            yield f"layer_kinds={config.layer_kinds!r}: no layer_pattern uses kind {letter}; leave it out"
    plain = _kind_configs(config)[""]
    of_folder: dict[str, list[Any]] = {}
    for layer in (plain, *kind_configs(config).values()):
        values = [value for _, value in _structure(layer)]
        if (other := of_folder.setdefault(layer_folder(layer), values)) != values:
            yield (
                f"layer_kinds={config.layer_kinds!r}: layers with {', '.join(other)} and with {', '.join(values)} "
                f"would share the folder '{layer_folder(layer)}' of their parameters; rename a module or an object"
            )
    known = {*plain.problems()}
    for letter, kind in kind_configs(config).items():
        yield from (f"layer_kinds: kind {letter}: {problem}" for problem in kind.problems() if problem not in known)


def unread_in_kinds(config: Any) -> Iterator[str]:
    """Yield a problem for every field of a kind that the choices of an ExperimentConfig do not read."""
    try:
        kinds = kind_configs(config.model)
    except ValueError:  # `layer_problems` reports it
        return
    for letter, kind in kinds.items():
        yield from (
            f"model.layer_kinds: kind {letter}: {problem.removeprefix('model.')}"
            for problem in unread_fields(dataclasses.replace(config, model=kind))
            if problem.removeprefix("model.").partition("=")[0]
            in parse_kinds(type(kind), config.model.layer_kinds)[letter]
        )


def values_in_layers(config: Any, name: str) -> list[Any]:
    """Return the values that a field of a ModelConfig has in its layers.

    With a pattern for every stack, the value of the config counts only where a kind leaves it. If the kinds are not
    valid, it is the only one.
    """
    try:
        kinds, patterns = kind_configs(config), parse_pattern(config.layer_pattern)
    except ValueError:
        return [getattr(config, name)]
    own = [] if kinds and all(stack in patterns for stack in config.stacks) else [config]
    return list(dict.fromkeys(getattr(layer, name) for layer in (*own, *kinds.values())))


def kind_configs(config: Any) -> dict[str, Any]:
    """Return the config of every kind of a ModelConfig, by its letter.

    Raises: ValueError if `layer_kinds` is not valid.
    """
    return {letter: kind for letter, kind in _kind_configs(config).items() if letter}
