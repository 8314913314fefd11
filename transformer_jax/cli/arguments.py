"""Arguments of a command: its own absl flags, config fields as flags with dotted names, and positional arguments."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from absl import flags

from transformer_jax.config import nearest
from transformer_jax.config_file import is_switch, leaf_types, parse_overrides
from transformer_jax.errors import ConfigError
from transformer_jax.trust import VARIABLE

CONFIG, PRETRAINING, TRUST = "config", "pretraining", "trust"
_TRUST_HELP = (
    "module of your own parts that files from elsewhere may name, such as a checkpoint; it is imported, which runs its "
    f"code; repeat the flag or separate names by commas, or set {VARIABLE}"
)

_FLAG = re.compile(r"--?([A-Za-z_][\w.]*)(?:=(.*))?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The parsed command line of a command.

    flags: the command's own flags, by attribute. overrides: dotted field name -> value of the field's type; the names
    of fields of a pretraining begin with `pretraining.`. If the
    command takes a config file, the values are text: `config_file.read_config` parses them and reports their problems
    together with those of the file. positionals: arguments without a flag, in order; at least as many as the command
    has names for.
    """

    flags: flags.FlagValues
    overrides: Mapping[str, Any]
    positionals: tuple[str, ...] = ()

    def required(self, name: str) -> str:
        """Return the text of a flag; raises ConfigError if it was not given."""
        value = self.flags[name].value
        if not value:
            raise ConfigError(f"--{name}=... is missing: {self.flags[name].help}")
        return value


@dataclasses.dataclass(frozen=True)
class Positionals:
    """The arguments without a flag that a command takes.

    names: names of the required ones. more: name of any number of further ones; None if the command takes no more.
    help: their help text.
    """

    names: tuple[str, ...] = ()
    more: str | None = None
    help: str = ""

    @property
    def usage(self) -> str:
        """Return the positionals as in a usage line: `A B [C ...]`."""
        return " ".join([*self.names, *([f"[{self.more} ...]"] if self.more else [])])


@runtime_checkable
class Command(Protocol):
    """A module of this package that implements a command; with POSITIONALS if the command takes positionals.

    READS_NO_FILES is true if nothing that the command reads can name a module of the user; it then has no --trust.
    """

    __doc__: str | None
    OVERRIDES: tuple[str, ...]
    """The fields that flags can override: "config" for all, as `--config.FIELD`; or names of sections and fields.

    "pretraining" stands for all fields of the pretraining of a study, as `--pretraining.FIELD`.
    """
    define: Callable[[flags.FlagValues], None]
    run: Callable[[Arguments], int]


def text(values: flags.FlagValues, name: str, help: str, default: str | None = None) -> None:
    flags.DEFINE_string(name, default, help, flag_values=values, allow_overwrite=False)


class _IntegerParser(flags.ArgumentParser):
    def __init__(self, minimum: int) -> None:
        super().__init__()
        self._minimum = minimum

    def parse(self, argument: str | int) -> int:
        try:
            value = int(argument)
        except ValueError:
            raise ValueError("expected an integer") from None
        if value < self._minimum:
            raise ValueError(f"expected at least {self._minimum}")
        return value


def choice_flag(values: flags.FlagValues, name: str, help: str, default: str, names: Sequence[str]) -> None:
    flags.DEFINE_enum(name, default, list(names), help, flag_values=values, allow_overwrite=False)


def integer(values: flags.FlagValues, name: str, help: str, default: int | None, minimum: int) -> None:
    parser, serializer = _IntegerParser(minimum), flags.ArgumentSerializer()
    flags.DEFINE(parser, name, default, help, values, serializer, allow_overwrite=False)


class _NumberParser(flags.ArgumentParser):
    def parse(self, argument: str | float) -> float:
        try:
            return float(argument)
        except ValueError:
            raise ValueError("expected a number") from None


def number(values: flags.FlagValues, name: str, help: str, default: float) -> None:
    flags.DEFINE(_NumberParser(), name, default, help, values, flags.ArgumentSerializer(), allow_overwrite=False)


def switch(values: flags.FlagValues, name: str, help: str, default: bool = False) -> None:
    flags.DEFINE_boolean(name, default, help, flag_values=values, allow_overwrite=False)


class _PathParser(flags.ArgumentParser):
    """A parser that expands ~ and ~user, because a shell does not expand them after `--flag=`."""

    def parse(self, argument: str) -> str:
        expanded = os.path.expanduser(argument)
        if argument.startswith("~") and expanded == argument:
            user = argument.partition("/")[0]
            raise ValueError(f"there is no user '{user[1:]}'; for a file of this name write ./{user}")
        return expanded


def path_flag(values: flags.FlagValues, name: str, help: str, default: str | None = None) -> None:
    """Declare a flag whose value is a path."""
    flags.DEFINE(_PathParser(), name, default, help, values, flags.ArgumentSerializer(), allow_overwrite=False)


def config_flag(values: flags.FlagValues, default: str | None = None) -> None:
    path_flag(
        values,
        CONFIG,
        "config file (FILE.py, FILE.py:ARGUMENT or WORKDIR/config.json) or a built-in config's name; "
        "--config.FIELD=VALUE overrides a field",
        default,
    )


CHECKPOINT = (
    "WORKDIR for its newest checkpoint, averaged as its config says; or one checkpoint without averaging: "
    "WORKDIR/checkpoints/STEP, WORKDIR/checkpoints/best (of those kept, by training.best_metric), or a copy of a "
    "checkpoint anywhere"
)
"""Help text of an argument that names a checkpoint."""


def checkpoint_flag(values: flags.FlagValues) -> None:
    path_flag(values, "checkpoint", CHECKPOINT)


def test_file_flags(values: flags.FlagValues) -> None:
    """Declare the flags of a test set that is not part of the corpus; `test_files_of` reads them."""
    path_flag(
        values, "input", "score this file in place of the corpus: sentences, FILE.tsv, FILE.jsonl or tfds:DATASET:SPLIT"
    )
    path_flag(values, "reference", "its translations, line by line, if --input does not have both sides")
    text(values, "name", "name of the scores of --input; default: the file's name up to its first dot")
    text(values, "columns", "of --input: TSV columns, JSONL keys or TFDS features of both sides, as INPUT,TARGET")


def test_files_of(values: flags.FlagValues) -> Any:
    """Return the `data.sources.TestFiles` of the flags; None without --input. Raises ConfigError for bad flags."""
    if not values.input:
        if given := [name for name in ("reference", "name", "columns") if values[name].value]:
            raise ConfigError(f"--{given[0]} is for a test set of your own and needs --input=FILE")
        return None
    if values["splits"].present:
        raise ConfigError("--splits names splits of the corpus, and --input is scored in place of it; leave one out")
    columns = None if values.columns is None else tuple(comma_separated("columns", values.columns))
    if columns is not None and len(columns) != 2:
        raise ConfigError(f"--columns={values.columns}: expected two, INPUT,TARGET")
    name = values.name or os.path.basename(values.input).partition(".")[0].rpartition(":")[2]
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"--name={name}: expected a name of letters, digits, '_', '.' and '-', for the files")

    from transformer_jax.data.sources import TestFiles

    return TestFiles(name, values.input, values.reference, columns)


def comma_separated(flag: str, given: str) -> list[str]:
    """Return the names that a flag lists; raises ConfigError if a name is empty or occurs twice."""
    names = [name.strip() for name in given.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise ConfigError(f"--{flag}={given}: expected different names, separated by commas")
    return names


def declare(command: Command) -> flags.FlagValues:
    """Return the flags of a command, with the flags that all commands have."""
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    command.define(values)
    if not getattr(command, "READS_NO_FILES", False):
        flags.DEFINE_multi_string(TRUST, None, _TRUST_HELP, flag_values=values, allow_overwrite=False)
    switch(values, "debug", "show the traceback of every error")
    return values


def trusted_modules(values: flags.FlagValues) -> list[str]:
    """Return what --trust names; empty for a command without it."""
    return (values[TRUST].value or []) if TRUST in values else []


def positionals_of(command: Command) -> Positionals:
    return getattr(command, "POSITIONALS", Positionals())


def override_flags(command: Command) -> dict[str, str]:
    """Return flag name -> dotted field name for every field that flags of the command can override."""
    result = {}
    for entry in command.OVERRIDES:
        if entry == CONFIG:
            result |= {f"{CONFIG}.{name}": name for name in leaf_types()}
        elif entry == PRETRAINING:
            result |= {f"{PRETRAINING}.{name}": f"{PRETRAINING}.{name}" for name in leaf_types()}
        else:
            result |= {name: name for name in leaf_types() if name == entry or name.startswith(f"{entry}.")}
    return result


def parse(command: Command, program: str, argv: Sequence[str]) -> Arguments:
    """Parse the command line of a command; raises ConfigError for an invalid one.

    Args:
      program: program and command, such as `transformer-jax train`.
      argv: the arguments after these.
    """
    values = declare(command)
    try:
        argv = values.read_flags_from_files(list(argv), force_gnu=False)
        _check_text(argv)
        rest, overrides = _split(argv, command)
        given = tuple(values([program, *rest])[1:])
    except flags.UnrecognizedFlagError as error:
        known = {f"--{flag.partition('.')[0]}" for flag in (*values, *command.OVERRIDES)}
        hint = nearest(f"--{error.flagname.partition('.')[0]}", known)
        if error.flagname in command.OVERRIDES:
            hint = f"; --{error.flagname}.FIELD=VALUE overrides a field"
            if positionals := positionals_of(command).names:
                hint += f", and {positionals[0]} is given without a flag"
        raise ConfigError(f"unknown flag --{error.flagname}{hint}; see {program} --help") from None
    except flags.IllegalFlagValueError as error:
        raise ConfigError(_illegal(str(error), values)) from None
    except flags.Error as error:
        raise ConfigError(str(error).removeprefix("ERROR:: ")) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--flagfile: is not a text file: {error}") from None
    except ValueError as error:  # absl's parser of the command line
        raise ConfigError(str(error)) from None
    _check_positionals(given, positionals_of(command), program)
    for flag in values:
        value = values[flag].value
        if isinstance(value, str) and value.startswith("--"):
            raise ConfigError(f"missing value for flag --{flag}: the next argument is {value}")
    if CONFIG not in command.OVERRIDES:
        overrides = parse_overrides(overrides, override_flags(command).values())
    return Arguments(values, overrides, given)


def _check_text(argv: Iterable[str]) -> None:
    """Raise ConfigError for an argument that is not UTF-8, which Python decodes to surrogates."""
    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError:
            shown = argument.encode("utf-8", "backslashreplace").decode()
            raise ConfigError(f"argument {shown!r} is not UTF-8") from None


def _check_positionals(given: Sequence[str], expected: Positionals, program: str) -> None:
    if len(given) > len(expected.names) and expected.more is None:
        takes = f"{program} takes {expected.usage}; " if expected.names else ""
        extra = given[len(expected.names)]
        raise ConfigError(f"unexpected argument '{extra}'; {takes}flags begin with two dashes; see {program} --help")
    if missing := expected.names[len(given) :]:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{' and '.join(missing)} {verb} missing: {program} {expected.usage}; see {program} --help")
    if "" in given:  # for example an unset shell variable
        raise ConfigError(f"argument {given.index('') + 1} is empty: {program} {expected.usage}; see {program} --help")


def _split(argv: Iterable[str], command: Command) -> tuple[list[str], dict[str, str]]:
    """Split the flags with dotted names off argv: return the other arguments, and dotted field name -> text."""
    known, rest, overrides = override_flags(command), [], {}
    tokens = iter(argv)
    for token in tokens:
        match = _FLAG.fullmatch(token)
        if token == "--" or not match or "." not in match[1]:
            rest += [token, *tokens] if token == "--" else [token]
            continue
        flag, value = match[1], match[2]
        if flag.startswith("no") and flag not in known and _is_switch(known.get(flag[2:], "")):
            if value is not None:
                raise ConfigError(f"--{flag} takes no value; use --{flag[2:]}={value}")
            flag, value = flag[2:], "false"
        if flag not in known and flag.partition(".")[0] not in {entry.partition(".")[0] for entry in command.OVERRIDES}:
            raise flags.UnrecognizedFlagError(flag)
        field = known.get(flag, flag.removeprefix(f"{CONFIG}."))
        if value is None:
            value = "true" if _is_switch(field) else next(tokens, "--")
            if value.startswith("--"):
                raise ConfigError(f"missing value for flag --{flag}")
        if field in overrides:
            raise ConfigError(f"--{flag} is given twice, as {overrides[field]} and as {value}")
        overrides[field] = value
    return rest, overrides


def _is_switch(field: str) -> bool:
    return is_switch(field.removeprefix(f"{PRETRAINING}."))


def _illegal(message: str, values: flags.FlagValues) -> str:
    """Return a readable form of the message of absl's IllegalFlagValueError."""
    match = re.fullmatch(r"flag --(\w+)=(.*?): (.*)", message, re.DOTALL)
    if match is None:
        return message
    flag, value, reason = match.groups()
    if reason.startswith("already defined as "):
        return f"--{flag} is given twice, as {reason.removeprefix('already defined as ')} and as {value}"
    return f"--{flag}={value}: {'expected true or false' if values[flag].boolean else reason}"
