"""Help texts: of the program, of a command, and of every field of the config."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any, cast

from transformer_jax.cli.arguments import Command, declare, override_flags, positionals_of
from transformer_jax.config import ExperimentConfig, leaf_fields

COMMANDS = (
    *("train", "evaluate", "compare", "generate", "predict", "score", "convert", "config", "inspect", "attention"),
    *(
        "explore",
        "lens",
        "ablate",
        "patch",
        "probe",
        "plot",
        "embeddings",
        "sweep",
        "report",
        "runs",
        "prepare",
        "list",
    ),
    *("doctor", "quickstart"),
)


def command_module(name: str) -> Command:
    return cast(Command, importlib.import_module(f"transformer_jax.cli.{name}"))


def program_help() -> str:
    rows = [(name, _summary(command_module(name))) for name in COMMANDS]
    return "\n".join(
        [
            "usage: transformer-jax COMMAND [flags]",
            "",
            inspect.cleandoc(importlib.import_module("transformer_jax").__doc__ or ""),
            "",
            "commands:",
            *_columns(rows),
            "",
            "`transformer-jax COMMAND --help` shows the flags of a command; --helpfull adds every config field.",
            "`transformer-jax --version` shows the versions.",
        ]
    )


def command_help(name: str, full: bool) -> str:
    """Return usage, arguments and flags of a command and, if `full`, the config fields that its flags can override."""
    command = command_module(name)
    values, fields = declare(command), override_flags(command)
    rows = [(_flag(flag.name, flag.boolean), _flag_text(flag)) for flag in map(values.__getitem__, values)]
    positionals = positionals_of(command)
    usage = f"usage: transformer-jax {name} [flags] {positionals.usage}".rstrip()
    lines = [usage, "", inspect.cleandoc(command.__doc__ or ""), ""]
    if positionals.usage:
        lines += ["arguments:", *_columns([(positionals.usage, positionals.help)]), ""]
    lines += [
        "flags:",
        *_columns([*rows, ("--help, --helpfull", "show this text; --helpfull adds every config field")]),
    ]
    if full and fields:
        lines += ["", "config fields, with their defaults before a config file sets them:", *_fields(fields)]
    return "\n".join(lines)


def _summary(command: Command) -> str:
    return inspect.cleandoc(command.__doc__ or "").partition("\n")[0]


def _flag(name: str, boolean: bool) -> str:
    return f"--[no]{name}" if boolean else f"--{name}=..."


def _flag_text(flag) -> str:
    if flag.boolean:
        default = " (default: yes)" if flag.default else ""
    else:
        default = "" if flag.default in (None, "") else f" (default: {flag.default})"
    return f"{flag.help}{default}"


def _fields(flag_of: Mapping[str, str]) -> list[str]:
    """Return two lines per field: the flag that sets it to its default, and its meaning."""
    names = {field: flag for flag, field in flag_of.items()}
    lines, section = [], None
    for name, (_, field) in leaf_fields().items():
        if name not in names:
            continue
        if section != (section := name.rpartition(".")[0]):
            lines += ["", *section_heading(section)]
        default = "" if field.default is None else value_text(field.default)
        lines += [f"  --{names[name]}={default}", *wrapped(meaning(field), "        ", "        ")]
    return lines


def section_heading(section: str) -> list[str]:
    """Return the name and the meaning of a section of the config as lines; empty for the fields outside of sections."""
    if not section:
        return []
    doc = inspect.cleandoc(getattr(ExperimentConfig(), section).__doc__).partition("\n\n")[0]
    return wrapped(f"{section}: {doc}", "", "")


def value_text(value: Any) -> str:
    """Return the value of a field as on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def meaning(field: dataclasses.Field) -> str:
    """Return the description of a field, with the names that it accepts."""
    doc, choices = field.metadata.get("doc", ""), field.metadata.get("choices")
    if not choices:
        return doc
    return f"{doc} ({' | '.join([*choices, *(['MODULE:OBJECT'] if field.metadata.get('outside') else [])])})"


def _columns(rows: Iterable[tuple[str, str]]) -> list[str]:
    rows = list(rows)
    width = max(len(left) for left, _ in rows) + 4
    return [line for left, right in rows for line in wrapped(right, f"  {left}".ljust(width), " " * width)]


def wrapped(text: str, first: str, rest: str) -> list[str]:
    """Return a text as lines that fit the terminal: the first begins with `first`, the others with `rest`."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    return textwrap.wrap(text, max(width, 40), initial_indent=first, subsequent_indent=rest, break_long_words=False)
