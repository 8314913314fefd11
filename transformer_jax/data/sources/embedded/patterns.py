"""Plain text from CLDR: uniform characters, and date patterns that are parsed once and filled in by a string format.

`babel.dates.format_date` takes about 20 microseconds per call, mostly to parse the pattern and the locale again. Here a
pattern such as "EEEE, d. MMMM y" becomes a `%s` string with its fields, and the text of a field (one weekday name, one
month name ...) is rendered by Babel once and kept. `tests/data/test_embedded.py` compares the two.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from transformer_jax.data.sources.embedded.missing import Missing

# The part of a datetime that each field depends on. The caller gives other fields (era, quarter, week, zone).
_FIELD_KEYS: dict[str, Callable[[datetime], Any]] = {
    "E": datetime.weekday,
    "c": datetime.weekday,
    "M": lambda when: when.month,
    "L": lambda when: when.month,
    "d": lambda when: when.day,
    "y": lambda when: when.year,
    "h": lambda when: when.hour,
    "H": lambda when: when.hour,
    "K": lambda when: when.hour,
    "k": lambda when: when.hour,
    "m": lambda when: when.minute,
    "s": lambda when: when.second,
    "a": lambda when: when.hour,
    "B": lambda when: (when.hour, when.minute),
}


# CLDR has several spaces and invisible marks that look alike to a reader: they become plain spaces and nothing.
_CHARACTERS = {ord(space): " " for space in "\u00a0\u2007\u2009\u202f"} | dict.fromkeys(
    map(ord, "\u00ad\u061c\u200e\u200f\u2066\u2067\u2068\u2069"), None
)


def uniform_text(text: str) -> str:
    """Return the text in NFC with plain spaces, without soft hyphens and direction marks."""
    return unicodedata.normalize("NFC", text.translate(_CHARACTERS))


def clean(text: str) -> str:
    """Return `uniform_text` text with single spaces, and none at its ends."""
    return " ".join(uniform_text(text).split())


class DatePattern(NamedTuple):
    """A parsed pattern: `template % texts of fields`."""

    template: str
    fields: tuple[tuple[str, int], ...]  # letter and count: EEEE is ("E", 4)


def parse_pattern(pattern: str) -> DatePattern:
    """Parse a CLDR date pattern (letters are fields, 'quoted' text is literal)."""
    from babel.dates import tokenize_pattern

    template, fields = [], []
    for kind, value in tokenize_pattern(pattern):
        if kind == "chars":
            template.append(uniform_text(str(value)).replace("%", "%%"))
            continue
        letter, count = value
        # Day periods in full: the short ones are abbreviations ("nachm.") in some languages and words in others.
        fields.append((str(letter), 4 if letter == "B" else int(count)))
        template.append("%s")
    return DatePattern("".join(template), tuple(fields))


class DateWriter:
    """A writer of dates by patterns, in one locale."""

    def __init__(self, locale: Any) -> None:
        self._locale = locale
        self._parsed: dict[str, DatePattern] = {}
        self._texts: dict[tuple[str, int, Any], str] = {}

    def write(self, pattern: str, when: datetime, given: Mapping[str, str] | None = None) -> str:
        """Return the text of `when`; `given` has the texts of fields that do not follow from a datetime, by letter.

        Raises: Missing for a field that is neither known nor given, such as the era in a Buddhist year.
        """
        parsed = self._parsed.get(pattern)
        if parsed is None:
            parsed = self._parsed[pattern] = parse_pattern(pattern)
        given = given or {}
        texts = [
            given[letter] if letter in given else self._text(letter, count, when) for letter, count in parsed.fields
        ]
        return parsed.template % tuple(texts)

    def _text(self, letter: str, count: int, when: datetime) -> str:
        if letter not in _FIELD_KEYS:
            raise Missing
        key = (letter, count, _FIELD_KEYS[letter](when))
        text = self._texts.get(key)
        if text is None:
            from babel.dates import DateTimeFormat

            try:
                text = uniform_text(DateTimeFormat(when, self._locale)[letter * count])
            except ValueError as error:  # a day period without a name
                raise Missing from error
            self._texts[key] = text
        return text
