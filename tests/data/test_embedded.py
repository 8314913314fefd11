"""The embedded corpus: its language, its splits, and the baseline that must fail on it."""

# ruff: noqa: RUF001  the dashes are those of CLDR

import io
import itertools
import json
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from datetime import datetime, time, timedelta
from decimal import Decimal

import babel.dates
import babel.lists
import babel.numbers
import babel.units
import numpy as np
import pytest
import sentencepiece

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import embedded, load_source
from transformer_jax.data.sources.embedded import EmbeddedSource, corpus, grammar
from transformer_jax.data.sources.embedded.lexicon import Lexicon
from transformer_jax.data.sources.embedded.meanings import unambiguous
from transformer_jax.data.sources.embedded.missing import Missing
from transformer_jax.data.sources.embedded.number_words import NumberWords
from transformer_jax.data.sources.embedded.patterns import clean
from transformer_jax.errors import DataError
from transformer_jax.evaluation.nearest_neighbour import NearestNeighbour

LOCALES = ("en", "de", "it", "fr", "es", "nl")


@pytest.fixture(scope="module")
def german() -> EmbeddedSource:
    return EmbeddedSource("en", "de", num_train_pairs=3000, num_eval_pairs=400)


@pytest.fixture(scope="module")
def lexicons() -> dict[str, Lexicon]:
    return {name: embedded._lexicon(name) for name in LOCALES}


# The language


@pytest.mark.parametrize(
    ("phrase", "meaning", "english", "german"),
    [
        ("full_date", [datetime(2031, 3, 4)], "Tuesday, March 4, 2031", "Dienstag, 4. März 2031"),
        ("appointment", [datetime(2031, 3, 7), 5], "Friday, March 7, 2031, 12:05 AM", "Freitag, 7. März 2031, 00:05"),
        ("date_interval", [datetime(2024, 1, 3), 2], "Jan 3 – 5, 2024", "3.–5. Jan. 2024"),
        ("opening_hours", [(4,), 60, 735], "Friday, 1:00 AM – 1:15 PM", "Freitag, 01:00–13:15 Uhr"),
        ("time_of_day", [77], "1:17 in the morning", "1:17 nachts"),
        ("time_in_city", [5, "Europe/Vienna"], "12:05 AM Vienna Time", "00:05 Wien (Ortszeit)"),
        ("week_of_month", [datetime(2024, 5, 1), 3], "week 3 of May", "Woche 3 im Mai"),
        ("relative_time", ["year", "past", 22], "twenty-two years ago", "vor zweiundzwanzig Jahren"),
        ("relative_weekday", ["sun", "future", 2], "in two Sundays", "Sonntag in zwei Wochen"),
        ("era_interval", [44, 30, 0, 0], "44 – 30 BC", "44–30 v. Chr."),
        ("cardinal", [1201], "one thousand two hundred and one", "eintausendzweihunderteins"),
        ("ordinal", [43], "forty-third", "dreiundvierzigste"),
        ("year_in_words", [1984], "nineteen eighty-four", "neunzehnhundertvierundachtzig"),
        ("compact", [Decimal("3.2"), 10**9], "3.2 billion", "3,2 Milliarden"),
        ("measure_grouped", [12_500, "length-mile"], "12,500 miles", "12.500 Meilen"),
        ("price", [2, "CHF", "mass-gram"], "two Swiss francs per gram", "zwei Schweizer Franken pro Gramm"),
        ("dialect", ["de", "CH"], "German (Switzerland)", "Deutsch (Schweiz)"),
    ],
)  # fmt: skip
def test_phrases_by_hand(lexicons, phrase, meaning, english, german):
    render = grammar.PHRASES[phrase].render
    assert (render(lexicons["en"], *meaning), render(lexicons["de"], *meaning)) == (english, german)


@pytest.mark.parametrize("name", LOCALES)
def test_dates_are_babels(lexicons, name):
    lexicon, minutes = lexicons[name], range(0, 1440, 97)
    for days, minute in zip(range(0, 70_000, 4321), itertools.cycle(minutes)):
        when = datetime(1900, 1, 1) + timedelta(days=days)
        assert lexicon.date("full", when) == clean(babel.dates.format_date(when, "full", locale=name))
        assert lexicon.date("MMMMd", when) == clean(babel.dates.format_skeleton("MMMMd", when, locale=name))
        for span in (4, 40, 400):
            expected = babel.dates.format_interval(when, when + timedelta(days=span), "yMMMd", locale=name)
            assert lexicon.date_interval("yMMMd", when, when + timedelta(days=span)) == clean(expected)
        expected = babel.dates.format_time(time(minute // 60, minute % 60), "short", locale=name)
        assert lexicon.time(minute) == clean(expected)


@pytest.mark.parametrize("name", LOCALES)
def test_lists_and_quantities_are_babels(lexicons, name):
    lexicon = lexicons[name]
    for length, (join, style) in itertools.product((1, 2, 3, 4, 5), (("and", "standard"), ("or", "or"))):
        items = ["Alpha", "Beta", "Gamma", "Delta", "Epsilon"][:length]
        assert lexicon.join(items, join) == babel.lists.format_list(items, style, locale=name)
    for number in (Decimal("0.5"), Decimal("1.5"), 2, 22, 12_500):
        digits, category = lexicon.decimal(number), lexicon.category(number)
        expected = babel.units.format_unit(number, "length-mile", "long", locale=name)
        assert lexicon.measure(digits, category, "length-mile") == clean(expected)
        assert lexicon.currency("USD", category) == clean(babel.numbers.get_currency_name("USD", number, locale=name))
    past = babel.dates.format_timedelta(timedelta(days=-3), granularity="day", add_direction=True, locale=name)
    assert lexicon.relative("day", "past", lexicon.category(3)).replace("{0}", "3") == clean(past)


@pytest.mark.parametrize(
    ("language", "use", "wrong", "right"),
    [
        ("it", "cardinal", 553, 23),  # cinquecentocinquantatre lacks its accent
        ("fr", "ordinal", 80, 81),  # quatre-vingtsième
        ("es", "cardinal", 21_000, 22_000),  # veintiuno mil
        ("es", "counting", 200, 199),  # doscientos or doscientas
        ("nl", "cardinal", 2345, 345),
        ("de_CH", "cardinal", 30, 40),  # dreißig is written with ss
        ("ru", "counting", 2, None),  # два or две: not one number fits every noun
        ("de", "counting", 1, 11),  # ein, eine
        ("de", "counting", 101, 111),
    ],
)
def test_wrong_number_words_are_left_out(language, use, wrong, right):
    words = NumberWords(language, language[:2])
    with pytest.raises(Missing):
        getattr(words, use)(wrong)
    if right is not None:
        assert getattr(words, use)(right).strip()


def test_a_name_with_two_translations_is_left_out():
    texts = {"mass": [("pound", "Pfund")], "money": [("pound", "Pfund Sterling")], "length": [("mile", "Meile")]}
    assert unambiguous(texts) == {"length"}
    assert unambiguous({**texts, "money": [("pound", "Pfund")]}) == set(texts)


@pytest.mark.parametrize(
    "locales",
    [
        ("en", "de"),
        *(pytest.param(pair, marks=pytest.mark.slow) for pair in (("de", "en"), ("it", "en"), ("en", "es"))),
    ],
)
def test_every_source_has_one_translation(locales):
    sentences = corpus.Grammar(*map(embedded._lexicon, locales))
    translations: dict[str, set[str]] = {}
    rng = np.random.default_rng(0)
    for phrase in sentences._phrases.values():
        for source, target in filter(None, sentences._draw(phrase, rng, 400)):
            translations.setdefault(source, set()).add(target)
    assert len(translations) > 8000
    assert {source: targets for source, targets in translations.items() if len(targets) > 1} == {}


@pytest.mark.slow
def test_text_is_plain(german):
    for name in german.split_names:
        for text in itertools.chain(german.split(name).features["inputs"], german.split(name).features["targets"]):
            assert text == " ".join(text.split()) == unicodedata.normalize("NFC", text)
            assert not any(unicodedata.category(character) in ("Cf", "Cc") for character in text)
            assert "{" not in text


@pytest.mark.slow
def test_one_is_never_counted_in_words(german):
    """German "eins" is a number and "ein" an article; before a noun neither is right."""
    texts = [text for name in german.split_names for text in german.split(name).features["targets"]]
    assert any("eins" in text for text in texts)
    assert [text for text in texts if re.search(r"eins (?!und|oder|–)\w", text)] == []


# The splits


@pytest.mark.slow
def test_sources_are_unique_and_splits_disjoint(german):
    sources = [source for name in german.split_names for source in german.split(name).features["inputs"]]
    assert len(sources) == 3000 + 3 * 400 == len(set(sources))
    assert [len(german.split(name).features["targets"]) for name in german.split_names] == [3000, 400, 400, 400]


@pytest.mark.slow
def test_a_source_is_in_the_same_split_for_every_seed(german):
    other = EmbeddedSource("en", "de", 2000, 100, seed=1)
    assert len(set(other.split("train").features["inputs"]) & set(german.split("train").features["inputs"])) < 100
    for first, second in itertools.permutations(("train", "valid", "test"), 2):
        assert not set(german.split(first).features["inputs"]) & set(other.split(second).features["inputs"])
    assert all(corpus.split_of(source) == "test" for source in other.split("test").features["inputs"])


@pytest.mark.slow
def test_a_smaller_corpus_is_the_beginning_of_a_larger_one(german):
    small = EmbeddedSource("en", "de", 500, 30)
    for name in small.split_names:
        size = 500 if name == "train" else 30
        assert small.split(name).features["inputs"] == german.split(name).features["inputs"][:size]
        assert small.split(name).features["targets"] == german.split(name).features["targets"][:size]


@pytest.mark.slow
def test_every_family_is_in_every_split(german):
    assert len(grammar.TEMPLATES) >= 15
    assert len(german.families) == 14
    assert set(german._grammar._phrases) == set(grammar.PHRASES)
    for name in german.split_names:
        families = german.split(name).features["families"]
        counts = Counter(families)
        assert set(counts) == set(german.families)
        assert min(counts.values()) >= 0.01 * len(families)
        assert max(counts.values()) <= 0.2 * len(families)
    assert all(family in embedded.__doc__ for family in german.families)


def test_longer_is_longer_than_anything_in_training(german):
    words = {
        name: [corpus.count_words(text) for text in german.split(name).features["inputs"]]
        for name in german.split_names
    }
    lengths = {name: [len(text) for text in german.split(name).features["inputs"]] for name in german.split_names}
    for name in ("train", "valid", "test"):
        assert max(words[name]) <= corpus.MAX_WORDS < min(words["test_longer"])
        assert max(lengths[name]) <= corpus.MAX_CHARACTERS < min(lengths["test_longer"])
    assert max(words["train"]) > 0.9 * corpus.MAX_WORDS, "the limit is one that training sentences come near to"
    assert np.mean(words["test_longer"]) < 2 * corpus.MAX_WORDS
    targets = {name: [len(text) for text in german.split(name).features["targets"]] for name in german.split_names}
    assert np.percentile(targets["train"], 95) < np.percentile(targets["test_longer"], 5)


def test_count_words():
    assert corpus.count_words("Monday, 5:45 – 7:30 PM (twenty-one)") == 15
    assert corpus.count_words("") == 0


def test_too_few_sentences(german):
    few = corpus.Grammar(*german._grammar._lexicons)
    few.templates = (grammar.Template("quarters", "periods", ("quarter",), (1,)),)
    with pytest.raises(DataError, match=r"too few distinct sentences.* of 5000 for train"):
        corpus.build(few, 5000, 10, seed=0)


# The source


@pytest.mark.slow
def test_two_processes_agree():
    program = (
        "import json; from transformer_jax.data.sources.embedded import EmbeddedSource;"
        "source = EmbeddedSource('en', 'de', 300, 20); print(json.dumps(source.fingerprint()))"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE)
        for seed in ("1", "2")
    ]
    first, second = (json.loads(run.communicate()[0]) for run in runs)
    assert first == second == EmbeddedSource("en", "de", 300, 20).fingerprint()


@pytest.mark.slow
def test_fingerprint(german):
    fingerprint = german.fingerprint()
    assert re.fullmatch("[0-9a-f]{64}", fingerprint["sha256"])
    assert set(fingerprint["versions"]) == {"babel", "num2words", "numpy"}
    small = [EmbeddedSource("en", "de", 100, size, seed).fingerprint() for size, seed in ((10, 0), (11, 0), (10, 1))]
    assert len({other["sha256"] for other in [fingerprint, *small]}) == 4


def test_importing_is_light():
    program = "import sys, transformer_jax.data.sources.embedded; print({'babel', 'num2words'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout.strip() == b"set()"


@pytest.mark.slow
def test_load_source_reads_the_config():
    config = DataConfig(source_locale="en", target_locale="it", num_train_pairs=300, num_eval_pairs=20)
    source = load_source(config)
    assert source.split_names == ("train", "valid", "test", "test_longer")
    assert [len(source.split(name).features["inputs"]) for name in source.split_names] == [300, 20, 20, 20]
    translations = dict(
        zip(source.split("train").features["inputs"], source.split("train").features["targets"], strict=True)
    )
    text = " ".join(translations.values())
    assert re.search(r"\bgennaio\b|\bmarzo\b|\blunedì\b|\bsettimana\b", text)


def test_italian(lexicons):
    meaning = (2020, "KRW", "mass-kilogram")
    price = grammar.PHRASES["price"].render(lexicons["it"], *meaning)
    assert price == "duemilaventi won sudcoreani per chilogrammo"
    assert grammar.PHRASES["relative_weekday"].render(lexicons["it"], "sun", "future", 2) == "tra due domeniche"


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["ja", "fr", "es", "pt-BR"])
def test_other_locales(locale):
    """Whatever a locale lacks, the rest is a corpus: neither side is empty, and the sides differ."""
    source = EmbeddedSource("en", locale, 200, 10)
    split = source.split("train")
    inputs, targets = split.features["inputs"], split.features["targets"]
    assert len(set(inputs)) == 200
    assert all(targets)
    assert len(source.families) >= 9
    assert sum(a == b for a, b in zip(inputs, targets, strict=True)) < 10


def test_phrases_that_one_locale_lacks_are_left_out_on_both_sides():
    """num2words counts in Russian, but a number inflects with its noun, so no family may need it."""
    source = EmbeddedSource("ru", "en", 200, 20)
    names = {template.name for template in source._grammar.templates}
    assert not names & {"measures", "prices", "ordinals", "years"}
    assert {"exact_measures", "cardinals", "countries"} <= names


@pytest.mark.parametrize(
    ("locale", "hint"),
    [("de_DX", "nearest: de_DE"), ("deu", "nearest: de"), ("", "languages: am, ar, az"), ("../en", "languages: am")],
)
def test_unknown_locale(locale, hint):
    with pytest.raises(DataError, match="Babel and num2words") as raised:
        EmbeddedSource("en", locale, 10, 10)
    assert repr(locale) in str(raised.value)
    assert hint in str(raised.value)


def test_unknown_split(german):
    with pytest.raises(DataError, match=r"'dev'.*train, valid, test, test_longer"):
        german.split("dev")


# The baseline


def test_nearest_neighbour_fails_on_the_corpus(german):
    train, test = german.split("train"), german.split("test")
    index = NearestNeighbour(train.features["inputs"], train.features["targets"])
    assert index.predict(train.features["inputs"][:50]) == train.features["targets"][:50]
    assert (
        np.mean([a == b for a, b in zip(index.predict(test.features["inputs"]), test.features["targets"], strict=True)])
        < 0.2
    )


@pytest.mark.slow
def test_size_of_the_task():
    """The requirements of the corpus: the number of target tokens, and the baseline with many training sentences."""
    source = EmbeddedSource("en", "de", 30_000, 500)
    train, test = source.split("train"), source.split("test")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=itertools.chain(train.features["inputs"][:20_000], train.features["targets"][:20_000]),
        model_writer=model,
        vocab_size=2000,
        model_type="bpe",
        num_threads=1,
        minloglevel=2,
    )
    tokens = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).encode(test.features["targets"])
    assert np.mean([len(sentence) for sentence in tokens]) >= 12
    predictions = NearestNeighbour(train.features["inputs"], train.features["targets"]).predict(test.features["inputs"])
    assert np.mean([a == b for a, b in zip(predictions, test.features["targets"], strict=True)]) < 0.2
