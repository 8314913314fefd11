"""The words of one locale: CLDR data through Babel, number words through num2words.

A method takes a meaning (codes, numbers, dates; see meanings.py) and returns this locale's text, or raises Missing.
There is no text of any language in this file; the two sides of the corpus are two instances of the same class. The
examples are English.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from transformer_jax.data.sources.embedded.missing import Missing
from transformer_jax.data.sources.embedded.number_words import NumberWords
from transformer_jax.data.sources.embedded.patterns import DateWriter, clean

_MIDNIGHT = datetime(2001, 1, 1)
_JOINS = {"and": "standard", "or": "or"}  # name of a list here -> in CLDR
# Spanish "y" and "o" change before their own sound (España e Italia); CLDR's list patterns cannot express this.
_UNJOINABLE = {"es": re.compile(r"h?[io]|8|11(?!\d)", re.IGNORECASE)}
# Methods that many sentences call with the same few arguments.
_CACHED = (
    *("country", "language", "city", "zone", "weekday", "category", "unit", "per_unit", "currency", "currency_pattern"),
    *("decimal", "percent", "compact", "date_pattern", "time", "time_of_day", "era", "quarter", "relative", "_glue"),
)


class Lexicon:
    """The words of one locale, which render meanings."""

    def __init__(self, locale: Any, converter: str) -> None:
        """locale: babel.Locale; converter: num2words' name for its language."""
        from babel import localedata

        self.locale = locale
        self.words = NumberWords(str(locale), converter)
        self._dates = DateWriter(locale)
        # Babel gives units, relative times and plural names only together with a number in digits: read them directly.
        content: Any = localedata.load(str(locale))
        self._data = localedata.LocaleDataDict(content)
        self._lists = {join: locale.list_patterns.get(style, {}) for join, style in _JOINS.items()}
        self._unjoinable = _UNJOINABLE.get(locale.language)
        self._clock = "h" if "a" in re.sub("'[^']*'", "", locale.time_formats["short"].pattern) else "H"
        for name in _CACHED:
            setattr(self, name, functools.cache(getattr(self, name)))

    # Names

    def country(self, code: str) -> str:
        return _look_up(self.locale.territories, code)

    def language(self, code: str) -> str:
        return _look_up(self.locale.languages, code)

    def city(self, zone: str) -> str:
        """Return the city that a time zone is named after: Europe/Vienna -> "Vienna"."""
        city = self.locale.time_zones.get(zone, {}).get("city")
        return clean(city or zone.rpartition("/")[2].replace("_", " "))

    def zone(self, key: str) -> str:
        """Return the name of a zone: Moscow/standard -> "Moscow Standard Time"."""
        metazone, kind = key.split("/")
        return _look_up(self.locale.meta_zones.get(metazone, {}).get("long", {}), kind)

    def weekday(self, day: int) -> str:
        """Return the name of a weekday; 0 is Monday."""
        return _look_up(self.locale.days["stand-alone"]["wide"], day)

    # Quantities: `amount` is the number as text, `category` its CLDR plural category ("one", "few", "other" ...)

    def category(self, number: int | Decimal) -> str:
        return self.locale.plural_form(number)

    def unit(self, code: str, category: str) -> str:
        """Return a pattern such as "{0} miles"."""
        return self._unit_pattern(code, category)

    def per_unit(self, code: str) -> str:
        """Return a pattern such as "{0} per mile"."""
        pattern = self._unit_pattern(code, "per")
        if "/" in pattern:
            raise Missing
        return pattern

    def currency(self, code: str, category: str) -> str:
        """Return the name of a currency: CHF -> "Swiss francs"."""
        names = self._data["currency_names_plural"].get(code)
        if not names:  # then the display name, for all numbers
            return _look_up(self.locale.currencies, code)
        return _look_up(names, category if category in names else "other")

    def currency_pattern(self, category: str) -> str:
        """Return a pattern of amount {0} and currency {1}."""
        patterns = self._data["currency_unit_patterns"]
        return _look_up(patterns, category if category in patterns else "other")

    def measure(self, amount: str, category: str, unit: str) -> str:
        return self.unit(unit, category).replace("{0}", amount)

    def money(self, amount: str, category: str, currency: str) -> str:
        pattern = self.currency_pattern(category)
        return pattern.replace("{0}", amount).replace("{1}", self.currency(currency, category))

    def _unit_pattern(self, code: str, key: str) -> str:
        patterns = self._data["unit_patterns"].get(code) or {}
        return _look_up(patterns.get("long") or {}, key)

    # Numbers in digits

    def decimal(self, number: int | Decimal) -> str:
        from babel.numbers import format_decimal

        return clean(format_decimal(number, locale=self.locale))

    def percent(self, number: Decimal) -> str:
        from babel.numbers import format_percent

        return clean(format_percent(number / 100, locale=self.locale, decimal_quantization=False))

    def compact(self, number: Decimal) -> str:
        """Return a number in short form: 3200000 -> "3.2 million"."""
        from babel.numbers import format_compact_decimal

        if "long" not in self.locale.compact_decimal_formats:
            raise Missing
        return clean(format_compact_decimal(number, format_type="long", locale=self.locale, fraction_digits=1))

    # Dates and times

    def date(self, skeleton: str, when: datetime, **given: str) -> str:
        """Return `when` by a CLDR skeleton ("MMMMd" -> "March 4"), or by the locale's own format "full"."""
        return self._dates.write(self.date_pattern(skeleton), when, given)

    def date_pattern(self, skeleton: str) -> str:
        return _look_up(self.locale.date_formats if skeleton == "full" else self.locale.datetime_skeletons, skeleton)

    def time(self, minute: int) -> str:
        """Return a minute of the day as a time: 1065 -> "5:45 PM"."""
        return self._time(self.locale.time_formats["short"].pattern, minute)

    def time_of_day(self, minute: int) -> str:
        """Return a time with the part of the day: 1065 -> "5:45 in the afternoon"."""
        return self._time(self.date_pattern("Bhm"), minute)

    def time_in_city(self, minute: int, zone: str) -> str:
        """Return a time in a city: (1065, Europe/Vienna) -> "5:45 PM Vienna Time"."""
        region = clean(self.locale.zone_formats["region"] % self.city(zone))
        return self._time(self.date_pattern(self._clock + "mv"), minute, v=region)

    def time_in_zone(self, minute: int, second: int, zone: str) -> str:
        """Return a zone's time: (1065, 30, Europe_Central/standard) -> "5:45:30 PM Central European Standard Time"."""
        return self._time(self.locale.time_formats["full"].pattern, minute, second, z=self.zone(zone))

    def _time(self, pattern: str, minute: int, second: int = 0, **given: str) -> str:
        return self._dates.write(pattern, _MIDNIGHT + timedelta(minutes=minute, seconds=second), given)

    def date_interval(self, skeleton: str, start: datetime, end: datetime) -> str:
        """Return an interval of days or months; only fields that differ occur twice: "Jan 3 – 5, 2024"."""
        letter = "y" if start.year != end.year else "M" if start.month != end.month else "d"
        return self._interval(skeleton, letter, start, end)

    def time_interval(self, start: datetime, end: datetime) -> str:
        """Return an interval within a day: "5:45 – 7:30 PM"."""
        if self._clock == "h" and (start.hour < 12) != (end.hour < 12):
            return self._interval("hm", "a", start, end)
        return self._interval(self._clock + "m", self._clock if start.hour != end.hour else "m", start, end)

    def era_interval(self, year: int, era: str, last_year: int, last_era: str) -> str:
        """Return an interval of years: "44 – 30 BC", "31 BC – 14 AD"."""
        parts = self._interval_parts("Gy", "y" if era == last_era else "G")
        first = self._dates.write(parts[0], _MIDNIGHT, {"y": str(year), "G": era})
        return first + self._dates.write(parts[1], _MIDNIGHT, {"y": str(last_year), "G": last_era})

    def _interval(self, skeleton: str, letter: str, start: datetime, end: datetime) -> str:
        parts = self._interval_parts(skeleton, letter)
        return self._dates.write(parts[0], start) + self._dates.write(parts[1], end)

    def _interval_parts(self, skeleton: str, letter: str) -> Sequence[str]:
        """Return the patterns of start and end where `letter` is the largest field that differs."""
        parts = self.locale.interval_formats.get(skeleton, {}).get(letter, ())
        if len(parts) != 2:
            raise Missing
        return parts

    def era(self, era: int) -> str:
        """Return the name of an era: 0 -> "BC", 1 -> "AD"."""
        return _look_up(self.locale.eras["abbreviated"], era)

    def quarter(self, quarter: int) -> str:
        """Return the name of a quarter: 1 -> "1st quarter"."""
        return _look_up(self.locale.quarters["format"]["wide"], quarter)

    def relative(self, field: str, direction: str, category: str) -> str:
        """Return a pattern such as "in {0} days" or "{0} Sundays ago"."""
        patterns = self._data["date_fields"].get(field, {}).get(direction, {})
        return _look_up(patterns, category if category in patterns else "other")

    # Glue

    def join(self, items: Sequence[str], join: str) -> str:
        """Return a list with "and" or "or": "A", "A and B", "A, B, and C"."""
        if len(items) == 1:
            return items[0]
        patterns = self._lists[join]
        if not patterns or not all(map(self.can_join, items)):
            raise Missing
        if len(items) == 2:
            return _fill(patterns["2"], *items)
        text = _fill(patterns["start"], *items[:2])
        for item in items[2:-1]:
            text = _fill(patterns["middle"], text, item)
        return _fill(patterns["end"], text, items[-1])

    def can_join(self, item: str) -> bool:
        """Return False if CLDR's list patterns are wrong for an item."""
        return not (self._unjoinable and self._unjoinable.match(item))

    def date_and_time(self, date: str, time: str) -> str:
        """Return a date and its time: "Tuesday, March 4, 2031, 5:45 PM"."""
        return _fill(self._glue(), time, date)

    def remark(self, text: str, remark: str) -> str:
        """Return a text and a remark: "Switzerland (three days ago)"."""
        return clean(self.locale.zone_formats["fallback"] % {"1": text, "0": remark})

    def range(self, first: str, last: str) -> str:
        """Return a range of any two ends: "nineteen ten – nineteen twenty"."""
        return clean(_fill(self.locale.interval_formats[None], first, last))

    def _glue(self) -> str:
        return clean(str(self.locale.datetime_formats["full"]))


def _fill(pattern: str, first: str, second: str) -> str:
    return pattern.replace("{1}", second).replace("{0}", first)


def _look_up(names: Any, key: Any) -> str:
    """Return the `clean` text of a name or pattern; raise Missing if there is none."""
    name = names.get(key)
    if not name:
        raise Missing
    return clean(str(getattr(name, "pattern", name)))
