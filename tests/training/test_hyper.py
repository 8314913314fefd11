import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from training_support import SMALL_RECURRENT, compiled_step, hyper_fields, identical, small_config, start, uneven_batch

from transformer_jax.config import ExperimentConfig, ModelConfig, base_type, field_types, walk
from transformer_jax.errors import ConfigError
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

# Every field marked `hyper`: its scalar of Hyper, and a value that differs from SMALL.
CHANGED: dict[str, tuple[str, float]] = {
    "seed": ("seed", 2**31 - 1),
    "seed_init": ("seed_init", 2**31 - 1),
    "model.dropout_rate": ("dropout.residual", 0.3),
    "model.embedding_dropout_rate": ("dropout.embedding", 0.3),
    "model.attention_dropout_rate": ("dropout.attention", 0.3),
    "model.activation_dropout_rate": ("dropout.activation", 0.3),
    "model.final_dropout_rate": ("dropout.final", 0.3),
    "model.attention_multiplier": ("model.attention_multiplier", 0.9),
    "model.attention_logit_cap": ("model.attention_logit_cap", 0.1),
    "model.teacher_forcing_rate": ("model.teacher_forcing_rate", 0.2),
    "model.residual_multiplier": ("model.residual_multiplier", 0.5),
    "model.embedding_multiplier": ("model.embedding_multiplier", 2.0),
    "model.logits_multiplier": ("model.logits_multiplier", 2.0),
    "model.output_logit_cap": ("model.output_logit_cap", 5.0),
    "optimizer.learning_rate": ("learning_rate", 1e-2),
    "optimizer.warmup_steps": ("warmup_steps", 1),
    "optimizer.decay_steps": ("decay_steps", 7),
    "optimizer.end_fraction": ("end_fraction", 0.5),
    "optimizer.decay_fraction": ("decay_fraction", 0.7),
    "optimizer.decay_power": ("decay_power", 0.5),
    "optimizer.beta1": ("beta1", 0.5),
    "optimizer.beta2": ("beta2", 0.5),
    "optimizer.epsilon": ("epsilon", 1e-3),
    "optimizer.muon_momentum": ("muon_momentum", 0.5),
    "optimizer.adam_rate_factor": ("adam_rate_factor", 0.5),
    "optimizer.weight_decay": ("weight_decay", 0.5),
    # So large that it never clips: Adam does not notice a factor common to all gradients.
    "optimizer.clip_norm": ("clip_norm", 1e3),
    "optimizer.layer_decay": ("layer_decay", 0.5),
    "training.label_smoothing": ("label_smoothing", 0.3),
    "training.z_loss": ("z_loss", 0.5),
    "training.balance_loss": ("balance_loss", 0.5),
    "training.router_z_loss": ("router_z_loss", 0.5),
    "training.ema_decay": ("ema_decay", 0.1),
}
OF_LABELS = {
    "task.name": "classification",
    "model.architecture": "encoder_only",
    "model.num_decoder_layers": ModelConfig.num_decoder_layers,
    "model.head_dropout_rate": 0.35,
}
"""Values with which fields are read that a translation model does not read; tested by themselves."""
SWITCHES = {
    name: field.metadata.get("off", 0.0) for name, field in hyper_fields().items() if field.metadata.get("switch")
}
"""Every field that turns a feature off, with the value that does."""

EXPERTS = {"model.feed_forward": "experts", "training.balance_loss": 0.01, "training.router_z_loss": 0.001}
# The decay begins after the third update.
WSD = {"optimizer.schedule": "wsd", "optimizer.decay_fraction": 0.6, "optimizer.decay_steps": 7}
LOGITS = {"model.attention_multiplier": 0.2, "model.attention_logit_cap": 2.0}
MUON = {"optimizer.name": "muon", "optimizer.adam_rate_factor": 0.7}
OUTPUTS = {
    **{"model.scale_embeddings": False, "model.embedding_multiplier": 3.0, "model.logits_multiplier": 0.5},
    **{"model.output_logit_cap": 20.0, "training.z_loss": 0.01},
}
BASES = {
    "optimizer.muon_momentum": MUON,
    "optimizer.adam_rate_factor": MUON,
    "model.teacher_forcing_rate": SMALL_RECURRENT,
    "model.residual_multiplier": {"model.residual_multiplier": 0.8},
    **dict.fromkeys((*OUTPUTS,)[1:], OUTPUTS),
    **dict.fromkeys(LOGITS, LOGITS),
    "seed": {"seed_init": 3},
    "optimizer.decay_fraction": WSD,
    "optimizer.decay_power": WSD,
    "training.balance_loss": EXPERTS,
    "training.router_z_loss": EXPERTS,
}
"""Overrides of the small config with which a field is read."""

every_hyper_field = pytest.mark.parametrize("name", CHANGED)
every_switch = pytest.mark.parametrize("name", sorted({*SWITCHES} - {*OF_LABELS}))


def based(name: str, *value: Any) -> ExperimentConfig:
    """Return the small config that reads a field, with a value for it if there is one."""
    return small_config({**BASES.get(name, {}), **dict.fromkeys([name] * len(value), *value)})


def scalars(hyper: Hyper) -> dict[str, Any]:
    """Return every scalar of Hyper by its dotted name, None included."""
    paths = jax.tree_util.tree_leaves_with_path(hyper, is_leaf=lambda x: x is None)
    return {jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in paths}


def replaced(config: ExperimentConfig, name: str, value: Any) -> ExperimentConfig:
    """Return the config with one field replaced, without validation or derivation."""
    *section, field = name.split(".")
    if not section:
        return dataclasses.replace(config, **{field: value})
    return dataclasses.replace(
        config, **{section[0]: dataclasses.replace(getattr(config, section[0]), **{field: value})}
    )


def other_value(config: ExperimentConfig, name: str, field: dataclasses.Field, value: Any) -> Any:
    section = config if "." not in name else getattr(config, name.split(".")[0])
    kind = base_type(field_types(type(section))[field.name])
    if "choices" in field.metadata:
        return next((c for c in field.metadata["choices"] if c != value), "another")
    if kind is bool:
        return not value
    return kind(f"{value}-other") if kind is str else kind((value or 0) + 1)


def num_equations(jaxpr: Any) -> int:
    inner = (sub for eqn in jaxpr.eqns for sub in jaxprs_in_params(eqn.params))
    return len(jaxpr.eqns) + sum(num_equations(sub) for sub in inner)


def traced(config: ExperimentConfig, batch: Any) -> Any:
    static, hyper = split(config)
    state = jax.eval_shape(lambda: init_state(static, hyper))
    return jax.make_jaxpr(make_train_step(static))(state, batch, hyper).jaxpr


def test_every_hyper_field_is_tested():
    assert {*CHANGED, "model.head_dropout_rate"} == set(hyper_fields())


def test_every_scalar_comes_from_one_field():
    paths = [path for path, _ in CHANGED.values()]
    found = scalars(split(small_config())[1]) | scalars(split(small_config(SMALL_RECURRENT))[1])
    assert sorted([*paths, "dropout.head"]) == sorted(found)


def test_the_dropout_of_a_head_is_a_scalar_where_it_is_read():
    """Its default is dropout_rate; without a head for labels there is none. tasks/test_labelled_tasks.py uses it."""
    static, hyper = split(small_config(OF_LABELS))
    assert hyper.dropout.head == 0.35
    for value, expected in ((0.2, 0.2), (None, 0.1), (0.0, None)):
        other_static, other = split(small_config(OF_LABELS | {"model.head_dropout_rate": value}))
        assert other_static == static
        assert {**scalars(other), "dropout.head": 0.35} == scalars(hyper)
        assert other.dropout.head == expected
    assert split(small_config())[1].dropout.head is None
    with pytest.raises(
        ConfigError, match=r"head_dropout_rate=0\.0 has no effect with task\.name='translation', only with"
    ):
        small_config({"model.head_dropout_rate": 0.0})


@every_hyper_field
def test_a_hyper_field_changes_its_own_scalar_and_nothing_static(name):
    path, value = CHANGED[name]
    static, hyper = split(based(name))
    other_static, other = split(based(name, value))
    assert other_static == static
    assert hash(other_static) == hash(static)
    assert scalars(other) == {**scalars(hyper), path: value}
    assert scalars(hyper)[path] != value


@pytest.mark.parametrize("name", [n for n, f, _ in walk(ExperimentConfig()) if not f.metadata.get("hyper")])
def test_a_field_without_the_mark_is_static_or_not_in_the_step(name):
    if name == "optimizer.lr_multipliers":
        pytest.skip("its numbers are scalars: test_the_numbers_of_multipliers_are_scalars")
    config = small_config()
    [(field, value)] = [(field, value) for other, field, value in walk(config) if other == name]
    changed = replaced(config, name, other_value(config, name, field, value))
    (static, hyper), (other_static, other) = split(config), split(changed)
    in_training = [f"training.{field}" for field in ("accumulation_steps", "loss_chunks", "on_nonfinite")]
    in_step = name.startswith(("model.", "task.", "optimizer.")) or name in in_training
    assert (other_static != static) == in_step
    assert scalars(other) == scalars(hyper)


def test_the_numbers_of_multipliers_are_scalars():
    """And their patterns are static."""
    texts = ["embedding=0.3; decoder=2", " embedding = 7;decoder=1e-3 ", "embedding=0.3; encoder=2", "embedding=0.3"]
    (static, hyper), (same, other), (third, _), (fourth, _) = (
        split(small_config({"optimizer.lr_multipliers": text})) for text in texts
    )
    assert (hyper.lr_multipliers, other.lr_multipliers) == ((0.3, 2.0), (7.0, 1e-3))
    assert static == same
    assert hash(static) == hash(same)
    assert len({static, third, fourth, split(small_config())[0]}) == 4
    assert split(small_config())[1].lr_multipliers == ()


@every_hyper_field
def test_zero_turns_a_switch_off_and_is_a_number_elsewhere(name):
    """Of a switch that has another value for that, this value."""
    path, _ = CHANGED[name]
    try:
        static, hyper = split(based(name, SWITCHES.get(name, 0)))
    except ConfigError:
        assert hyper_fields()[name].metadata["minimum"] > 0
        return
    base_static, base = split(based(name))
    assert static == base_static
    assert scalars(hyper)[path] == (None if name in SWITCHES else 0)
    assert (jax.tree.structure(hyper) != jax.tree.structure(base)) == (name in SWITCHES)


@pytest.fixture(scope="module")
def all_on():
    return traced(small_config(), uneven_batch())


@pytest.mark.parametrize("name", [name for name, (_, value) in CHANGED.items() if isinstance(value, int)])
def test_the_largest_whole_number_fits_the_compiled_step(name):
    assert jax.jit(lambda x: x)(hyper_fields()[name].metadata["maximum"]).dtype == np.int32


@pytest.mark.slow
@every_switch
def test_a_switch_that_is_off_is_not_in_the_program(all_on, name):
    on = traced(based(name), uneven_batch()) if name in BASES else all_on
    assert num_equations(traced(based(name, SWITCHES[name]), uneven_batch())) < num_equations(on)


def test_without_dropout_the_step_reads_no_row_ids():
    rates = [name for name in SWITCHES if name.endswith("dropout_rate") and name not in OF_LABELS]
    assert len(rates) == 5
    batch = uneven_batch()
    del batch["row_ids"]
    traced(small_config(dict.fromkeys(rates, 0.0)), batch)
    with pytest.raises(KeyError, match="row_ids"):
        traced(small_config(dict.fromkeys(rates[1:], 0.0)), batch)


def test_defaults_follow_other_fields():
    unset = dict.fromkeys(["optimizer.learning_rate", "optimizer.decay_steps", "model.embedding_dropout_rate"])
    overrides = {**unset, "optimizer.schedule": "inverse_sqrt", "training.num_train_steps": 77}
    hyper = split(small_config(overrides))[1]
    assert hyper.learning_rate == pytest.approx((16 * 2) ** -0.5)
    assert hyper.decay_steps == 77
    assert hyper.dropout.embedding == hyper.dropout.residual == 0.1


def run(hyper: Hyper, name: str = "") -> Any:
    """Return the scored parameters after four updates, and the metrics of each; always from the same parameters.

    Args:
      name: of the field whose small config is used.
    """
    static, base = split(based(name))
    state, metrics = start(static, base), []
    for seed in range(4):
        state, values = compiled_step(static)(state, uneven_batch(seed=seed), hyper)
        metrics.append(values)
    return state.evaluated, metrics


@pytest.fixture(scope="module")
def base_run():
    return run(split(small_config())[1])


@pytest.mark.slow
def test_the_same_values_give_the_same_run(base_run):
    """Required by the next test: a difference must come from the value."""
    assert identical(run(split(small_config())[1]), base_run)


@pytest.mark.parametrize("name", sorted({*CHANGED} - {"seed_init"}))  # which no step reads, see test_seeds.py
def test_a_new_value_changes_the_run_and_does_not_recompile(base_run, name):
    base_run = run(split(based(name))[1], name) if name in BASES else base_run
    compiled = compiled_step(split(based(name))[0])
    programs = compiled._cache_size()
    params, metrics = run(split(based(name, CHANGED[name][1]))[1], name)
    assert compiled._cache_size() == programs >= 1
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, metrics)))
    assert not identical(params, base_run[0])
    # A value that acts before the first update shows in its metrics: the loss, or the learning rate itself.
    later = name.startswith("optimizer.") or name == "training.ema_decay"
    at_once = not later or name in ("optimizer.learning_rate", "optimizer.warmup_steps")
    assert identical(metrics[0], base_run[1][0]) != at_once
