"""Files of inputs, with or without labels, for `predict`: how they are read, and the inputs in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from transformer_jax.config import DataConfig, nearest
from transformer_jax.config.data import CONLLU_COLUMNS
from transformer_jax.data.sources import format_of, reading_file
from transformer_jax.data.sources.formats import FORMATS, Input, checked_line
from transformer_jax.data.sources.lines import TextFile, text_lines
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.readers import parse_json

_SUFFIXES = {"tsv": ".tsv", "jsonl": ".jsonl", "conll": ".conll", "conllu": ".conllu", "squad": ".json"}
_WITH_COLUMNS = ("tsv", "jsonl", "conll", "conllu")


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file of examples in a format that training reads. config: says how it is read."""

    path: Path
    config: DataConfig

    @property
    def key(self) -> list[str | None]:
        """Return everything but the content of the file that determines its inputs, as JSON."""
        of_format = (self.config.input_feature, self.config.second_feature or None)
        lists = ["text_lists"] if self.config.text_lists and self.config.format == "jsonl" else []
        return [self.config.format, *of_format, self.config.encoding, *lists]

    def num_examples(self) -> int | None:
        """Return the number of examples, or of lines with one more for the names of columns; None if it is unknown."""
        return self._file().contents.num_lines if self.config.format in ("tsv", "jsonl") else None

    def inputs(self) -> Iterator[Input]:
        """Yield the inputs of the examples in order; raise DataError if a column is not there."""
        config = dataclasses.replace(self.config, target_feature="") if self.config.format != "squad" else self.config
        try:
            yield from FORMATS[config.format](config).inputs(self._file())
        except DataError as error:
            if not any(text in str(error) for text in (": no column ", ": no key ")):
                raise
            raise DataError(f"{error}; --column=NAME chooses the text") from error

    def _file(self) -> TextFile:
        return TextFile(self.path, allow_empty=True, errors="surrogateescape", encoding=self.config.encoding)


def input_file(config: DataConfig, path: str, formats: Collection[str], columns: Sequence[str] | None) -> InputFile:
    """Return a file of inputs.

    Args:
      config: of the checkpoint. Its columns hold if it reads the same format; otherwise those of `reading_file`.
      formats: that the task reads.
      columns: of the text, or of both texts; None for those of the config.
    Raises: ConfigError if the task does not read the format, or columns that cannot be meant.
    """
    format = format_of(path)
    if format not in formats or format is None:
        can = ", ".join(f"FILE{_SUFFIXES[name]}" for name in formats)
        raise ConfigError(
            f"--input={path}: the task does not read this format; it reads {can}, and lines of text from stdin and "
            "from files with other suffixes"
        )
    reading = reading_file(config, format)
    if columns is not None:
        _check_columns(columns, format, bool(config.second_feature))
        reading = dataclasses.replace(reading, input_feature=columns[0], second_feature=",".join(columns[1:]))
    return InputFile(Path(path), reading)


def _check_columns(columns: Sequence[str], format: str, reads_pairs: bool) -> None:
    given = f"--column={','.join(columns)}"
    if format not in _WITH_COLUMNS:
        raise ConfigError(f"{given}: a file of questions has no columns; leave the flag out")
    if len(columns) != 1 + reads_pairs:
        wanted = "two texts; name two columns, as in --column=A,B" if reads_pairs else "one text; name one column"
        raise ConfigError(f"{given}: the model reads {wanted}")
    if format == "conll" and not (columns[0].isdecimal() and int(columns[0])):
        raise ConfigError(f"{given}: a column of a .conll file is a number from 1")
    known = [*CONLLU_COLUMNS, *map(str, range(1, len(CONLLU_COLUMNS) + 1))]
    if format == "conllu" and columns[0] not in known:
        raise ConfigError(
            f"{given}: no column {columns[0]!r}; there are {', '.join(CONLLU_COLUMNS)}, or 1 to {len(CONLLU_COLUMNS)}"
            f"{nearest(columns[0], CONLLU_COLUMNS)}"
        )


def has_pairs_of_texts(file: InputFile) -> bool:
    """Return whether a TSV file has two columns without the names, or the numbers, of the config's columns.

    Its lines may be pairs of texts with a tab between them.
    """
    names = [file.config.input_feature or "1", file.config.second_feature or ""]
    cells = _first_line(file).split("\t")
    are_numbers = all(name.isdecimal() for name in names)
    there = all(int(name) <= len(cells) if are_numbers else name in cells for name in names)
    return len(cells) == 2 and not there


def has_lines_of_questions(file: InputFile) -> bool:
    """Return whether a file begins with a JSON object that is one question, and not all of them."""
    try:
        first = parse_json(_first_line(file), check_text=False)
    except ValueError:
        return False
    return isinstance(first, dict) and "question" in first


def _first_line(file: InputFile) -> str:
    try:
        return checked_line(next(text_lines(file._file()), ""))
    except ValueError:
        return ""
