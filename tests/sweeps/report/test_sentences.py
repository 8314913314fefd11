"""The answer of a study with conditions, and what a study does not show."""

import dataclasses
import json

import pytest
from report_support import CROSSED, STUDY, write_workdir

from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.markdown import document
from transformer_jax.sweeps.report.page import page
from transformer_jax.sweeps.report.sentences import NOT_SHOWN, answer
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.results import RESULT, TRIALS
from transformer_jax.sweeps.study_json import declaration_of, declared_study

BY_NORM = CROSSED.replace('contrasts=("num_heads", "norm")', 'contrasts=("num_heads",)')
"""Heads are compared, and the place of the norm is a condition."""


def score(workdir, metric, scores):
    """Give all seeds of some variants a value of a metric; a name is the beginning of that of the trial's folder."""
    for name, value in scores.items():
        files = list(workdir.glob(f"{TRIALS}/{name},*/{RESULT}"))
        assert files
        for file in files:
            values = without_checksum(json.loads(file.read_text()))
            values["metrics"][metric] = value
            file.write_text(json.dumps(with_checksum(values)))


@pytest.fixture
def workdir(tmp_path):
    return write_workdir(tmp_path, text=BY_NORM)[0]


@pytest.fixture
def answered(workdir):
    def found():
        results = collect(workdir, workdir.parent.parent / "experiments" / "heads")
        return answer(results, summarise(results))

    return found


def test_the_best_is_named_within_each_condition(workdir, answered):
    """Not the best of all, which has the easier condition."""
    scores = {"num_heads=1,norm=pre": 99.0, "num_heads=2,norm=pre": 98.0, "num_heads=4,norm=pre": 97.0}
    scores |= {"num_heads=1,norm=post": 10.0, "num_heads=2,norm=post": 12.0, "num_heads=4,norm=post": 12.0}
    score(workdir, "test/exact_match", scores)
    assert answered() == (
        "The highest test exact match (%): where norm=pre, num_heads=1 with 99.00 ± 0.00; "
        "where norm=post, num_heads=2 and num_heads=4 with 12.00 ± 0.00 (3 seeds each)."
    )


def test_a_condition_in_which_none_is_best(workdir, answered):
    score(workdir, "test/exact_match", {f"num_heads={heads},norm=pre": 50.0 for heads in (1, 2, 4)})
    said = answered()
    assert (
        ": where norm=pre, no two variants whose trials have all finished differ; where norm=post, num_heads=" in said
    )


def test_the_next_metric_decides_if_no_condition_has_a_best(workdir, answered):
    """Values that differ between conditions only are no difference."""
    alike = {f"num_heads={heads},norm={norm}": at for heads in (1, 2, 4) for norm, at in (("pre", 1.0), ("post", 2.0))}
    score(workdir, "test/exact_match", alike)
    equal = "No two variants with the same norm whose trials have all finished differ in test exact match (%)."
    assert answered().startswith(f"{equal} The lowest test loss (nats per token): where norm=pre, num_heads=1 with 0.")
    score(workdir, "test/loss", alike)
    assert answered() == equal


def test_without_all_seeds_a_variant_is_not_the_best(workdir, answered):
    score(workdir, "test/exact_match", {"num_heads=1,norm=pre": 99.0, "num_heads=2,norm=pre": 98.0})
    assert "where norm=pre, num_heads=1 with 99.00" in answered()
    next(workdir.glob(f"{TRIALS}/num_heads=1,norm=pre,*/{RESULT}")).unlink()
    assert "where norm=pre, num_heads=2 with 98.00" in answered()


def test_a_training_that_two_conditions_share_counts_in_both(tmp_path):
    """`a` and `c` are the same experiment, which is trained once."""
    places = (
        'Axis("norm", {name: {"model.norm_position": at} for name, at in dict(a="post", b="pre", c="post").items()})'
    )
    text = BY_NORM.replace('over("model.norm_position", "pre", "post", name="norm")', places)
    workdir, folder = write_workdir(tmp_path, text=text.replace('"norm": "post"', '"norm": "a"'))
    score(workdir, "test/exact_match", {"num_heads=2,norm=a": 99.0, "num_heads=4,norm=b": 98.0})
    results = collect(workdir, folder)
    assert not any(variant.labels["norm"] == "c" for variant in results.variants)
    said = answer(results, summarise(results))
    assert "where norm=a, num_heads=2 with 99.00" in said
    assert "where norm=b, num_heads=4 with 98.00" in said
    assert "where norm=c, num_heads=2 with 99.00" in said


def test_conditions_are_the_axes_that_contrasts_leave_alone(workdir, tmp_path):
    study = collect(workdir, tmp_path / "experiments" / "heads").study
    assert study.conditions == ("norm",)
    assert dataclasses.replace(study, contrasts=("norm",)).conditions == ("num_heads",)
    assert dataclasses.replace(study, contrasts=("norm", "num_heads")).conditions == ()
    assert dataclasses.replace(study, contrasts=()).conditions == ()


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
