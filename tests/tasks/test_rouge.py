"""ROUGE against its definition written out, against the library's own examples, and with several references."""

import random
from collections import Counter

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer

from transformer_jax.data.text_form import sentences_of
from transformer_jax.tasks.metrics.rouge import (
    ROUGES,
    Rules,
    best_of,
    corpus_scores,
    example_scores,
    paired_bootstrap,
    warn_of_letters,
)

EACH, OF_ROUGE_1 = Rules(False, "each"), Rules(False, "rouge1")
WORDS = ["the", "model", "learns", "to", "learn", "faster", "and", "on", "noisy", "images", ",", "without", "."]


def texts(seed, count=200):
    """Return outputs, some of them empty, and one to three references of each."""
    draw = random.Random(seed)

    def text(least):
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, 12)))

    return [text(0) for _ in range(count)], [[text(1) for _ in range(draw.randint(1, 3))] for _ in range(count)]


def f1(common, output, reference):
    return 2 * common / (output + reference) if common else 0.0


def longest_common(a, b):
    if not a or not b:
        return 0
    if a[-1] == b[-1]:
        return 1 + longest_common(a[:-1], b[:-1])
    return max(longest_common(a[:-1], b), longest_common(a, b[:-1]))


def by_definition(output, reference):
    """Return ROUGE-1, ROUGE-2 and ROUGE-L of words in small letters, without stems; short texts only."""
    a, b = ([word for word in text.lower().split() if word.isalnum()] for text in (output, reference))
    grams = [[Counter(zip(*(words[i:] for i in range(n)), strict=False)) for words in (a, b)] for n in (1, 2)]
    common = [f1((x & y).total(), x.total(), y.total()) for x, y in grams]
    return [*common, f1(longest_common(tuple(a), tuple(b)), len(a), len(b))]


def test_scores_equal_their_definition():
    draw = random.Random(1)
    pairs = [[" ".join(draw.choices(WORDS, k=draw.randint(0, 7))) for _ in range(2)] for _ in range(60)]
    outputs, references = zip(*pairs, strict=True)
    scores = example_scores(outputs, [[reference] for reference in references], EACH)
    expected = np.array([by_definition(*pair) for pair in pairs])
    np.testing.assert_allclose(np.stack([scores[name] for name in ROUGES], axis=-1), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("output", "references", "expected"),
    [
        ("testing", ["testing one two"], (1 / 2, 0, 1 / 2)),
        ("testing one", ["testing one two"], (4 / 5, 2 / 3, 4 / 5)),
        ("testing two", ["testing one two"], (4 / 5, 0, 4 / 5)),
        ("", ["testing one two"], (0, 0, 0)),
        ("/", ["w1 w2 w3 w4 w5"], (0, 0, 0)),
        ("text first", ["first text", "first something"], (1, 0, 1 / 2)),
    ],
)
def test_examples_of_the_library(output, references, expected):
    """The pairs and values of rouge-score's rouge_scorer_test.py."""
    scores = example_scores([output], [references], EACH)
    assert [scores[name][0] for name in ROUGES] == pytest.approx(expected)


@pytest.mark.parametrize("stemmer", [False, True])
def test_every_example_equals_the_library(stemmer):
    outputs, references = texts(2)
    scores = example_scores(outputs, references, Rules(stemmer, "each"))
    library = RougeScorer([*ROUGES], use_stemmer=stemmer)
    for i, (output, of_output) in enumerate(zip(outputs, references, strict=True)):
        expected = library.score_multi(of_output, output)
        assert [scores[name][i] for name in ROUGES] == [expected[name].fmeasure for name in ROUGES]


def test_stems_join_forms_of_a_word():
    output, references = ["the models learning"], [["the model learned"]]
    assert example_scores(output, references, Rules(True, "each"))["rouge2"] == 1.0
    assert example_scores(output, references, EACH)["rouge2"] == 0.0


def test_the_best_reference_of_rouge_1_gives_all_scores():
    """As cal-rouge.py of SciTLDR: the second reference has more words in common, the first one a pair of words."""
    output, references = ["a b c d"], [["a b x y", "d c b q"]]
    by_itself = example_scores(output, references, EACH)
    together = example_scores(output, references, OF_ROUGE_1)
    assert (by_itself["rouge1"], by_itself["rouge2"], by_itself["rougeL"]) == (0.75, pytest.approx(1 / 3), 0.5)
    assert (together["rouge1"], together["rouge2"], together["rougeL"]) == (0.75, 0.0, 0.25)
    outputs, several = texts(3)
    free, chosen = (example_scores(outputs, several, rules) for rules in (EACH, OF_ROUGE_1))
    np.testing.assert_array_equal(free["rouge1"], chosen["rouge1"])
    assert all((free[name] >= chosen[name]).all() for name in ROUGES)
    assert (free["rougeL"] > chosen["rougeL"]).any()


@pytest.mark.parametrize("best", ["each", "rouge1"])
def test_the_best_of_several_texts(best):
    candidates, _ = texts(5, 20)
    _, references = texts(6, 30)
    for of_one in references:
        scores = example_scores(candidates, [of_one] * len(candidates), Rules(True, best))["rouge1"]
        assert best_of(candidates, of_one, Rules(True, best)) == candidates[scores.argmax()]


def test_scores_of_a_corpus_count_empty_outputs_as_zero():
    scores = corpus_scores(["a b", "", " "], [["a b"], ["a b"], ["a b", "c"]], EACH)
    assert scores["empty"] == 2
    for name in ("exact_match", *ROUGES):
        assert scores[name] == pytest.approx(100 / 3)
    assert scores["rouge1_signature"].startswith("words:a-z0-9|stem:no|best:each|version:")


@pytest.mark.parametrize("references", [[["a"]], [["a"], ["b"], ["c"]], [["a"], []]])
def test_numbers_of_references_that_do_not_fit(references):
    with pytest.raises(ValueError, match=r"2 outputs, [123] lists of references"):
        example_scores(["a", "b"], references, EACH)


def test_comparison_of_systems():
    good, references = texts(4, 60)
    bad = ["noise" for _ in good]
    found = paired_bootstrap([good, bad, good], references, EACH, samples=60, seed=5)
    for name, scores in found.scores.items():
        whole = [corpus_scores(outputs, references, EACH)[name] for outputs in (good, bad, good)]
        assert [score.score for score in scores] == pytest.approx(whole)
        assert scores[2].always_equal
    assert found.scores["rouge1"][1].p_value < 0.05
    assert found.signatures["rougeL"].startswith("bs:60|seed:5|words:a-z0-9|stem:no")


@pytest.mark.parametrize(
    ("text", "warns"),
    [
        ("ein schönes Modell", True),
        ("это модель", True),
        ("Café au lait " * 9, True),
        ("a naïve " + "model " * 50, False),
    ],
)
def test_letters_that_rouge_leaves_out(text, warns, caplog):
    warn_of_letters("test", [[text]])
    assert ("not a to z" in caplog.text) == warns


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ('He said: "One." Then two', ['He said: "One."', "Then two"]),
        (" 3.5 percent of a.b \n", ["3.5 percent of a.b"]),
        ("", [""]),
    ],
)
def test_sentences(text, sentences):
    assert sentences_of(text) == sentences
