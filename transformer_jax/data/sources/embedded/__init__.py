"""The embedded corpus: a translation task that needs no download.

Sentences are rendered in two locales from the data of two libraries: names, units, currencies, date, list and interval
patterns of the Unicode CLDR (Babel), and number words (num2words). Nothing is written by hand in any language: a
sentence is a meaning (codes, numbers, dates), and one function renders it with the lexicon of either locale.

    meaning    (2020, "KRW", "mass-kilogram")
    English    two thousand and twenty South Korean won per kilogram
    German     zweitausendzwanzig Südkoreanische Won pro Kilogramm

**Grammar** (grammar.py). A *phrase* says one meaning: a date, a time in a city, an interval, a relative time, a
measure, a price, a country ... A *template* is a list of one to five phrases, joined by the locale's own "and" or
"or". Each template belongs to a *family*, and each family is scored: dates, intervals, schedules, times, relative,
periods, numbers, figures, measures, rates, money, places, languages, remarks. The task requires reordering
("twenty-one" -> "einundzwanzig", "Jan 3 – 5, 2024" -> "3.–5. Jan. 2024", "in two Sundays" -> "Sonntag in zwei
Wochen"), inflection ("two years" -> "zwei Jahre", "two years ago" -> "vor zwei Jahren"), arithmetic of the clock
("5:45 PM" -> "17:45", "1:17 in the morning" -> "1:17 nachts"), copying, and nearly seven hundred names.

**Any pair of locales** that both libraries know. A meaning is left out on both sides if either locale lacks it, writes
it like another meaning with another translation, or if a library gets it wrong (number_words.py, meanings.py). Phrases
and templates without meanings are left out too. The output of English, German, Italian, French, Spanish and Dutch was
read. Other languages have numbers in words only where nothing inflects them, and are as good as their CLDR data.

**Splits.** Sources are unique. A hash of the source text alone decides between train, valid and test, so that they are
disjoint for any seed and size. `test_longer` has the same templates with more phrases: every source of it has more
words and more characters than any in the other splits (`corpus.MAX_WORDS`, `corpus.MAX_CHARACTERS`).

**Versions matter**: another version of Babel or num2words may word things differently, so `fingerprint` has their
versions and the sha256 of the text. The text depends on the seed given here, not on the seed of a run: all trials share
it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib import metadata
from typing import Any

from transformer_jax.config import close_names
from transformer_jax.data.sources.embedded.corpus import SPLIT_NAMES, Grammar, build
from transformer_jax.data.sources.embedded.digests import read_digest, write_digest
from transformer_jax.data.sources.embedded.lexicon import Lexicon
from transformer_jax.data.sources.source import Split, divided, no_such_split
from transformer_jax.errors import DataError

_LIBRARIES = ("babel", "num2words", "numpy")


class EmbeddedSource:
    """Sentence pairs in two locales, rendered from CLDR data and number words at their first use."""

    def __init__(
        self, source_locale: str, target_locale: str, num_train_pairs: int, num_eval_pairs: int, seed: int = 0
    ) -> None:
        """num_eval_pairs: pairs of each of valid, test and test_longer. Raises DataError for an unknown locale."""
        self._grammar = Grammar(_lexicon(source_locale), _lexicon(target_locale))
        if not self._grammar.templates:
            raise DataError(f"the embedded corpus has no sentence for {source_locale!r} and {target_locale!r}")
        self._locales, self._sizes = (source_locale, target_locale), (num_train_pairs, num_eval_pairs, seed)

    @functools.cached_property
    def _splits(self) -> dict[str, Split]:
        return build(self._grammar, *self._sizes)

    @functools.cached_property
    def families(self) -> tuple[str, ...]:
        """Families of this pair of locales, in alphabetical order."""
        return tuple(sorted({template.family for template in self._grammar.templates}))

    @property
    def split_names(self) -> tuple[str, ...]:
        """train, valid, test and test_longer."""
        return SPLIT_NAMES

    def split(self, name: str) -> Split:
        """Return a split; raise DataError for an unknown one, and if there are too few distinct sentences."""
        if name not in SPLIT_NAMES:
            raise no_such_split(name, SPLIT_NAMES)
        return self._splits[name]

    def num_examples(self, name: str) -> int:
        """Return the number of pairs of a split; errors as in `split`."""
        return self.split(name).num_examples

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split, `size` pairs at a time; errors as in `split`."""
        return divided(self.split(name), size)

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the sha256 of the text of all splits, and the library versions on which it depends."""
        return {"sha256": self._sha256, "versions": _versions()}

    @functools.cached_property
    def _sha256(self) -> str:
        corpus = {"locales": [*self._locales], "sizes": [*self._sizes], "versions": _versions()}
        if "_splits" not in self.__dict__ and (known := read_digest(corpus)) is not None:
            return known
        digest = hashlib.sha256()
        for name, split in self._splits.items():
            for side in (split.features["inputs"], split.features["targets"]):
                digest.update("\n".join([name, *side, ""]).encode())
        write_digest(corpus, digest.hexdigest())
        return digest.hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in _LIBRARIES}


@functools.cache
def known_locales() -> tuple[str, ...]:
    """Return the locales for which Babel has data and num2words has number words."""
    from babel.localedata import locale_identifiers
    from num2words import CONVERTER_CLASSES

    return tuple(sorted(name for name in locale_identifiers() if name.split("_")[0] in CONVERTER_CLASSES))


def _lexicon(name: str) -> Lexicon:
    from babel import Locale
    from num2words import CONVERTER_CLASSES

    identifier = name.replace("-", "_")
    if identifier not in known_locales():
        nearest = close_names(identifier, known_locales(), 3, likeness=0.6)
        languages = [locale for locale in known_locales() if "_" not in locale]
        hint = f"nearest: {', '.join(nearest)}" if nearest else f"languages: {', '.join(languages)}"
        raise DataError(f"no locale {name!r} in the embedded corpus: Babel and num2words must both know it; {hint}")
    locale = Locale.parse(identifier)
    converter = identifier if identifier in CONVERTER_CLASSES else locale.language
    return Lexicon(locale, converter)
