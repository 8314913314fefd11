"""The answer of a study in sentences, and what a study does not show."""

import dataclasses
import json
import math
import re
import statistics

import pytest
from report_support import CROSSED, STUDY, paired_difference, write_workdir

from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.sweeps.contrasts import Contrast, Interaction
from transformer_jax.sweeps.report.answer import answer, answer_parts
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.formatting import verdict_of
from transformer_jax.sweeps.report.markdown import answered, document
from transformer_jax.sweeps.report.order import order
from transformer_jax.sweeps.report.page import page
from transformer_jax.sweeps.report.sentences import NOT_SHOWN, STAR, interval_note, notes
from transformer_jax.sweeps.report.summary import contrast_records, summarise
from transformer_jax.sweeps.results import RESULT, TRIALS
from transformer_jax.sweeps.statistics import holm, seeds_to_find
from transformer_jax.sweeps.study_json import declaration_of, declared_study

METRIC = "test/exact_match"
BY_NORM = CROSSED.replace('contrasts=("num_heads", "norm")', 'contrasts=(Contrast("norm", "pre", "post"),)')
"""The places of the norm are compared, and the number of heads is the condition."""


def score(workdir, metric, scores, **fields):
    """Give the seeds of some variants values of a metric; a name is the beginning of that of the trial's folder."""
    for name, values in scores.items():
        files = sorted(workdir.glob(f"{TRIALS}/{name},*/{RESULT}"))
        assert files
        for file, value in zip(files, values, strict=True):
            content = without_checksum(json.loads(file.read_text())) | fields
            content["metrics"][metric] = value
            file.write_text(json.dumps(with_checksum(content)))


@pytest.fixture
def workdir(tmp_path):
    """Heads 1: pre is ahead. Heads 2: the sign is clear with two of three seeds only. Heads 4: nearly equal."""
    place = write_workdir(tmp_path, text=BY_NORM)[0]
    scores = {"num_heads=1,norm=pre": (90.0, 91.0, 92.0), "num_heads=1,norm=post": (40.0, 41.5, 42.0)}
    scores |= {"num_heads=2,norm=pre": (50.0, 58.0, 61.0), "num_heads=2,norm=post": (49.0, 52.0, 60.0)}
    scores |= {"num_heads=4,norm=pre": (70.0, 71.0, 72.0), "num_heads=4,norm=post": (70.1, 71.2, 71.9)}
    score(place, METRIC, scores)
    return place


def found(workdir, **fields):
    results = collect(workdir, workdir.parent.parent / "experiments" / "heads")
    results = dataclasses.replace(results, study=dataclasses.replace(results.study, **fields))
    return results, summarise(results), effects(results)


def test_one_sentence_for_each_contrast_and_condition(workdir):
    results, rows, compared = found(workdir)
    said = answer(results, rows, compared)
    assert said[0] == (
        "With num_heads 1, norm pre is ahead of norm post by 49.83 ± 0.72 points in test exact match (p = 3.4e-05)."
    )
    assert re.fullmatch(
        r"With num_heads 2, norm pre against norm post: undecided, \+2.7 ± 7.2 points in test exact match "
        r"\(p = 0.501\); about \d+ seeds would decide an effect of this size.",
        said[1],
    )
    assert said[2].startswith("With num_heads 4, norm pre against norm post: undecided, -0.07 ± 0.38 points")
    assert len(said) == 3


def test_numbers_of_the_sentences_are_those_of_the_records(workdir):
    results, rows, compared = found(workdir)
    own = [effect for effect in compared if effect.metric == METRIC]
    records = contrast_records(own)
    assert [record["verdict"] for record in records] == ["ahead", "undecided", "undecided"]
    for sentence, record in zip(answer(results, rows, compared), records, strict=True):
        mean, half_width, p_value = re.search(r"([-+]?[\d.]+) ± ([\d.]+) .*p = ([\d.e-]+)\)", sentence).groups()
        assert float(mean) == pytest.approx(record["difference"], abs=0.06)
        assert float(half_width) == pytest.approx(record["difference_half_width"], abs=0.06)
        assert float(p_value) == pytest.approx(record["p_value_holm"], rel=0.05)
        if seeds := re.search(r"about (\d+) seeds", sentence):
            assert int(seeds[1]) == record["seeds_to_decide"] > record["pairs"]
    values = [
        [results.at({"num_heads": heads, "norm": norm}).values(METRIC) for norm in ("pre", "post")] for heads in "124"
    ]
    assert [effect.corrected for effect in own] == holm([paired_difference(*pair).p_value for pair in values])


def test_the_page_says_what_the_intervals_of_the_answer_are(workdir):
    results, rows, compared = found(workdir)
    said = "± is half of a 95 % interval, over 3 seeds."
    assert interval_note(results, rows, compared) == said
    assert f'</ul><p class="soft">{said}</p>' in page(results, rows, compared, [])
    own = [effect for effect in compared if effect.metric == METRIC]
    five = dataclasses.replace(own[1], difference=own[1].difference._replace(count=5))
    assert interval_note(results, rows, [own[0], five]) == "± is half of a 95 % interval, over 3 to 5 seeds."
    alone = [
        dataclasses.replace(effect, difference=effect.difference._replace(half_width=math.nan, count=1))
        for effect in own
    ]
    assert interval_note(results, rows, alone) == ""  # no number of the answer has ±
    ranked = dataclasses.replace(results, study=dataclasses.replace(results.study, contrasts=()))
    assert interval_note(ranked, rows, []) == said  # of the means of an order


def test_the_value_that_is_ahead_comes_first(workdir):
    results, rows, compared = found(workdir, contrasts=(Contrast("norm", "post", "pre", "{a}-LN beats {b}-LN"),))
    assert answer(results, rows, compared)[0].startswith(
        "With num_heads 1, pre-LN beats post-LN by 49.83 ± 0.72 points"
    )
    (loss, *_) = (effect for effect in compared if effect.metric == "test/loss")
    assert loss.first_is_ahead == (loss.difference.mean < 0)


def test_equal_ones_are_together(workdir):
    results, rows, compared = found(workdir, precision={METRIC: 10.0})
    assert [effect.verdict for effect in compared if effect.metric == METRIC] == ["ahead", "equal", "equal"]
    assert answer(results, rows, compared)[1:] == [
        "Equal within 10 points in test exact match: with num_heads 2, norm pre against norm post (+2.7 ± 7.2); "
        "with num_heads 4, norm pre against norm post (-0.07 ± 0.38)."
    ]


def test_many_contrasts_are_together_by_verdict(tmp_path):
    """Seven contrasts: the same value ahead of the same other in one sentence, the undecided ones summed up."""
    workdir, folder = write_workdir(tmp_path, text=CROSSED)
    noisy = {"num_heads=4,norm=pre": (50.0, 58.0, 61.0), "num_heads=4,norm=post": (49.0, 52.0, 60.0)}
    score(workdir, METRIC, noisy)
    results = collect(workdir, folder)
    compared = effects(results)
    own = [effect for effect in compared if effect.metric == METRIC]
    assert len(own) == 7
    parts = answer_parts(results, summarise(results), compared)
    assert answer(results, summarise(results), compared) == [part.sentence for part in parts]
    ahead = [effect for effect in own if effect.verdict == "ahead"]
    pairs = {(of.axis, of.labels[of.axis], of.against, of.first_is_ahead) for of in ahead}
    *said, last = parts
    assert len(said) == len(pairs) < len(ahead)
    sizes = [size for part in said for size in re.findall(r"by ([\d.]+) ± ([\d.]+)", part.sentence)]
    expected = sorted((abs(of.difference.mean), of.difference.half_width) for of in ahead)
    for size, numbers in zip(sorted(tuple(map(float, of)) for of in sizes), expected, strict=True):
        assert size == pytest.approx(numbers, abs=0.06)
    assert any(
        re.fullmatch(
            r"norm pre is ahead of norm post by \S+ ± \S+ points in test exact match \(p = \S+\) with num_heads 1; "
            r"by \S+ ± \S+ \(p = \S+\) with num_heads 2\.",
            part.sentence,
        )
        for part in said
    )
    undecided = [effect for effect in own if effect.verdict == "undecided"]
    assert len(undecided) == len(last.details) == 7 - len(ahead) > 1
    known = [of.seeds_to_decide for of in undecided]
    largest = max(abs(of.difference.mean) for of in undecided)
    count, by, few, many = re.fullmatch(
        r"Undecided with 3 seeds, corrected for 7 contrasts: (\d) of them; the largest: (?:with [^,]+, )?[^,]+ against "
        r"[^,]+, [-+](\S+) ± \S+ points in test exact match; "
        r"(\d+) to (\d+|more than 100) seeds would decide effects of these sizes\.",
        last.sentence,
    ).groups()
    assert int(count) == len(undecided)
    assert float(by) == pytest.approx(largest, abs=0.5)
    assert int(few) == min(of for of in known if of)
    assert many == ("more than 100" if None in known else str(max(known)))
    assert all("undecided" in sentence for sentence in last.details)
    text = answered(results, summarise(results), compared)
    assert text.count("\n- ") == len(parts)
    assert text.count("\n  - ") == len(undecided)


def test_what_conditions_share_comes_first(workdir):
    """As for a contrast under the conditions of two further axes, of which one has the same value."""
    results, rows, compared = found(workdir)
    first, *others = (effect for effect in compared if effect.metric == METRIC)
    conditions = ({"depth": "2", "warmup": "yes"}, {"depth": "6", "warmup": "yes"})

    def under(condition):
        terms = tuple(
            term._replace(labels={"norm": term.labels["norm"], **condition}) for term in first.comparison.terms
        )
        return dataclasses.replace(first, comparison=dataclasses.replace(first.comparison, terms=terms))

    many = [*map(under, conditions), *others, *others]
    assert answer(results, rows, many)[0] == (
        "With warmup yes, norm pre is ahead of norm post by 49.83 ± 0.72 points in test exact match (p = 3.4e-05) with "
        "depth 2; by 49.83 ± 0.72 (p = 3.4e-05) with depth 6."
    )


def test_many_contrasts_without_a_difference(tmp_path):
    """The headline says so, and the rest is summed up; of many that cannot be compared too."""
    workdir, folder = write_workdir(tmp_path, text=CROSSED)
    for index, heads in enumerate((1, 2, 4)):
        values = {
            f"num_heads={heads},norm={norm}": (50.0 + index, 58.0, 61.0 - at) for at, norm in enumerate(("pre", "post"))
        }
        score(workdir, METRIC, values)
    results = collect(workdir, folder)
    said = answer(results, summarise(results), effects(results))
    assert said[0] == "No difference could be shown in test exact match with 3 seeds."
    assert len(said) == 2
    assert said[1].startswith("Undecided with 3 seeds, corrected for 7 contrasts: 7 of them; the largest: ")
    assert not any(row.best for row in summarise(results))
    for norm in ("pre", "post"):
        score(workdir, METRIC, {f"num_heads=1,norm={norm}": (1.0,) * 3}, status="diverged", why="loss is nan")
    results = collect(workdir, folder)
    parts = answer_parts(results, summarise(results), effects(results))
    assert parts[-1].sentence == "Not compared: 5 of 7 contrasts."
    assert all("3 of 3 diverged" in sentence for sentence in parts[-1].details)


def test_the_corrected_p_value_decides(workdir):
    """The interval of heads 2 excludes 0, and its p-value is below 5 % only before the correction."""
    score(workdir, METRIC, {"num_heads=2,norm=pre": (53.46, 55.6, 56.24), "num_heads=2,norm=post": (50.0, 53.0, 54.5)})
    _, _, compared = found(workdir)
    second = [effect for effect in compared if effect.metric == METRIC][1]
    assert second.difference.p_value < 0.05 < second.corrected
    assert second.difference.half_width < second.difference.mean
    assert second.verdict == "undecided"


def test_a_difference_below_the_width_is_named(workdir):
    results, rows, compared = found(workdir, precision={METRIC: 60.0})
    assert answer(results, rows, compared)[0].endswith("(p = 3.4e-05), less than the declared 60.")


def test_no_difference_is_the_headline(workdir):
    flat = {"num_heads=1,norm=pre": (50.0, 58.0, 61.0), "num_heads=1,norm=post": (49.0, 52.0, 60.0)}
    score(workdir, METRIC, flat)
    results, rows, compared = found(workdir)
    assert answer(results, rows, compared)[0] == "No difference could be shown in test exact match with 3 seeds."
    assert len(answer(results, rows, compared)) == 4
    assert not any(row.best for row in rows)
    text = document(results, rows, compared, [])
    assert STAR not in text + page(results, rows, compared, [])
    assert "- No difference could be shown" in answered(results, rows, compared)


def test_a_diverged_trial_is_counted_and_not_averaged_away(workdir):
    score(workdir, METRIC, {"num_heads=1,norm=post": (40.0, 41.5, 42.0)}, status="diverged", why="loss is nan")
    results, rows, compared = found(workdir)
    first = compared[0]
    assert first.verdict == "not compared"
    assert answer(results, rows, compared)[-1] == (
        "With num_heads 1, norm pre against norm post: not compared (num_heads=1, norm=post: 3 of 3 diverged)."
    )
    assert "3 of 6 diverged" in document(results, rows, compared, [])


def test_a_difference_that_is_the_same_with_every_seed(workdir):
    score(workdir, METRIC, {"num_heads=1,norm=pre": (100.0,) * 3, "num_heads=1,norm=post": (0.0,) * 3})
    score(workdir, METRIC, {"num_heads=2,norm=pre": (0.0,) * 3, "num_heads=2,norm=post": (0.0,) * 3})
    results, rows, compared = found(workdir)
    said = answer(results, rows, compared)
    assert (
        said[0]
        == "With num_heads 1, norm pre is ahead of norm post by 100.0 points in test exact match with every seed."
    )
    assert said[1] == "The same test exact match with every seed: with num_heads 2, norm pre against norm post."


def test_the_next_metric_follows_if_nothing_differs_in_the_first(workdir):
    score(
        workdir,
        METRIC,
        {f"num_heads={heads},norm={norm}": (0.0,) * 3 for heads in (1, 2, 4) for norm in ("pre", "post")},
    )
    said = answer(*found(workdir))
    assert said[0].startswith("The same test exact match with every seed: ")
    assert any("test loss" in sentence for sentence in said[1:])


def test_an_interaction_says_who_gains_from_the_change(workdir):
    results, rows, compared = found(workdir, contrasts=(Interaction("norm", "num_heads"),))
    # The reference is post, with one head; there pre is ahead by 49.83, with four by -0.07.
    said = answer(results, rows, compared)
    assert said[1].startswith("From num_heads 1 to num_heads 4, norm post gains on norm pre by 49.90 ± ")
    assert " points in test exact match (p = " in said[1]
    assert compared[0].axis == "norm:num_heads"
    in_metric = [effect for effect in compared if effect.metric == METRIC]
    assert [verdict_of(effect) for effect in in_metric if effect.verdict == "ahead"] == ["post gains"] * 2
    undecided = [effect for effect in compared if effect.verdict == "undecided"]
    assert undecided
    for effect in undecided:
        assert verdict_of(effect) == f"undecided, needs {effect.seeds_to_decide or '> 100'} seeds"
    assert compared[0].against == "post:1"


def test_a_training_that_two_conditions_share_counts_in_both(tmp_path):
    """`a` and `c` are the same experiment, which is trained once."""
    places = (
        'Axis("norm", {name: {"model.norm_position": at} for name, at in dict(a="post", b="pre", c="post").items()})'
    )
    text = CROSSED.replace('contrasts=("num_heads", "norm")', 'contrasts=("num_heads",)')
    text = text.replace('over("model.norm_position", "pre", "post", name="norm")', places)
    workdir, folder = write_workdir(tmp_path, text=text.replace('"norm": "post"', '"norm": "a"'))
    results = collect(workdir, folder)
    assert not any(variant.labels["norm"] == "c" for variant in results.variants)
    by_condition = {}
    for effect in effects(results):
        by_condition.setdefault(effect.comparison.condition["norm"], []).append(effect.difference)
    assert by_condition["a"] == by_condition["c"] != by_condition["b"]
    crossed = dataclasses.replace(results, study=dataclasses.replace(results.study, contrasts=("norm",)))
    assert {effect.labels["norm"] for effect in effects(crossed)} == {"b"}  # `c` minus `a` is no difference


def test_the_order_of_variants_in_groups(tmp_path):
    workdir, folder = write_workdir(tmp_path)
    numbers = {1: (90.0, 91.0, 92.0), 2: (50.0, 51.0, 52.5), 8: (49.0, 52.0, 52.0), 16: (10.0, 11.2, 12.0)}
    score(workdir, METRIC, {f"num_heads={heads}": of for heads, of in numbers.items()})
    results = collect(workdir, folder)
    rows = summarise(results)
    said = answer(results, rows, [])
    assert said[0] == "num_heads 1 is ahead of all others that were compared in test exact match (p = 5.1e-04 or less)."
    assert said[1:] == [
        "Group 1 of 3: num_heads 1 (91.0 ± 2.5).",
        "Group 2 of 3: num_heads 2 (51.2 ± 3.1), num_heads 8 (51.0 ± 4.3).",
        "Group 3 of 3: num_heads 16 (11.1 ± 2.5).",
        "Not compared: num_heads 4 (1 of 3 diverged).",
    ]
    assert [row.variant.name for row in rows if row.best and row.metric == METRIC] == ["num_heads=1"]
    assert any(note.startswith(STAR) for note in notes(results, rows, []))
    score(workdir, METRIC, {"num_heads=2": (88.0, 92.0, 91.0)})
    results = collect(workdir, folder)
    rows = summarise(results)
    assert answer(results, rows, [])[0] == "No variant is ahead of all others in test exact match with 3 seeds."
    assert not any(row.best for row in rows if row.metric == METRIC)


def test_pairs_of_no_group_and_the_seeds_that_would_decide(tmp_path):
    """Heads 8 may be as good as the first, since its values are spread widely; heads 2, with a better mean, is not."""
    workdir, folder = write_workdir(tmp_path)
    numbers = {1: (90.0, 91.0, 92.0), 2: (60.0, 61.1, 62.0), 8: (40.0, 75.0, 50.0), 16: (10.0, 11.2, 12.0)}
    score(workdir, METRIC, {f"num_heads={heads}": of for heads, of in numbers.items()})
    results = collect(workdir, folder)
    found = order(results, METRIC)
    assert found.apart == {(0, 1), (0, 3), (1, 3)}
    differences = [one - other for one, other in zip(numbers[1], numbers[8], strict=True)]
    seeds = seeds_to_find(statistics.mean(differences), statistics.stdev(differences), 0.05 / 6)
    said = answer(results, summarise(results), [])
    assert said[-3:-1] == [
        "Not told apart either: num_heads 1 and num_heads 8.",
        f"If the measured effects are the true ones, about {seeds} seeds would decide whether num_heads 1 is ahead of "
        "num_heads 8.",
    ]
    score(workdir, METRIC, {"num_heads=2": (90.0, 91.2, 91.8)})
    said = answer(collect(workdir, folder), summarise(collect(workdir, folder)), [])
    assert said[-2].endswith("num_heads 8; more than 100 whether num_heads 1 is ahead of num_heads 2.")


def test_without_a_difference_no_variant_is_best(tmp_path):
    workdir, folder = write_workdir(tmp_path)
    score(workdir, METRIC, {f"num_heads={heads}": (50.0, 50.0 + heads / 100, 49.0) for heads in (1, 2, 8, 16)})
    results = collect(workdir, folder)
    rows = summarise(results)
    said = answer(results, rows, [])
    assert said[0] == "No difference could be shown in test exact match: 3 seeds cannot tell the 4 variants apart."
    assert said[1].startswith("Best mean first: num_heads 16 (")
    assert re.fullmatch(
        r"If the .*, about \d+ seeds would decide whether num_heads 16 is ahead of num_heads 1\.", said[2]
    )
    assert not any(row.best for row in rows if row.metric == METRIC)


def test_the_notes_have_the_smallest_effect_that_the_seeds_find(workdir):
    results, rows, compared = found(workdir)
    (note,) = (note for note in notes(results, rows, compared) if note.startswith("The smallest effects"))
    sizes = [effect.smallest for effect in compared if effect.metric == METRIC]
    low, high = re.search(r"contrast: ([\d.]+) to ([\d.]+) points in test exact match", note).groups()
    assert (float(low), float(high)) == pytest.approx((min(sizes), max(sizes)), rel=0.05)
    assert not math.isnan(sum(sizes))


def test_the_report_says_what_the_study_does_not_show(tmp_path):
    results = collect(*write_workdir(tmp_path, 'not_shown="<b>more</b> heads. Nor *fewer*.",'))
    rows = summarise(results)
    markdown = document(results, rows, [], [])
    answered = markdown.index("**Answer:**")
    said = f"\n\n**{NOT_SHOWN}** &lt;b&gt;more&lt;/b&gt; heads. Nor \\*fewer\\*.\n\n"
    assert answered < markdown.index(said) < markdown.index("|---|")
    shown = page(results, rows, [], [])
    assert f"<p><strong>{NOT_SHOWN}</strong> &lt;b&gt;more&lt;/b&gt; heads. Nor *fewer*.</p>" in shown
    silent = dataclasses.replace(results, study=dataclasses.replace(results.study, not_shown=""))
    assert NOT_SHOWN not in document(silent, rows, [], []) + page(silent, rows, [], [])


def test_it_is_recorded_with_the_study(tmp_path):
    study = collect(*write_workdir(tmp_path, 'not_shown="longer trainings.",', STUDY)).study
    declaration = json.loads(json.dumps(declaration_of(study)))
    assert declared_study(declaration, tmp_path).not_shown == "longer trainings."
