"""Text files: one file per language, or a file with both sides of every example; plain or .gz; one or more per split.

formats.py has the formats. The rules of lines.py hold for all of them. A split may be a part of the examples of a
prefix, such as `train[:90%]`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.config import DataConfig
from transformer_jax.config.data import CORPUS_SPLITS
from transformer_jax.data.downloads.table import CORPORA
from transformer_jax.data.sources.formats import FORMATS
from transformer_jax.data.sources.lines import TextFile, find
from transformer_jax.data.sources.slices import FilesPart, Slice, parse_slice
from transformer_jax.data.sources.source import Split, joined, no_such_split
from transformer_jax.errors import DataError

_REMEDY = (
    f"to download the corpus of a built-in config ({', '.join(CORPORA)}), run: "
    "transformer-jax prepare --dataset=CONFIG --data_dir=data"
)


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
        self._config = config
        self._format = FORMATS[config.format](config)
        # For every prefix, the files of its examples.
        self._parts = {
            split: [self._of_prefix(folder, parse_slice(split, prefix.strip())) for prefix in prefixes.split(",")]
            for split, prefixes in config.split_texts().items()
        }
        self._corpus = [split for split in self._parts if split in CORPUS_SPLITS]

    @classmethod
    def of_files(cls, config: DataConfig, name: str, *files: Path) -> TextSource:
        """Return a source with one split, a test set that is not part of a corpus.

        Args:
          config: its format and features say how to read the files.
          files: one file with both sides, or the inputs and the targets.
        Raises: DataError for a missing file.
        """
        source = cls.__new__(cls)
        source._config = config
        source._format = FORMATS[config.format](config)
        source._parts = {name: [FilesPart(tuple(source._opened(find(file.parent, file.name)) for file in files))]}
        source._corpus = []
        return source

    def _of_prefix(self, folder: Path, prefix: Slice) -> FilesPart:
        return prefix.of(tuple(self._opened(find(folder, name)) for name in self._format.files(prefix.name)))

    def _opened(self, path: Path) -> TextFile:
        return TextFile(path, allow_empty=self._format.allow_empty, encoding=self._config.encoding)

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self._parts)

    def num_examples(self, name: str) -> int:
        """Return the number of examples; raise DataError for an unknown split or a file that cannot be read."""
        return sum(last - first for part in self._of_split(name) for first, last in [self._range(part)])

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split in the order of the files; raise DataError for an unknown split or a bad file."""
        examples = itertools.chain.from_iterable(map(self._examples, self._of_split(name)))
        while chunk := list(itertools.islice(examples, size)):
            values = (list(side) for side in zip(*chunk, strict=True))
            yield Split(dict(zip(self._format.features, values, strict=True)))

    def split(self, name: str) -> Split:
        """Return a whole split; errors as in `chunks`, and DataError if it has no examples."""
        chunks = list(self.chunks(name, 1 << 16))
        if not chunks:
            paths = ", ".join(str(part.files[0].path) for part in self._parts[name])
            raise DataError(f"split '{name}' is empty: {paths}")
        return joined(chunks)

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the sha256 of all files' contents (the same for plain and .gz), of the format and chosen columns.

        It does not depend on libraries.

        Raises: DataError for files of different lengths, and for files that are not text.
        """
        parts = [*self._format.key, *([] if self._config.encoding == "utf-8" else [self._config.encoding])]
        for name in self._corpus if split is None or split in self._corpus else [split]:
            for part in self._of_split(name):
                self._format.check(part.files)
                label = name if part.is_whole else f"{name} {part.first} {part.last}"
                parts += [f"{label} {file.contents.sha256}" for file in part.files]
        return {"sha256": hashlib.sha256("\n".join(parts).encode()).hexdigest(), "versions": {}}

    def _of_split(self, name: str) -> list[FilesPart]:
        if name not in self._parts:
            raise no_such_split(name, self._parts)
        return self._parts[name]

    def _range(self, part: FilesPart) -> tuple[int, int]:
        """Return the first and the end of the examples that belong to a part."""
        return part.range_of(self._format.count(part.files))

    def _examples(self, part: FilesPart) -> Iterator[tuple[Any, ...]]:
        examples = self._format.examples(part.files)
        return examples if part.is_whole else itertools.islice(examples, *self._range(part))
