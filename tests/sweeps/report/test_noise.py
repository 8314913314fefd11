"""The noise of the test set in a report: made-up influences of examples in the folders of trials."""

import base64
import csv
import dataclasses
import json
import math
import shutil

import numpy as np
import pytest
from report_support import CROSSED, DIVERGED, write_workdir

from transformer_jax.errors import DataError
from transformer_jax.sweeps.report.answer import answer_parts
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.committed import collect_results
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.sentences import notes
from transformer_jax.sweeps.report.summary import contrast_records, summarise
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results import TRIALS, read_result, write_object
from transformer_jax.sweeps.results_folder import EXAMPLE_NOISE
from transformer_jax.sweeps.statistics import example_noise
from transformer_jax.sweeps.study import Metric
from transformer_jax.sweeps.trial_examples import EXAMPLES

METRIC = "test/loss"
PRECISE = 'precision={"test/loss": 0.2}, seeds=(0, 1, 2, 3, 4),'
COUNT = 50


def influences(trial, scale):
    """Return numbers of which a part is the same for all seeds of a variant."""
    variant, _, seed = trial.rpartition(",seed=")
    own, of_seed = (np.random.default_rng([*text.encode()]).normal(size=COUNT) for text in (variant, variant + seed))
    values = scale * (own + 0.3 * of_seed)
    return (values - values.mean()).astype("<f4")


def write_examples(workdir, scale, seeds=(0, 1, 2)):
    for folder in (workdir / TRIALS).iterdir():
        if int(folder.name[-1]) in seeds and folder.name != DIVERGED:
            text = base64.b64encode(influences(folder.name, scale).tobytes()).decode()
            score = read_result(folder).metrics.get(METRIC)
            values = {"splits": {"test": "k"}, "metrics": {METRIC: {"score": score, "influences": text}}}
            write_object(folder / EXAMPLES, values)


@pytest.fixture(params=[0.01, 3.0], ids=["small", "large"])
def crossed(request, tmp_path):
    workdir, _ = write_workdir(tmp_path, PRECISE, CROSSED)
    write_examples(workdir, request.param, range(5))
    return workdir, request.param


def by_name(found, metric=METRIC):
    return {effect.name: effect for effect in found if effect.metric == metric}


def test_both_noises_are_in_the_interval_the_verdict_and_the_table(crossed):
    workdir, scale = crossed
    results = collect(workdir)
    found = by_name(effects(results))
    effect = found["num_heads: 2 minus 1, where norm=post"]
    names = [[f"num_heads={heads},norm=post,seed={seed}" for seed in range(5)] for heads in (2, 1)]
    ours, theirs = (np.stack([influences(name, scale).astype(float) for name in of]) for of in names)
    assert effect.noise == example_noise(ours - theirs)
    assert effect.difference.mean == effect.of_seeds.mean
    assert effect.difference.half_width > effect.of_seeds.half_width
    assert effect.test_error == pytest.approx(scale * math.sqrt(2 / COUNT), rel=0.4)
    (record,) = (
        record
        for record in contrast_records(effects(results))
        if record["metric"] == METRIC and record["variant"] == dict(effect.labels) and record["axis"] == "num_heads"
    )
    assert (record["seed_error"], record["test_error"]) == (effect.seed_error, effect.test_error)
    others = by_name(effects(results), "test/exact_match")
    assert all(of.noise is None and of.difference == of.of_seeds for of in others.values())


def test_the_page_says_which_noise_is_larger(crossed):
    workdir, scale = crossed
    results = collect(workdir)
    found = effects(results)
    said = " ".join(notes(results, summarise(results), found))
    assert "The noise of the test set is not known for test exact match." in said
    larger = "the seeds" if scale < 1 else "the test set"
    assert f"The larger noise of a difference in test loss is that of {larger} in num_heads: 2 minus 1" in said
    assert "those of means include the noise of the seeds only" in said
    wide = by_name(found)["num_heads: 2 minus 1, where norm=post"]
    assert wide.is_test_set_too_small == (scale > 1)
    if scale > 1:
        assert wide.verdict == "undecided"
        assert wide.seeds_to_decide is None


def test_noise_beside_seeds_without_an_interval(crossed):
    """As with one seed whose loss is not finite: the others have influences, and the difference has no interval."""
    results = collect(crossed[0])
    study = dataclasses.replace(results.study, metrics=(Metric(METRIC, "min"),))
    found = [dataclasses.replace(of, seed_error=math.nan) for of in by_name(effects(results)).values() if of.noise]
    said = notes(dataclasses.replace(results, study=study), [], found)
    assert any(line.endswith("has both as standard errors.") for line in said)
    assert not any("larger noise" in line for line in said)


def test_an_interval_that_the_test_set_makes_too_wide_is_explained(tmp_path):
    workdir, _ = write_workdir(
        tmp_path,
        PRECISE,
        CROSSED.replace(
            'Metric("test/exact_match", "max"), Metric("test/loss", "min")',
            'Metric("test/loss", "min"), Metric("test/exact_match", "max")',
        ),
    )
    write_examples(workdir, 3.0, seeds=range(5))
    results = collect(workdir)
    parts = answer_parts(results, summarise(results), effects(results))
    said = [sentence for part in parts for sentence in (part.sentence, *part.details)]
    (line,) = (line for line in said if line.startswith("With norm post, num_heads 2 against num_heads 1: undecided"))
    assert line.endswith("; more than 100 seeds, or more than 50 test examples, would decide an effect of this size.")
    assert "asked for; the noise of the test set alone is up to ± " in said[-1]
    assert said[-1].endswith("which more seeds do not lower.")


@pytest.mark.parametrize("seeds", [(0, 1, 2), (1, 2), (0,)])
def test_the_results_folder_has_what_the_report_needs(tmp_path, seeds):
    """Some trials may lack influences, as those that count from an earlier results folder."""
    workdir, _ = write_workdir(tmp_path, "", CROSSED)
    write_examples(workdir, 0.5, seeds)
    results = collect(workdir)
    found = effects(results)
    known = {effect.name for effect in found if effect.noise is not None}
    assert bool(known) == (len(seeds) > 1)
    write_report(results, summarise(results), found, tmp_path / "first")
    assert (tmp_path / "first" / EXAMPLE_NOISE).exists() == bool(known)
    shutil.rmtree(workdir)
    again = collect_results(tmp_path / "first")
    assert [effect.noise for effect in effects(again)] == [effect.noise for effect in found]
    write_report(again, summarise(again), effects(again), tmp_path / "second")
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / of).rglob("*.*")} for of in ("first", "second"))
    assert one == two
    if not known:
        return
    rows = list(csv.DictReader((tmp_path / "first" / EXAMPLE_NOISE).read_text().splitlines()))
    assert {row["contrast"] for row in rows} == known
    (tmp_path / "second" / EXAMPLE_NOISE).unlink()
    with pytest.raises(DataError, match=rf"{EXAMPLE_NOISE}: is missing"):
        collect_results(tmp_path / "second")


def test_examples_of_an_earlier_score_do_not_count(tmp_path):
    workdir, _ = write_workdir(tmp_path, "", CROSSED)
    write_examples(workdir, 0.5)
    for file in (workdir / TRIALS).glob(f"*/{EXAMPLES}"):
        values = json.loads(file.read_text())
        values["metrics"][METRIC]["score"] += 1
        write_object(file, {name: values[name] for name in ("splits", "metrics")})
    assert not any(effect.noise for effect in effects(collect(workdir)))
