"""The trials of a study."""

import dataclasses
import re
from pathlib import Path

import pytest

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, over
from transformer_jax.sweeps.trials import grid, groups, program_key
from transformer_jax.training.hyper import split

ROOT = Path(__file__).parent.parent.parent


def study(*axes, **fields):
    return Study("Why?", "configs/quickstart.py", axes, (Metric("test/loss", "min"),), **{"seeds": (3, 5)} | fields)


def test_every_variant_with_every_seed():
    found = grid(study(over("model.num_heads", 1, 2), over("model.norm_position", "post", "pre")))
    assert [trial.name for trial in found.trials] == [
        f"num_heads={heads},norm_position={position},seed={seed}"
        for heads in (1, 2)
        for position in ("post", "pre")
        for seed in (3, 5)
    ]
    assert found.same == {}
    trial = found.trials[-1]
    assert (trial.config.seed, trial.config.model.num_heads, trial.config.model.norm_position) == (5, 2, "pre")
    assert trial.config.model.head_dim == trial.config.model.emb_dim // 2  # derived after the overrides


def test_axes_win_over_overrides():
    warm_up = Axis("warmup", {"yes": {}, "no": {"optimizer.warmup_steps": 0}})
    found = grid(study(warm_up), {"optimizer.warmup_steps": "60"}).trials
    assert {trial.labels["warmup"]: trial.config.optimizer.warmup_steps for trial in found} == {"yes": 60, "no": 0}


def test_settings_apply_to_all_and_overrides_win():
    two = study(over("model.num_heads", 1, 2), settings={"training.num_train_steps": 7, "optimizer.warmup_steps": 3})
    configs = [trial.config for trial in grid(two, {"optimizer.warmup_steps": "4"}).trials]
    assert {(c.training.num_train_steps, c.optimizer.warmup_steps) for c in configs} == {(7, 4)}


def test_two_variants_with_one_config_share_a_trial():
    axes = (
        Axis("heads", {"default": {}, "one": {"model.num_heads": 1}, "four": {"model.num_heads": 4}}),
        over("model.norm_position", "post", "pre"),
    )
    found = grid(study(*axes), {"model.dropout_rate": "0.1"})
    assert found.same == {
        "heads=four,norm_position=post": "heads=default,norm_position=post",
        "heads=four,norm_position=pre": "heads=default,norm_position=pre",
    }
    assert len(found.trials) == 4 * 2


def test_every_variant_is_validated_like_a_run():
    with pytest.raises(ConfigError) as caught:
        grid(study(over("model.num_heads", 1, 3, 7)))
    assert "num_heads=3: " in str(caught.value)
    assert "num_heads=7: " in str(caught.value)
    assert "num_heads=1: " not in str(caught.value)


def test_trials_of_one_program():
    """They differ only in scalars of the step, so the static part of the config is equal."""
    axes = (
        over("model.num_heads", 1, 2),
        over("optimizer.learning_rate", 1e-3, 2e-3),
        over("training.label_smoothing", 0.0, 0.1, 0.2),
    )
    trials = grid(study(*axes)).trials
    found = list(groups(trials))
    assert sorted(map(len, found)) == [4, 4, 8, 8]  # smoothing or none, one head or two
    for group in found:
        assert len({split(trial.config)[0] for trial in group}) == 1
        structures = {tuple(value is None for value in split(trial.config)[1]) for trial in group}
        assert len(structures) == 1
    assert program_key(trials[0].config) != program_key(trials[-1].config)


def test_trials_with_other_multipliers_of_the_same_patterns_are_one_program():
    texts = {"low": "embedding=0.3", "high": "embedding = 0.5", "other": "encoder=0.3", "none": ""}
    axis = Axis("rates", {name: {"optimizer.lr_multipliers": text} for name, text in texts.items()})
    trials = grid(study(axis, seeds=(3,))).trials
    one, other, *others = (program_key(trial.config) for trial in trials)
    assert one == other
    assert len({one, *others}) == 3


HEADS = over("model.num_heads", 1, 2)


@pytest.mark.parametrize(
    ("refused", "overrides", "message"),
    [
        (study(HEADS), {"model.num_heads": "4"}, "--config.model.num_heads: has no effect: the axis 'num_heads' sets"),
        (study(HEADS), {"seed": "1"}, "--config.seed cannot"),
        (study(HEADS, seeds=(0, -1)), {}, "seed=-1"),
        (study(HEADS, Axis("no", {"a": {}, "b": {}})), {}, "axis 'no' changes nothing: a, b are the same experiment"),
        (study(HEADS, Axis("b", {"x": {"model.num_heads": 4}, "y": {}})), {}, "'model.num_heads' is set to 1 and to 4"),
        (study(Range("optimizer.learning_rate", 1e-4, 1e-2)), {}, "optimizer.learning_rate is a range"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_grids(refused, overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        grid(refused, overrides)


OFF = [
    f.name
    for f in dataclasses.fields(ModelConfig)
    if f.metadata.get("hyper") and f.default is None and not f.metadata.get("derived_from")
]


@pytest.mark.parametrize("field", OFF)
def test_a_number_that_is_off_makes_another_program(field):
    """Its program has no argument for it, and those of a group are stacked."""
    axis = Axis("number", {"off": {}, "one": {f"model.{field}": 0.5}, "other": {f"model.{field}": 0.7}})
    off, one, other = (program_key(trial.config) for trial in grid(study(axis, seeds=(3,))).trials)
    assert off != one == other
