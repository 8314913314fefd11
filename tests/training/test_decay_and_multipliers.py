"""Weight decay that is independent or cautious, `lr_multipliers` and `schedule=wsd`, together and with other fields."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_support import compiled_step, distance, small_config, start, uneven_batch

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import WorkDirectory
from transformer_jax.config import OptimizerConfig, parse_multipliers
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.nn.axes import Axes
from transformer_jax.tasks.task import param_shapes
from transformer_jax.training import resume
from transformer_jax.training.describe import multiplier_notes
from transformer_jax.training.freezing import multiplied
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.optimizers import OPTIMIZERS, make_optimizer
from transformer_jax.training.resume import check_decay, restore_newest
from transformer_jax.training.state import TrainState, state_shapes
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import StackedStepper, over_trials

SHAPES = {
    "embedding": {"embedding": (5, 4)},
    "encoder": {
        "layers": {"self_attention": {"key": {"kernel": (2, 4, 3)}}, "out": {"kernel": (2, 4, 3), "bias": (2, 3)}},
        "final_norm": {"scale": (4,)},
    },
}
AXES = {
    "embedding/embedding": Axes(("vocab",), ("emb",)),
    "key/kernel": Axes(("emb",), ("heads",)),
    "out/kernel": Axes(("heads",), ("emb",)),
    "(out/bias|final_norm/scale)": Axes((), (None,)),
}
MULTIPLIERS = "embedding=0.3; encoder/layers/self_attention/*=2"
AT_RESUME = {"optimizer.schedule": "wsd", "optimizer.decay_steps": 100, "optimizer.end_fraction": 0.0}
UPDATES, PEAK, WARMUP, DECAY = 20, 0.05, 4, 0.3
# Cautious, independent, power of the decay.
CASES = [(False, False, 1.0), (False, True, 0.5), (True, False, 0.5), (True, True, 1.0)]


def tree(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    draw = lambda shape: rng.standard_normal(shape).astype(np.float32)  # noqa: E731
    return jax.tree.map(draw, SHAPES, is_leaf=lambda x: isinstance(x, tuple))


def by_path(values: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(values)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def hyper_of(fields: Mapping[str, Any]) -> tuple[OptimizerConfig, Hyper]:
    """Return both parts of a small config with wsd over 20 updates, of which 4 warm up and the last 6 decay."""
    base = {
        "optimizer.schedule": "wsd",
        "optimizer.learning_rate": PEAK,
        "optimizer.warmup_steps": WARMUP,
        "optimizer.decay_steps": UPDATES,
        "optimizer.decay_fraction": 0.3,
        "optimizer.end_fraction": 0.0,
        "optimizer.weight_decay": DECAY,
        "optimizer.clip_norm": 0.0,
        "optimizer.layer_decay": 1.0,
        "optimizer.beta1": 0.8,
        "optimizer.beta2": 0.9,
    }
    static, hyper = split(small_config({**base, **{f"optimizer.{name}": value for name, value in fields.items()}}))
    return static.optimizer, hyper


@pytest.fixture(scope="module")
def after_twenty_updates():
    """The changes of parameters after 20 updates of Adam by case, from one program."""
    parts = {case: hyper_of(fields_of(*case)) for case in CASES}
    optimizers = {case: make_optimizer(static, hyper) for case, (static, hyper) in parts.items()}

    @jax.jit
    def update(grads, states, params):
        made = {case: optimizer.update(grads, states[case], params[case]) for case, optimizer in optimizers.items()}
        moved = {case: jax.tree.map(jnp.add, params[case], updates) for case, (updates, _) in made.items()}
        return {case: state for case, (_, state) in made.items()}, moved

    params = dict.fromkeys(CASES, tree(0))
    states = {case: optimizer.init(params[case]) for case, optimizer in optimizers.items()}
    for t in range(1, UPDATES + 1):
        states, params = update(tree(t), states, params)
    before = by_path(tree(0))
    return {
        case: {path: np.asarray(p, np.float64) - before[path] for path, p in by_path(of).items()}
        for case, of in params.items()
    }


def fields_of(cautious: bool, independent: bool, power: float) -> dict[str, Any]:
    fields = {"weight_decay_independent": independent, "weight_decay_cautious": cautious, "decay_power": power}
    return {**fields, "lr_multipliers": MULTIPLIERS, "layer_decay": 0.5 if power == 1.0 else 1.0}


@pytest.mark.parametrize("case", CASES)
def test_twenty_updates_equal_numpy(after_twenty_updates, case):
    """Adam with all of the fields and layer_decay, in float64 NumPy."""
    cautious, independent, power = case
    fields = fields_of(*case)
    layer_decay, epsilon = fields["layer_decay"], hyper_of(fields)[1].epsilon
    origin = expected = {path: p.astype(np.float64) for path, p in by_path(tree(0)).items()}
    m = v = dict.fromkeys(expected, 0.0)
    depth = np.array([layer_decay**2, layer_decay]).reshape(2, 1, 1)
    multiples = {
        "embedding/embedding": 0.3 * layer_decay**3,
        "encoder/layers/self_attention/key/kernel": 2 * depth,
        "encoder/layers/out/kernel": depth,
        "encoder/layers/out/bias": depth[:, 0],
        "encoder/final_norm/scale": 1.0,
    }
    for t in range(1, UPDATES + 1):
        g = by_path(tree(t))
        rate = PEAK * min(t / WARMUP, 1.0) * (1 - max((t - 14) / 6, 0.0) ** power)
        m = {path: 0.8 * m[path] + 0.2 * g[path] for path in g}
        v = {path: 0.9 * v[path] + 0.1 * g[path].astype(np.float64) ** 2 for path in g}
        new = {}
        for path, w in expected.items():
            u = m[path] / (1 - 0.8**t) / (np.sqrt(v[path] / (1 - 0.9**t)) + epsilon)
            decayed = DECAY * w if path.endswith("kernel") else 0 * w
            if cautious:
                decayed = np.where(u * w >= 0, decayed, 0.0)
            if independent:
                new[path] = w - multiples[path] * rate * u - rate / PEAK * decayed
            else:
                new[path] = w - multiples[path] * rate * (u + decayed)
        expected = new
    moved = {path: p - origin[path] for path, p in expected.items()}
    assert distance(after_twenty_updates[case], moved) < 1e-5


@pytest.mark.parametrize(
    ("independent", "expected"),
    [
        (False, [-0.15, -0.1, 0.1, 0.15, -0.1, -0.1]),  # 0.1 (u + 0.5 w), or 0.1 u
        (True, [-0.6, -0.1, 0.1, 0.6, -0.1, -1.0]),  # 0.1 u + 0.5 w, or 0.1 u
    ],
)
def test_cautious_decay_by_hand(independent, expected):
    """Signs equal, opposite, opposite, equal; a parameter of 0; and no update, with which a parameter does decay."""
    static = OptimizerConfig(
        name="sgd", schedule="none", weight_decay_independent=independent, weight_decay_cautious=True
    )
    _, hyper = hyper_of({})
    hyper = hyper._replace(learning_rate=0.1, weight_decay=0.5)
    weights = {"kernel": np.array([1, -1, 1, -1, 0, 2], np.float32)}
    gradient = {"kernel": np.array([1, 1, -1, -1, 1, 0], np.float32)}
    optimizer = make_optimizer(static, hyper)
    updates, _ = optimizer.update(gradient, optimizer.init(weights), weights)
    np.testing.assert_allclose(updates["kernel"], expected, rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_independent_decay_is_that_of_the_learning_rate_times_the_coupled_one(name):
    """A rate of 1e-3 and a coupled decay of 0.1 are an independent one of 1e-4; another peak leaves it as it is."""
    changes = []
    for independent, decay, peak in ((False, 0.1, 1e-3), (True, 1e-4, 1e-3), (True, 1e-4, 0.0), (True, None, 2e-3)):
        static, hyper = hyper_of({"weight_decay_independent": independent})
        hyper = hyper._replace(weight_decay=decay, learning_rate=peak)
        optimizer = make_optimizer(dataclasses.replace(static, name=name), hyper, axes=AXES)
        params, gradients = jax.tree.map(jnp.asarray, (tree(0), tree(1)))
        updates, _ = optimizer.update(gradients, optimizer.init(params), params)
        changes.append(by_path(updates))
    coupled, same, alone, without = changes
    assert distance(same, coupled) < 1e-6
    for path, w in by_path(params).items():
        decayed = -1e-4 / WARMUP * w if path.endswith("kernel") else 0 * w
        np.testing.assert_allclose(alone[path], decayed, rtol=1e-5)
        np.testing.assert_allclose(same[path] - decayed, without[path] / 2, rtol=1e-3, atol=1e-9)


def test_fields_that_are_off_change_nothing():
    """Not the state, whose tree is stored in checkpoints, nor the program."""
    programs, structures = [], []
    for fields in (
        {},
        {"weight_decay_independent": True, "weight_decay_cautious": True, "lr_multipliers": MULTIPLIERS},
    ):
        static, hyper = hyper_of(fields)
        params = tree(0)
        state = make_optimizer(static, hyper).init(params)
        structures.append(jax.tree.structure(by_path(state)))
        update = lambda g, s, p, h, static=static: make_optimizer(static, h).update(g, s, p)  # noqa: E731
        programs.append(str(jax.make_jaxpr(update)(params, state, params, hyper)))
    assert structures[0] == structures[1]
    assert programs[0] != programs[1]
    assert "sign" in programs[1]
    assert "sign" not in programs[0]


def test_multipliers_with_frozen_layers_and_a_decay():
    """Of what is trained, updates are those without frozen parameters; a factor of 1 changes no bit."""
    params, results = tree(0), []
    for freeze, text in (("", "encoder=4"), ("embedding,encoder/layers:1", "encoder=4"), ("", "encoder=1"), ("", "")):
        static, hyper = hyper_of({"freeze": freeze, "lr_multipliers": text, "weight_decay_independent": True})
        optimizer = make_optimizer(static, hyper._replace(weight_decay=None))
        grads = tree(1)
        if freeze:
            grads = {
                "encoder": {**grads["encoder"], "layers": jax.tree.map(lambda x: x[1:], grads["encoder"]["layers"])}
            }
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        results.append(by_path(updates))
    whole, part, one, plain = results
    for path, update in plain.items():
        np.testing.assert_array_equal(one[path], update)
        factor = 4.0 if path.startswith("encoder") else 1.0
        np.testing.assert_array_equal(whole[path], factor * update)
        if path.startswith("encoder"):
            np.testing.assert_array_equal(part[path], whole[path][1:] if "layers" in path else whole[path])
    assert "embedding/embedding" not in part


# Rules.


def test_rules():
    assert parse_multipliers("") == parse_multipliers(" ") == ()
    assert parse_multipliers("embedding=0.3; (?:a|b)/c = 2;d=1e-2") == (
        ("embedding", 0.3),
        ("(?:a|b)/c", 2.0),
        ("d", 0.01),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("embedding", "expected 'PATTERN=NUMBER; PATTERN=NUMBER', found 'embedding'"),
        ("=2", "expected 'PATTERN=NUMBER; PATTERN=NUMBER', found '=2'"),
        ("embedding=2;", "expected 'PATTERN=NUMBER; PATTERN=NUMBER', found ''"),
        ("embedding=two", "'embedding=two': 'two' is not a number"),
        ("embedding=", "'embedding=': '' is not a number"),
        ("embedding=0", "'embedding=0': expected a positive number; optimizer.freeze keeps parameters as they are"),
        ("embedding=-1", "expected a positive number"),
        ("embedding=inf", "expected a positive number"),
        ("embedding=nan", "expected a positive number"),
        ("a(=2", "'a(' is not a regular expression"),
        ("(a+)+=2", "repeats a group"),
        ("a=1; a=2", "'a' is there twice"),
    ],
)
def test_text_that_is_no_rule(text, message):
    with pytest.raises(
        ConfigError, match=rf"optimizer\.lr_multipliers={re.escape(repr(text))}: .*{re.escape(message)}"
    ):
        small_config({"optimizer.lr_multipliers": text})


@pytest.mark.parametrize(
    ("text", "freeze", "message"),
    [
        ("embed=2", "", "'embed' matches no parameter; the beginning of a path"),  # never a part of a name
        ("self_attention=2", "", "'self_attention' matches no parameter"),
        ("decoder/layers/self=2", "", "'self' matches no parameter".replace("self", "decoder/layers/self")),
        (
            "decoder=2; embedding=1; decoder/layers/feed_forward=3",
            "",
            "'decoder' and 'decoder/layers/feed_forward' both match decoder/layers/feed_forward/hidden/bias",
        ),
        ("encoder=2", "encoder", "'encoder' matches only parameters that optimizer.freeze='encoder' keeps as they are"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(text, freeze, message):
    """While the shapes of the state are computed, before anything compiles."""
    fields = {"optimizer.lr_multipliers": text, "optimizer.freeze": freeze, "optimizer.layer_decay": 1.0}
    with pytest.raises(ConfigError, match=rf"optimizer\.lr_multipliers: {re.escape(message)}"):
        state_shapes(*split(small_config(fields)))


def test_a_pattern_matches_whole_parts_of_paths_and_all_kinds_of_layers():
    layers = {"self_attention": {"out": {"kernel": np.zeros((2, 4, 4))}}, "self": {"scale": np.zeros((2, 4))}}
    params = {
        "decoder": {"layers": layers, "layers_gated_delta": layers, "final_norm": {"scale": np.zeros(4)}},
        "final_norm": {"scale": np.zeros(4)},
    }
    numbers = {"decoder/layers": (0, 2), "decoder/layers_gated_delta": (1, 3)}
    static = OptimizerConfig(
        lr_multipliers="decoder/layers/self=2; .*/final_norm=3; decoder/layers_gated_delta/self_attention=4"
    )
    factors = {path: rule.factor for path, rule in multiplied(static, params, numbers).items()}
    assert factors == {
        "decoder/layers/self/scale": 2,
        "decoder/layers_gated_delta/self/scale": 2,
        "decoder/layers_gated_delta/self_attention/out/kernel": 4,
        "decoder/final_norm/scale": 3,
    }


def test_train_says_how_many_parameters_a_pattern_multiplies():
    config = read_config("quickstart", {"optimizer.lr_multipliers": "embedding=0.3; encoder/final_norm/scale=2"})
    params = param_shapes(config)
    count = params["embedding"]["embedding"].size
    assert multiplier_notes(config, params) == [
        f"optimizer.lr_multipliers: 0.3 times the learning rate for the {count:,} parameters of 'embedding'",
        "optimizer.lr_multipliers: 2 times the learning rate for the 128 parameters of 'encoder/final_norm/scale'",
    ]
    assert multiplier_notes(read_config("quickstart"), params) == []


@pytest.mark.slow
def test_trials_that_train_together_have_their_own_numbers():
    """Rates, decays, shares of the decay and multipliers, in one compiled program."""
    fields = {
        "optimizer.name": "sgd",  # after Adam, gradients that are only rounding are whole steps
        "optimizer.schedule": "wsd",
        "optimizer.weight_decay_independent": True,
        "optimizer.weight_decay_cautious": True,
        "optimizer.decay_steps": 3,
        "model.dropout_rate": 0.0,
    }
    values = [
        {"optimizer.lr_multipliers": f"embedding={a}; decoder={b}", "optimizer.learning_rate": rate, **others}
        for a, b, rate, others in (
            (1, 1, 1e-3, {"optimizer.weight_decay": 0.1, "optimizer.decay_fraction": 0.3}),
            (
                0.1,
                3,
                4e-3,
                {"optimizer.weight_decay": 0.4, "optimizer.decay_fraction": 0.2, "optimizer.decay_power": 0.5},
            ),
        )
    ]
    statics, hypers = zip(*(split(small_config({**fields, **value})) for value in values), strict=True)
    assert len({*statics}) == 1
    states = [start(statics[0], hyper) for hyper in hypers]
    stepper = StackedStepper(over_trials(make_train_step(statics[0]), "vmap"), states, hypers)
    for _ in range(2):
        stepper.step([uneven_batch()] * 2)
    for number, (state, hyper) in enumerate(zip(states, hypers, strict=True)):
        expected = state
        for _ in range(2):
            expected, _ = compiled_step(statics[0])(expected, uneven_batch(), hyper)
        assert distance(stepper.state_of(number).params, expected.params) < 1e-5
    assert distance(stepper.state_of(0).params, stepper.state_of(1).params) > 1e-3


def test_wsd_whose_decay_begins_before_the_warm_up_ends():
    fields = {"optimizer.schedule": "wsd", "optimizer.warmup_steps": 11, "optimizer.decay_fraction": 0.5}
    message = (
        r"optimizer\.decay_fraction=0\.5 of optimizer\.decay_steps=20 begins after update 10, before the warm-up ends "
        r"\(optimizer\.warmup_steps=11\); lower one of them"
    )
    with pytest.raises(ConfigError, match=message):
        small_config(fields)
    config = small_config({**fields, "optimizer.warmup_steps": 10})
    assert config.optimizer.decay_start == 10
    of_steps = {**fields, "optimizer.decay_steps": None, "training.num_train_steps": 20}
    with pytest.raises(ConfigError, match=r"of training\.num_train_steps=20 begins after update 10"):
        small_config(of_steps)
    with pytest.raises(ConfigError, match=r"decay_steps=20 is the step .*'wsd' ends, and must exceed"):
        small_config({**fields, "optimizer.warmup_steps": 20})
    other = {"optimizer.schedule": "cosine", "optimizer.decay_fraction": 0.5}
    with pytest.raises(ConfigError, match=r"decay_fraction=0\.5 has no effect with schedule='cosine'"):
        small_config(other)
    assert dataclasses.replace(config.optimizer, decay_fraction=1e-6).decay_start == 19


@pytest.mark.parametrize(
    ("changes", "updates", "message"),
    [
        ({}, 99, None),  # the same config may be resumed inside its decay
        ({"decay_steps": 200}, 80, None),  # the old decay begins after update 80, the new one after 160
        ({"decay_steps": 200}, 81, "has begun, after update 80 of 81, and cannot be changed any more"),
        ({"decay_steps": 90}, 72, None),
        ({"decay_steps": 90}, 73, "would have begun after update 72, before the 73 that the checkpoint has"),
        ({"decay_fraction": 0.5}, 51, "would have begun after update 50"),
        ({"decay_power": 0.5}, 81, "has begun"),
        ({"end_fraction": 0.1}, 80, None),
        ({"end_fraction": 0.1}, 81, "has begun"),
        ({"schedule": "linear"}, 99, None),  # another schedule is the user's wish
    ],
)
def test_a_resume_changes_no_decay_in_the_past(changes, updates, message):
    """A decay of 100 updates by 0.2, and what is new at the resume."""
    stored = small_config(AT_RESUME)
    config = dataclasses.replace(stored, optimizer=dataclasses.replace(stored.optimizer, **changes))
    if message is None:
        check_decay(config, stored.to_dict(), updates)
    else:
        with pytest.raises(ConfigError, match=message):
            check_decay(config, stored.to_dict(), updates)


def test_a_stable_run_may_be_resumed_with_a_decay_that_is_still_to_come():
    """Also a checkpoint from before the fields existed, which has no value for them."""
    config, stored = small_config(AT_RESUME), small_config(AT_RESUME).to_dict()
    for name in ("decay_fraction", "decay_power"):
        del stored["optimizer"][name]
    stored["optimizer"]["schedule"] = "constant"
    check_decay(config, stored, 80)
    with pytest.raises(ConfigError, match="would have begun after update 80, before the 90"):
        check_decay(config, stored, 90)


def test_a_resume_is_checked_before_the_run_goes_on(monkeypatch):
    """By the number of updates, which skipped steps do not count."""
    config, stored = small_config({**AT_RESUME, "optimizer.decay_steps": 200}), small_config(AT_RESUME).to_dict()
    store, directory = mock.Mock(spec=CheckpointStore), mock.Mock(spec=WorkDirectory)
    store.steps.return_value = [90]
    monkeypatch.setattr(resume, "resumable_record", lambda _: {"config": stored})
    template = state_shapes(*split(config))
    for updates, message in ((81, "has begun, after update 80 of 81"), (80, "side files")):
        state = TrainState(jnp.int32(90), {}, (optax.ScaleByScheduleState(jnp.int32(updates)),))
        store.restore.return_value = (90, state, {})
        store.open.side_effect = ConfigError("side files")  # what comes next
        with pytest.raises(ConfigError, match=message):
            restore_newest(config, directory, store, template)


@pytest.mark.parametrize("name", ["weight_decay_independent", "weight_decay_cautious"])
def test_a_kind_of_decay_without_decay_is_refused(name):
    with pytest.raises(ConfigError, match=rf"optimizer\.{name}=True has no effect with weight_decay=0"):
        small_config({f"optimizer.{name}": True, "optimizer.weight_decay": 0.0})
