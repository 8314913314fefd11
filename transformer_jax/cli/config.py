"""Show every field of a config: its value, its meaning and where the value is from; or what differs between configs.

    transformer-jax config quickstart --config.optimizer.warmup_steps=100
    transformer-jax config runs/first/config.json --json
    transformer-jax config wmt14:base wmt14:big

A value has one of these sources: `default`; `file`, the config file; `flag`, --config.FIELD=VALUE; `data`,
the user's files, which a generic config such as `classify` reads if data.dir is set; or `derived`, with
the fields that the default is computed from. A field that the file sets to its default counts as `default`.

With several names, only the fields with different values are shown. --config.FIELD=VALUE then overrides the field of
each. Fields that the architecture, the task or another choice does not read are left out; --all shows them too.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, Positionals, switch
from transformer_jax.cli.help import meaning, section_heading, value_text, wrapped
from transformer_jax.config import ReadConfig, ValueSource, unread_by, walk
from transformer_jax.config_file import read_with_sources
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text
from transformer_jax.host.terminal import printable, say

OVERRIDES = ("config",)
POSITIONALS = Positionals(
    ("NAME",), more="OTHER", help="built-in config, FILE.py, FILE.py:ARGUMENT or WORKDIR/config.json"
)
_SOURCE_COLUMN = 48

Table = Mapping[str, Mapping[str, Any]]
"""The fields of a config by dotted name: value, source, meaning, and whether the config reads it."""


def define(values: flags.FlagValues) -> None:
    switch(values, "all", "show the fields too that this config does not read")
    switch(values, "json", "print JSON instead of text")


def run(arguments: Arguments) -> int:
    names, values = arguments.positionals, arguments.flags
    tables = [field_table(read_with_sources(name, arguments.overrides)) for name in names]
    if len(names) == 1:
        shown = {name: row for name, row in tables[0].items() if row["read"] or values.all}
        report, lines = {"config": names[0], "fields": _as_json(shown)}, _listing(shown)
    else:
        rows = differences(tables, values.all)
        report = {"configs": list(names), "fields": {field: _entry(of) for field, of in rows.items()}}
        lines = _columns(names, rows) if rows else [f"no field differs between {' and '.join(names)}"]
    if values.json:
        print(json_text(report, indent=2, ascii=True))
        return exit_codes.OK
    print(printable("\n".join(lines)))
    if len(names) == 1 and (hidden := len(tables[0]) - len(shown)):
        say(f"{hidden} fields that this config does not read are left out; --all shows them")
    return exit_codes.OK


def field_table(config: ReadConfig) -> Table:
    """Return every field of a config that was read."""
    sources, unread = config.sources(), unread_by(config.config)
    return {
        name: {"value": value, "source": sources[name], "meaning": meaning(field), "read": name not in unread}
        for name, field, value in walk(config.config)
    }


def differences(tables: Sequence[Table], unread: bool) -> dict[str, list[Mapping[str, Any] | None]]:
    """Return the fields with different values, with their row in each table; None for a table that lacks the field.

    Args:
      unread: compare fields that a config does not read too; otherwise its table counts as if it lacked them.
    """
    names = dict.fromkeys(itertools.chain.from_iterable(tables))
    rows = {
        name: [row if (row := table.get(name)) and (unread or row["read"]) else None for table in tables]
        for name in names
    }
    return {name: of for name, of in rows.items() if len({(row is None, row and row["value"]) for row in of}) > 1}


def _as_json(table: Table) -> dict[str, dict[str, Any]]:
    return {name: {**row, **_plain(row["source"])} for name, row in table.items()}


def _entry(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return a field of several configs as JSON values: its meaning once, and value and source in each config."""
    meanings = [row["meaning"] for row in rows if row is not None]
    values = [None if row is None else {"value": row["value"], **_plain(row["source"])} for row in rows]
    return {"meaning": meanings[0], "values": values}


def _plain(source: ValueSource) -> dict[str, Any]:
    return {"source": source.kind} | ({"derived_from": list(source.fields)} if source.kind == "derived" else {})


def _listing(table: Table) -> list[str]:
    """Return two lines or more per field: its value and source, and its meaning."""
    lines, section = [], ""
    for name, row in table.items():
        if section != (section := name.rpartition(".")[0]):
            lines += ["", *section_heading(section)]
        source = str(row["source"]) if row["read"] else f"{row['source']}; not read"
        lines.append(f"  {name}={value_text(row['value'])}".ljust(_SOURCE_COLUMN) + f"  {source}")
        lines += wrapped(row["meaning"], "        ", "        ")
    return lines


def _columns(names: Sequence[str], fields: Mapping[str, Sequence[Mapping[str, Any] | None]]) -> list[str]:
    """Return a table with a line per field and a column per config."""
    rows = [["field", *names]]
    for field, of in fields.items():
        rows.append([field, *("(not read)" if row is None else value_text(row["value"]) or '""' for row in of)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
