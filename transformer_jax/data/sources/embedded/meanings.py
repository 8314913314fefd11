"""The meanings of the embedded corpus, as codes and numbers that belong to no language.

The codes are those of CLDR: ISO 3166 territories, ISO 639 languages, ISO 4217 currencies, CLDR units, IANA time zones
and CLDR metazones. Only the better known ones are used, so that each is seen often enough to be learned.
Left out on purpose: names that CLDR gives ungrammatically in a language that was read (RON, MDL, RSD, PGK in German).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import combinations
from typing import Any

import numpy as np


def _codes(text: str) -> list[str]:
    return text.split()


COUNTRIES = _codes(
    """
    AD AE AF AG AL AM AO AR AT AU AZ BA BB BD BE BF BG BH BI BJ BN BO BR BS BT BW BY BZ CA CF CH CI CL CM CN CO CR
    CU CV CY CZ DE DJ DK DM DO DZ EC EE EG ER ES ET FI FJ FM FR GA GB GD GE GH GM GN GQ GR GT GW GY HN HR HT HU ID
    IE IL IN IQ IR IS IT JM JO JP KE KG KH KI KM KP KR KW KZ LA LB LC LI LK LR LS LT LU LV LY MA MC MD ME MG MH MK
    ML MM MN MR MT MU MV MW MX MY MZ NA NE NG NI NL NO NP NR NZ OM PA PE PG PH PK PL PT PW PY QA RO RS RU RW SA SB
    SC SD SE SG SI SK SL SM SN SO SR SS SV SY SZ TD TG TH TJ TL TM TN TO TR TT TV TW TZ UA UG US UY UZ VA VE VN VU
    WS XK YE ZA ZM ZW
    """
)

LANGUAGES = _codes(
    """
    af am ar az be bg bn br bs ca co cs cy da de el en eo es et eu fa fi fil fo fr fy ga gl gu ha haw he hi hr ht hu
    hy id is it ja ka kk kl km ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my ne nl no oc pa pl ps pt qu rm ro
    ru sa sc sk sl so sq sr su sv sw ta te tg th tk tr tt ug uk ur uz vi wo yi yo yue zh zu
    """
)

CURRENCIES = _codes(
    """
    AED AFN ALL AMD ARS AUD AZN BDT BGN BOB BRL BYN CAD CHF CLP CNY COP CRC CUP CZK DKK DOP DZD EGP ETB EUR GBP GEL
    GHS GTQ HKD HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KHR KRW KWD KZT LAK LBP LKR LYD MAD MGA MKD MMK MNT
    MXN MYR NGN NOK NPR NZD OMR PEN PHP PKR PLN PYG QAR RUB SAR SDG SEK SGD SYP THB TND TRY TWD TZS UAH UGX USD UYU
    UZS VND YER ZAR
    """
)

UNITS = _codes(
    """
    length-kilometer length-meter length-centimeter length-millimeter length-mile length-yard length-foot
    length-inch length-light-year length-nautical-mile area-square-kilometer area-hectare area-square-meter
    area-square-mile area-acre area-square-foot volume-cubic-meter volume-liter volume-milliliter volume-gallon
    volume-pint volume-cup volume-tablespoon volume-teaspoon volume-fluid-ounce volume-barrel mass-tonne
    mass-kilogram mass-gram mass-milligram mass-pound mass-ounce mass-carat duration-century duration-decade
    duration-year duration-quarter duration-month duration-week duration-day duration-night duration-hour
    duration-minute duration-second duration-millisecond speed-kilometer-per-hour speed-meter-per-second
    speed-mile-per-hour speed-knot temperature-celsius temperature-fahrenheit temperature-kelvin digital-terabyte
    digital-gigabyte digital-megabyte digital-byte digital-bit energy-kilocalorie energy-joule energy-kilowatt-hour
    power-watt power-kilowatt power-megawatt power-horsepower electric-volt electric-ampere electric-ohm
    frequency-hertz frequency-megahertz frequency-gigahertz pressure-bar pressure-hectopascal pressure-atmosphere
    light-lux angle-degree angle-revolution concentr-percent concentr-permillion graphics-pixel graphics-megapixel
    consumption-liter-per-100-kilometer consumption-mile-per-gallon force-newton torque-newton-meter
    length-astronomical-unit volume-cubic-centimeter
    """
)

CITIES = _codes(
    """
    Africa/Addis_Ababa Africa/Algiers Africa/Cairo Africa/Casablanca Africa/Dar_es_Salaam Africa/Johannesburg
    Africa/Khartoum Africa/Lagos Africa/Mogadishu Africa/Nairobi Africa/Tripoli Africa/Tunis America/Bogota
    America/Buenos_Aires America/Caracas America/Chicago America/Havana America/Jamaica America/Lima
    America/Los_Angeles America/Mexico_City America/Montevideo America/New_York America/Santiago America/Sao_Paulo
    America/Toronto Asia/Baghdad Asia/Bangkok Asia/Beirut Asia/Calcutta Asia/Damascus Asia/Dhaka Asia/Dubai
    Asia/Hong_Kong Asia/Jakarta Asia/Jerusalem Asia/Kabul Asia/Karachi Asia/Katmandu Asia/Manila Asia/Novosibirsk
    Asia/Pyongyang Asia/Riyadh Asia/Saigon Asia/Seoul Asia/Shanghai Asia/Singapore Asia/Taipei Asia/Tashkent
    Asia/Tbilisi Asia/Tehran Asia/Tokyo Asia/Vladivostok Asia/Yerevan Atlantic/Reykjavik Australia/Melbourne
    Australia/Sydney Europe/Amsterdam Europe/Athens Europe/Belgrade Europe/Berlin Europe/Brussels Europe/Bucharest
    Europe/Budapest Europe/Copenhagen Europe/Dublin Europe/Helsinki Europe/Istanbul Europe/Kiev Europe/Lisbon
    Europe/Ljubljana Europe/London Europe/Luxembourg Europe/Madrid Europe/Moscow Europe/Oslo Europe/Paris
    Europe/Prague Europe/Riga Europe/Rome Europe/Sarajevo Europe/Sofia Europe/Stockholm Europe/Tallinn Europe/Vienna
    Europe/Vilnius Europe/Warsaw Europe/Zagreb Europe/Zurich
    """
)

METAZONES = _codes(
    """
    Africa_Central Africa_Eastern Africa_Southern Africa_Western Alaska America_Central America_Eastern
    America_Mountain America_Pacific Arabian Argentina Armenia Atlantic Australia_Central Australia_Eastern
    Australia_Western Azerbaijan Azores Bangladesh Bolivia Brasilia Chile China Colombia Cuba Ecuador Europe_Central
    Europe_Eastern Europe_Western GMT Georgia Greenland_Eastern Gulf Hong_Kong India Indochina Indonesia_Central
    Indonesia_Eastern Indonesia_Western Iran Israel Japan Korea Malaysia Moscow Nepal New_Zealand Newfoundland
    Pakistan Peru Philippines Singapore Uruguay
    """
)
ZONES = [f"{zone}/{kind}" for zone in METAZONES for kind in ("generic", "standard", "daylight")]

RELATIVE_UNITS = _codes("year quarter month week day hour minute second")
WEEKDAYS = _codes("mon tue wed thu fri sat sun")

_FIRST_DAY = datetime(1900, 1, 1)
_DAYS = (datetime(2100, 1, 1) - _FIRST_DAY).days


class Domain:
    """Values that a meaning may take, in strata: a stratum is drawn first, then a value in it.

    Strata keep the few short numbers as frequent as the many long ones.
    """

    def __init__(self, *strata: Iterable[Any]) -> None:
        self.strata = [list(stratum) for stratum in strata]

    def keep(self, predicate: Callable[[Any], bool]) -> Domain:
        """Return the values that the predicate accepts, without empty strata."""
        kept = ([value for value in stratum if predicate(value)] for stratum in self.strata)
        return Domain(*(stratum for stratum in kept if stratum))

    def draw(self, rng: np.random.Generator, count: int) -> list[Any]:
        """Return `count` values, with repetition. The domain must not be empty."""
        which = rng.integers(len(self.strata), size=count).tolist()
        where = rng.random(count).tolist()
        chosen = (self.strata[stratum] for stratum in which)
        return [values[int(place * len(values))] for values, place in zip(chosen, where, strict=True)]

    def __len__(self) -> int:
        return sum(len(stratum) for stratum in self.strata)


def _tenths(low: int, high: int) -> list[Decimal]:
    """Return the decimals low/10 to high/10 with one digit after the point, without whole numbers."""
    return [Decimal(tenths) / 10 for tenths in range(low, high) if tenths % 10]


def domains() -> dict[str, Domain]:
    """Return all domains of meanings by name; `grammar.Grammar` keeps those that both locales can say."""
    return {
        "country": Domain(COUNTRIES),
        "language": Domain(LANGUAGES),
        "currency": Domain(CURRENCIES),
        "unit": Domain(UNITS),
        "per_unit": Domain(UNITS),
        "flow_unit": Domain(unit for unit in UNITS if unit.startswith(("volume-", "mass-", "digital-", "energy-"))),
        "per_time": Domain(unit for unit in UNITS if unit.startswith("duration-")),
        "city": Domain(CITIES),
        "zone": Domain(ZONES),
        "relative_unit": Domain(RELATIVE_UNITS),
        "direction": Domain(("past", "future")),
        "weekday": Domain(WEEKDAYS),
        "weekdays": Domain(*([*combinations(range(7), size)] for size in (1, 2, 3))),
        "month": Domain(range(1, 13)),
        "quarter": Domain(range(1, 5)),
        "week_of_month": Domain(range(1, 6)),
        "week_of_year": Domain(range(1, 53)),
        "year": Domain(range(1900, 2100)),
        "old_year": Domain(range(2, 100), range(100, 1000)),
        "era": Domain((0, 1)),
        "date": Domain([_FIRST_DAY + timedelta(days=day) for day in range(_DAYS)]),
        "span_days": Domain(range(1, 25), range(25, 300)),
        "minute": Domain(range(0, 1440, 5), range(1440)),
        "span_minutes": Domain(range(15, 240, 15), range(30, 800, 5)),
        "second": Domain(range(60)),
        "cardinal": Domain(range(100), range(100, 1000), range(1000, 10_000), range(10_000, 1_000_000, 1000)),
        "counting": Domain(range(2, 100), range(100, 1000), range(1000, 10_000), range(10_000, 1_000_000, 1000)),
        "few": Domain(range(2, 100)),
        "ordinal": Domain(range(1, 100), range(100, 1000)),
        "word_year": Domain(range(1100, 2100)),
        "decimal": Domain(_tenths(1, 100), _tenths(100, 1000)),
        "grouped": Domain(range(10_000, 100_000, 50), range(100_000, 1_000_000, 500)),
        "magnitude": Domain((10**6, 10**9, 10**12)),
    }


def unambiguous(texts: dict[Hashable, list[tuple[str, str]]]) -> set[Hashable]:
    """Return the keys whose source texts have only one translation.

    texts: by key, the (source, target) pairs of the key.
    """
    translations: dict[str, set[str]] = {}
    for pairs in texts.values():
        for source, target in pairs:
            translations.setdefault(source, set()).add(target)
    return {key for key, pairs in texts.items() if all(len(translations[source]) == 1 for source, _ in pairs)}
