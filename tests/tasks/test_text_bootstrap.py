"""Paired bootstrap resampling, against sacreBLEU's command line and against the formula written out."""

import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
import sacrebleu

from transformer_jax.tasks.metrics.text_bootstrap import paired_bootstrap
from transformer_jax.tasks.task import SEED

METRICS = ("sacrebleu", "chrf")

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", ",", "far", "away", "."]


def corpus(count, *error_rates):
    """Return references, and translations by systems that make word errors with the given probabilities."""
    draw = random.Random(0)
    references = [[draw.choice(WORDS) for _ in range(draw.randint(6, 12))] for _ in range(count)]
    systems = [
        [" ".join(draw.choice(WORDS) if draw.random() < rate else word for word in line) for line in references]
        for rate in error_rates
    ]
    return [" ".join(line) for line in references], systems


REFERENCES, SYSTEMS = corpus(30, 0.2, 0.3, 0.25)
PAIR = SYSTEMS[::2]  # the two with the smallest difference
HAND_OVER = {"sacrebleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}


def test_the_numbers_are_those_of_sacrebleus_command_line(tmp_path):
    files = [tmp_path / name for name in ("references", "a", "b", "c")]
    for file, lines in zip(files, [REFERENCES, *SYSTEMS], strict=True):
        file.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "sacrebleu", str(files[0]), "-i", *map(str, files[1:]), "-m", "bleu", "chrf"]
    environment = {name: value for name, value in os.environ.items() if name != "SACREBLEU_SEED"}
    options = ["--paired-bs", "--paired-bs-n", "200", "-w", "6", "--format", "text"]
    out = subprocess.run([*command, *options], capture_output=True, text=True, check=True, env=environment).stdout
    theirs = [list(map(float, found)) for found in re.findall(r"([\d.]+) \(([\d.]+) ± ([\d.]+)\)", out)]
    theirs_p = [float(found) for found in re.findall(r"\(p = ([\d.]+)\)", out)]
    assert (len(theirs), len(theirs_p)) == (6, 4)

    ours = paired_bootstrap(SYSTEMS, REFERENCES, samples=200)
    by_system = [ours.scores[metric][system] for system in range(3) for metric in METRICS]
    for score, their in zip(by_system, theirs, strict=True):
        assert [score.score, score.mean, score.interval] == pytest.approx(their, abs=1e-5)
    for score, their in zip(by_system[2:], theirs_p, strict=True):
        assert score.p_value == pytest.approx(their, abs=5e-5)
    assert all(f" {ours.signatures[metric]}\n" in out for metric in METRICS)


@pytest.mark.parametrize("metric", METRICS)
def test_the_p_value_equals_its_definition(metric):
    samples, seed = 60, 7
    score = HAND_OVER[metric]
    draws = np.random.default_rng(seed).choice(len(REFERENCES), size=(samples, len(REFERENCES)))
    on_draws = np.array(
        [[score([system[i] for i in draw], [[REFERENCES[i] for i in draw]]).score for draw in draws] for system in PAIR]
    )
    whole = [score(system, [REFERENCES]).score for system in PAIR]
    distances = abs(on_draws[1] - on_draws[0])
    count = sum(distances - distances.mean() > abs(whole[1] - whole[0]))

    first, second = paired_bootstrap(PAIR, REFERENCES, samples, seed).scores[metric]
    assert (first.score, second.score) == pytest.approx(tuple(whole))
    assert (first.mean, second.mean) == pytest.approx(tuple(on_draws.mean(1)))
    for system, drawn in zip((first, second), np.sort(on_draws), strict=True):
        # 95 % of 60 draws are all but the lowest and the highest.
        assert 2 * system.interval == pytest.approx(drawn[-2] - drawn[1])
    assert (first.difference, first.p_value) == (None, None)
    assert second.difference == pytest.approx(whole[1] - whole[0])
    assert second.p_value == pytest.approx((count + 1) / (samples + 1))
    assert 1 < count < samples


def test_a_clear_and_a_negligible_difference():
    references, (good, bad, as_good) = corpus(200, 0.1, 0.4, 0.1)
    scores = paired_bootstrap([good, bad, as_good], references, samples=100).scores
    for metric in METRICS:
        _, of_bad, of_as_good = scores[metric]
        assert of_bad.difference < -10
        assert of_bad.p_value == pytest.approx(1 / 101)
        assert not of_bad.always_equal
        assert of_as_good.p_value > 0.05
        assert of_as_good.score - of_as_good.interval < scores[metric][0].score < of_as_good.score + of_as_good.interval


def test_each_is_compared_with_the_first():
    together = paired_bootstrap(SYSTEMS, REFERENCES, samples=50).scores
    for number in (1, 2):
        apart = paired_bootstrap([SYSTEMS[0], SYSTEMS[number]], REFERENCES, samples=50).scores
        for metric in METRICS:
            assert apart[metric] == [together[metric][0], together[metric][number]]


def test_draws_follow_from_the_given_seed(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "3")
    default = paired_bootstrap(SYSTEMS, REFERENCES, samples=50)
    assert os.environ["SACREBLEU_SEED"] == "3"
    monkeypatch.delenv("SACREBLEU_SEED")
    assert paired_bootstrap(SYSTEMS, REFERENCES, samples=50, seed=SEED) == default
    assert "SACREBLEU_SEED" not in os.environ
    other = paired_bootstrap(SYSTEMS, REFERENCES, samples=50, seed=3)
    assert other.scores != default.scores
    assert all("|bs:50|seed:12345|" in signature for signature in default.signatures.values())
    assert all("|bs:50|seed:3|" in signature for signature in other.signatures.values())


def test_the_environment_is_as_before_after_an_error(monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", "3")
    monkeypatch.setattr("sacrebleu.significance.PairedTest.__call__", lambda test: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        paired_bootstrap(SYSTEMS, REFERENCES)
    assert os.environ["SACREBLEU_SEED"] == "3"


@pytest.mark.parametrize("wrong", [["x"] * 30, [""] * 30])
def test_scores_that_are_always_equal(wrong):
    """The same translations, or all of them wrong: sacreBLEU returns its smallest p-value."""
    scores = paired_bootstrap([["y"] * 30, wrong, ["y"] * 30], ["a"] * 30, samples=50).scores
    for metric in METRICS:
        for score in scores[metric][1:]:
            assert (score.difference, score.p_value, score.always_equal) == (0.0, 1 / 51, True)
        assert not scores[metric][0].always_equal


def test_equal_scores_that_differ_on_draws():
    references = ["one two three four five six", "six five four three two one"]
    systems = [[references[0], "x y z"], ["x y z", references[1]]]
    score = paired_bootstrap(systems, references, samples=50).scores["sacrebleu"][1]
    assert (score.difference, score.always_equal) == (0.0, False)
    assert score.p_value > 1 / 51


def test_nothing_is_printed(capfd, caplog):
    lines = [f"Satz {i} ." for i in range(200)]  # sacreBLEU warns about such lines elsewhere
    paired_bootstrap([lines, lines], lines, samples=2)
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"systems": SYSTEMS[:1]}, r"\[30\] translations, 30 references"),
        ({"systems": [SYSTEMS[0], SYSTEMS[1][1:]]}, r"\[30, 29\] translations, 30 references"),
        ({"samples": 0}, r"samples=0, seed=12345: expected at least 1"),
        ({"seed": 0}, r"seed=0: expected at least 1"),
    ],
)
def test_arguments_that_sacrebleu_would_misread(change, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap(**({"systems": SYSTEMS, "references": REFERENCES} | change))
