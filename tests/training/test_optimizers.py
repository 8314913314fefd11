import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import slow_but
from training_support import compiled_step, distance, hyper_fields, small_config, start, uneven_batch

from transformer_jax.config import OptimizerConfig
from transformer_jax.models.architecture import init_params, parameter_axes
from transformer_jax.nn.heads import MaskedLMHead
from transformer_jax.parallel.rules import shardings
from transformer_jax.training.hyper import Hyper, StaticConfig, split
from transformer_jax.training.optimizers import DECAY_MASKS, OPTIMIZERS, make_optimizer
from transformer_jax.training.schedules import learning_rate
from transformer_jax.training.state import state_shapes

SHAPES = {
    "embedding": {"embedding": (5, 4)},
    "layers": {"out": {"kernel": (2, 4, 3), "bias": (2, 3)}, "norm": {"scale": (2, 4), "bias": (2, 4)}},
}
DECAYED = {"embedding/embedding": False, "layers/norm/bias": False, "layers/norm/scale": False} | {
    "layers/out/kernel": True,
    "layers/out/bias": False,
}


def without_depth(overrides: Mapping[str, Any] | None = None) -> tuple[StaticConfig, Hyper]:
    """Split a small config in which all layers have the same learning rate."""
    return split(small_config({**(overrides or {}), "optimizer.layer_decay": 1.0}))


def by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def random_tree(seed: int, norm: float | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    tree = jax.tree.map(rng.standard_normal, SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    factor = 1.0 if norm is None else norm / np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)))
    return jax.tree.map(lambda x: (factor * x).astype(np.float32), tree)


class Adam:
    """Kingma and Ba 2015, algorithm 1, with clipping before it and decoupled weight decay: float64 NumPy."""

    def __init__(self, schedule: str, hyper: Hyper) -> None:
        self.hyper, self.schedule, self.t = hyper, schedule, 0
        self.m: dict[str, Any] = {}
        self.v: dict[str, Any] = {}

    def update(self, params: Mapping[str, Any], grads: Mapping[str, Any]) -> dict[str, Any]:
        h, self.t = self.hyper, self.t + 1
        grads = {k: g.astype(np.float64) for k, g in grads.items()}
        norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
        if h.clip_norm is not None and norm > h.clip_norm:
            grads = {k: g * h.clip_norm / norm for k, g in grads.items()}
        rate = float(learning_rate(self.schedule, jnp.int32(self.t), h))
        new = {}
        for k, g in grads.items():
            self.m[k] = h.beta1 * self.m.get(k, 0.0) + (1 - h.beta1) * g
            self.v[k] = h.beta2 * self.v.get(k, 0.0) + (1 - h.beta2) * g**2
            step = self.m[k] / (1 - h.beta1**self.t)
            step = step / (np.sqrt(self.v[k] / (1 - h.beta2**self.t)) + h.epsilon)
            if h.weight_decay is not None and DECAYED[k]:
                step = step + h.weight_decay * params[k]
            new[k] = params[k] - rate * step
        return new


@pytest.mark.parametrize("epsilon", [1e-9, 0.3])  # the second shows whether epsilon is inside the root
@pytest.mark.parametrize("weight_decay", [None, 0.4])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_six_updates_equal_adam_in_numpy(clip_norm, weight_decay, epsilon):
    _, hyper = without_depth({"optimizer.learning_rate": 0.05, "optimizer.warmup_steps": 3})
    hyper = hyper._replace(clip_norm=clip_norm, weight_decay=weight_decay, epsilon=epsilon, beta1=0.8, beta2=0.9)

    @jax.jit
    def update(params: Any, state: Any, grads: Any, hyper: Hyper) -> Any:
        updates, state = make_optimizer(OptimizerConfig(schedule="linear"), hyper).update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    params = random_tree(0)
    origin = expected = {k: p.astype(np.float64) for k, p in by_path(params).items()}
    reference, state = Adam("linear", hyper), make_optimizer(OptimizerConfig(schedule="linear"), hyper).init(params)
    for t, norm in enumerate([3.0, 0.2, 1.0, 7.0, 0.9, 1.1]):  # some are clipped, some are not
        grads = random_tree(t + 1, norm)
        params, state = update(params, state, grads, hyper)
        expected = reference.update(expected, by_path(grads))
        moved = {k: np.asarray(p, np.float64) - origin[k] for k, p in by_path(params).items()}
        assert distance(moved, {k: p - origin[k] for k, p in expected.items()}) < 1e-5


@pytest.mark.parametrize(
    ("norm", "scaled"), [(0.5, 0.5), (1.0, 1.0), (4.0, 1.0)], ids=["below", "at the limit", "above"]
)
def test_clipping_scales_the_whole_tree(norm, scaled):
    _, hyper = without_depth()
    grads, params = random_tree(1, norm), random_tree(0)
    optimizer = make_optimizer(OptimizerConfig(schedule="none"), hyper._replace(clip_norm=1.0))
    _, state = optimizer.update(grads, optimizer.init(params), params)
    first_moment = next(s.mu for s in state if hasattr(s, "mu"))
    expected = jax.tree.map(lambda g: (1 - hyper.beta1) * g * scaled / norm, grads)
    assert distance(first_moment, expected) < 1e-6


def test_without_clipping_and_decay_the_gradient_is_unchanged():
    _, hyper = without_depth()
    grads, params = random_tree(1, 50.0), random_tree(0)
    optimizer = make_optimizer(OptimizerConfig(schedule="none"), hyper._replace(clip_norm=None, weight_decay=None))
    updates, state = optimizer.update(grads, optimizer.init(params), params)
    first_moment = next(s.mu for s in state if hasattr(s, "mu"))
    assert distance(first_moment, jax.tree.map(lambda g: (1 - hyper.beta1) * g, grads)) < 1e-6
    assert distance(updates, jax.tree.map(lambda g: -hyper.learning_rate * np.sign(g), grads)) < 1e-5


def test_weight_decay_is_decoupled_and_times_the_learning_rate():
    """A kernel without gradient shrinks by rate * decay and nothing else moves, however large the moments are."""
    _, hyper = without_depth({"optimizer.learning_rate": 0.1, "optimizer.weight_decay": 0.5})
    params = random_tree(0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    optimizer = make_optimizer(OptimizerConfig(schedule="none"), hyper)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    expected = {k: -0.05 * p if DECAYED[k] else 0.0 * p for k, p in by_path(params).items()}
    assert distance(by_path(updates), expected) < 1e-6


def test_a_parameter_without_gradient_stays_whatever_the_epsilon():
    """Unused rows of a table, a ReLU that is never on: 0 / (0 + epsilon) must be 0."""
    least = hyper_fields()["optimizer.epsilon"].metadata["minimum"]
    _, hyper = without_depth({"optimizer.epsilon": least})
    params = random_tree(0)
    optimizer = make_optimizer(OptimizerConfig(schedule="none"), hyper._replace(weight_decay=None))
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert all(np.array_equal(u, np.zeros_like(u)) for u in jax.tree.leaves(updates))


def test_the_optimizer_state_always_has_two_moments_and_counts():
    _, hyper = without_depth()
    params = random_tree(0)
    for clip_norm in (None, 1.0):
        for weight_decay in (None, 0.1):
            state = make_optimizer(
                OptimizerConfig(schedule="linear"), hyper._replace(clip_norm=clip_norm, weight_decay=weight_decay)
            ).init(params)
            leaves = jax.tree.leaves(state)
            assert len(leaves) == 2 + 2 * len(jax.tree.leaves(params))  # the counts of Adam and the schedule
            assert not any(np.any(leaf) for leaf in leaves)


# The other rules, in float64 NumPy: from memory, gradient, Hyper, number of the update and parameter to the step.


def sgd(memory, g, h, t, p, nesterov=False):
    memory["m"] = h.beta1 * memory.get("m", 0.0) + g
    return g + h.beta1 * memory["m"] if nesterov else memory["m"]


def lion(memory, g, h, t, p):
    """Chen et al. 2023, algorithm 2."""
    step = np.sign(h.beta1 * memory.get("m", 0.0) + (1 - h.beta1) * g)
    memory["m"] = h.beta2 * memory.get("m", 0.0) + (1 - h.beta2) * g
    return step


def adafactor(memory, g, h, t, p, exponent=0.8, relative=True):
    """Shazeer and Stern 2018, algorithms 4 and 5; the two largest axes are factored if both have 128 or more."""
    beta2, square = 1 - t**-exponent, g**2 + 1e-30
    axes = sorted(range(g.ndim), key=lambda axis: g.shape[axis])[-2:]
    if g.ndim > 1 and min(g.shape[axis] for axis in axes) >= 128:
        rows, columns = (square.mean(axis, keepdims=True) for axis in axes[::-1])
        memory["r"] = beta2 * memory.get("r", 0.0) + (1 - beta2) * rows
        memory["c"] = beta2 * memory.get("c", 0.0) + (1 - beta2) * columns
        v = memory["r"] * memory["c"] / memory["r"].mean(axes[0], keepdims=True)
    else:
        v = memory["v"] = beta2 * memory.get("v", 0.0) + (1 - beta2) * square
    step = g / np.sqrt(v)
    step = step / max(1.0, np.sqrt((step**2).mean()))
    return step * max(np.sqrt((p**2).mean()), 1e-3) if relative else step


RULES = {
    "sgd": (OptimizerConfig(name="sgd"), sgd),
    "sgd, nesterov": (OptimizerConfig(name="sgd", nesterov=True), functools.partial(sgd, nesterov=True)),
    "lion": (OptimizerConfig(name="lion"), lion),
    "adafactor": (OptimizerConfig(name="adafactor"), adafactor),
    "adafactor, absolute": (
        OptimizerConfig(name="adafactor", decay_exponent=0.5, scale_by_parameter=False),
        functools.partial(adafactor, exponent=0.5, relative=False),
    ),
}
FACTORED = {"layers": {"out": {"kernel": (2, 130, 128), "bias": (2, 3)}, "norm": {"scale": (2, 4)}}}


@pytest.mark.parametrize("mask", DECAY_MASKS)
@pytest.mark.parametrize("name", RULES)
def test_updates_equal_the_rule_in_numpy(name, mask, monkeypatch):
    static, rule = RULES[name]
    if name.startswith("adafactor"):
        monkeypatch.setitem(globals(), "SHAPES", FACTORED)
    static = dataclasses.replace(static, schedule="linear", decay_mask=mask)
    _, hyper = without_depth({"optimizer.learning_rate": 0.05, "optimizer.warmup_steps": 3})
    hyper = hyper._replace(clip_norm=None, weight_decay=0.4, beta1=0.8, beta2=0.9)

    @jax.jit
    def update(params, state, grads, hyper):
        updates, state = make_optimizer(static, hyper).update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    params = random_tree(0)
    origin = expected = {k: p.astype(np.float64) for k, p in by_path(params).items()}
    memories: dict[str, Any] = {k: {} for k in origin}
    state = make_optimizer(static, hyper).init(params)
    for t in (1, 2, 3, 4):
        grads = random_tree(t)
        params, state = update(params, state, grads, hyper)
        rate = float(learning_rate("linear", jnp.int32(t), hyper))
        wide = {k: g.astype(np.float64) for k, g in by_path(grads).items()}
        steps = {k: rule(memories[k], wide[k], hyper, t, p) + 0.4 * p * decays(mask, k) for k, p in expected.items()}
        expected = {k: p - rate * steps[k] for k, p in expected.items()}
        moved = {k: np.asarray(p, np.float64) - origin[k] for k, p in by_path(params).items()}
        assert distance(moved, {k: p - origin[k] for k, p in expected.items()}) < 1e-5


def decays(mask: str, path: str) -> bool:
    last = path.split("/")[-1]
    some = {"matrices": ("kernel",), "all_but_norms_and_biases": ("kernel", "embedding")}
    return mask == "all" or last in some[mask]


@pytest.mark.parametrize(
    ("fields", "narrow"),
    [
        ({"momentum_dtype": "bfloat16"}, {"mu"}),
        ({"momentum_dtype": "bfloat16", "second_moment_dtype": "bfloat16"}, {"mu", "nu"}),
        ({"name": "sgd", "momentum_dtype": "bfloat16"}, {"trace"}),
        ({"name": "lion", "momentum_dtype": "bfloat16"}, {"mu"}),
    ],
)
def test_moments_are_stored_in_the_type_that_the_config_names(fields, narrow):
    """Updates differ from those with float32 moments by their rounding."""
    _, hyper = without_depth()
    hyper = hyper._replace(clip_norm=None)
    params, grads = random_tree(0), [random_tree(t) for t in (1, 2, 3)]
    results = []
    for static in (OptimizerConfig(**fields), OptimizerConfig(name=fields.get("name", "adam"))):
        optimizer = make_optimizer(static, hyper)
        state = optimizer.init(params)
        structure = jax.tree.map(lambda x: (x.shape, x.dtype), state)
        for g in grads:
            updates, state = optimizer.update(g, state, params)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == structure
        found = {
            field
            for part in state
            for field in getattr(part, "_fields", ())
            if {leaf.dtype for leaf in jax.tree.leaves(getattr(part, field))} == {jnp.dtype("bfloat16")}
        }
        results.append((found, updates))
    (found, rounded), (nothing, exact) = results
    assert (found, nothing) == (narrow, set())
    if fields.get("name") != "lion":  # its updates are signs
        assert 1e-6 < distance(rounded, exact) < 0.02


@pytest.mark.parametrize("name", slow_but("adafactor", OPTIMIZERS))
def test_every_optimizer_trains_a_model_and_its_state_can_be_divided(name):
    """The loss falls; sharding rules exist for every array of the state."""
    fields = {"optimizer.name": name, "optimizer.learning_rate": 1.0 if name == "sgd" else 0.01}
    config = small_config({**fields, "optimizer.clip_norm": 1.0, "model.emb_dim": 128, "model.mlp_dim": 128})
    static, hyper = split(config)
    step, state = compiled_step(static), start(static, hyper)
    losses = []
    for _ in range(8):
        state, metrics = step(state, uneven_batch(), hyper)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.8 * losses[0]
    sizes = {"data": 2, "fsdp": 2, "tensor": 2}
    mesh = jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    # An even vocabulary can be divided.
    shapes = state_shapes(dataclasses.replace(static, model=dataclasses.replace(static.model, vocab_size=24)), hyper)
    places = shardings(shapes, parameter_axes(config.model), mesh)
    jax.tree.map(lambda leaf, place: place.shard_shape(leaf.shape), shapes, places)


# Configs that together have every kind of parameter; the last part of a parameter's name decides about decay.
OWNERS = [
    {},
    {"model.norm_position": "pre", "model.norm": "rmsnorm", "model.activation": "swiglu"},
    {"model.position_encoding": "learned", "model.share_embeddings": False, "model.tie_output": False},
    {"model.position_encoding": "relative", "model.use_bias": False},
]
BY_NAME = {"kernel": True, "bias": False, "scale": False, "embedding": False}


def shapes_of(overrides: dict[str, Any]) -> Any:
    model = split(small_config(overrides))[0].model
    return jax.eval_shape(lambda: init_params(model, 0))


@pytest.mark.parametrize("overrides", OWNERS, ids=lambda o: "-".join(map(str, o.values())) or "default")
def test_kernels_decay_and_nothing_else_does(overrides):
    params = shapes_of(overrides)
    mask = DECAY_MASKS["matrices"](params)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    for path, decays in by_path(mask).items():
        assert decays == BY_NAME[path.split("/")[-1]], path


def test_berts_exceptions_from_weight_decay():
    """The code of BERT excludes names with LayerNorm, layer_norm or bias, and decays all tables of embeddings."""
    model = dataclasses.replace(
        split(small_config())[0].model,
        architecture="encoder_only",
        embedding_norm=True,
        output_bias=True,
        token_types=2,
        position_encoding="learned",
    )
    params = jax.eval_shape(lambda: init_params(model, 0, MaskedLMHead(model)))
    mask = by_path(DECAY_MASKS["all_but_norms_and_biases"](params))
    excluded = {path for path, decays in mask.items() if not decays}
    assert excluded == {path for path in mask if "norm/" in path or path.endswith("bias")}
    tables = {"embedding", "encoder/position_embedding/learned", "encoder/type_embedding"}
    assert {f"{table}/embedding" for table in tables} | {"head/transform/kernel"} <= {*mask} - excluded
    assert {"head/output/bias", "head/norm/scale", "encoder/embedding_norm/bias"} <= excluded


def test_sinks_and_gains_of_queries_and_keys_do_not_decay():
    params = shapes_of({"model.qk_norm": "l2", "model.attention_sink": "learned", "model.position_encoding": "rotary"})
    attention = "decoder/layers/self_attention"
    for name in ("matrices", "all_but_norms_and_biases"):
        mask = by_path(DECAY_MASKS[name](params))
        assert not mask[f"{attention}/sinks"]
        assert not mask[f"{attention}/query_norm/scale"]


def test_the_mask_distinguishes_a_stacked_scale_from_a_matrix():
    params, mask = by_path(shapes_of({})), by_path(DECAY_MASKS["matrices"](shapes_of({})))
    scale, kernel = "encoder/layers/feed_forward_residual/norm/scale", "encoder/layers/feed_forward/out/kernel"
    assert params[scale].ndim == 2
    assert (mask[scale], mask[kernel], mask["embedding/embedding"]) == (False, True, False)
    assert by_path(DECAY_MASKS["matrices"](shapes_of({"model.tie_output": False})))["output/kernel"]


def test_the_mask_is_the_same_for_scanned_and_for_unstacked_layers():
    params = shapes_of({"model.num_decoder_layers": 3})
    mask = DECAY_MASKS["matrices"](params)
    assert DECAY_MASKS["matrices"](shapes_of({"model.num_decoder_layers": 3, "model.scan_layers": True})) == mask
    one_layer = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), params["decoder"]["layers"])
    assert DECAY_MASKS["matrices"](one_layer) == mask["decoder"]["layers"]
