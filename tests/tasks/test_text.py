"""Scores of translations, against sacreBLEU called directly and counts made by hand."""

import math
from collections import Counter

import pytest
import sacrebleu

from transformer_jax.tasks.metrics.text import family_scores, tokenized_scores, translation_scores

TRANSLATIONS = ["der Hund schläft.", "eine Katze sitzt auf der Matte .", "am 3. März 2031", "", "ja"]
REFERENCES = ["der Hund schläft.", "eine Katze sitzt auf einer Matte.", "am 3. März 2013", "nein", "Ja"]


def test_scores_are_those_of_sacrebleu():
    scores = translation_scores(TRANSLATIONS, REFERENCES)
    assert scores["sacrebleu"] == sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score
    assert 20 < scores["sacrebleu"] < 90
    assert 20 < scores["chrf"] < 90


def test_signatures_name_the_settings():
    scores = translation_scores(TRANSLATIONS, REFERENCES)
    version = f"version:{sacrebleu.__version__}"
    assert scores["sacrebleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert scores["chrf_signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"


def test_exact_match_is_of_whole_strings():
    assert translation_scores(TRANSLATIONS, REFERENCES)["exact_match"] == 20.0
    assert translation_scores(["a", "b "], ["a", "b"])["exact_match"] == 50.0


def test_perfect_and_hopeless():
    perfect = translation_scores(REFERENCES[:3], REFERENCES[:3])
    assert (perfect["exact_match"], perfect["sacrebleu"], perfect["chrf"]) == (100.0, pytest.approx(100.0), 100.0)
    hopeless = translation_scores(["", ""], ["ein Satz", "noch einer"])
    assert (hopeless["exact_match"], hopeless["sacrebleu"], hopeless["chrf"]) == (0.0, 0.0, 0.0)


def test_a_detached_full_stop_gives_no_warning(caplog, capsys):
    """sacreBLEU mistakes such text for tokenized text, but it is the model's own output."""
    lines = [f"Satz {i} ." for i in range(200)]
    translation_scores(lines, lines)
    assert capsys.readouterr().err == ""
    assert caplog.text == ""


def test_every_pair_is_scored():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        translation_scores(["a", "b"], ["a"])


def test_families_add_up():
    families = ["dates", "animals", "dates", "dates", "animals"]
    scores = family_scores(["a", "b", "c", "x", "x"], ["a", "b", "c", "d", "e"], families)
    assert scores == {
        "animals": {"exact_match": 50.0, "pairs": 2},
        "dates": {"exact_match": pytest.approx(200 / 3), "pairs": 3},
    }
    assert list(scores) == ["animals", "dates"]
    whole = translation_scores(["a", "b", "c", "x", "x"], ["a", "b", "c", "d", "e"])["exact_match"]
    assert sum(s["exact_match"] * s["pairs"] for s in scores.values()) / 5 == pytest.approx(whole)


def bleu_by_hand(translations, references):
    """Papineni et al. 2002: geometric mean of clipped precisions of 1 to 4 words, times the brevity penalty."""
    matched, total, lengths = [0] * 4, [0] * 4, [0, 0]
    for translation, reference in zip(translations, references, strict=True):
        words = [line.lower().split() for line in (translation, reference)]
        lengths = [length + len(side) for length, side in zip(lengths, words, strict=True)]
        for n in range(4):
            grams = [Counter(tuple(side[i : i + n + 1]) for i in range(len(side) - n)) for side in words]
            matched[n] += (grams[0] & grams[1]).total()
            total[n] += grams[0].total()
    precision = math.prod(m / t for m, t in zip(matched, total, strict=True)) ** 0.25
    return 100 * precision * min(1.0, math.exp(1 - lengths[1] / lengths[0]))


@pytest.mark.parametrize("cut", [None, -1])
def test_bleu_of_tokens_is_the_formula(cut):
    """Punctuation and escapes are tokens like others, and case does not count."""
    references = [
        "Ein kleines Mädchen klettert in ein Spielhaus , &quot; aus Holz &quot; .",
        "zwei Männer stehen am Herd und bereiten Essen zu .",
        "ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster .",
    ]
    translations = [
        "ein kleines Mädchen klettert in ein Haus , &quot; aus Holz &quot; .",
        "Zwei Männer stehen am Herd und machen Essen .",
        "ein Mann in blauem Hemd steht auf einer Leiter und putzt das Fenster .",
    ]
    translations = [" ".join(line.split()[:cut]) for line in translations]
    scores = tokenized_scores(translations, references)
    assert scores["tokenized_bleu"] == pytest.approx(bleu_by_hand(translations, references), abs=1e-9)
    assert 30 < scores["tokenized_bleu"] < 70
    version = f"version:{sacrebleu.__version__}"
    assert scores["tokenized_bleu_signature"] == f"nrefs:1|case:lc|eff:no|tok:none|smooth:exp|{version}"


def test_bleu_of_tokens_counted_by_hand():
    """5 of 6 words, 3 of 5 bigrams, 2 of 4 trigrams and 1 of 3 4-grams; as long as the reference."""
    score = tokenized_scores(["a b c d x f"], ["a b c d e f"])["tokenized_bleu"]
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_exact_match_is_of_tokens():
    assert tokenized_scores(["a  b", "a b", "A b", "a b"], ["a b", "a b ", "a b", "ab"])["exact_match"] == 50.0
