"""Names of files: their parts, those in the text of a split, and lists of them in messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_MOST = 6


class NamedFile(NamedTuple):
    """A file, and the two parts of its name without .gz."""

    path: Path
    stem: str
    suffix: str


def named(path: Path) -> NamedFile:
    """Return a file with the parts of its name; a name without a dot is both."""
    stem, _, suffix = path.name.removesuffix(".gz").rpartition(".")
    return NamedFile(path, stem or suffix, suffix)


def stems_of(split: str) -> list[str]:
    """Return the stems in the text of a split, such as `a` and `b` of `a[:90%],b`."""
    return [part.partition("[")[0].strip() for part in split.split(",")]


def listed(names: Sequence[str]) -> str:
    """Return the first few names."""
    shown = ", ".join(names[:_MOST])
    return f"{shown}, ..." if len(names) > _MOST else shown
