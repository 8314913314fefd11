"""Parts of text files: `train[:90%]` is the first part of the examples of `train`, `train[90%:]` the rest."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.sources.lines import TextFile
from transformer_jax.errors import DataError

_SLICE = re.compile(r"(?P<name>[^\[\]]+)(\[((?P<first>\d{1,3})%)?:((?P<last>\d{1,3})%)?\])?")


_NAMED = 5
"""Most files that a warning names."""
_log = logging.getLogger(__name__)


def warn_of_left_out(folder: Path, why: str, paths: Sequence[Path]) -> None:
    """Warn of what a source leaves out of a folder, with the number and the first names; `why` is said of each."""
    if paths:
        names = [path.relative_to(folder).as_posix() + ("/" if path.is_dir() else "") for path in paths]
        shown = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
        _log.warning("%s: left out %d of its files and folders, each of which %s: %s", folder, len(names), why, shown)


class Slice(NamedTuple):
    """The name of a file or files, and the part of them that belongs to a split, in percent."""

    name: str
    first: int
    last: int

    def of(self, files: tuple[TextFile, ...]) -> FilesPart:
        """Return the part of files."""
        return FilesPart(files, self.first, self.last)


class FilesPart(NamedTuple):
    """Files that are read together, and the part of them that belongs to a split, in percent."""

    files: tuple[TextFile, ...]
    first: int = 0
    last: int = 100

    @property
    def is_whole(self) -> bool:
        return (self.first, self.last) == (0, 100)

    def range_of(self, count: int) -> tuple[int, int]:
        """Return the indices of the first item and after the last one, of `count` items."""
        return count * self.first // 100, count * self.last // 100


def parse_slice(split: str, text: str) -> Slice:
    """Return a part of a split as `data.train_split` and the like name it; raise DataError for another form.

    Args:
      split: name of the split, for the message.
    """
    field = field_of(split, text)
    found = _SLICE.fullmatch(text)
    if not found:
        raise DataError(f"{field}: expected NAME, or a part of it such as NAME[:90%] or NAME[90%:]")
    first, last = int(found["first"] or 0), int(found["last"] or 100)
    if not first < last <= 100:
        raise DataError(f"{field}: the part from {first} % to {last} % is empty or beyond the end")
    return Slice(found["name"], first, last)


def field_of(split: str, text: str) -> str:
    """Return the field that names a part of a split, with its value, for messages."""
    return f"data.{split}_split={text!r}" if split in CORPUS_SPLITS else f"test set {split}={text}"
