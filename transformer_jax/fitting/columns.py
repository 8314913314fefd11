"""Which columns of a file have the texts and the labels."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import re
import reprlib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config import DataConfig
from transformer_jax.data.sources.conll_comments import cells_of
from transformer_jax.data.sources.lines import TextFile, find, text_lines
from transformer_jax.errors import DataError
from transformer_jax.fitting.kinds import CorpusKind
from transformer_jax.fitting.names import listed, stems_of
from transformer_jax.host.terminal import say
from transformer_jax.readers import parse_json

TEXTS = ("text", "sentence", "review", "comment", "tweet", "question", "body", "content", "message", "document")
LABELS = ("label", "labels", "class", "category", "target", "sentiment", "stars", "rating", "score", "topic", "y")
"""Usual names of columns, in lower case."""
_SAMPLE = 2000
_SOURCES, _TARGETS = ("source", "src", "input"), ("target", "tgt", "output")
_OTHERS = {*_SOURCES, *_TARGETS, "id"}
_ABOUT_TEXTS = {
    *("id", "ids", "type", "date", "time", "count", "lang", "language", "name", "user", "author", "url", "label")
}
"""Words of names of columns that are about a text, such as review_id."""
_SECONDS = {
    **{"sentence1": "sentence2", "text1": "text2", "question1": "question2"},
    **{"premise": "hypothesis", "question": "sentence"},
}
"""Usual names of the columns of a pair of texts that has a label."""
_LANGUAGE = re.compile(
    r"arabic|chinese|czech|danish|deutsch|dutch|english|español|finnish|fran[cç]ais|french|german|greek|hebrew|hindi"
    r"|italiano?|japanese|korean|norwegian|polish|portugu[eê]s|portuguese|romanian|russian|spanish|swedish|turkish"
    r"|ukrainian|vietnamese"
)
_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z]{2,4})?")
_LONGEST_NAME = 40
_NUMBERS = "give the numbers of the columns, from 1, as --config.data.input_feature and --config.data.target_feature"


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


def find_columns(kind: CorpusKind, data: DataConfig, given: Set[str]) -> dict[str, Any]:
    """Return the fields of `data` that name the columns of TSV or JSON lines, by dotted name; none for other formats.

    Args:
      data: with the files. given: dotted names of the fields that are set.
    Raises: DataError if no column has labels, or if it is not clear which columns have the texts of pairs.
    """
    if data.source == "text" and data.format == "conll" and "data.input_feature" not in given:
        return _words_column(_file(data, data.train_split), data.target_feature)
    needed = {"data.input_feature", "data.target_feature"} - given
    if data.source != "text" or data.format not in ("tsv", "jsonl") or not needed:
        return {}
    file = _file(data, data.train_split)
    table = (_tsv if data.format == "tsv" else _jsonl)(file, kind.config == "translate")
    columns = [_Column(name, values) for name, values in table.columns.items()]
    found: dict[str, Any] = {}
    if kind.config == "classify" and not {"data.input_feature", "data.second_feature"} & given:
        found = _pair_with_label(columns)
    taken = [*found.values(), *(value for value in (data.input_feature, data.second_feature, data.target_feature))]
    free = [column for column in columns if column.name not in taken]
    choose = _pair if kind.config == "translate" else _text_and_label
    found |= choose(free, needed - {*found}, file.path, ", ".join(table.names))
    _say_columns(file.path, table, data, found)
    return found


def _pair_with_label(columns: Sequence[_Column]) -> dict[str, Any]:
    """Return the two texts of a table that has usual names for both; else nothing."""
    names = {_bare(column.name): column.name for column in columns}
    for first, second in _SECONDS.items():
        if first in names and second in names:
            return {"data.input_feature": names[first], "data.second_feature": names[second]}
    return {}


def _say_columns(where: Path, table: _Table, data: DataConfig, found: Mapping[str, Any]) -> None:
    """Print the first example as it is read, and the columns that are not."""
    fields = [name for feature in _FEATURES if (name := found.get(f"data.{feature}") or getattr(data, feature))]
    first: Mapping[str, str] = next((row for row in table.rows if {*fields} <= {*row}), {})
    shown = [f"{name} {reprlib.repr(first[name])}" for name in fields if name in first]
    others = [name for name in table.names if name not in fields]
    more = f"; not read: {listed(others)}" if others else ""
    say(f"first example of {where.name}, by column: {', '.join(shown)}{more}")


_FEATURES = ("input_feature", "second_feature", "target_feature")


def _pair(free: Sequence[_Column], needed: Set[str], where: Path, names: str) -> dict[str, Any]:
    """Return the columns of source and target: by their usual names, else in their order."""
    if len(free) > len(needed):
        texts = [column for column in free if not all(value.isdecimal() for value in column.values)]
        flags = [f"--config.{name}={column.name}" for name, column in zip(sorted(needed), texts, strict=False)]
        raise DataError(f"{where} has the columns {names}; name those of the two texts, as in {' '.join(flags)}")
    if len(free) < len(needed):
        raise DataError(f"{where} has the columns {names}; a pair of texts needs two")
    if len(free) == 2 and (_bare(free[0].name) in _TARGETS or _bare(free[1].name) in _SOURCES):
        free = free[::-1]
    return dict(zip(sorted(needed), (column.name for column in free), strict=True))


def _text_and_label(free: Sequence[_Column], needed: Set[str], where: Path, names: str) -> dict[str, Any]:
    fields = {}
    if "data.input_feature" in needed:
        text = _text(free)
        if text is None:
            raise DataError(f"{where} has the columns {names}; one of texts and one of labels are needed")
        fields["data.input_feature"] = text.name
        free = [column for column in free if column is not text]
    if "data.target_feature" in needed:
        label = _label(free, where, names)
        quoted = sum(len(value) > 1 and value[0] == value[-1] == '"' for value in label.values)
        if quoted and quoted == len(label.values):
            raise DataError(
                f"{where}: all values of column {label.name} are in quotes, which would be part of labels and texts; "
                "write the file without quotes"
            )
        fields["data.target_feature"] = label.name
    return fields


def _text(columns: Sequence[_Column]) -> _Column | None:
    """Return the column with a usual name of texts; else one with such a word in its name, unless it is short."""
    longest = max(columns, key=lambda column: column.length, default=None)
    usual = (column for name in TEXTS for column in columns if _bare(column.name) == name)
    if (whole := next(usual, None)) is not None:
        return whole
    about = [x for x in columns if {*_words(x.name)} & {*TEXTS} and not {*_words(x.name)} & _ABOUT_TEXTS]
    best = max(about, key=lambda column: column.length, default=None)
    return best if best and longest and 2 * best.length >= longest.length else longest


def _label(columns: Sequence[_Column], where: Path, names: str) -> _Column:
    """Return the column of the labels: the one with a usual name, else the only one whose values repeat."""
    whole = (column for name in LABELS for column in columns if _bare(column.name) == name)
    repeated = [x for x in columns if 1 < x.distinct <= max(len(x.values) // 2, 2)]
    parts = [x for x in repeated if {*_words(x.name)} & {*LABELS} and "id" not in _words(x.name)]
    if (usual := next(whole, None)) is not None:
        return usual
    if len(found := parts or repeated) == 1:
        return found[0]
    if found:
        raise DataError(
            f"{where} has the columns {names}; which has the labels, {listed([x.name for x in found])}? Name it, as in "
            f"--config.data.target_feature={found[-1].name}"
        )
    raise DataError(
        f"{where} has the columns {names}, and in none beside the text do few values repeat, as labels do; name "
        "the column with --config.data.target_feature, or use --config=translate for pairs of texts"
    )


def _words_column(file: TextFile, target: str | None) -> dict[str, Any]:
    """Return the column of the words if the first one numbers them, from 0 or 1.

    Raises: DataError for CoNLL-U, and for a first line of names.
    """
    sentences: list[list[list[str]]] = [[]]
    for number, line in enumerate(itertools.islice(text_lines(file), _SAMPLE), 1):
        if not line.strip():
            sentences.append([])
        elif not line.startswith(("#", "-DOCSTART-")):
            cells = cells_of(line)
            if sentences == [[]] and {cells[0].lower()} & _WORD_NAMES and {*map(str.lower, cells[1:])} & _TAG_NAMES:
                raise DataError(f"{file.path}, line {number}: has names of columns, {' '.join(cells)}; remove the line")
            sentences[-1].append(cells)
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences or len(sentences[0][0]) < 2:
        return {}
    starts = [
        first for first in (0, 1) if all(_is_numbered(sentence, first) for sentence in sentences[:-1] or sentences)
    ]
    if starts and all(len(row) == 10 for row in sentences[0]):
        raise DataError(f"{file.path}: has ten columns with numbers in the first, as CoNLL-U; rename it to .conllu")
    place = 1 if starts else 0
    if starts:
        say(f"{file.path}: the first column numbers the words, which are in the second")
    first, tag = sentences[0][0], int(target or 0) - 1
    say(f"first word of {file.path.name}: {first[place]!r}, tag {first[tag if tag < len(first) else -1]!r}")
    return {"data.input_feature": "2"} if starts else {}


_WORD_NAMES = {"word", "words", "token", "tokens"}
_TAG_NAMES = {"tag", "tags", "pos", "ner", "label", "labels", "chunk", "bio", "iob"}


def _is_numbered(sentence: Sequence[Sequence[str]], first: int) -> bool:
    return [row[0] for row in sentence] == [str(place) for place in range(first, first + len(sentence))]


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
    line = next(text_lines(_file(data, data.test_split)), "")
    if data.format == "jsonl":
        with contextlib.suppress(ValueError):
            row = parse_json(line, check_text=False)
            return isinstance(row, dict) and data.target_feature not in row
        return False
    cells = line.split("\t")
    if data.target_feature.isdecimal() and (data.input_feature or "").isdecimal():
        return len(cells) < max(int(data.target_feature), int(data.input_feature or ""))
    return data.input_feature in cells and data.target_feature not in cells


def _file(data: DataConfig, split: str) -> TextFile:
    """Return the first file of a split."""
    path = find(Path(data.dir).expanduser(), f"{stems_of(split)[0]}.{data.format}")
    return TextFile(path, allow_empty=data.format == "conll", encoding=data.encoding)


class _Table(NamedTuple):
    """A sample of a table.

    columns: values of the rows, by name. names: of all columns, also of those that are not text. rows: texts by name.
    """

    columns: dict[str, list[str]]
    names: Sequence[str]
    rows: Sequence[Mapping[str, str]]


def _tsv(file: TextFile, pairs: bool) -> _Table:
    """Return the columns by name, or by number if the first line has no names."""
    rows = [line.split("\t") for line in itertools.islice(text_lines(file), _SAMPLE)]
    width = len(rows[0])
    same = [row for row in rows if len(row) == width]
    cells = [list(column) for column in zip(*same, strict=True)]
    if rows[0] == [str(place) for place in range(width)] and width > 1:
        raise DataError(f"{file.path}: the first line has numbers in place of names, {', '.join(rows[0])}; remove it")
    header = _has_usual_name(cells)
    if header and (twice := [name for place, name in enumerate(rows[0]) if name in rows[0][:place]]):
        raise DataError(f"{file.path}, line 1: two columns have the name {twice[0]!r}; give each its own")
    header = header or _is_header(rows[0], cells, pairs)
    if not header:
        _check_widths(file, rows)
    names = rows[0] if header else [str(place) for place in range(1, width + 1)]
    if header and not pairs and not {_bare(cell) for cell in rows[0]} & {*TEXTS, *LABELS}:
        say(
            f"{file.path}: the first line, {', '.join(names)}, is taken for the names of the columns; if it is an "
            f"example, {_NUMBERS}"
        )
    columns = {name: column[header:] for name, column in zip(names, cells, strict=True)}
    return _Table(columns, names, [dict(zip(names, row, strict=True)) for row in same[header:]])


def _check_widths(file: TextFile, rows: Sequence[Sequence[str]]) -> None:
    """Raise DataError if a line of the file has more columns than most lines have, as one with a tab in a text has."""
    ((usual, count),) = collections.Counter(map(len, rows)).most_common(1)
    if 2 * count <= len(rows):
        return
    for number, line in enumerate(text_lines(file), 1):
        if (found := line.count("\t") + 1) > usual:
            raise DataError(
                f"{file.path}, line {number}: {found} columns, but most lines have {usual}; perhaps a text contains a "
                f"tab. To read the file as it is, {_NUMBERS}"
            )


def _has_usual_name(columns: Sequence[Sequence[str]]) -> bool:
    """Return whether the first line has a usual name of a column.

    A word that occurs again further down in its column is a value, such as the label `y`. If a label of the first
    line does, no word of that line is a name.
    """
    usual = {*TEXTS, *LABELS} | _OTHERS
    first = [column[0] for column in columns]
    if not any(_bare(cell) in usual or (len(cell) <= _LONGEST_NAME and {*_words(cell)} & usual) for cell in first):
        return False
    exact = any(_bare(cell) in usual and cell not in column[1:] for cell, column in zip(first, columns, strict=True))
    labels = _repeating(columns)
    return exact if not labels else all(column[0] not in column[1:] for column in labels)


def _is_header(first: Sequence[str], columns: Sequence[Sequence[str]], pairs: bool) -> bool:
    """Return whether the first line has names of columns that are not usual ones.

    It has if all are different words and, in a column whose values repeat, as labels do, this one does not.
    """
    if len({*first}) < len(first) or not all(len(cell) <= _LONGEST_NAME and not cell.isdecimal() for cell in first):
        return False
    if pairs:  # short sentences look like names
        return all(
            _CODE.fullmatch(cell) or _bare(cell) in _OTHERS or _LANGUAGE.fullmatch(_bare(cell).partition(" ")[0])
            for cell in first
        )
    repeat = _repeating(columns)
    return bool(repeat) and all(column[0] not in column[1:] for column in repeat)


def _repeating(columns: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the columns whose values repeat below the first line, as labels do."""
    return [
        column for column in columns if len({*column[1:]}) <= max(len(column) // 4, 2) < len(column) and any(column[1:])
    ]


def _jsonl(file: TextFile, pairs: bool) -> _Table:
    """Return the keys that most objects have with a text or, as labels may be, a number, and the names of all keys.

    The reader names the line of an object where such a key has another value.
    """
    table: dict[str, list[str]] = {}
    names: dict[str, None] = {}
    rows: list[dict[str, str]] = []
    for number, line in enumerate(itertools.islice(text_lines(file), _SAMPLE), 1):
        try:
            row = parse_json(line, check_text=False)
        except ValueError as error:
            raise DataError(f"{file.path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{file.path}, line {number}: expected a JSON object, got {type(row).__name__}")
        names.update(dict.fromkeys(row))
        rows.append({})
        for key, value in row.items():
            if isinstance(value, str) or (isinstance(value, int | float) and not pairs):
                rows[-1][key] = value if isinstance(value, str) else json.dumps(value)
                table.setdefault(key, []).append(rows[-1][key])
    return _Table({key: values for key, values in table.items() if 2 * len(values) > len(rows)}, list(names), rows)
