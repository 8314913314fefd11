"""Formats of text files: the names of their files, and the examples in them.

| `data.format` | files of the prefix `train` | an example                                                      |
|---------------|-----------------------------|-----------------------------------------------------------------|
| `parallel`    | `train.en`, `train.de`      | line i of one, line i of the other                              |
| `tsv`         | `train.tsv`                 | columns of a line, between tabs, without quotes                 |
| `jsonl`       | `train.jsonl`               | values of one object per line, by key                           |
| `labelled`    | `train.txt`                 | a label, a space, and a text, as in TREC                        |
| `conll`       | `train.conll`               | lines between blank lines: a word and its tag, among columns    |
| `conllu`      | `train.conllu`              | a sentence of Universal Dependencies: FORM and a column of tags |
| `squad`       | `train.json`                | a question on a context, and its answers, as in SQuAD 1.1       |

The columns of `tsv` have numbers, from 1; or names, which then stand in the first line of the file. Those of `conll`
stand between tabs, or in a line without tabs between spaces. A line that begins with -DOCSTART- ends a sentence and is
skipped, and so are comments; see `conll_comments`. In `conllu`, lines that begin with # are comments, and ranges of
words (3-4) and nodes without text (8.1) are skipped.

All have the features `inputs` and `targets`, texts; a label is the text of `targets`. With `data.second_feature`, `tsv`
and `jsonl` also have `second`. With `data.text_lists`, `jsonl` also has `sentences`, the texts of the input without
blank ones, and `references`, the texts of the target; `inputs` is the sentences, joined by spaces, and `targets` is the
first reference. A single text is divided into sentences as `text_form.sentences_of` says, or is one reference. All are
without spaces at their ends. Sentences of tagged words have `words` and `tags`, lists of equal length, and are joined
by spaces in `inputs` and `targets`. Questions have `questions`, `contexts`, `answers` (a list of texts), and
`answer_starts` (the places of their first characters); `targets` is the first answer, and `inputs` is
"question: ... context: ...".
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import json
import re
import reprlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from transformer_jax.config import DataConfig, nearest
from transformer_jax.config.data import CONLLU_COLUMNS
from transformer_jax.data.sources.conll_comments import Width, begins_document, cells_of, comment_kind, width_of
from transformer_jax.data.sources.lines import TextFile, text_lines
from transformer_jax.data.text_form import sentences_of
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json
from transformer_jax.readers.files import MAX_BYTES

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_UNDECODED = re.compile("[\udc80-\udcff]")
_PAIR = ("inputs", "targets")
_TAGGED = ("inputs", "targets", "words", "tags")
_LISTS = {"inputs": "sentences", "targets": "references"}
"""With `data.text_lists`, the feature with the list from which another feature is made."""
_QUESTION = ("inputs", "targets", "questions", "contexts", "answers", "answer_starts")
IGNORES_MISPLACED = {"error": False, "ignore": True}
"""By the values of `data.misplaced_answers`."""
_FIRST_LINES = 100
"""Number of lines of which one has to have the chosen columns, for a file of inputs."""
UNPLACED = -1
"""The start of an answer that is not at its place, with `data.misplaced_answers=ignore`."""


class Input(NamedTuple):
    """The input of an example, whose label may be missing.

    place: of the example in its file, such as "line 3". value: a text, a pair of texts, the words of a sentence, or a
    question and its context, as a `Predictor` takes it. problem: the reason why there is none. id: of a question.
    """

    place: str
    value: Any
    problem: str | None = None
    id: str = ""


class Format(abc.ABC):
    """One format. Methods raise DataError, with file and line, for content of another form."""

    features: tuple[str, ...] = _PAIR
    """Names of the values of an example."""
    allow_empty = False
    """Whether files may have empty and very long lines."""

    def __init__(self, config: DataConfig) -> None:
        self.config = config

    @property
    def key(self) -> list[str]:
        """The chosen columns and the like, for the fingerprint; it is part of checkpoints, and must not change."""
        return []

    def files(self, prefix: str) -> list[str]:
        """Return the names of the files of a prefix, without .gz."""
        return [f"{prefix}.{self.config.format}"]

    def check(self, files: Sequence[TextFile]) -> None:
        """Raise DataError if the files of one prefix do not belong together; here any do."""
        return

    def count(self, files: Sequence[TextFile]) -> int:
        """Return the number of examples in the files of one prefix."""
        self.check(files)
        return files[0].contents.num_lines

    @abc.abstractmethod
    def examples(self, files: Sequence[TextFile]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of every example, in the order of `features`."""

    def inputs(self, file: TextFile) -> Iterator[Input]:
        """Yield the inputs of every example, also of a file without targets; an example with a problem keeps its place.

        Only formats whose file has both sides have inputs of their own; `tsv` and `jsonl` need `target_feature=""`.

        Raises: DataError if a column is not there, or the file is not a file of this format.
        """
        raise NotImplementedError(f"data.format={self.config.format} has no inputs without targets")


class _Parallel(Format):
    """One file per language."""

    def files(self, prefix: str) -> list[str]:
        return [f"{prefix}.{locale}" for locale in (self.config.source_locale, self.config.target_locale)]

    def check(self, files: Sequence[TextFile]) -> None:
        counts = [file.contents.num_lines for file in files]
        if len(set(counts)) > 1:
            raise DataError(
                f"{files[0].path} has {counts[0]} lines but {files[1].path} has {counts[1]}:"
                " line i of one must translate line i of the other"
            )

    def examples(self, files: Sequence[TextFile]) -> Iterator[tuple[Any, ...]]:
        self.check(files)
        yield from zip(*map(text_lines, files), strict=True)


class _PerLine(Format):
    """One example per line of one file. A subclass picks the values from a line."""

    default_names: tuple[str, str]

    def __init__(self, config: DataConfig) -> None:
        super().__init__(config)
        names = {"inputs": config.input_feature or self.default_names[0]}
        if config.target_feature != "":
            names["targets"] = config.target_feature or self.default_names[1]
        if config.second_feature:
            names["second"] = config.second_feature
        self.names, self.features = tuple(names.values()), tuple(names)

    @property
    def key(self) -> list[str]:
        # In the form of the first versions: later they had the choice of one side (False).
        return [f"{self.config.format} {[*self.names]} False"]

    def examples(self, files: Sequence[TextFile]) -> Iterator[tuple[Any, ...]]:
        numbered = enumerate(text_lines(files[0]), 1)
        pick = _located(files[0], 1, lambda: self.pick(numbered))
        for number, line in numbered:
            yield tuple(_located(files[0], number, lambda line=line: pick(line)))

    def inputs(self, file: TextFile) -> Iterator[Input]:
        numbered = enumerate(text_lines(file), 1)
        pick = _located(file, 1, lambda: self.pick(numbered))
        first = list(itertools.islice(numbered, _FIRST_LINES))
        problems = [self.lacks_column(line) for _, line in first]
        if problems and all(problems):
            raise _at(file, first[0][0], problems[0])
        for number, line in itertools.chain(first, numbered):
            try:
                values = tuple(pick(checked_line(line)))[: len(self.names)]
            except ValueError as error:
                yield Input(f"line {number}", None, str(error))
            else:
                yield Input(f"line {number}", values if len(values) > 1 else values[0])

    @abc.abstractmethod
    def lacks_column(self, line: str) -> str:
        """Return the column that a line lacks, with those that it has; "" if it has all of them, or none at all."""

    @abc.abstractmethod
    def pick(self, numbered: Iterator[tuple[int, str]]) -> Callable[[str], Sequence[Any]]:
        """Return a function that returns the values of a line, in the order of `features`.

        Args:
          numbered: the lines of the file with their numbers; if the format has a header line, it is read from them.
        Raises: ValueError if the columns or the header are wrong. The function raises ValueError for a wrong line.
        """


class _Tsv(_PerLine):
    default_names = ("1", "2")

    @property
    def _header(self) -> bool:
        return not all(name.isdecimal() for name in self.names)

    def count(self, files: Sequence[TextFile]) -> int:
        return super().count(files) - self._header

    def lacks_column(self, line: str) -> str:
        count, last = len(line.split("\t")), 0 if self._header else max(map(int, self.names))
        return f"no column {last}; there are {', '.join(map(str, range(1, count + 1)))}" if last > count else ""

    def pick(self, numbered: Iterator[tuple[int, str]]) -> Callable[[str], Sequence[str]]:
        columns = [int(name) - 1 for name in self.names] if not self._header else []
        if self._header:
            names = next(numbered)[1].split("\t")
            for name in self.names:
                if name not in names:
                    raise ValueError(f"no column {name!r}; there are {', '.join(names)}{nearest(name, names)}")
                if names.count(name) > 1:
                    raise ValueError(f"two columns have the name {name!r}; give each its own")
                columns.append(names.index(name))
            return lambda line: _picked(_no_more_than(names, line.split("\t")), columns, self.names)
        if min(columns) < 0:
            raise ValueError("columns are counted from 1")
        return lambda line: _picked(line.split("\t"), columns, self.names)


class _Jsonl(_PerLine):
    default_names = ("", "")

    def __init__(self, config: DataConfig) -> None:
        self.default_names = (config.source_locale, config.target_locale)
        super().__init__(config)
        self._keys = dict(zip(self.features, self.names, strict=True))
        if config.text_lists:
            self.features += tuple(_LISTS[feature] for feature in self._keys)

    @property
    def key(self) -> list[str]:
        return [*super().key, *(["text_lists"] if self.config.text_lists else [])]

    def lacks_column(self, line: str) -> str:
        try:
            value = parse_json(line, check_text=False)
        except ValueError:
            return ""
        keys = value if isinstance(value, dict) else {}
        return next((_no_key(name, keys) for name in self.names if keys and name not in keys), "")

    def pick(self, numbered: Iterator[tuple[int, str]]) -> Callable[[str], Sequence[Any]]:
        values = _values_and_lists if self.config.text_lists else _values
        return lambda line: values(line, self._keys)


class _Labelled(Format):
    @property
    def key(self) -> list[str]:
        return ["labelled"]

    def files(self, prefix: str) -> list[str]:
        return [f"{prefix}.txt"]

    def examples(self, files: Sequence[TextFile]) -> Iterator[tuple[Any, ...]]:
        for number, line in enumerate(text_lines(files[0]), 1):
            label, space, text = line.strip().partition(" ")
            if not space:
                raise _at(files[0], number, "expected a label, a space and a text")
            if "\t" in label:
                raise _at(files[0], number, f"a tab in the label {label!r}; a table with tabs is NAME.tsv, format tsv")
            yield text.strip(), label


class _Blocks(Format):
    """Blocks of lines between blank lines."""

    features = _TAGGED
    allow_empty = True
    last = ""
    """Column of the tags without `data.target_feature`."""

    def __init__(self, config: DataConfig) -> None:
        super().__init__(config)
        self._counts: dict[Any, int] = {}
        self.names = (config.input_feature or self.word_column, config.target_feature or self.last)

    word_column = "1"

    @property
    def key(self) -> list[str]:
        return [f"{self.config.format} {[*self.names]}"]

    def count(self, files: Sequence[TextFile]) -> int:
        if files[0].path not in self._counts:
            self._counts[files[0].path] = sum(1 for _ in self.examples(files))
        return self._counts[files[0].path]

    def examples(self, files: Sequence[TextFile]) -> Iterator[tuple[Any, ...]]:
        words: list[str] = []
        tags: list[str] = []
        expected = self.expected_width(files[0])
        for number, line in enumerate(itertools.chain(text_lines(files[0]), [""]), 1):
            if not line.strip() or self.begins_document(line):
                if words:
                    yield " ".join(words), " ".join(tags), words, tags
                words, tags = [], []
                continue
            try:
                found = self.word_and_tag(line, expected, bool(words))
            except ValueError as error:
                raise _at(files[0], number, str(error)) from error
            if found:
                words.append(found[0])
                tags.append(found[1])

    def inputs(self, file: TextFile) -> Iterator[Input]:
        words: list[str] = []
        problem, first = "", 0
        expected = self.expected_width(file)
        if (column := self.names[0]).isdecimal() and 0 < expected.columns < int(column):
            there = ", ".join(map(str, range(1, expected.columns + 1)))
            raise _at(file, max(expected.line, 1), f"no column {column}; there are {there}")
        for number, line in enumerate(itertools.chain(text_lines(file), [""]), 1):
            if not line.strip() or self.begins_document(line):
                if first:
                    yield Input(f"line {first}", None if problem else words, problem or None)
                words, problem, first = [], "", 0
                continue
            try:
                word = self.word(checked_line(line), expected, bool(words))
            except ValueError as error:
                if not problem:
                    problem, first = str(error), number
                continue
            if word is not None:
                words.append(word)
                first = first or number

    def begins_document(self, line: str) -> bool:
        """Return whether a line stands between two documents, and so between two sentences."""
        return False

    def expected_width(self, file: TextFile) -> Width:
        """Return the number of columns of every line with a word."""
        return Width(len(CONLLU_COLUMNS), 0)

    @abc.abstractmethod
    def word_and_tag(self, line: str, expected: Width, inside: bool) -> tuple[str, str] | None:
        """Return a word and its tag; None for a line without a word. Raise ValueError with the problem.

        Args:
          expected: the columns of the file. inside: whether the sentence has a word already.
        """

    @abc.abstractmethod
    def word(self, line: str, expected: Width, inside: bool) -> str | None:
        """Return the word alone; as `word_and_tag`, but the line needs no tag."""


class _Conll(_Blocks):
    def begins_document(self, line: str) -> bool:
        return begins_document(line)

    def expected_width(self, file: TextFile) -> Width:
        return width_of(lambda: text_lines(file), int(self.names[1] or 0))

    def word_and_tag(self, line: str, expected: Width, inside: bool) -> tuple[str, str] | None:
        cells = self._cells(line, expected, inside, has_tag=True)
        if cells is None:
            return None
        places = [int(name) if name else len(cells) for name in self.names]
        word, tag = _picked(cells, [place - 1 for place in places], [*map(str, places)])
        return word, tag

    def word(self, line: str, expected: Width, inside: bool) -> str | None:
        cells = self._cells(line, expected, inside, has_tag=False)
        return None if cells is None else _picked(cells, [int(self.names[0]) - 1], self.names[:1])[0]

    def _cells(self, line: str, expected: Width, inside: bool, has_tag: bool) -> list[str] | None:
        """Return the columns of a line with a word; None for a comment."""
        cells = cells_of(line)
        if line.startswith("#"):
            kind = comment_kind(line, cells, expected, inside)
            if isinstance(kind, str):
                raise ValueError(kind)
            if kind:
                return None
        if has_tag and len(cells) < 2:
            raise ValueError(f"the word {line.strip()!r} has no tag: expected two columns or more")
        if len(cells) != expected.columns:
            raise ValueError(f"expected {expected.columns} columns, as in line {expected.line}, got {len(cells)}")
        return cells


class _Conllu(_Blocks):
    word_column, last = "FORM", "UPOS"

    def word_and_tag(self, line: str, expected: Width, inside: bool) -> tuple[str, str] | None:
        found = self._picked(line, expected, self.names)
        return None if found is None else (found[0], found[1])

    def word(self, line: str, expected: Width, inside: bool) -> str | None:
        found = self._picked(line, expected, self.names[:1])
        return None if found is None else found[0]

    def _picked(self, line: str, expected: Width, names: Sequence[str]) -> list[str] | None:
        """Return columns of a line with a word; None for another line."""
        if line.startswith("#"):
            return None
        cells = line.split("\t")
        if len(cells) != expected.columns:
            raise ValueError(f"expected {expected.columns} columns, got {len(cells)}")
        if not cells[0].isdecimal():  # a range of words, such as 3-4, or a node without text, such as 8.1
            return None
        places = [CONLLU_COLUMNS.index(name) if name in CONLLU_COLUMNS else int(name) - 1 for name in names]
        return _picked(cells, places, names)


class _Squad(Format):
    features = _QUESTION
    allow_empty = True

    def __init__(self, config: DataConfig) -> None:
        super().__init__(config)
        self._counts: dict[Any, int] = {}

    @property
    def key(self) -> list[str]:
        return [f"squad {self.config.misplaced_answers}"]

    def files(self, prefix: str) -> list[str]:
        return [f"{prefix}.json"]

    def count(self, files: Sequence[TextFile]) -> int:
        if files[0].path not in self._counts:
            self._counts[files[0].path] = sum(1 for _ in self.examples(files))
        return self._counts[files[0].path]

    def examples(self, files: Sequence[TextFile]) -> Iterator[tuple[Any, ...]]:
        found, misplaced = [], []
        ignore = IGNORES_MISPLACED[self.config.misplaced_answers]
        for id, question, context, answers in _questions(files[0]):
            texts, starts = [text for text, _ in answers], [start for _, start in answers]
            for i, (text, start) in enumerate(answers):
                if start < 0 or context[start : start + len(text)] != text:
                    there = context[max(start, 0) : max(start, 0) + len(text)]
                    misplaced.append(f"question {id}: {text!r} at character {start}, where the context has {there!r}")
                    starts[i] = UNPLACED
            found.append((f"question: {question} context: {context}", texts[0], question, context, texts, starts))
        if misplaced and not ignore:
            raise DataError(
                f"{files[0].path}: {len(misplaced):,} of {sum(len(x[4]) for x in found):,} answers are not at their "
                f"place in the context; the first is that of {misplaced[0]}; correct the file, or set "
                "data.misplaced_answers=ignore to train without these answers"
            )
        yield from found

    def inputs(self, file: TextFile) -> Iterator[Input]:
        for where, paragraph, asked in _asked(file):
            id = str(asked.get("id", where))
            try:
                value = _text(asked["question"], "question"), _text(paragraph["context"], "context")
            except KeyError as error:
                yield Input(f"question {id}", None, f"{where} has no key {error}", id)
            except ValueError as error:
                yield Input(f"question {id}", None, str(error), id)
            else:
                yield Input(f"question {id}", value, None, id)


FORMATS: dict[str, type[Format]] = {
    "parallel": _Parallel,
    "tsv": _Tsv,
    "jsonl": _Jsonl,
    "labelled": _Labelled,
    "conll": _Conll,
    "conllu": _Conllu,
    "squad": _Squad,
}
"""Formats of one or more files with examples, by the values of `data.format`."""


def checked_line(line: str) -> str:
    """Return a line that was read with `surrogateescape`; raise ValueError if some of its bytes are not UTF-8."""
    if bad := _UNDECODED.search(line):
        raise ValueError(f"not valid UTF-8 (byte {ord(bad[0]) - 0xDC00:#04x} after {bad.start()} characters)")
    return line


def _at(file: TextFile, number: int, problem: str) -> DataError:
    return DataError(f"{file.path}, line {number}: {problem}")


def _located(file: TextFile, number: int, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ValueError as error:
        raise _at(file, number, str(error)) from error


def _no_more_than(names: Sequence[str], cells: Sequence[str]) -> Sequence[str]:
    if len(cells) > len(names):
        raise ValueError(f"{len(cells)} columns, but the first line names {len(names)}; perhaps a text contains a tab")
    return cells


def _picked(cells: Sequence[str], columns: Sequence[int], names: Sequence[str]) -> list[str]:
    if len(cells) <= max(columns):
        raise ValueError(f"expected at least {max(columns) + 1} columns, got {len(cells)}")
    sides = [cells[column] for column in columns]
    for side, name in zip(sides, names, strict=True):
        if not side.strip():
            raise ValueError(f"column {name} is empty")
    return sides


def _values(line: str, keys: dict[str, str]) -> list[str]:
    """Return the texts of an object by feature; a target may also be an integer or a truth value, as labels are."""
    texts = []
    for feature, key, value in _of_keys(line, keys):
        if isinstance(value, list):
            raise ValueError(f"{key!r} is a list; for lists of sentences and of references set data.text_lists=true")
        texts.append(_checked_text(_label_text(value) if feature == "targets" else value, repr(key)))
    return texts


def _values_and_lists(line: str, keys: dict[str, str]) -> list[Any]:
    """Return the texts of an object by feature, each made of a list, and then the lists; as of `data.text_lists`."""
    texts, lists = [], []
    for feature, key, value in _of_keys(line, keys):
        is_input = feature == "inputs"
        if isinstance(value, list):
            found = _texts(value, key, "text" if is_input else "reference", drop_blank=is_input)
            text = " ".join(found) if is_input else found[0]
        else:
            text = _checked_text(value if is_input else _label_text(value), repr(key)).strip()
            found = sentences_of(text) if is_input else [text]
        texts.append(text)
        lists.append(found)
    return [*texts, *lists]


def _texts(value: list[Any], key: str, item: str, drop_blank: bool) -> list[str]:
    """Return the texts of a list, without spaces at their ends.

    Args:
      item: what errors call an element. drop_blank: whether to leave out blank ones, which are an error otherwise.
    """
    if not value:
        raise ValueError(f"{key!r} is an empty list")
    kept = []
    for number, text in enumerate(value, 1):
        if not (drop_blank and isinstance(text, str) and not text.strip()):
            kept.append(_checked_text(text, f"{key!r}: {item} {number} of {len(value)}").strip())
    if not kept:
        raise ValueError(f"{key!r} is a list of empty texts")
    return kept


def _of_keys(line: str, keys: dict[str, str]) -> Iterator[tuple[str, str, Any]]:
    """Yield the features with their keys and the values that the object in a line has for them."""
    try:
        value = parse_json(line, check_text=False)
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    for feature, key in keys.items():
        if key not in value:
            raise ValueError(_no_key(key, value))
        yield feature, key, value[key]


def _label_text(value: Any) -> Any:
    """Return the text of a label that is an integer or a truth value, which is an integer too; other values stay."""
    return json.dumps(value) if isinstance(value, int) else value


def _checked_text(text: Any, name: str) -> str:
    """Return a value that is a text; raise ValueError, with its name, for another."""
    if isinstance(text, float):
        raise ValueError(f"{name} is a number, {text}, and not text; labels may be texts or integers")
    if not isinstance(text, str):
        raise ValueError(f"{name} is {type(text).__name__}, not text")
    if not text.strip():
        raise ValueError(f"{name} is empty")
    # JSON escapes can contain characters that the file cannot.
    if bad := _NO_TEXT.search(text):
        raise ValueError(f"{name} has the character U+{ord(bad[0]):04X}, which is not text")
    return text


def _no_key(key: str, keys: Iterable[str]) -> str:
    return f"no key {key!r}; there are: {', '.join(keys)}{nearest(key, keys)}"


_Question = tuple[str, str, str, list[tuple[str, int]]]


def _questions(file: TextFile) -> Iterator[_Question]:
    """Yield id, question, context and answers, each a text and the place of its first character."""
    for where, paragraph, asked in _asked(file):
        with _named(file, where):
            context = _text(paragraph["context"], "context")
            found = _objects(asked, "answers")
            answers = [(_text(x["text"], "text"), _place(x["answer_start"])) for x in found]
            if not answers:
                raise ValueError("a question without answers; SQuAD 2.0 is not supported")
            yield str(asked.get("id", where)), _text(asked["question"], "question"), context, answers


def _asked(file: TextFile) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield the place of every question, its paragraph and itself."""
    try:
        content = parse_json("\n".join(text_lines(file)), MAX_BYTES, check_text=False)
    except ValueError as error:
        raise DataError(f"{file.path}: not JSON: {error}") from error
    with _named(file, "data"):
        articles = _objects(_object(content), "data")
    for a, article in enumerate(articles):
        with _named(file, f"data[{a}]"):
            paragraphs = _objects(article, "paragraphs")
        for p, paragraph in enumerate(paragraphs):
            with _named(file, f"data[{a}].paragraphs[{p}]"):
                asked = _objects(paragraph, "qas")
            for q, question in enumerate(asked):
                yield f"data[{a}].paragraphs[{p}].qas[{q}]", paragraph, question


@contextlib.contextmanager
def _named(file: TextFile, where: str) -> Generator[None]:
    """Name the file and the place in it in errors of its content."""
    try:
        yield
    except KeyError as error:
        raise DataError(f"{file.path}: {where} has no key {error}") from error
    except ValueError as error:
        raise DataError(f"{file.path}: {where}: {error}") from error


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object with the key 'data', got {_shown(value)}")
    return value


def _objects(parent: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of objects that an object has for a key."""
    values = parent[key]
    if not isinstance(values, list):
        raise ValueError(f"{key!r} is not a list: {_shown(values)}")
    for place, value in enumerate(values):
        if not isinstance(value, dict):
            raise ValueError(f"{key}[{place}] is not an object: {_shown(value)}")
    return values


def _shown(value: Any) -> str:
    return reprlib.repr(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or _NO_TEXT.search(value):
        raise ValueError(f"{name!r} is not text: {_shown(value)}")
    return value


def _place(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"'answer_start' is not an integer: {_shown(value)}")
    return value
