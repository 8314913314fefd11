"""Comments of `data.format=conll`, and the lines with words that look like comments."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

_KEY = r"[^\W\d][\w.:\[\]-]*"
_PLAIN_COMMENT = re.compile(
    rf"# (?:{_KEY}(?: id)? =(?: |$)|newdoc$|newpar$|id \S+\s+{_KEY}=)|#(?:begin|end) document\b"
)
"""Comments whatever the columns are: those of CoNLL-U, of MultiCoNER, and of CoNLL-2012."""
_UNCLEAR = re.compile(rf"# (?:id [^\t]|{_KEY}: |[a-z_]+=)")
_OF_TAGS = re.compile(r"O|[BIES]-\S+")
_REMEDY = "Write a comment as '# key = value', and a word with tabs between the columns"


class Width(NamedTuple):
    """The number of columns of a file, and the line that says so; 0 for both if no line does.

    has_known_tag: returns whether the cells of a line have a tag that another word of the file has.
    """

    columns: int
    line: int
    has_known_tag: Callable[[Sequence[str]], bool] = lambda cells: False


def begins_document(line: str) -> bool:
    """Return whether a line stands between two documents, and so between two sentences."""
    return line.lstrip().startswith("-DOCSTART-")


def cells_of(line: str) -> list[str]:
    """Return the columns of a line: between tabs, or in a line without tabs between spaces."""
    return line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]


def width_of(lines: Callable[[], Iterable[str]], tag_column: int) -> Width:
    """Return the number of columns, and the line number, of the first line with a word.

    Lines that begin with # are skipped. If all lines begin with #, the first one that is not a comment is used.

    Args:
      lines: returns the lines of the file; called again when the tags of the other lines are needed.
      tag_column: the column of the chosen tags, counted from 1; 0 for the last column.
    """
    of_hash = Width(0, 0)
    for number, line in enumerate(lines(), 1):
        if not line.strip() or begins_document(line):
            continue
        cells = cells_of(line)
        if not line.startswith("#"):
            return Width(len(cells), number, _tag_finder(lines, tag_column))
        if not of_hash.columns and comment_kind(line, cells, Width(0, 0), False) is False:
            of_hash = Width(len(cells), number)
    return of_hash


def _tag_finder(lines: Callable[[], Iterable[str]], tag_column: int) -> Callable[[Sequence[str]], bool]:
    """Return the function `Width.has_known_tag` of a file: of the last column, and of the chosen one."""

    def tags_in(cells: Sequence[str]) -> set[tuple[int, str]]:
        return {(place, cells[place - 1]) for place in (0, tag_column) if place <= len(cells)}

    @functools.cache
    def known() -> set[tuple[int, str]]:
        words = (line for line in lines() if line.strip() and not line.startswith("#") and not begins_document(line))
        return {tag for line in words for tag in tags_in(cells_of(line))}

    return lambda cells: not known().isdisjoint(tags_in(cells))


def comment_kind(line: str, cells: Sequence[str], expected: Width, inside: bool) -> bool | str:
    """Return whether a line that begins with # is a comment; or the reason why nobody can say.

    | line                                                           | it is                                       |
    |----------------------------------------------------------------|---------------------------------------------|
    | `# sent_id = 1`, `# newdoc id = a`, `# newpar`                 | a comment, as in CoNLL-U                    |
    | `# id 5239d808` and a tab and `domain=en`                      | a comment, as in MultiCoNER                 |
    | `#begin document (a); part 0`, `#end document`                 | a comment, as in CoNLL-2012                 |
    | `# NN B-NP O`, `#tag O`, with the columns of the other lines   | the word `#` or `#tag`, and its tag         |
    | any other text with # at its start, before the first word      | a comment                                   |
    | `# O`, `# B-x` in a file of four columns; `#` alone            | a word without all of its columns: an error |
    | `# id 7`, `# id: 7`, `# id=7`, with the columns of the others  | unclear: an error                           |
    | `# English` before the first word, without a tag (`_has_tag`)  | unclear: an error                           |
    | any other number of columns, within a sentence                 | unclear: an error                           |

    Args:
      expected: of lines with words. inside: whether the sentence has a word already.
    """
    if _PLAIN_COMMENT.match(line):
        return True
    if len(cells) == 1 and cells[0] == "#":
        return False
    if not expected.columns or len(cells) == expected.columns:
        if not expected.columns or "\t" in line:
            return False
        if _UNCLEAR.match(line):
            return f"is it a comment, or the word '#' and its tag? {_REMEDY}"
        if line.startswith("# ") and not inside and not _has_tag(cells, expected):
            return (
                "is it a comment, or the word '#' and its tag? No other word of the file has "
                f"{cells[-1]!r} in the last column. {_REMEDY}"
            )
        return False
    if _OF_TAGS.fullmatch(cells[-1]):
        return False
    if inside:
        return (
            f"begins with '#' and has {len(cells)} columns, not {expected.columns}: is it a comment, or a word? A "
            "comment stands before the first word of a sentence"
        )
    return True


def _has_tag(cells: Sequence[str], expected: Width) -> bool:
    """Return whether the cells of a line are those of the word `#`.

    Its tag then has the form `O` or `B-x`, or another word of the file has it, or all cells are `#`: the Penn Treebank
    gives this word, and no other, the tag `#`.
    """
    return bool(_OF_TAGS.fullmatch(cells[-1])) or {*cells} == {"#"} or expected.has_known_tag(cells)
