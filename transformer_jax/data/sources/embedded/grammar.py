"""The grammar: phrases say one meaning, templates join phrases into sentences.

A phrase is a list of domains and a function `render(lexicon, *values)`; the same function is called with the source and
the target lexicon. The words of a locale are in lexicon.py, the meanings in meanings.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from transformer_jax.data.sources.embedded.lexicon import Lexicon
from transformer_jax.data.sources.embedded.missing import Missing


class Phrase(NamedTuple):
    """One meaning as text: `render(lexicon, *values)`, with one value of each named domain; may raise Missing."""

    domains: tuple[str, ...]
    render: Callable[..., str]


class Template(NamedTuple):
    """A sentence: `lengths` phrases, each any of `phrases`, joined by the locale's "and" or "or" list."""

    name: str
    family: str
    phrases: tuple[str, ...]
    lengths: tuple[int, ...]
    """Possible numbers of phrases in a training sentence, equally frequent; `test_longer` has more."""
    join: str = "and"
    weight: int = 2
    """Share of the corpus, relative to the other templates."""


def _measure(lexicon: Lexicon, amount: str, number: int | Decimal, unit: str) -> str:
    return lexicon.measure(amount, lexicon.category(number), unit)


def _money(lexicon: Lexicon, amount: str, number: int | Decimal, currency: str) -> str:
    return lexicon.money(amount, lexicon.category(number), currency)


def _measure_in_words(lexicon: Lexicon, number: int, unit: str) -> str:
    return _measure(lexicon, lexicon.words.counting(number), number, unit)


def _money_in_words(lexicon: Lexicon, number: int, currency: str) -> str:
    return _money(lexicon, lexicon.words.counting(number), number, currency)


def _relative(lexicon: Lexicon, field: str, direction: str, number: int) -> str:
    pattern = lexicon.relative(field, direction, lexicon.category(number))
    return pattern.replace("{0}", lexicon.words.counting(number))


def _date_interval(lexicon: Lexicon, start: datetime, days: int) -> str:
    return lexicon.date_interval("yMMMd", start, start + timedelta(days=days))


def _month_interval(lexicon: Lexicon, start: datetime, days: int) -> str:
    end = start + timedelta(days=days + 31)
    return lexicon.date_interval("yMMMM", start.replace(day=1), end)


def _opening_hours(lexicon: Lexicon, days: Sequence[int], start: int, minutes: int) -> str:
    begin = datetime(2001, 1, 1) + timedelta(minutes=start)
    end = begin + timedelta(minutes=minutes)
    if end.day != begin.day:
        raise Missing
    names = lexicon.join([lexicon.weekday(day) for day in days], "and")
    return lexicon.date_and_time(names, lexicon.time_interval(begin, end))


def _era_date(lexicon: Lexicon, when: datetime, year: int, era: int) -> str:
    return lexicon.date("GyMMMd", when, y=str(year), G=lexicon.era(era))


def _era_interval(lexicon: Lexicon, first: int, last: int, first_era: int, last_era: int) -> str:
    # In order of time: years of era 0 count down.
    first, last = sorted((year if era else -year) for year, era in ((first, first_era), (last, last_era)))
    if first == last:
        raise Missing
    return lexicon.era_interval(abs(first), lexicon.era(int(first > 0)), abs(last), lexicon.era(int(last > 0)))


def _year_interval(lexicon: Lexicon, first: int, last: int) -> str:
    if first == last:
        raise Missing
    return lexicon.range(lexicon.words.year(min(first, last)), lexicon.words.year(max(first, last)))


def _appointment(lexicon: Lexicon, when: datetime, time: str) -> str:
    return lexicon.date_and_time(lexicon.date("full", when), time)


PHRASES: dict[str, Phrase] = {
    # Dates and times
    "full_date": Phrase(("date",), lambda lex, when: lex.date("full", when)),
    "day_of_month": Phrase(("date",), lambda lex, when: lex.date("MMMMd", when)),
    "appointment": Phrase(("date", "minute"), lambda lex, when, time: _appointment(lex, when, lex.time(time))),
    "call": Phrase(
        ("date", "minute", "city"),
        lambda lex, when, minute, city: _appointment(lex, when, lex.time_in_city(minute, city)),
    ),
    "date_interval": Phrase(("date", "span_days"), _date_interval),
    "month_interval": Phrase(("date", "span_days"), _month_interval),
    "opening_hours": Phrase(("weekdays", "minute", "span_minutes"), _opening_hours),
    "time_of_day": Phrase(("minute",), lambda lex, minute: lex.time_of_day(minute)),
    "time_in_city": Phrase(("minute", "city"), lambda lex, minute, city: lex.time_in_city(minute, city)),
    "time_in_zone": Phrase(("minute", "second", "zone"), lambda lex, *time: lex.time_in_zone(*time)),
    "quarter": Phrase(("date", "quarter"), lambda lex, when, quarter: lex.date("yQQQQ", when, Q=lex.quarter(quarter))),
    "week": Phrase(
        ("date", "week_of_year"), lambda lex, when, week: lex.date("yw", when, w=str(week), Y=str(when.year))
    ),
    "week_of_month": Phrase(("date", "week_of_month"), lambda lex, when, week: lex.date("MMMMW", when, W=str(week))),
    "relative_time": Phrase(("relative_unit", "direction", "few"), _relative),
    "relative_weekday": Phrase(("weekday", "direction", "few"), _relative),
    "era_date": Phrase(("date", "old_year", "era"), _era_date),
    "era_interval": Phrase(("old_year", "old_year", "era", "era"), _era_interval),
    # Numbers
    "cardinal": Phrase(("cardinal",), lambda lex, number: lex.words.cardinal(number)),
    "ordinal": Phrase(("ordinal",), lambda lex, number: lex.words.ordinal(number)),
    "year_in_words": Phrase(("word_year",), lambda lex, year: lex.words.year(year)),
    "year_interval": Phrase(("word_year", "word_year"), _year_interval),
    "percent": Phrase(("decimal",), lambda lex, number: lex.percent(number)),
    "compact": Phrase(("decimal", "magnitude"), lambda lex, number, power: lex.compact(number * power)),
    # Quantities
    "measure": Phrase(("counting", "unit"), _measure_in_words),
    "measure_decimal": Phrase(
        ("decimal", "unit"), lambda lex, number, unit: _measure(lex, lex.decimal(number), number, unit)
    ),
    "measure_grouped": Phrase(
        ("grouped", "unit"), lambda lex, number, unit: _measure(lex, lex.decimal(number), number, unit)
    ),
    "flow": Phrase(
        ("counting", "flow_unit", "per_time"),
        lambda lex, number, unit, per: lex.per_unit(per).replace("{0}", _measure_in_words(lex, number, unit)),
    ),
    "money": Phrase(("counting", "currency"), _money_in_words),
    "money_grouped": Phrase(
        ("grouped", "currency"), lambda lex, number, currency: _money(lex, lex.decimal(number), number, currency)
    ),
    "price": Phrase(
        ("counting", "currency", "per_unit"),
        lambda lex, number, currency, per: lex.per_unit(per).replace("{0}", _money_in_words(lex, number, currency)),
    ),
    # Names
    "country": Phrase(("country",), lambda lex, country: lex.country(country)),
    "language": Phrase(("language",), lambda lex, language: lex.language(language)),
    "dialect": Phrase(
        ("language", "country"),
        lambda lex, language, country: lex.remark(lex.language(language), lex.country(country)),
    ),
    # Several meanings in one
    "offer": Phrase(
        ("country", "counting", "currency"),
        lambda lex, country, *money: lex.remark(lex.country(country), _money_in_words(lex, *money)),
    ),
    "memory": Phrase(
        ("counting", "unit", "relative_unit", "direction", "few"),
        lambda lex, number, unit, *time: lex.remark(_measure_in_words(lex, number, unit), _relative(lex, *time)),
    ),
    "report": Phrase(
        ("counting", "unit", "date"),
        lambda lex, number, unit, when: lex.remark(_measure_in_words(lex, number, unit), lex.date("yMMMM", when)),
    ),
}

TEMPLATES: tuple[Template, ...] = (
    Template("appointments", "dates", ("appointment", "full_date"), (1, 2)),
    Template("days", "dates", ("day_of_month",), (2, 3, 4), "or", 1),
    Template("date_intervals", "intervals", ("date_interval",), (1, 2)),
    Template("month_intervals", "intervals", ("month_interval",), (1, 2), weight=1),
    Template("opening_hours", "schedules", ("opening_hours",), (1, 2)),
    Template("calls", "schedules", ("call",), (1,)),
    Template("times_of_day", "times", ("time_of_day",), (2, 3), "or", 1),
    Template("city_times", "times", ("time_in_city",), (1, 2)),
    Template("zone_times", "times", ("time_in_zone",), (1, 2)),
    Template("relative_times", "relative", ("relative_time", "relative_weekday"), (2, 3), "or", 3),
    Template("periods", "periods", ("quarter", "week", "week_of_month"), (2, 3)),
    Template("history", "periods", ("era_date", "era_interval"), (1, 2)),
    Template("cardinals", "numbers", ("cardinal",), (2, 3), "or"),
    Template("ordinals", "numbers", ("ordinal",), (2, 3), weight=1),
    Template("years", "numbers", ("year_in_words", "year_interval"), (1, 2), "or"),
    Template("figures", "figures", ("percent", "compact"), (2, 3, 4)),
    Template("measures", "measures", ("measure",), (1, 2, 3), weight=3),
    Template("exact_measures", "measures", ("measure_decimal", "measure_grouped"), (2, 3)),
    Template("flows", "rates", ("flow",), (1, 2), "or"),
    Template("prices", "rates", ("price",), (1, 2), "or", weight=3),
    Template("amounts", "money", ("money", "money_grouped"), (1, 2, 3), weight=3),
    Template("countries", "places", ("country",), (3, 4, 5), weight=3),
    Template("languages", "languages", ("language", "dialect"), (2, 3), weight=3),
    Template("offers", "remarks", ("offer",), (1, 2)),
    Template("memories", "remarks", ("memory",), (1, 2), "or"),
    Template("reports", "remarks", ("report",), (1, 2)),
)
