"""Sentences from the grammar that both locales can say, drawn from a seed and divided into splits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.sources.embedded.grammar import PHRASES, TEMPLATES, Phrase, Template
from transformer_jax.data.sources.embedded.lexicon import Lexicon
from transformer_jax.data.sources.embedded.meanings import Domain, domains, unambiguous
from transformer_jax.data.sources.embedded.missing import Missing
from transformer_jax.data.sources.source import Split
from transformer_jax.errors import DataError

SPLIT_NAMES = ("train", "valid", "test", "test_longer")
# No sentence of train, valid or test exceeds either limit; every sentence of test_longer exceeds both.
MAX_WORDS = 28
MAX_CHARACTERS = 128

_CHUNK = 2048  # sentences drawn at a time; a seed's corpus depends on this and the next three
_LONGER_CHUNK = 520
_LONGER_PHRASES = 6  # phrases drawn at a time for every sentence of test_longer that a template still lacks
_LONGER_DRAWS = 4
_HASH_SLOTS = 50  # one slot each for valid and test, the others for train
_WORDS = re.compile(r"\w+|[^\w\s]")
_PROBES = 64


class Pair(NamedTuple):
    """A sentence in both locales."""

    source: str
    target: str
    family: str
    phrases: tuple[tuple[str, str], ...] = ()
    """Kind and source text of every phrase, in the order of the source sentence."""


class Said(NamedTuple):
    """A phrase in both locales, and its kind, a key of `PHRASES`."""

    source: str
    target: str
    kind: str

    @property
    def texts(self) -> tuple[str, str]:
        return self.source, self.target


def count_words(text: str) -> int:
    """Return the number of runs of letters and digits and of single marks, the unit of MAX_WORDS."""
    return len(_WORDS.findall(text))


def split_of(source: str) -> str:
    """Return the split of a source sentence, which depends on the hash of its text alone."""
    digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
    slot = int.from_bytes(digest, "little") % _HASH_SLOTS
    return {0: "valid", 1: "test"}.get(slot, "train")


# Names and patterns of a domain's keys. A key is left out if either locale lacks it, or its source text has two
# translations. Domains of numbers follow NumberWords.allows.
_NAMES: dict[str, Callable[[Lexicon, Any], Sequence[str]]] = {
    "country": lambda lex, code: [lex.country(code)],
    "language": lambda lex, code: [lex.language(code)],
    "city": lambda lex, zone: [lex.city(zone)],
    "zone": lambda lex, zone: [lex.zone(zone)],
    "currency": lambda lex, code: [lex.currency(code, lex.category(n)) for n in _COUNTS],
    "unit": lambda lex, code: [lex.unit(code, lex.category(n)) for n in _COUNTS],
    "flow_unit": lambda lex, code: [lex.unit(code, lex.category(n)) for n in _COUNTS],
    "per_unit": lambda lex, code: [lex.per_unit(code)],
    "per_time": lambda lex, code: [lex.per_unit(code)],
}
_COUNTS = (2, 3, 5, 7, 10, 12, 20, 22, 25, 100, 103)
_NUMBERS = {
    "cardinal": "cardinal",
    "counting": "counting",
    "few": "counting",
    "ordinal": "ordinal",
    "word_year": "year",
}


def shared_domains(source: Lexicon, target: Lexicon) -> dict[str, Domain]:
    """Return the domains of meanings.py without meanings that a locale lacks or that are ambiguous in the source."""
    shared = domains()
    texts: dict[Any, list[tuple[str, str]]] = {}
    for domain, write in _NAMES.items():
        for key in (key for stratum in shared[domain].strata for key in stratum):
            try:
                texts[domain, key] = list(zip(write(source, key), write(target, key), strict=True))
            except Missing:
                continue
    kept = unambiguous(texts)
    for domain in _NAMES:
        shared[domain] = shared[domain].keep(lambda key, domain=domain: (domain, key) in kept)
    for domain, use in _NUMBERS.items():
        shared[domain] = shared[domain].keep(
            lambda number, use=use: source.words.allows(number, use) and target.words.allows(number, use)
        )
    shared["word_year"] = shared["word_year"].keep(lambda year: _tells_years(source, target, year))
    return shared


def _tells_years(source: Lexicon, target: Lexicon, year: int) -> bool:
    """Return False if the target has words for a year that the source writes like any other number."""
    try:
        sides = [(lex.words.year(year), lex.words.cardinal(year)) for lex in (source, target)]
    except Missing:
        return False
    (source_year, source_number), (target_year, target_number) = sides
    return source_year != source_number or target_year == target_number


class Grammar:
    """The grammar, restricted to the meanings that both locales can say."""

    def __init__(self, source: Lexicon, target: Lexicon) -> None:
        self._lexicons = (source, target)
        self._domains = shared_domains(source, target)
        self._phrases = {name: phrase for name, phrase in PHRASES.items() if self._can_say(phrase)}
        templates = [
            template._replace(phrases=tuple(name for name in template.phrases if name in self._phrases))
            for template in TEMPLATES
        ]
        self.templates: tuple[Template, ...] = tuple(template for template in templates if template.phrases)

    def _can_say(self, phrase: Phrase) -> bool:
        if not all(len(self._domains[domain]) for domain in phrase.domains):
            return False
        drawn = self._draw(phrase, np.random.default_rng(0), _PROBES)
        return any(texts is not None for texts in drawn)

    def _draw(self, phrase: Phrase, rng: np.random.Generator, count: int) -> list[tuple[str, str] | None]:
        """Return `count` random meanings in both locales; None for meanings that a locale lacks."""
        columns = [self._domains[domain].draw(rng, count) for domain in phrase.domains]
        render = phrase.render
        source, target = self._lexicons
        drawn: list[tuple[str, str] | None] = []
        for values in zip(*columns, strict=True):
            try:
                drawn.append((render(source, *values), render(target, *values)))
            except Missing:
                drawn.append(None)
        return drawn

    def _draw_phrases(self, template: Template, rng: np.random.Generator, count: int) -> list[Said | None]:
        """Return `count` phrases of a template, all kinds equally often."""
        kinds = rng.integers(len(template.phrases), size=count)
        phrases: list[Said | None] = [None] * count
        for kind, name in enumerate(template.phrases):
            places = np.flatnonzero(kinds == kind).tolist()
            for place, texts in zip(places, self._draw(self._phrases[name], rng, len(places)), strict=True):
                phrases[place] = None if texts is None else Said(*texts, name)
        return phrases

    def _join(self, phrases: Sequence[Said | None], template: Template) -> Pair | None:
        """Return the sentence, or None if a phrase is missing or occurs twice."""
        said = [phrase for phrase in phrases if phrase is not None]
        if len({phrase.texts for phrase in said}) < len(phrases):
            return None
        sources, targets, kinds = zip(*said, strict=True)
        source, target = self._lexicons
        try:
            joined = source.join(sources, template.join), target.join(targets, template.join)
            return Pair(*joined, template.family, tuple(zip(kinds, sources, strict=True)))
        except Missing:
            return None

    def sentences(self, rng: np.random.Generator, count: int) -> list[Pair]:
        """Return about `count` sentences within MAX_WORDS and MAX_CHARACTERS, in random order."""
        weights = np.array([template.weight for template in self.templates], float)
        pairs = []
        for template, share in zip(self.templates, weights / weights.sum(), strict=True):
            lengths = rng.choice(template.lengths, size=round(count * share))
            phrases = self._draw_phrases(template, rng, int(lengths.sum()))
            ends = np.cumsum(lengths).tolist()
            for end, length in zip(ends, lengths.tolist(), strict=True):
                pair = self._join(phrases[end - length : end], template)
                if pair and len(pair.source) <= MAX_CHARACTERS and count_words(pair.source) <= MAX_WORDS:
                    pairs.append(pair)
        return [pairs[place] for place in rng.permutation(len(pairs))]

    def longer_sentences(self, rng: np.random.Generator, count: int) -> list[Pair]:
        """Return about `count` sentences of the same templates with just enough phrases to exceed both limits."""
        share = -(-count // len(self.templates))
        pairs = []
        for template in self.templates:
            lacking = share
            for _ in range(_LONGER_DRAWS):
                found = self._chain(self._draw_phrases(template, rng, lacking * _LONGER_PHRASES), template)[:lacking]
                pairs += found
                lacking -= len(found)
        return [pairs[place] for place in rng.permutation(len(pairs))]

    def _chain(self, phrases: Iterable[Said | None], template: Template) -> list[Pair]:
        """Return sentences that each take phrases, in their order, until they are long enough."""
        source, target = self._lexicons
        pairs: list[Pair] = []
        chosen: list[Said] = []
        for phrase in phrases:
            if phrase is None or phrase.texts in [said.texts for said in chosen]:
                continue
            if not (source.can_join(phrase.source) and target.can_join(phrase.target)):
                continue
            chosen.append(phrase)
            size = sum(len(said.source) + 1 for said in chosen)
            if len(chosen) <= max(template.lengths) or size <= MAX_CHARACTERS:
                continue
            pair = self._join(chosen, template)
            if pair and len(pair.source) > MAX_CHARACTERS and count_words(pair.source) > MAX_WORDS:
                pairs.append(pair)
                chosen = []
        return pairs


def build(grammar: Grammar, num_train_pairs: int, num_eval_pairs: int, seed: int) -> dict[str, Split]:
    """Return all splits. A smaller corpus of the same seed is the beginning of a larger one, split by split.

    Raises: DataError if the grammar has too few distinct sentences.
    """
    wanted = {name: num_train_pairs if name == "train" else num_eval_pairs for name in SPLIT_NAMES}
    short = _distinct(grammar.sentences, np.random.default_rng([seed, 0]), _CHUNK)
    longer = _distinct(grammar.longer_sentences, np.random.default_rng([seed, 1]), _LONGER_CHUNK)
    splits = _deal(short, {name: wanted[name] for name in SPLIT_NAMES[:3]}, lambda pair: split_of(pair.source))
    splits |= _deal(longer, {"test_longer": wanted["test_longer"]}, lambda pair: "test_longer")
    return {
        name: Split(
            {
                "inputs": [pair.source for pair in pairs],
                "targets": [pair.target for pair in pairs],
                "families": [pair.family for pair in pairs],
                "phrases": [pair.phrases for pair in pairs],
            }
        )
        for name, pairs in splits.items()
    }


def _distinct(
    draw: Callable[[np.random.Generator, int], list[Pair]], rng: np.random.Generator, chunk: int
) -> Iterator[Pair | None]:
    """Yield sentences without end, each source once; None when hardly any new ones are drawn."""
    seen: set[str] = set()
    while True:
        fresh = 0
        for pair in draw(rng, chunk):
            if pair.source not in seen:
                seen.add(pair.source)
                fresh += 1
                yield pair
        if fresh < chunk // 100:
            yield None


def _deal(
    pairs: Iterator[Pair | None], wanted: Mapping[str, int], split: Callable[[Pair], str]
) -> dict[str, list[Pair]]:
    dealt: dict[str, list[Pair]] = {name: [] for name in wanted}
    missing = sum(wanted.values())
    while missing:
        pair = next(pairs)
        if pair is None:
            counts = ", ".join(f"{len(dealt[name])} of {count} for {name}" for name, count in wanted.items())
            raise DataError(
                f"the embedded corpus has too few distinct sentences for these locales: {counts};"
                " lower data.num_train_pairs or data.num_eval_pairs"
            )
        name = split(pair)
        if len(dealt[name]) < wanted[name]:
            dealt[name].append(pair)
            missing -= 1
    return dealt
