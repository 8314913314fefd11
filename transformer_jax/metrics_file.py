"""metrics.jsonl of a work directory: one line of JSON per logged step and split.

    {"step": 100, "split": "train", "loss": 2.31, ..., "seconds": 4.2, "tokens_per_s": 51000.0, "crc32": "6b1f08c2"}

With `training.monitor_every_steps` there are lines of the split "monitor" too (training/monitor.py).

`crc32` is the checksum of the line without it; a line without one is damaged. Lines are in the order of writing, so
steps and splits interleave. A number that is not finite is null. A killed process
may leave an incomplete line at the end; the next process cuts the file back before it writes. If other lines are
damaged, `cut_back` keeps the old file, and a line {"split": "damaged", "lines": N} says how many were lost there.

| function                                | a damaged line               |
|-----------------------------------------|------------------------------|
| `read_lines`                            | raises DataError             |
| `read_lines` with `may_be_growing`      | raises, except for the last  |
| `readable_lines`, `last_step`, `digest` | is skipped                   |
| `last_value`                            | is skipped                   |
| `cut_back`                              | is removed from the file     |
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import DataError
from transformer_jax.host.files import crc32_text, json_values, write_atomically
from transformer_jax.readers import open_file, parse_json, read_bytes

NAME = "metrics.jsonl"
CLOCK_FIELDS = ("seconds", "tokens_per_s")
"""Fields that differ between two runs of the same config."""

DAMAGED = "damaged"
"""The `split` of a line that stands for damaged lines."""

_TAIL_BYTES = 2**18  # a line of the monitor has about 50 bytes for every value of a layer
_CHECKSUM = re.compile(r', "crc32": "([0-9a-f]{8})"\}$')


def format_line(step: int, split: str, metrics: Mapping[str, Any]) -> str:
    """Return a line with its line break; floats that are not finite become null, since JSON has no such numbers."""
    text = json.dumps({"step": step, "split": split, **as_logged(metrics)}, allow_nan=False)
    return f'{text[:-1]}, "crc32": "{crc32_text(text)}"}}\n'


def as_logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with null in place of floats that are not finite."""
    return json_values(metrics)


def read_lines(file: Path, may_be_growing: bool = False) -> list[dict[str, Any]]:
    """Return every line in order; none if there is no file.

    Args:
      may_be_growing: leave out an unreadable last line, because a process may still write it or may have died there.

    Raises DataError, which names the file and the line, for a line that is not an object with a step and a split; or if
    the file cannot be read.
    """
    if not file.exists():
        return []
    try:
        texts, lines = read_bytes(file).decode("utf-8", "replace").splitlines(), []
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from error
    for number, text in enumerate(texts, start=1):
        values = _parsed(text)
        if values is None or "split" not in values:
            if number == len(texts) and may_be_growing:
                break
            raise DataError(f"{file}: line {number} is damaged or was cut short")
        lines.append({"step": values["step"], "split": values["split"], **values})
    return lines


def readable_lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines that can be read, in order; none if there is no file. Raises OSError for an unreadable file."""
    return [values for _, values in _readable(file)]


def last_step(file: Path) -> int:
    """Return the highest step of the readable lines; 0 if there is none. Raises OSError for an unreadable file."""
    return max((line["step"] for line in readable_lines(file)), default=0)


def digest(file: Path, step: int | None = None) -> str:
    """Return the sha256 of the lines that can be read, up to a step if one is given; "" if there are none.

    Raises OSError for an unreadable file.
    """
    texts = [text for text, values in _readable(file) if step is None or values["step"] <= step]
    return hashlib.sha256("".join(f"{text}\n" for text in texts).encode()).hexdigest() if texts else ""


class LastValue(NamedTuple):
    """The step of a line, and a value of it; None if that was not finite."""

    step: int
    value: float | None


def last_value(file: Path, name: str) -> LastValue | None:
    """Return the step and the value of the last line that has the metric; None if there is none.

    It reads only the end of the file, so the cost does not depend on the length of the run. The value is None if it was
    not finite. The result is None for an unreadable file too.
    """
    try:
        with open_file(file) as opened:
            opened.seek(0, os.SEEK_END)
            opened.seek(max(0, opened.tell() - _TAIL_BYTES))
            texts = opened.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    for text in reversed(texts):
        values = _parsed(text)
        if values is not None and name in values and (values[name] is None or is_number(values[name])):
            return LastValue(values["step"], values[name])
    return None


def cut_back(file: Path, step: int) -> list[int]:
    """Remove the lines after a step and damaged lines; do nothing if there is no file.

    Returns: the numbers of damaged lines, without an incomplete last one. If there are any, the old file is kept as
      FILE.damaged, and a line in their place says how many they were.
    Raises: OSError if the file cannot be read, CheckpointError if it cannot be written.
    """
    if not file.exists():
        return []
    data = read_bytes(file)
    *texts, last = data.decode("utf-8", "replace").split("\n")
    kept: list[str] = []
    damaged: list[int] = []
    in_a_row = latest = 0
    for number, text in enumerate([*texts, *([last] if _parsed(last) is not None else [])], start=1):
        values = _parsed(text)
        if values is None:
            damaged.append(number)
            in_a_row += 1
            continue
        if in_a_row:
            kept.append(format_line(latest, DAMAGED, {"lines": in_a_row})[:-1])
            in_a_row = 0
        if values["step"] <= step:
            kept.append(text)
            latest = values["step"]
    if in_a_row:
        kept.append(format_line(latest, DAMAGED, {"lines": in_a_row})[:-1])
    if damaged:
        write_atomically(file.with_name(f"{file.name}.damaged"), data)
    write_atomically(file, "".join(f"{text}\n" for text in kept).encode())
    return damaged


def values_by_step(lines: Iterable[Mapping[str, Any]], quantity: str) -> dict[int, float]:
    """Return the values of a quantity by step, without values that are not a number or were not finite.

    Args:
      quantity: SPLIT/METRIC, as in "valid/loss".
    """
    split, _, name = quantity.rpartition("/")
    return {
        line["step"]: float(line[name]) for line in lines if line.get("split") == split and is_number(line.get(name))
    }


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number; true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _readable(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the text and the values of each line that can be read."""
    if not file.exists():
        return []
    texts = read_bytes(file).decode("utf-8", "replace").splitlines()
    return [(text, values) for text in texts if (values := _parsed(text)) is not None]


def _parsed(text: str) -> dict[str, Any] | None:
    """Return the object of a line without its checksum; None if the line is damaged or has no step."""
    checksum = _CHECKSUM.search(text)
    if checksum is None:
        return None
    text = f"{text[: checksum.start()]}}}"
    if crc32_text(text) != checksum[1]:
        return None
    try:
        values = parse_json(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("step")) is not int or type(values.get("split", "")) is not str:
        return None
    return values
