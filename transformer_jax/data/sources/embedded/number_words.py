"""Numbers in words by num2words, restricted to correct output.

num2words is correct within limits that differ by language. The limits below were found by reading its output (version
0.5.14); other languages get a careful default. They are limits only: no words are written here.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from transformer_jax.data.sources.embedded.missing import Missing
from transformer_jax.data.sources.embedded.patterns import clean


@dataclasses.dataclass(frozen=True)
class WordLimits:
    """Largest number that may be written in words, by use; 0 = not at all."""

    cardinal: int = 999
    counting: int = 0  # before a noun: "two hundred miles", where some languages inflect the number
    ordinal: int = 0
    years: bool = False  # 1100 to 2099, "nineteen eighty-four"


_LIMITS = {
    "en": WordLimits(cardinal=999_999, counting=999_999, ordinal=999, years=True),
    "de": WordLimits(cardinal=999_999, counting=999_999, ordinal=999, years=True),
    "it": WordLimits(cardinal=999_999, counting=999_999, ordinal=999, years=True),
    "fr": WordLimits(cardinal=999_999, counting=999_999, ordinal=999, years=True),
    # Hundreds agree with the noun (doscientos, doscientas); ordinals are misspelt.
    "es": WordLimits(cardinal=999_999, counting=199, years=True),
    # Above a thousand the space after "duizend" is missing; years are written in two words.
    "nl": WordLimits(cardinal=999, counting=999, ordinal=99),
}

# Output that is known to be wrong, by language or locale.
_WRONG = {
    "it": re.compile(r"\wtre$"),  # centotré, cinquantatré: the accent is missing
    "fr": re.compile(r"(vingt|cent)sième"),  # quatre-vingtième, deux-centième
    "es": re.compile(r"uno mil"),  # veintiún mil
    "de_CH": re.compile(r"ß"),  # dreissig
    "de_LI": re.compile(r"ß"),
}


class NumberWords:
    """Number words of one language. Every method raises Missing for numbers that num2words writes wrongly."""

    def __init__(self, identifier: str, converter: str) -> None:
        """identifier: of the locale, such as "de_CH"; converter: num2words' own name, such as "pt_BR"."""
        language = identifier.split("_")[0]
        self._limits = _LIMITS.get(language, WordLimits())
        self._wrong = _WRONG.get(identifier) or _WRONG.get(language)
        self._converter = converter

        self._texts: dict[tuple[int, str], str] = {}

    def allows(self, number: int, use: str) -> bool:
        """Return whether the limits allow a number in a use: "cardinal", "counting", "ordinal" or "year"."""
        limits = self._limits
        if use == "year":
            return limits.years and 1100 <= number <= 2099
        if use == "ordinal":
            return number <= limits.ordinal
        # In most languages, one and numbers that end in one (not eleven) take the gender of their noun.
        if use == "counting" and (number > limits.counting or (number % 10 == 1 and number % 100 != 11)):
            return False
        return number <= limits.cardinal

    def cardinal(self, number: int) -> str:
        """Return a cardinal: 3021 -> "three thousand and twenty-one"."""
        return self._write(number, "cardinal")

    def counting(self, number: int) -> str:
        """Return a cardinal before a noun."""
        return self._write(number, "counting")

    def ordinal(self, number: int) -> str:
        """Return an ordinal: 21 -> "twenty-first"."""
        return self._write(number, "ordinal")

    def year(self, year: int) -> str:
        """Return a year: 1984 -> "nineteen eighty-four"."""
        return self._write(year, "year")

    def _write(self, number: int, use: str) -> str:
        text = self._texts.get((number, use))
        if text is None:
            if not self.allows(number, use):
                raise Missing
            text = self._texts[number, use] = self._convert(number, "cardinal" if use == "counting" else use)
        return text

    def _convert(self, number: int, to: str) -> str:
        from num2words import num2words

        try:
            text: Any = num2words(number, lang=self._converter, to=to)
        except Exception as error:  # num2words raises many kinds; all mean that this language lacks this number
            raise Missing from error
        # Leave commas out: "two thousand, one hundred" would read like a list of two numbers.
        words = clean(str(text).replace(",", ""))
        if self._wrong and self._wrong.search(words):
            raise Missing
        return words
