"""Scores of translations, against sacreBLEU called by hand and counts made by hand."""

import pytest
import sacrebleu

from transformer_jax.evaluation.scores import family_scores, translation_scores

TRANSLATIONS = ["der Hund schläft.", "eine Katze sitzt auf der Matte .", "am 3. März 2031", "", "ja"]
REFERENCES = ["der Hund schläft.", "eine Katze sitzt auf einer Matte.", "am 3. März 2013", "nein", "Ja"]


def test_scores_are_those_of_sacrebleu():
    scores = translation_scores(TRANSLATIONS, REFERENCES)
    assert scores["sacrebleu"] == sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(TRANSLATIONS, [REFERENCES]).score
    assert 20 < scores["sacrebleu"] < 90
    assert 20 < scores["chrf"] < 90


def test_signatures_say_how():
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


def test_a_detached_full_stop_is_no_warning(caplog, capsys):
    """What sacreBLEU takes for tokenised text by mistake is what the model has learned to write."""
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
