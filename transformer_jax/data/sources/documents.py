"""Plain text as documents, for language models: `data.format=documents`; plain or .gz.

| `data.documents` | a document                                                                          |
|------------------|-------------------------------------------------------------------------------------|
| `line`           | a line; an empty line is a document without text                                    |
| `blank_line`     | the lines between two blank lines, joined by line feeds                              |
| `file`           | a file                                                                              |

A split is one or more files, separated by commas: `train` is the file `train.txt`; a full name such as `notes.md` and a
pattern such as `books/*.txt` work too. `train[:90%]` is the first part of a split: of its documents or, if documents
are files, of the characters of every file.
"""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.sources.lines import TextFile, find, text_lines
from transformer_jax.data.sources.slices import FilesPart, field_of, parse_slice, warn_of_left_out
from transformer_jax.data.sources.source import Split, joined, no_such_split
from transformer_jax.errors import DataError


class DocumentSource:
    """Files of plain text; see the module's docstring. The only feature of an example is `inputs`, its text."""

    def __init__(self, config: DataConfig) -> None:
        """Find the files; raise DataError for a missing folder or file. Their content is checked when it is read."""
        if not config.dir:
            raise DataError("data.dir is not set: data.source=text needs the folder of the text files")
        self._folder = Path(os.path.expanduser(config.dir))
        if not self._folder.is_dir():
            problem = "is not a folder" if self._folder.exists() else "does not exist"
            raise DataError(f"data.dir={config.dir!r} {problem}")
        self._unit = config.documents
        # Only the tokenizer of bytes can hold bytes that are not UTF-8.
        self._errors = "surrogateescape" if config.tokenizer == "byte" else "strict"
        self._encoding = config.encoding
        self._counts: dict[TextFile, int] = {}
        self._parts = {
            split: [self._part(split, text.strip()) for text in texts.split(",")]
            for split, texts in config.split_texts().items()
        }

    @classmethod
    def of_file(cls, config: DataConfig, name: str, path: Path) -> DocumentSource:
        """Return a source with one split, a test set that is not part of a corpus; raise DataError for a missing file.

        Args:
          config: its `documents`, if it reads documents, says what a document is; else it is a line.
        """
        source = cls.__new__(cls)
        source._unit = config.documents if config.format == "documents" else DataConfig.documents
        errors = "surrogateescape" if config.tokenizer == "byte" else "strict"
        file = TextFile(find(path.parent, path.name), allow_empty=True, errors=errors, encoding=config.encoding)
        source._counts = {}
        source._parts = {name: [FilesPart((file,))]}
        return source

    def _part(self, split: str, text: str) -> FilesPart:
        part = parse_slice(split, text)
        paths = self._find(field_of(split, text), part.name)
        return part.of(tuple(map(self._file, paths)))

    def _file(self, path: Path) -> TextFile:
        return TextFile(path, allow_empty=True, errors=self._errors, encoding=self._encoding)

    def _find(self, field: str, name: str) -> list[Path]:
        if "*" in name or "?" in name:
            matching = sorted(self._folder.glob(name))
            found = [path for path in matching if path.is_file()]
            others = sorted({*matching, *_nearly_matching(self._folder, name)} - {*found})
            if not found:
                nearest = f"; it has {', '.join(path.name for path in others[:3])}" if others else ""
                raise DataError(f"{field}: no file of {self._folder} matches{nearest}")
            warn_of_left_out(
                self._folder, f"is not a file, or matches '{name}' only with other letter case or .gz", others
            )
            return found
        for exact in (name, f"{name}.gz"):
            if (self._folder / exact).is_file():
                return [self._folder / exact]
        return [find(self._folder, f"{name}.txt")]

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self._parts)

    def num_examples(self, name: str) -> int:
        """Return the number of documents; raise DataError for an unknown split or a file that cannot be read."""
        return sum(last - first for part in self._of_split(name) for first, last in [self._range(part)])

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split in the order of the files; raise DataError for an unknown split or a bad file."""
        documents = itertools.chain.from_iterable(map(self._documents, self._of_split(name)))
        while chunk := list(itertools.islice(documents, size)):
            yield Split({"inputs": chunk})

    def split(self, name: str) -> Split:
        """Return a whole split; errors as in `chunks`."""
        return joined(self.chunks(name, 1 << 16))

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the sha256 of all files' contents (the same for plain and .gz), of the parts and of the unit."""
        parts = [f"documents {self._unit}"]
        corpus = [name for name in self._parts if name in CORPUS_SPLITS]
        for name in corpus if split is None or split in corpus else [split]:
            for part in self._of_split(name):
                parts += [f"{name} {part.first} {part.last} {file.contents.sha256}" for file in part.files]
        return {"sha256": hashlib.sha256("\n".join(parts).encode()).hexdigest(), "versions": {}}

    def _of_split(self, name: str) -> list[FilesPart]:
        if name not in self._parts:
            raise no_such_split(name, self._parts)
        return self._parts[name]

    def _range(self, part: FilesPart) -> tuple[int, int]:
        """Return the first and the end of the documents that belong to a part."""
        return (0, len(part.files)) if self._unit == "file" else part.range_of(sum(map(self._count, part.files)))

    def _count(self, file: TextFile) -> int:
        if self._unit == "line":
            return file.contents.num_lines
        if file not in self._counts:
            self._counts[file] = sum(1 for _ in UNITS[self._unit](file))
        return self._counts[file]

    def _documents(self, part: FilesPart) -> Iterator[str]:
        if self._unit == "file":
            for file in part.files:
                (text,) = _whole(file)
                first, last = part.range_of(len(text))
                yield text[first:last]
            return
        documents = itertools.chain.from_iterable(map(UNITS[self._unit], part.files))
        yield from itertools.islice(documents, *self._range(part))


def _nearly_matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a folder that match a pattern if letter case and a last .gz do not count."""
    parent = folder / os.path.dirname(pattern)
    if any(mark in str(parent) for mark in "*?") or not parent.is_dir():
        return []
    matches = re.compile(fnmatch.translate(os.path.basename(pattern)), re.IGNORECASE).match
    return sorted(path for path in parent.iterdir() if path.is_file() and matches(path.name.removesuffix(".gz")))


def _whole(file: TextFile) -> Iterator[str]:
    yield "\n".join(text_lines(file)) + ("\n" if file.contents.ends_line else "")


def _paragraphs(file: TextFile) -> Iterator[str]:
    """Yield the lines between blank lines, joined."""
    for is_text, lines in itertools.groupby(text_lines(file), lambda line: bool(line.strip())):
        if is_text:
            yield "\n".join(lines)


UNITS = {"line": text_lines, "blank_line": _paragraphs, "file": _whole}
"""The documents of a file, by the values of `data.documents`."""
