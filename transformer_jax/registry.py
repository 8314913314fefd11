"""Tables of named objects that users may extend: architectures, tasks, sources, and the parts of models and training.

`Registry` has classes, whose modules it imports when they are needed, `Factories` what makes objects, `Parts` the
entries of a block, and `Functions` functions.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from transformer_jax import trust
from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError

T = TypeVar("T")

_named: dict[str, set[str]] = {}
"""The values that name an object of a module outside this package, FIELD='MODULE:OBJECT', by the imported module."""


def blamed(error: BaseException) -> list[str]:
    """Return the values FIELD='MODULE:OBJECT' of all tables whose modules' code ran when an exception was raised."""
    modules = {frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__)}
    return sorted(value for module, values in _named.items() if module in modules for value in values)


class Registry(Mapping[str, T], Generic[T]):
    """A table of the values of one config field and their objects.

    A value is a name of this table, or `MODULE:OBJECT`: an object of any module that Python can import. The latter
    needs no call to `register`, so it works in every process of a sweep and in a later evaluation of the checkpoint.
    Its module is imported only if it may be, see `trust`.
    """

    def __init__(self, field: str, kind: type[T], entries: Mapping[str, str]) -> None:
        """Args: field: dotted name, for messages. kind: class of the objects. entries: `MODULE:OBJECT` by name."""
        self.field = field
        self._kind = kind
        self._built_in = dict(entries)
        self._registered: dict[str, T] = {}
        self._imported: dict[str, T] = {}

    def register(self, name: str, value: T) -> T:
        """Add `value` under a name; return it. Raises ConfigError for a name in use or an incomplete value."""
        if name in self:
            raise ConfigError(f"{self.field}='{name}' is registered already")
        self._registered[name] = self._checked(name, value)
        return value

    def __getitem__(self, name: str) -> T:
        """Return the object for a value of the field; import it if necessary.

        Raises: ConfigError for an unknown name, a module that cannot be imported, or an incomplete object;
          UntrustedError for a module that may not be imported.
        """
        if name in self._registered:
            return self._registered[name]
        if name not in self._built_in:
            if ":" not in name:
                raise ConfigError(f"config: {self.field}='{name}': {self.expected(name)}")
            self._check_trust(name)
        if name not in self._imported:
            # A module is imported, and its object checked, once.
            self._imported[name] = self._checked(name, self._import(name, self._built_in.get(name, name)))
            if name not in self._built_in:
                _named.setdefault(name.partition(":")[0], set()).add(f"{self.field}='{name}'")
        return self._imported[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._built_in, *self._registered))

    def __len__(self) -> int:
        return len(self._built_in) + len(self._registered)

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._registered

    def is_built_in(self, name: str) -> bool:
        """Return whether the package itself has an object with this name."""
        return name in self._built_in

    def from_outside(self) -> Iterator[T]:
        """Yield every registered object, and every `MODULE:OBJECT` that has been imported."""
        yield from self._registered.values()
        yield from (value for name, value in self._imported.items() if name not in self._built_in)

    def problem(self, name: str) -> str | None:
        """Return why the field cannot have this value, or None if it can. A built-in name needs no import."""
        if name in self:
            return None
        try:
            self._check_outside(name)
        except trust.UntrustedError:
            raise
        except ConfigError as error:
            return str(error).removeprefix(f"config: {self.field}='{name}': ")
        return None

    def _check_outside(self, name: str) -> None:
        self.config_class(name)

    def config_class(self, name: str) -> type:
        """Return the class of the config section for an object, with the fields that the object adds.

        The class is the object's attribute `config_class`. Built-in objects use the one of the table's class.

        Raises: ConfigError if there is no such object, or its `config_class` is not a dataclass that extends the shared
        one and has a default for every field.
        """
        base = self._kind.config_class  # ty: ignore[missing-attribute]
        if name in self._built_in:
            return base
        cls = self[name].config_class  # ty: ignore[missing-attribute]
        what = f"config: {self.field}='{name}': config_class"
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ConfigError(f"{what} is {cls!r}; expected {base.__name__} or a subclass of it")
        if "__dataclass_fields__" not in vars(cls):
            raise ConfigError(f"{what} {cls.__name__} lacks @dataclasses.dataclass(frozen=True, kw_only=True)")
        for field in dataclasses.fields(cls):
            if field.default is dataclasses.MISSING:
                raise ConfigError(f"{what} {cls.__name__}: its field '{field.name}' has no default")
        return cls

    def expected(self, name: str) -> str:
        """Return the text `expected one of ...`, with the most similar name."""
        return f"expected one of {', '.join(self)}, or MODULE:OBJECT{nearest(name, self)}"

    def _check_trust(self, name: str) -> None:
        """Raise UntrustedError if the module of `MODULE:OBJECT` is neither trusted nor imported by the user.

        Of a module that is merely imported, objects that are not of this table's kind are refused as well, since their
        code would run with arguments that they do not expect.
        """
        module, _, attribute = name.partition(":")
        trust.check({self.field: name})
        if not (trust.is_trusted(module) or self._is_of_kind(getattr(sys.modules[module], attribute, None))):
            raise trust.refusal({self.field: name}, self._kind_in_words())

    def _is_of_kind(self, value: Any) -> bool:
        return isinstance(value, self._kind) or (isinstance(value, type) and issubclass(value, self._kind))

    def _kind_in_words(self) -> str:
        return f"a {self._kind.__name__}"

    def _expected_kind(self) -> str:
        return f"{self._kind.__module__}.{self._kind.__name__} or a subclass"

    def _import(self, name: str, path: str) -> Any:
        module_name, _, attribute = path.partition(":")
        what = f"config: {self.field}='{name}'"
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{what}: {error}; is the folder that holds it on PYTHONPATH?") from error
        except Exception as error:
            traceback.print_exc()
            raise ConfigError(f"{what}: importing {module_name} raised {type(error).__name__}: {error}") from error
        try:
            return getattr(module, attribute)
        except AttributeError:
            hint = nearest(attribute, vars(module))
            raise ConfigError(f"{what}: module {module_name} has no '{attribute}'{hint}") from None

    def _checked(self, name: str, value: Any) -> T:
        """Return an instance of the table's class: `value`, or what calling it without arguments returns."""
        what, kind = f"config: {self.field}='{name}'", self._kind
        if isinstance(value, type) and issubclass(value, kind):
            if missing := sorted(getattr(value, "__abstractmethods__", ())):
                raise ConfigError(f"{what}: {value.__name__} lacks {', '.join(missing)}")
            try:
                value = value()
            except Exception as error:
                raise ConfigError(f"{what}: {value.__name__}() raised {type(error).__name__}: {error}") from error
        if not isinstance(value, kind):
            found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise ConfigError(f"{what}: expected {self._expected_kind()}, got {found}")
        return value


class Factories(Registry[Callable[..., Any]]):
    """A table of functions and classes that make the objects; they are called with the config's section."""

    def __init__(self, field: str, makes: type, entries: Mapping[str, str]) -> None:
        """Args: makes: a runtime-checkable protocol of the objects. field, entries: as in `Registry`."""
        super().__init__(field, object, entries)
        self._makes = makes

    def make(self, name: str, section: Any) -> Any:
        """Return the object for a value of the field.

        Raises: ConfigError as `__getitem__`, or if the object lacks a part of the protocol.
        """
        made, what = self[name](section), f"config: {self.field}='{name}'"
        if not isinstance(made, self._makes):
            raise ConfigError(f"{what}: {type(made).__name__} lacks {', '.join(self._missing(made))}")
        return made

    def _check_outside(self, name: str) -> None:
        self[name]

    def _is_of_kind(self, value: Any) -> bool:
        return isinstance(value, type) and not self._missing(value)

    def _kind_in_words(self) -> str:
        return f"a class with the methods of a {self._makes.__name__}"

    def _checked(self, name: str, value: Any) -> Callable[..., Any]:
        what = f"config: {self.field}='{name}'"
        if not callable(value):
            raise ConfigError(
                f"{what}: expected a class or function that makes a {self._makes.__name__}, got {type(value).__name__}"
            )
        if isinstance(value, type) and (missing := self._missing(value)):
            raise ConfigError(f"{what}: {value.__name__} lacks {', '.join(missing)}")
        return value

    def _missing(self, value: Any) -> list[str]:
        names = (name for name in vars(self._makes) if not name.startswith("_"))
        return [name for name in names if not hasattr(value, name)]


class Parts(Registry[T]):
    """A table of the parts of a block: named tuples of all that other code asks of one part. Entries are the objects.

    A field of an outside part must be callable, a text or a truth value, as those of the built-in ones are. A field
    `name`, the folder of its parameters, must not be that of a built-in part.
    """

    def __init__(
        self,
        field: str,
        kind: type[T],
        entries: Mapping[str, T],
        methods: Mapping[str, Sequence[str]] | None = None,
        one_of: Sequence[str] = (),
    ) -> None:
        """Make the table.

        Args:
          kind: the class of the named tuples.
          methods: those that a class has which is a field, by the field.
          one_of: fields of which an outside part has at least one.
        """
        super().__init__(field, kind, dict.fromkeys(entries, ""))
        self._entries = dict(entries)
        self._imported.update(entries)
        self._methods, self._one_of = methods or {}, one_of

    def _check_outside(self, name: str) -> None:
        self[name]

    def _checked(self, name: str, value: Any) -> T:
        part: Any = super()._checked(name, value)
        for problem in (*self._field_problems(part), *self._method_problems(part), *self._name_problems(part)):
            raise ConfigError(f"config: {self.field}='{name}': {problem}")
        return part

    def _expected_kind(self) -> str:
        return f"{self._kind.__module__}.{self._kind.__name__}"

    def _field_problems(self, part: Any) -> Iterator[str]:
        if self._one_of and all(getattr(part, field) is None for field in self._one_of):
            yield f"has none of {', '.join(self._one_of)}, so it does nothing"
        for field in part._fields:
            given, known = getattr(part, field), [getattr(entry, field) for entry in self._entries.values()]
            if given is None and None in known:
                continue
            if any(map(callable, known)) and not callable(given):
                yield f"{field}={given!r}: expected a function or class"
            elif {*map(type, known)} in ({str}, {bool}) and type(given) is not type(known[0]):
                yield f"{field}={given!r}: expected {type(known[0]).__name__}"

    def _method_problems(self, part: Any) -> Iterator[str]:
        for field, methods in self._methods.items():
            given = getattr(part, field)
            if isinstance(given, type):
                missing = [name for name in methods if not any(name in vars(cls) for cls in given.__mro__[:-1])]
                if missing:
                    yield f"{field}: {given.__name__} lacks {', '.join(missing)}"

    def _name_problems(self, part: Any) -> Iterator[str]:
        if "name" not in part._fields:
            return
        if not part.name.isidentifier():
            yield f"name={part.name!r}: expected the name of a folder of parameters, letters, digits and _"
        for other, entry in self._entries.items():
            if getattr(entry, "name", None) == part.name:
                yield f"name={part.name!r} is that of {self.field}='{other}'; give it another one"


class Functions(Registry[Callable[..., Any]]):
    """A table of functions, which are its entries."""

    def __init__(self, field: str, arguments: Sequence[str], entries: Mapping[str, Callable[..., Any]]) -> None:
        """Args: arguments: names of the positional arguments. field: as in `Registry`. entries: functions by name."""
        super().__init__(field, object, dict.fromkeys(entries, ""))
        self._imported.update(entries)
        self._arguments = tuple(arguments)

    def _check_outside(self, name: str) -> None:
        self[name]

    def _is_of_kind(self, value: Any) -> bool:
        return False

    def _kind_in_words(self) -> str:
        return f"known to be a function of ({', '.join(self._arguments)})"

    def _checked(self, name: str, value: Any) -> Callable[..., Any]:
        what = f"config: {self.field}='{name}': expected a function of ({', '.join(self._arguments)})"
        if not callable(value):
            raise ConfigError(f"{what}, got {type(value).__name__}")
        try:
            inspect.signature(value).bind(*self._arguments)
        except TypeError as error:
            raise ConfigError(f"{what}: {error}") from error
        except ValueError:  # a function of C, which has no signature
            pass
        return value
