"""`optimizer.layer_decay` and `optimizer.freeze`: which parameters are trained, and how fast."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import HYBRIDS, tiny
from support import shapes as stack_shapes
from training_support import compiled_gradient, compiled_step, distance, identical, small_config, start, uneven_batch

from transformer_jax.checkpoints.checksums import by_path
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import OptimizerConfig, layer_numbers, parse_freeze
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import init_params, parameter_axes
from transformer_jax.nn.axes import Axes
from transformer_jax.parallel.rules import shardings
from transformer_jax.training.freezing import multiplied, multipliers, trained_part, with_trained
from transformer_jax.training.hyper import split
from transformer_jax.training.optimizers import OPTIMIZERS, make_optimizer
from transformer_jax.training.state import state_shapes, state_template
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import StackedStepper, over_trials

LAYERS = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 3}
WITHOUT_DROPOUT = dict.fromkeys(
    [f"model.{kind}dropout_rate" for kind in ("", "embedding_", "attention_", "activation_")], 0.0
)


def shapes_of(overrides: dict[str, Any] | None = None) -> Any:
    model = split(small_config({**LAYERS, **(overrides or {})}))[0].model
    return jax.eval_shape(lambda: init_params(model, 0))


# Rates by depth.


def test_multipliers_by_depth():
    """Literal powers of 1/2: two layers of encoder, three of decoder; embeddings count from the deeper stack."""
    fields = {"model.norm_position": "pre", "model.position_encoding": "learned", "model.tie_output": False}
    params = shapes_of(fields) | {"head": {"embedding": {"kernel": jax.ShapeDtypeStruct((16, 2), jnp.float32)}}}
    found = {path: np.ravel(x).tolist() for path, x in by_path(multipliers(params, 0.5)).items()}
    assert found["embedding/embedding"] == [0.0625]
    assert found["encoder/position_embedding/learned/embedding"] == [0.125]
    assert found["decoder/position_embedding/learned/embedding"] == [0.0625]
    for path, values in found.items():
        if path.startswith(("head/", "output/")) or "final_norm" in path:
            assert values == [1.0], path
        elif "/layers/" in path:
            assert values == ([0.25, 0.5] if path.startswith("encoder") else [0.125, 0.25, 0.5]), path
    assert {"output/kernel", "encoder/final_norm/scale", "head/embedding/kernel"} < set(found)


HYBRID = tiny(architecture="decoder_only", **HYBRIDS[0])  # G A G A G


def test_layers_of_several_structures_count_by_their_number_in_the_stack():
    """Not by their place among those of their kind: layer l of 5 has 2^-(5 - l)."""
    found = by_path(multipliers(stack_shapes(HYBRID), 0.5, layer_numbers(HYBRID)))
    assert np.ravel(found["decoder/layers_gated_delta/gated_delta/out/kernel"]).tolist() == [2**-5, 2**-3, 2**-1]
    assert np.ravel(found["decoder/layers/self_attention/out/kernel"]).tolist() == [2**-4, 2**-2]
    assert found["embedding/embedding"] == 2**-6
    assert found["decoder/final_norm/scale"] == 1


@pytest.mark.parametrize(
    ("freeze", "states", "attentions"),
    [("decoder/layers:3", [4], [3]), ("decoder/layers:1", [2, 4], [1, 3]), ("decoder/layers_gated_delta", [], [1, 3])],
)
def test_the_first_layers_are_frozen_whatever_their_structure(freeze, states, attentions):
    params = jax.tree.map(jnp.asarray, init_params(HYBRID, 0))
    trained = by_path(trained_part(freeze, params, layer_numbers(HYBRID)))
    for folder, part, layers in (
        ("layers_gated_delta", "gated_delta", states),
        ("layers", "self_attention", attentions),
    ):
        path = f"decoder/{folder}/{part}/out/kernel"
        whole = by_path(params)[path]
        rows = [layer_numbers(HYBRID)[f"decoder/{folder}"].index(layer) for layer in layers]
        if rows:
            np.testing.assert_array_equal(trained[path], whole[np.array(rows)])
        else:
            assert path not in trained
    part = trained_part(freeze, params, layer_numbers(HYBRID))
    assert identical(with_trained(freeze, params, part, layer_numbers(HYBRID)), params)


def test_all_layers_are_frozen_whatever_their_structure():
    trained = by_path(trained_part("decoder/layers", stack_shapes(HYBRID), layer_numbers(HYBRID)))
    assert not [path for path in trained if path.startswith("decoder/layers")]


def test_a_rule_that_freezes_no_layer_is_refused():
    with pytest.raises(
        ConfigError, match=r"self_attention:1' freezes nothing: decoder/layers/\S+ has the layers 1, 3 of"
    ):
        trained_part("decoder/layers/self_attention:1", stack_shapes(HYBRID), layer_numbers(HYBRID))


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"'decoder/layers:6' needs 6 layers, but decoder/layers.* has 5"):
        trained_part("decoder/layers:6", stack_shapes(HYBRID), layer_numbers(HYBRID))


WITH_LAMBDAS = tiny(architecture="decoder_only", residual_lambdas=True, **HYBRIDS[0])
LAMBDA_PATHS = ("decoder/stream_lambdas/scale", "decoder/input_lambdas/scale")


def test_lambdas_have_the_rate_of_their_layer():
    found = by_path(multipliers(stack_shapes(WITH_LAMBDAS), 0.5, layer_numbers(WITH_LAMBDAS)))
    for path in LAMBDA_PATHS:
        assert found[path].tolist() == [2**-5, 2**-4, 2**-3, 2**-2, 2**-1]
    two_stacks = by_path(multipliers(shapes_of({"model.residual_lambdas": True}), 0.5))
    assert two_stacks["encoder/input_lambdas/scale"].tolist() == [0.25, 0.5]
    assert two_stacks["decoder/stream_lambdas/scale"].tolist() == [0.125, 0.25, 0.5]


@pytest.mark.parametrize(
    ("freeze", "stream", "of_input"),
    [
        ("decoder/layers:2", [2, 3, 4], [2, 3, 4]),
        (".*/layers:4", [4], [4]),
        ("decoder/layers", None, None),
        ("decoder/layers_gated_delta", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        ("decoder/stream_lambdas:3", [3, 4], [0, 1, 2, 3, 4]),
        ("decoder/layers:1,decoder/input_lambdas", [1, 2, 3, 4], None),
    ],
)
def test_lambdas_are_frozen_with_their_layers(freeze, stream, of_input):
    numbers = layer_numbers(WITH_LAMBDAS)
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), stack_shapes(WITH_LAMBDAS))
    for path in LAMBDA_PATHS:
        by_path(params)[path][:] = np.arange(5)
    part = trained_part(freeze, params, numbers)
    for path, layers in zip(LAMBDA_PATHS, (stream, of_input), strict=True):
        assert layers == (by_path(part)[path].tolist() if path in by_path(part) else None)
    assert identical(with_trained(freeze, params, part, numbers), params)


def test_lambdas_of_layers_that_are_not_there_cannot_be_frozen():
    with pytest.raises(
        ConfigError, match=r"'decoder/input_lambdas:6' needs 6 layers, but decoder/input_lambdas.* has 5"
    ):
        trained_part("decoder/input_lambdas:6", stack_shapes(WITH_LAMBDAS), layer_numbers(WITH_LAMBDAS))


def test_multiples_of_layers_leave_the_lambdas_alone():
    """So that both can have one: a parameter has at most one."""
    static = OptimizerConfig(lr_multipliers="decoder/layers=2; decoder/stream_lambdas=0.01")
    found = multiplied(static, stack_shapes(WITH_LAMBDAS), layer_numbers(WITH_LAMBDAS))
    assert found["decoder/stream_lambdas/scale"].factor == 0.01
    assert "decoder/input_lambdas/scale" not in found
    assert found["decoder/layers/self_attention/out/kernel"].factor == 2


def test_the_rate_and_the_decay_of_every_parameter_are_as_recorded():
    """`python tests/golden/labels.py > tests/golden/labels.txt` renews them: read the difference."""
    golden = Path(__file__).parents[1] / "golden"
    spec = importlib.util.spec_from_file_location("labels", golden / "labels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.labels() == (golden / "labels.txt").read_text()


def test_a_relative_bias_has_the_full_rate_and_a_table_of_the_source_the_lowest():
    fields = {"model.position_encoding": "relative", "model.share_embeddings": False}
    found = by_path(multipliers(shapes_of(fields), 0.5))
    assert found["decoder/relative_bias/embedding"] == 1
    assert found["source_embedding/embedding"] == found["embedding/embedding"] == 0.0625


def test_multipliers_broadcast_against_scanned_layers_too():
    params = shapes_of({"model.scan_layers": True})
    factors = multipliers(params, 0.5)
    assert all(
        jax.tree.leaves(jax.tree.map(lambda p, f: np.broadcast_shapes(p.shape, f.shape) == p.shape, params, factors))
    )
    assert identical(factors, multipliers(shapes_of(), 0.5))


def test_a_model_without_stacked_layers_is_refused():
    with pytest.raises(ConfigError, match=r"optimizer\.layer_decay: .* no parameters in a folder 'layers'"):
        multipliers({"embedding": {"kernel": jnp.ones(2)}}, 0.5)


TREE = {
    "embedding": {"embedding": (5, 4)},
    "encoder": {"layers": {"out": {"kernel": (3, 4, 2)}}, "final_norm": {"scale": (4,)}},
    "head": {"kernel": (4, 2)},
}
AXES = {
    "embedding/embedding": Axes(("vocab",), ("emb",)),
    "out/kernel": Axes(("emb",), ("mlp",)),
    "final_norm/scale": Axes((), (None,)),
}


def random_tree(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: rng.standard_normal(shape).astype(np.float32), TREE, is_leaf=lambda x: isinstance(x, tuple)
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_multiplies_update_and_weight_decay(name):
    """And leaves the moments as they are: two updates from the same parameters."""
    _, hyper = split(small_config({"optimizer.weight_decay": 0.3}))
    static, params = OptimizerConfig(name=name, schedule="none", decay_mask="all"), random_tree(0)
    results = []
    for decay in (None, 0.8):
        optimizer = make_optimizer(static, hyper._replace(layer_decay=decay), axes=AXES)
        state = optimizer.init(params)
        for seed in (1, 2):
            updates, state = optimizer.update(random_tree(seed), state, params)
        results.append((updates, state))
    (plain, moments), (slower, same_moments) = results
    assert identical(same_moments, moments)
    layers = np.array([0.8**3, 0.8**2, 0.8]).reshape(3, 1, 1)
    expected = {
        "embedding": {"embedding": 0.8**4 * plain["embedding"]["embedding"]},
        "encoder": {
            "layers": {"out": {"kernel": layers * plain["encoder"]["layers"]["out"]["kernel"]}},
            "final_norm": plain["encoder"]["final_norm"],
        },
        "head": plain["head"],
    }
    assert distance(slower, expected) < 1e-6


# Frozen parameters.


def test_rules():
    assert parse_freeze("") == parse_freeze(" ") == ()
    assert parse_freeze("embedding, encoder/layers:6,(?:a|b)") == (
        ("embedding", None),
        ("encoder/layers", 6),
        ("(?:a|b)", None),
    )


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ("a,,b", "found an empty one"),
        (":3", "found an empty one"),
        ("encoder/layers:0", "'encoder/layers:0' freezes no layer"),
        ("a(", r"'a\(' is not a regular expression: .*"),
        ("a{99999999999}", r"is not a regular expression: .*too large"),
        ("(?i)embedding", r"cannot be a part of a longer regular expression: .*write \(\?i:\.\.\.\)"),
        ("(?x)a #b", "cannot be a part"),
        ("(" * 2000 + ")" * 2000, "regular expression"),
        ("(a+)+", "repeats a group"),
        ("(?:a*)*b", "repeats a group"),
        ("(?:a?){30}a", "30 repetitions"),
        ("(a|a)+", "repeats a group"),
        ("(?:(?:a|b)c)*", "repeats a group"),
        ("(?P<x>[)]a+)*", "repeats a group"),
        (r"(\)a+)*", "repeats a group"),
        ("([^]a]+)+?", "repeats a group"),
        (".*.*.*.*.*x", "5 repetitions"),
        ("a?" * 25 + "a" * 25, "25 repetitions"),
        ("(?:(?:a|a){2}){2}{2}", "is not a regular expression"),
        ("(?:(?:a|a){3}){3}", "8 repetitions"),
        ("(?i:a*A)" * 5, "5 repetitions"),
        ("(?x:a* a)" * 5, "5 repetitions"),
        (r"\w*a" * 5, "5 repetitions"),
    ],
)
def test_text_that_is_no_rule(freeze, message):
    with pytest.raises(ConfigError, match=rf"optimizer\.freeze={re.escape(repr(freeze))}: .*{message}"):
        small_config({"optimizer.freeze": freeze})


@pytest.mark.parametrize(
    "pattern",
    [
        *("encoder/.*/kernel", "(?:encoder|decoder)/layers/.*", "(?:encoder|decoder)?", "(a){3}b*", "(?i:Enc.*)/a"),
        *("[*+]+", r"\(\*+", "a{}", "[]*]b*", ".*/.*/.*/.*", "(?<!a)b", "(?:ab)*", "(a{2}){3}", "(?:a|b){1}"),
        *("(?:a|b){2}", "[^/]*/" * 9 + "[^/]*", r"\w+\." * 9 + "[^/]+", "(?:[^/]+/)*kernel"),
    ],
)
def test_patterns_that_take_little_time_are_allowed(pattern):
    assert parse_freeze(pattern) == ((pattern, None),)


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        ("embeding", r"'embeding' matches no parameter; .* begin with decoder/layers, embedding/embedding, encoder/l"),
        ("layers", "'layers' matches no parameter"),  # not the beginning of a path
        ("enc", "'enc' matches no parameter"),  # not up to a slash
        ("embedding:2", "'embedding:2' matches no parameter of a stack of layers, such as embedding/embedding"),
        ("encoder:3", "'encoder:3' needs 3 layers, but encoder/layers/.* has 2"),
        (".*", "freezes all parameters"),
        ("embedding,encoder:2,decoder/layers", "freezes all parameters"),
    ],
)
def test_a_rule_that_does_not_fit_is_named(freeze, message):
    """While the shapes of the state are computed, before anything compiles."""
    with pytest.raises(ConfigError, match=rf"optimizer\.freeze.*{message}"):
        state_shapes(*split(small_config({**LAYERS, "optimizer.freeze": freeze})))


def test_the_trained_part():
    params = random_tree(0)
    kernel = params["encoder"]["layers"]["out"]["kernel"]
    assert trained_part("", params) is params
    cases = {
        "embedding": {"encoder": params["encoder"], "head": params["head"]},
        "encoder": {"embedding": params["embedding"], "head": params["head"]},
        "encoder:2,encoder:1,head": {
            "embedding": params["embedding"],
            "encoder": {**params["encoder"], "layers": {"out": {"kernel": kernel[2:]}}},
        },
        r".*/layers:3,.*kernel,embedding": {"encoder": {"final_norm": params["encoder"]["final_norm"]}},
    }
    for freeze, expected in cases.items():
        part = trained_part(freeze, params)
        assert identical(part, expected), freeze
        assert identical(with_trained(freeze, params, part), params)
        moved = with_trained(freeze, params, jax.tree.map(lambda x: x + 1, part))
        assert identical(trained_part(freeze, moved), jax.tree.map(lambda x: x + 1, expected))
        changed = jax.tree.map(lambda new, old: int((new != old).sum()), moved, params)
        assert sum(jax.tree.leaves(changed)) == sum(x.size for x in jax.tree.leaves(expected))


FREEZE = "embedding,encoder,decoder/layers:1"
SMALLER = {"model.num_decoder_layers": 2, **WITHOUT_DROPOUT}


def steps(overrides: dict[str, Any], count: int = 3) -> Any:
    """Return the states before and after some steps, and the last metrics."""
    static, hyper = split(small_config({**SMALLER, **overrides}))
    state = first = start(static, hyper)
    for seed in range(count):
        state, metrics = compiled_step(static)(state, uneven_batch(seed=seed), hyper)
    return first, state, metrics


@pytest.mark.parametrize(
    "name", ["adam", *(pytest.param(x, marks=pytest.mark.slow) for x in OPTIMIZERS if x != "adam")]
)
def test_frozen_parameters_keep_their_bits_and_have_no_moments(name):
    first, last, _ = steps({"optimizer.name": name, "optimizer.freeze": FREEZE, "optimizer.weight_decay": 0.5})
    before, after = by_path(first.params), by_path(last.params)
    for path, old in before.items():
        frozen = 1 if path.startswith("decoder/layers/") else len(old)
        np.testing.assert_array_equal(after[path][:frozen], old[:frozen])
        assert frozen == len(old) or (after[path][frozen:] != old[frozen:]).any(), path
    moments = by_path(last.opt_state)
    assert not [path for path in moments if "embedding" in path or "encoder/" in path]
    stacked = [x for path, x in moments.items() if "decoder/layers/" in path and "v_" not in path]
    assert name == "adafactor" or stacked
    assert all(len(x) == 1 for x in stacked)


@pytest.mark.slow
def test_lambdas_of_frozen_layers_keep_their_bits_and_have_no_moments():
    first, last, _ = steps({"model.residual_lambdas": True, "optimizer.freeze": "embedding,encoder,decoder/layers:1"})
    before, after, moments = (by_path(tree) for tree in (first.params, last.params, last.opt_state))
    for path in LAMBDA_PATHS:
        assert after[path][0] == before[path][0]
        assert after[path][1] != before[path][1]
        assert {x.shape for name, x in moments.items() if name.endswith(path)} == {(1,)}
    assert not [name for name in moments if "encoder/" in name]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_are_those_of_training_everything(parts):
    """And the norm is that of the trained parameters only."""
    fields = {**SMALLER, "training.accumulation_steps": parts}
    static, hyper = split(small_config(fields))
    params, batch = start(static, hyper).params, uneven_batch()
    whole, sums = compiled_gradient(static)(params, batch, 0, hyper)
    frozen_static, _ = split(small_config({**fields, "optimizer.freeze": FREEZE}))
    part, _ = compiled_gradient(frozen_static)(params, batch, 0, hyper)
    assert distance(part, trained_part(FREEZE, whole)) < 1e-5
    if parts == 1:
        norm = steps({"optimizer.freeze": FREEZE, "optimizer.weight_decay": 0.5}, 1)[2]["gradient_norm"]
        norms = [np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(x))) for x in (part, whole)]
        assert norm * float(sums["weight"]) == pytest.approx(norms[0], rel=1e-4)
        assert norms[0] < 0.9 * norms[1]


@pytest.mark.slow
def test_the_rates_of_layers_do_not_depend_on_frozen_ones():
    """Only the first update, with SGD and without clipping, so that it is proportional to the gradient."""
    fields = {"optimizer.name": "sgd", "optimizer.clip_norm": 0.0, "optimizer.layer_decay": 0.5}
    updates = []
    for freeze in ("", "encoder/layers,decoder/layers:1"):
        first, last, _ = steps({**fields, "optimizer.freeze": freeze}, 1)
        moved = jax.tree.map(lambda new, old: new - old, last.params, first.params)
        updates.append(trained_part("encoder/layers,decoder/layers:1", moved))
    assert distance(updates[1], updates[0]) < 1e-4


def lowered(overrides: dict[str, Any]) -> Any:
    static, hyper = split(small_config({**SMALLER, "model.tie_output": False, **overrides}))
    return jax.jit(make_train_step(static)).lower(state_shapes(static, hyper), uneven_batch(), hyper)


def test_a_frozen_stack_is_not_differentiated():
    for scan_layers in (False, True):
        fields = {"model.scan_layers": scan_layers}
        whole, part = (
            lowered({**fields, "optimizer.freeze": freeze}).as_text().count("dot_general")
            for freeze in ("", "embedding,encoder")
        )
        assert part < whole


@pytest.mark.slow
def test_gradients_of_frozen_first_layers_are_not_computed():
    """XLA drops their products, except in a loop over layers."""
    programs = [lowered({"optimizer.freeze": freeze}).compile().as_text() for freeze in ("embedding,encoder", FREEZE)]
    stack, first_layer_too = (len(re.findall(r" dot\(", program)) for program in programs)
    assert first_layer_too < stack


@pytest.mark.slow
def test_frozen_parameters_in_checkpoints_and_on_meshes(tmp_path):
    config = small_config({**SMALLER, "optimizer.freeze": FREEZE, "model.vocab_size": 24})
    static, hyper = split(config)
    state = start(static, hyper)
    with CheckpointStore(tmp_path) as store:
        store.save(1, state, {}, {})
        store.wait()
        template = state_template(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        assert identical(store.restore(template, 1).state, state)
    sizes = {"data": 2, "fsdp": 2, "tensor": 2}
    mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    shapes = state_shapes(static, hyper)
    places = shardings(shapes, parameter_axes(config.model), mesh)
    jax.tree.map(lambda leaf, place: place.shard_shape(leaf.shape), shapes, places)


@pytest.mark.slow
def test_trials_with_other_rates_and_frozen_parameters():
    configs = [small_config({**SMALLER, "optimizer.freeze": FREEZE, "optimizer.layer_decay": x}) for x in (0.5, 0.8)]
    static, hypers = split(configs[0])[0], [split(config)[1] for config in configs]
    states = [start(static, hyper) for hyper in hypers]
    stepper = StackedStepper(over_trials(make_train_step(static), "vmap"), states, hypers)
    stepper.step([uneven_batch()] * 2)
    for number, (state, hyper) in enumerate(zip(states, hypers, strict=True)):
        expected, _ = compiled_step(static)(state, uneven_batch(), hyper)
        assert distance(stepper.state_of(number).params, expected.params) < 1e-5
        frozen = stepper.state_of(number).params["encoder"]
        assert identical(frozen, state.params["encoder"])
