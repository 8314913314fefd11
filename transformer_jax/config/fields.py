"""Functions with which the sections declare their fields: type, default, meaning and valid values."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import sys
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from transformer_jax.readers import read_text

if typing.TYPE_CHECKING:
    # None until the config is resolved. All other code sees resolved configs, and so a value.
    DerivedInt: typing.TypeAlias = int
    DerivedFloat: typing.TypeAlias = float
    DerivedStr: typing.TypeAlias = str
    DerivedBool: typing.TypeAlias = bool
else:
    DerivedInt, DerivedFloat, DerivedStr, DerivedBool = int | None, float | None, str | None, bool | None


class Choices(Collection[str]):
    """The valid values of a field: the keys of a table, or all but a few of them.

    The modules of most tables import JAX, which takes seconds. Until such a module is imported, the names are read from
    the dictionary in its source.
    """

    def __init__(self, path: str, without: Collection[str] = ()) -> None:
        """Args: path: `MODULE:TABLE` of a mapping from name to implementation. without: keys that are left out."""
        self.path = path
        self.without = without

    @property
    def table(self) -> Mapping[str, Any]:
        """Import the module and return the mapping from name to implementation."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)

    @property
    def loaded_table(self) -> Mapping[str, Any] | None:
        """Return the table if its module is imported already, else None."""
        module, _, name = self.path.partition(":")
        return getattr(sys.modules.get(module), name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> Collection[str]:
        table = self.loaded_table
        names = names_in_source(self.path) if table is None else table
        return [name for name in names if name not in self.without] if self.without else names


@functools.cache
def names_in_source(path: str) -> tuple[str, ...]:
    """Return the keys of a table, `MODULE:TABLE`, from the source of its module, which is not imported."""
    module, _, name = path.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    for node in ast.parse(read_text(spec.origin)).body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            table = next(part for part in ast.walk(node) if isinstance(part, ast.Dict))
            return tuple(ast.literal_eval(key) for key in table.keys if key is not None)
    raise AttributeError(f"{module} has no table '{name}'")


def chosen_names(chooser: dataclasses.Field, chosen: str) -> list[str]:
    """Return the names in the value of a choice: one, or with `several` those between commas."""
    return [name.strip() for name in chosen.split(",")] if chooser.metadata.get("several") else [chosen]


def is_from_outside(chooser: dataclasses.Field, chosen: Any) -> bool:
    """Return whether the chosen value of a field names an object from outside of this package."""
    if not chooser.metadata.get("outside"):
        return False
    built_in = names_in_source(chooser.metadata["choices"].path)
    return any(name not in built_in for name in chosen_names(chooser, chosen))


def outside_object(config: Any, name: str) -> Any:
    """Return the object that a field of a section names; None if it is built in, which needs no import.

    Raises: ConfigError, see `Registry`.
    """
    chooser, chosen = config.__dataclass_fields__[name], getattr(config, name)
    return chooser.metadata["choices"].table[chosen] if is_from_outside(chooser, chosen) else None


def field(default: Any, doc: str, **metadata: Any) -> Any:
    """Return a field of a section.

    All kinds of fields may have this metadata: `hyper`, `switch`, `host`, `rounding` and `bookkeeping` (see the
    package's docstring), and `read_by`, which maps the dotted name of a choice to the values with which this field is
    read. Setting the field with another value of that choice is an error. `or_read_by` has more such mappings: the
    field is read too if one of them holds. `used_with` has the form of `read_by`: with another value the field has no
    effect, but may be set. `derived_from` has the dotted names of the fields from which a default of None is derived.
    `place` of a rate of dropout is its field of `nn.dropout.DropoutRates`. `per_layer`: layers may differ in it
    (config/layers.py); `structure`: and then have other parameters. `of_attention`: a diagram names its value in the
    block of attention. `evaluated`: a `hyper` field that changes the function of the model, not only its training.
    `initial`: a field on which only the initial parameters depend.
    """
    return dataclasses.field(default=default, metadata={"doc": doc, **metadata})


def changes_function(declared: dataclasses.Field) -> bool:
    """Return whether a field of the model changes what the model computes from given parameters, beyond rounding.

    Fields that do not are those of the initial parameters, numbers of training such as rates of dropout, and choices of
    an implementation.
    """
    meta = declared.metadata
    is_of_training = meta.get("hyper") and not meta.get("evaluated")
    return not (meta.get("initial") or meta.get("rounding") or is_of_training)


def choice(default: str | None, names_or_table: tuple[str, ...] | str, doc: str, **metadata: Any) -> Any:
    """Return a field of named values: these names, or the keys of the table at `MODULE:TABLE`.

    With `outside` the table is a `Registry`, and a value may be `MODULE:OBJECT` too. With `several` the value has any
    number of names, separated by commas. With `extends`, which names sections, the objects define the fields of these
    sections.
    """
    choices = Choices(names_or_table) if isinstance(names_or_table, str) else names_or_table
    return field(default, doc, choices=choices, **metadata)


def number(default: Any, doc: str, minimum: float | None = None, maximum: float | None = None, **metadata: Any) -> Any:
    """Return a field of a numeric type; `above` and `below` are exclusive bounds."""
    return field(default, doc, minimum=minimum, maximum=maximum, **metadata)


def rate(default: Any, doc: str, **metadata: Any) -> Any:
    """Return a field for a probability below 1, an argument of the step; zero removes the feature from the program."""
    return number(default, doc, minimum=0.0, below=1.0, hyper=True, switch=True, **metadata)


def section(cls: type, **metadata: Any) -> Any:
    """Return a field that is a section; its `read_by`, as in `field`, holds for all of its fields."""
    return dataclasses.field(default_factory=cls, metadata=metadata)
