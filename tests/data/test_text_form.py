"""Moses tokens split by BPE, and their text."""

import pytest

from transformer_jax.config import DataConfig
from transformer_jax.data.text_form import detokenize, join_subwords, readable

GERMAN = (
    "Er sag@@ te : &quot; Das ist Peters Hun@@ de@@ hütte , nicht meine ! &quot;",
    "Er sagte : &quot; Das ist Peters Hundehütte , nicht meine ! &quot;",
    'Er sagte: "Das ist Peters Hundehütte, nicht meine!"',
)
ENGLISH = (
    "the girl &apos;s dog does n@@ &apos;t ru@@ n ( she said : &quot; it is well @-@ known &quot; ) .",
    "the girl &apos;s dog does n&apos;t run ( she said : &quot; it is well @-@ known &quot; ) .",
    "the girl's dog does n't run (she said: \"it is well-known\").",
)


@pytest.mark.parametrize(("subwords", "tokens"), [GERMAN[:2], ENGLISH[:2]])
def test_bpe_tokens_are_joined(subwords, tokens):
    assert join_subwords(subwords) == tokens
    assert join_subwords(tokens) == tokens


@pytest.mark.parametrize(
    ("subwords", "tokens"),
    [
        ("", ""),
        ("ein Hun@@", "ein Hun"),  # cut off by the length limit
        ("Hun@@ ", "Hun"),
        ("a@@ b@@ c@@ d e", "abcd e"),
        ("a@@b @@c d@", "a@@b @@c d@"),  # no mark: something follows
        ("a@@  b\u00a0c", "ab\u00a0c"),
    ],
)
def test_marks_at_the_ends_and_in_words(subwords, tokens):
    assert join_subwords(subwords) == tokens


@pytest.mark.parametrize("locale", ["de", "de-CH", "de_DE"])
def test_german(locale):
    assert detokenize(GERMAN[1], locale) == GERMAN[2]


def test_english():
    assert detokenize(ENGLISH[1], "en-GB") == ENGLISH[2]


def test_the_language_of_the_locale_counts():
    tokens = "they &apos;re here , he &apos;s not"
    assert detokenize(tokens, "en") == "they're here, he's not"
    assert detokenize(tokens, "de") == "they 're here, he 's not"
    assert detokenize("l&apos; homme", "fr_FR") == "l'homme"


def test_other_locales_have_general_rules():
    assert detokenize("a , b .", "tgt") == "a, b."
    assert detokenize("", "de") == ""


def test_escapes_are_undone_once():
    assert detokenize("a &amp;quot; b &lt; c &#124; d", "de") == "a &quot; b < c | d"


def test_plain_text_is_left_as_it_is():
    text = "a@@ b , &quot;  c"
    assert readable(text, DataConfig()) == text
    moses = DataConfig(source="text", dir="x", text_form="moses_bpe", target_locale="de")
    assert readable(GERMAN[0], moses) == GERMAN[2]
