"""Text files: one file per language, or both languages in one TSV or JSONL file; plain or .gz; one or more per split.

| format     | files of the prefix `train` | an example                                                           |
|------------|-----------------------------|----------------------------------------------------------------------|
| `parallel` | `train.en`, `train.de`      | line i of one, line i of the other                                   |
| `tsv`      | `train.tsv`                 | two columns of a line, by number, between tabs; no quotes, no header |
| `jsonl`    | `train.jsonl`               | two strings of one object per line, by key                           |

The rules of lines.py hold for all of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.downloads.table import CORPORA
from transformer_jax.data.sources.base import Split, joined, no_such_split
from transformer_jax.data.sources.lines import TextFile, find
from transformer_jax.errors import ConfigError, DataError

_REMEDY = (
    f"to download the corpus of a built-in config ({', '.join(CORPORA)}), run: "
    "transformer-jax prepare --dataset=CONFIG --data_dir=data"
)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_Pick = Callable[[str], list[str]]
"""A function that returns the sides of an example from its line; it raises ValueError with the problem."""


class TextSource:
    """A corpus of text files; see the module's docstring."""

    def __init__(self, config: DataConfig) -> None:
        """Find the files; raise DataError for a missing folder or file. Their content is checked when it is read."""
        if not config.dir:
            raise DataError(f"data.dir is not set: data.source=text needs the folder of the text files; {_REMEDY}")
        folder = Path(os.path.expanduser(config.dir))
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "does not exist"
            raise DataError(f"data.dir={config.dir!r} {problem}; {_REMEDY}")
        self._names = _names(config)
        self._pick = _pick(config.format, self._names)
        # Part of the fingerprint that checkpoints store, in the form of the first versions: these had one format only,
        # and later the choice of one side (False).
        self._chosen = [] if config.format == "parallel" else [f"{config.format} {self._names} False"]
        # For every prefix, one file per language or one file for both.
        self._files = {
            split: [self._of_prefix(config, folder, prefix.strip()) for prefix in prefixes.split(",")]
            for split, prefixes in config.split_texts().items()
        }
        self._corpus = [split for split in self._files if split in CORPUS_SPLITS]

    @classmethod
    def of_files(cls, config: DataConfig, name: str, *files: Path) -> TextSource:
        """Return a source with one split, a test set that is not part of a corpus.

        Args:
          config: its format and features say how to read the files.
          files: one file for both languages, or the inputs and the targets.
        Raises: DataError for a missing file.
        """
        source = cls.__new__(cls)
        source._names = _names(config)
        source._pick = _pick(config.format, source._names)
        source._chosen = [] if config.format == "parallel" else [f"{config.format} {source._names} False"]
        source._files = {name: [tuple(TextFile(find(file.parent, file.name)) for file in files)]}
        source._corpus = []
        return source

    def _of_prefix(self, config: DataConfig, folder: Path, prefix: str) -> tuple[TextFile, ...]:
        if config.format != "parallel":
            return (TextFile(find(folder, f"{prefix}.{config.format}")),)
        locales = (config.source_locale, config.target_locale)
        return tuple(TextFile(find(folder, f"{prefix}.{locale}")) for locale in locales)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self._files)

    def num_examples(self, name: str) -> int:
        """Return the number of examples; raise DataError for an unknown split or a file that cannot be read."""
        return sum(files[0].contents.num_lines for files in self._of_split(name))

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split in the order of the files; raise DataError for an unknown split or a bad file."""
        sides = [self._lines(files) for files in self._of_split(name)]
        examples = itertools.chain.from_iterable(sides)
        while chunk := list(itertools.islice(examples, size)):
            sides = (list(side) for side in zip(*chunk, strict=True))
            yield Split(dict(zip(("inputs", "targets"), sides, strict=False)))

    def split(self, name: str) -> Split:
        """Return a whole split; errors as in `chunks`."""
        return joined(self.chunks(name, 1 << 16))

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the sha256 of all files' contents (the same for plain and .gz) and of the chosen columns.

        It does not depend on libraries. Raises DataError for files of different lengths, or other than text.
        """
        parts = list(self._chosen)
        for name in self._corpus if split is None or split in self._corpus else [split]:
            parts += [f"{name} {file.contents.sha256}" for files in self._of_split(name) for file in files]
        return {"sha256": hashlib.sha256("\n".join(parts).encode()).hexdigest(), "versions": {}}

    def _of_split(self, name: str) -> list[tuple[TextFile, ...]]:
        if name not in self._files:
            raise no_such_split(name, self._files)
        for files in self._files[name]:
            counts = [file.contents.num_lines for file in files]
            if len(set(counts)) > 1:
                raise DataError(
                    f"{files[0].path} has {counts[0]} lines but {files[1].path} has {counts[1]}:"
                    " line i of one must translate line i of the other"
                )
        return self._files[name]

    def _lines(self, files: tuple[TextFile, ...]) -> Iterator[tuple[str, ...]]:
        """Yield the sides of every example."""
        if self._pick is None:
            yield from zip(*(itertools.chain.from_iterable(file.blocks()) for file in files), strict=True)
            return
        for number, line in enumerate(itertools.chain.from_iterable(files[0].blocks()), 1):
            try:
                sides = self._pick(line)
            except ValueError as error:
                raise DataError(f"{files[0].path}, line {number}: {error}") from error
            yield tuple(sides)


def _names(config: DataConfig) -> list[str]:
    """Return the columns or keys of the sides, the targets last; without targets only that of the inputs."""
    defaults = ("1", "2") if config.format == "tsv" else (config.source_locale, config.target_locale)
    inputs = config.input_feature or defaults[0]
    return [inputs] if config.target_feature == "" else [inputs, config.target_feature or defaults[1]]


def _pick(format: str, names: list[str]) -> _Pick | None:
    """Return the function that splits a line into sides; None for parallel files. Raise ConfigError for a bad name."""
    if format == "parallel":
        return None
    if format == "jsonl":
        return lambda line: _values(line, names)
    if format != "tsv":
        raise ValueError(f"data.format='{format}' is not implemented")
    for name in names:
        if not name.isdecimal() or int(name) < 1:
            raise ConfigError(f"config: with data.format=tsv, features are column numbers from 1, not {name!r}")
    columns = [int(name) - 1 for name in names]
    return lambda line: _columns(line, columns)


def _columns(line: str, columns: list[int]) -> list[str]:
    cells = line.split("\t")
    if len(cells) <= max(columns):
        raise ValueError(f"expected at least {max(columns) + 1} columns, got {len(cells)}")
    sides = [cells[column] for column in columns]
    for side, column in zip(sides, columns, strict=True):
        if not side.strip():
            raise ValueError(f"column {column + 1} is empty")
    return sides


def _values(line: str, keys: list[str]) -> list[str]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    for key in keys:
        if key not in value:
            raise ValueError(f"no key {key!r}; there are: {', '.join(value)}")
        if not isinstance(value[key], str):
            raise ValueError(f"{key!r} is {type(value[key]).__name__}, not text")
        if not value[key].strip():
            raise ValueError(f"{key!r} is empty")
        # JSON escapes can contain characters that the file cannot.
        if bad := _NO_TEXT.search(value[key]):
            raise ValueError(f"{key!r} has the character U+{ord(bad[0]):04X}, which is not text")
    return [value[key] for key in keys]
