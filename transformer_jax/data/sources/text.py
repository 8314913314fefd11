"""Parallel text files: DIR/PREFIX.LOCALE, plain or .gz, line i of one file translates line i of the other.

Files are UTF-8 with lines ended by LF or CR LF and by nothing else (U+2028 and its like are text), and a line keeps its
own spaces. Nothing is repaired or left out: what cannot be a sentence pair is a DataError that says where it is.
"""

from __future__ import annotations

import codecs
import difflib
import functools
import gzip
import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.data.sources.base import Split
from transformer_jax.errors import DataError

MAX_LINE_CHARACTERS = 100_000
_NAMED_LINES = 5  # line numbers that an error message lists


class _TextFile(NamedTuple):
    path: Path
    lines: list[str]
    sha256: str
    """Of the contents after decompression."""


class TextSource:
    """A corpus of parallel text files. See the module's docstring for their format."""

    def __init__(self, directory: str, source_locale: str, target_locale: str, prefixes: Mapping[str, str]) -> None:
        """prefixes: split name -> file prefix; a split with an empty prefix does not exist.

        Raises DataError for a missing folder or file. What the files hold is checked when a split is first read.
        """
        if not directory:
            raise DataError("data.dir is not set: data.source=text needs the folder of the text files")
        folder = Path(directory)
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "does not exist"
            raise DataError(f"data.dir={directory!r} {problem}")
        self._paths = {
            split: tuple(_find(folder, f"{prefix}.{locale}") for locale in (source_locale, target_locale))
            for split, prefix in prefixes.items()
            if prefix
        }
        self._read = functools.cache(self._read_pair)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self._paths)

    def split(self, name: str) -> Split:
        """Pairs of a split, in the order of the files. Raises DataError for an unknown split or a bad file."""
        if name not in self._paths:
            raise DataError(f"no split {name!r} in the text files; there are: {', '.join(self._paths)}")
        source, target = self._read(name)
        return Split(source.lines, target.lines, families=None)

    def fingerprint(self) -> dict[str, Any]:
        """sha256 over all files' contents (the same for plain and .gz); no library takes part in them."""
        parts = [f"{name} {file.sha256}" for name in self._paths for file in self._read(name)]
        return {"sha256": hashlib.sha256("\n".join(parts).encode()).hexdigest(), "versions": {}}

    def _read_pair(self, name: str) -> tuple[_TextFile, _TextFile]:
        source, target = (_read_lines(path) for path in self._paths[name])
        if len(source.lines) != len(target.lines):
            raise DataError(
                f"{source.path} has {len(source.lines)} lines but {target.path} has {len(target.lines)}:"
                " line i of one must translate line i of the other"
            )
        return source, target


def _find(folder: Path, name: str) -> Path:
    """The file, or with .gz behind its name. Raises DataError with the nearest names if there is neither."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_dir():
            raise DataError(f"{path} is a folder, not a text file")
        if path.exists():
            return path
    existing = sorted(path.name for path in folder.iterdir())
    nearest = difflib.get_close_matches(name, existing, n=3, cutoff=0.4)
    hint = f"nearest in that folder: {', '.join(nearest)}" if nearest else "that folder has no file of a similar name"
    raise DataError(f"no file {folder / name} or {name}.gz; {hint}")


def _read_lines(path: Path) -> _TextFile:
    content = _read_bytes(path)
    digest = hashlib.sha256(content).hexdigest()
    lines = _decode(path, content).split("\n")
    if lines[-1] == "":  # behind the last line's end
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    _check_lines(path, lines)
    return _TextFile(path, lines, digest)


def _read_bytes(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is a damaged or incomplete .gz file: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _decode(path: Path, content: bytes) -> str:
    start = len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0
    try:
        return content[start:].decode("utf-8")
    except UnicodeDecodeError as error:
        offset = start + error.start
        line = content.count(b"\n", 0, offset) + 1
        raise DataError(
            f"{path}, line {line}: not UTF-8 at byte {offset} of the file (0x{content[offset]:02x}): {error.reason}"
        ) from error


def _check_lines(path: Path, lines: list[str]) -> None:
    if not lines:
        raise DataError(f"{path} is empty")
    empty = [number for number, line in enumerate(lines, 1) if not line.strip()]
    if empty:
        named = ", ".join(map(str, empty[:_NAMED_LINES])) + (", ..." if len(empty) > _NAMED_LINES else "")
        raise DataError(
            f"{path} has {len(empty)} empty line{'s' if len(empty) > 1 else ''} (line {named}):"
            " remove the pair from both files"
        )
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise DataError(
                f"{path}, line {number} has {len(line)} characters, more than {MAX_LINE_CHARACTERS}:"
                " this is hardly one sentence; split or remove it"
            )
