"""Contrasts and interactions: which variants they compare, and which differences they are."""

import itertools
import json

import numpy as np
import pytest

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.contrasts import (
    Contrast,
    Interaction,
    comparisons,
    contrasts_among,
    difference_by_seed,
    from_record,
    recorded,
)
from transformer_jax.sweeps.study import Metric, Study, over

AXES = {"norm": ("post", "pre", "none"), "warmup": ("yes", "no"), "depth": ("2", "6")}
REFERENCE = {"norm": "post", "warmup": "yes", "depth": "2"}
VARIANTS = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


def found(*declared, variants=VARIANTS):
    return comparisons(declared, REFERENCE, variants)


def test_the_name_of_an_axis_stands_for_all_values_against_the_reference():
    one_by_one = found(Contrast("norm", "pre", "post"), Contrast("norm", "none", "post"))
    assert sorted(map(str, found("norm"))) == sorted(map(str, one_by_one))
    assert len(one_by_one) == 8
    assert [of.name for of in found("depth")][:2] == [
        "depth: 6 minus 2, where norm=post, warmup=yes",
        "depth: 6 minus 2, where norm=post, warmup=no",
    ]


def test_a_contrast_is_between_any_two_values():
    (first, *others) = found(Contrast("norm", "none", "pre"))
    assert len(others) == 3
    assert first.name == "norm: none minus pre, where warmup=yes, depth=2"
    assert [term.sign for term in first.terms] == [1, -1]
    assert (first.labels["norm"], first.against) == ("none", {"norm": "pre"})
    assert first.condition == {"warmup": "yes", "depth": "2"}


def test_an_interaction_is_a_difference_of_differences():
    """Against the same difference of an array over the axes and seeds."""
    values = np.random.default_rng(0).normal(size=(3, 2, 2, 4))  # [norm, warmup, depth, seed]
    by_variant = {
        tuple(labels.values()): values[index] for labels, index in zip(VARIANTS, np.ndindex(3, 2, 2), strict=True)
    }
    crossed = found(Interaction("norm", "depth"))
    assert [of.name for of in crossed] == [
        f"norm: {norm} minus post, at depth=6 minus at depth=2, where warmup={warmup}"
        for norm in ("pre", "none")
        for warmup in ("yes", "no")
    ]
    for of, (norm, warmup) in zip(crossed, itertools.product((1, 2), (0, 1)), strict=True):
        by_seed = [dict(enumerate(by_variant[tuple(term.labels.values())])) for term in of.terms]
        effect = values[norm] - values[0]
        expected = effect[warmup, 1] - effect[warmup, 0]
        assert list(difference_by_seed(of.terms, by_seed).values()) == pytest.approx(list(expected))
        assert of.against == {"norm": "post", "depth": "2"}


def test_only_seeds_that_all_terms_have_are_paired():
    (first, *_) = found("depth")
    assert difference_by_seed(first.terms, [{0: 1.0, 1: 5.0}, {1: 2.0, 2: 7.0}]) == {1: 3.0}


def test_a_variant_without_trials_is_not_compared():
    there = [labels for labels in VARIANTS if labels != {"norm": "pre", "warmup": "no", "depth": "6"}]
    assert len(found("norm", variants=there)) == 7
    assert len(found(Interaction("norm", "depth"), variants=there)) == 3


DECLARED = ("warmup", Contrast("norm", "pre", "post", "{a}-LN is ahead of {b}-LN"), Interaction("norm", "depth"))


def test_they_are_recorded():
    assert from_record(json.loads(json.dumps(recorded(DECLARED)))) == DECLARED
    with pytest.raises(TypeError):
        from_record([{"axis": "norm"}])


def test_contrasts_need_their_axes():
    assert contrasts_among(DECLARED, {"norm", "depth"}) == DECLARED[1:]
    assert contrasts_among(DECLARED, {"norm"}) == DECLARED[1:2]


def study(*declared):
    axes = (over("model.norm_position", "post", "pre", name="norm"), over("model.num_heads", 1, 2, 4, name="heads"))
    return Study("Why?", "configs/quickstart.py", axes, (Metric("test/loss"),), contrasts=declared)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Contrast("norm", "pre", "pre"), "contrast of 'norm': 'pre' with itself"),
        (lambda: Contrast("norm", "pre", "post", "pre is ahead"), "needs {a} and {b}, each once"),
        (lambda: Contrast("norm", "pre", "post", "{a} and {a} and {b}"), "each once"),
        (lambda: Contrast("norm", "pre", "post", "{a} {b} {c}"), "each once"),
        (lambda: Contrast("norm", "pre", "post", "{a} {b"), "each once"),
        (lambda: Interaction("norm", "norm"), "interaction of 'norm' with itself"),
        (lambda: study("head"), "contrasts: no axis with named values 'head' .did you mean 'heads'"),
        (lambda: study(Contrast("norms", "pre", "post")), "no axis with named values 'norms'"),
        (lambda: study(Contrast("norm", "pre", "pst")), "axis 'norm' has no value 'pst' .did you mean 'post'"),
        (lambda: study(Interaction("norm", "depth")), "no axis with named values 'depth'"),
        (lambda: study("norm", Contrast("norm", "pre", "post")), "contrasts: norm: pre minus post twice"),
        (lambda: study(Contrast("heads", "2", "4"), Contrast("heads", "4", "2")), "heads: 4 minus 2 twice"),
        (lambda: study(Interaction("norm", "heads"), Interaction("heads", "norm")), "heads by norm twice"),
        (
            lambda: Study("?", "quickstart", study().axes, study().metrics, contrasts=("norm")),
            "'norm': expected a tuple",
        ),
    ],
)
def test_wrong_contrasts_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
