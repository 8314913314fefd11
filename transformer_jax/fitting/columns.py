"""Which columns of a file have the texts and the labels."""

from __future__ import annotations

import collections
import contextlib
import itertools
import re
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.formats import lines_of
from transformer_jax.data.sources.lines import TextFile, find
from transformer_jax.errors import DataError
from transformer_jax.fitting.kinds import Kind
from transformer_jax.readers import parse_json
from transformer_jax.terminal import say

TEXTS = ("text", "sentence", "review", "comment", "tweet", "question", "body", "content", "message", "document")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "stars", "rating", "score", "topic", "y")
"""Usual names of columns, in lower case."""
_SAMPLE = 2000
_NAME = re.compile(r"[\w.\-]{1,40}")
_OTHERS = {"source", "target", "src", "tgt", "id"}
_LONGEST_NAME = 40


class _Column(NamedTuple):
    """A column: its name (a number for TSV without a first line of names), and the texts of a sample of rows."""

    name: str
    values: Sequence[str]

    @property
    def distinct(self) -> int:
        return len({*self.values})

    @property
    def length(self) -> float:
        return sum(map(len, self.values)) / max(len(self.values), 1)


def find_columns(kind: Kind, data: DataConfig, given: Set[str]) -> dict[str, Any]:
    """Return the fields of `data` that name the columns of TSV or JSON lines, by dotted name; none for other formats.

    Args:
      data: with the files. given: dotted names of the fields that are set.
    Raises: DataError if no column has labels, or if it is not clear which columns have the texts of pairs.
    """
    needed = {"data.input_feature", "data.target_feature"} - given
    if data.source != "text" or data.format not in ("tsv", "jsonl") or not needed:
        return {}
    file = _file(data, data.train_split)
    table = (_tsv if data.format == "tsv" else _jsonl)(file, kind.config == "translate")
    columns = [_Column(name, values) for name, values in table.columns.items()]
    taken = [value for value in (data.input_feature, data.second_feature, data.target_feature) if value]
    free = [column for column in columns if column.name not in taken]
    where, names = file.path, ", ".join(table.names)
    if kind.config == "translate":
        if len(free) > len(needed):
            flags = [f"--config.{name}={column.name}" for name, column in zip(sorted(needed), free, strict=False)]
            raise DataError(f"{where} has the columns {names}; name those of the two texts, as in {' '.join(flags)}")
        if len(free) < len(needed):
            raise DataError(f"{where} has the columns {names}; a pair of texts needs two")
        return dict(zip(sorted(needed), (column.name for column in free), strict=False))
    fields = {}
    text = _named(free, TEXTS) or max(free, key=lambda column: column.length, default=None)
    if "data.input_feature" in needed:
        if text is None:
            raise DataError(f"{where} has the columns {names}; one of texts and one of labels are needed")
        fields["data.input_feature"] = text.name
        free = [column for column in free if column is not text]
    if "data.target_feature" in needed:
        fields["data.target_feature"] = _labels(free, where, names).name
    return fields


def _labels(columns: Sequence[_Column], where: Path, names: str) -> _Column:
    """Return the column of the labels: the one with a usual name, else the one with the fewest different values."""
    usual = _named(columns, LABELS)
    if usual is not None:
        return usual
    repeated = [x for x in columns if 1 < x.distinct <= max(len(x.values) // 2, 2)]
    if not repeated:
        raise DataError(
            f"{where} has the columns {names}, and in none beside the text do few values repeat, as labels do; name "
            "the column with --config.data.target_feature, or use --config=translate for pairs of texts"
        )
    return min(repeated, key=lambda column: column.distinct)


def _named(columns: Sequence[_Column], usual: Sequence[str]) -> _Column | None:
    """Return the column with a usual name, or with such a word in its name."""
    whole = (column for name in usual for column in columns if _bare(column.name) == name)
    parts = (column for name in usual for column in columns if name in _words(column.name))
    return next(whole, None) or next(parts, None)


def _bare(name: str) -> str:
    """Return a name in lower case, without quotes, and without `#` in front."""
    return name.strip().strip("\"'").lstrip("#").strip().lower()


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z]{2,}", name.lower())


def lacks_labels(data: DataConfig) -> bool:
    """Return whether the test file, which a config of columns found, has no column of labels.

    Such a file is for predictions.
    """
    if data.source != "text" or data.format not in ("tsv", "jsonl") or not (data.test_split and data.target_feature):
        return False
    line = next(lines_of(_file(data, data.test_split)), "")
    if data.format == "jsonl":
        with contextlib.suppress(ValueError):
            row = parse_json(line, check_text=False)
            return isinstance(row, dict) and data.target_feature not in row
        return False
    cells = line.split("\t")
    if data.target_feature.isdecimal():
        return len(cells) < int(data.target_feature)
    return data.input_feature in cells and data.target_feature not in cells


def _file(data: DataConfig, split: str) -> TextFile:
    """Return the first file of a split."""
    prefix = re.split(r"[,\[]", split)[0].strip()
    path = find(Path(data.dir).expanduser(), f"{prefix}.{data.format}")
    return TextFile(path, encoding=data.encoding)


class _Table(NamedTuple):
    """columns: values of the rows of a sample, by name. names: of all columns, also of those that are no text."""

    columns: dict[str, list[str]]
    names: Sequence[str]


def _tsv(file: TextFile, pairs: bool) -> _Table:
    """Return the columns by name, or by number if the first line has no names."""
    rows = [line.split("\t") for line in itertools.islice(lines_of(file), _SAMPLE)]
    width = len(rows[0])
    same = [row for row in rows if len(row) == width]
    cells = [list(column) for column in zip(*same, strict=True)]
    header = _has_usual_name(cells)
    if header and (twice := [name for place, name in enumerate(rows[0]) if name in rows[0][:place]]):
        raise DataError(f"{file.path}, line 1: two columns have the name {twice[0]!r}; give each its own")
    header = header or _is_header(rows[0], cells, pairs)
    if not header:
        _check_widths(file, rows)
    names = rows[0] if header else [str(place) for place in range(1, width + 1)]
    if header and not _has_usual_name(cells):
        say(
            f"{file.path}: the first line, {', '.join(names)}, is taken for the names of the columns; if it is an "
            "example, give their numbers: --config.data.input_feature=1 --config.data.target_feature=2"
        )
    return _Table({name: column[header:] for name, column in zip(names, cells, strict=True)}, names)


def _check_widths(file: TextFile, rows: Sequence[Sequence[str]]) -> None:
    """Raise DataError if a line of the file has more columns than most lines have, as one with a tab in a text has."""
    ((usual, count),) = collections.Counter(map(len, rows)).most_common(1)
    if 2 * count <= len(rows):
        return
    for number, line in enumerate(lines_of(file), 1):
        if (found := line.count("\t") + 1) > usual:
            raise DataError(
                f"{file.path}, line {number}: {found} columns, and most lines have {usual}; has a text a tab in it?"
            )


def _has_usual_name(columns: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line has a usual name of a column.

    One that stands there again below is a value, such as the label `y`; so is any word if a label of the first line
    does.
    """
    usual = {*TEXTS, *LABELS} | _OTHERS
    first = [column[0] for column in columns]
    if not any(_bare(cell) in usual or (len(cell) <= _LONGEST_NAME and {*_words(cell)} & usual) for cell in first):
        return False
    exact = any(_bare(cell) in usual and cell not in column[1:] for cell, column in zip(first, columns, strict=True))
    labels = [column for column in columns if len({*column[1:]}) <= max(len(column) // 4, 2) < len(column)]
    return exact if not labels else all(column[0] not in column[1:] for column in labels)


def _is_header(first: Sequence[str], columns: Sequence[Sequence[str]], pairs: bool) -> bool:
    """Return whether the first line has names of columns that are not usual ones.

    It has if all are different words and, in a column whose values repeat, as labels do, this one does not.
    """
    if len({*first}) < len(first) or not all(_NAME.fullmatch(cell) and not cell.isdecimal() for cell in first):
        return False
    if pairs:  # short sentences look like names
        return all(re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?", cell) for cell in first)
    repeat = [column for column in columns if len({*column[1:]}) <= max(len(column) // 4, 2) < len(column)]
    return bool(repeat) and all(column[0] not in column[1:] for column in repeat)


def _jsonl(file: TextFile, pairs: bool) -> _Table:
    """Return the keys that most objects have with a text or, as labels may be, an integer, and the names of all keys.

    The reader names the line of an object where such a key has another value.
    """
    table: dict[str, list[str]] = {}
    names: dict[str, None] = {}
    count = 0
    for number, line in enumerate(itertools.islice(lines_of(file), _SAMPLE), 1):
        try:
            row = parse_json(line, check_text=False)
        except ValueError as error:
            raise DataError(f"{file.path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{file.path}, line {number}: expected a JSON object, got {type(row).__name__}")
        count += 1
        names.update(dict.fromkeys(row))
        for key, value in row.items():
            if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and not pairs):
                table.setdefault(key, []).append(str(value))
    return _Table({key: values for key, values in table.items() if 2 * len(values) > count}, list(names))
