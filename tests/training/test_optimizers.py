from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_support import distance, hyper_fields, small_config

from transformer_jax.models.architecture import init_params
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.optimizers import decayed, make_optimizer
from transformer_jax.training.schedules import learning_rate

SHAPES = {
    "embedding": {"embedding": (5, 4)},
    "layers": {"out": {"kernel": (2, 4, 3), "bias": (2, 3)}, "norm": {"scale": (2, 4), "bias": (2, 4)}},
}
DECAYED = {"embedding/embedding": False, "layers/norm/bias": False, "layers/norm/scale": False} | {
    "layers/out/kernel": True,
    "layers/out/bias": False,
}


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
    _, hyper = split(small_config({"optimizer.learning_rate": 0.05, "optimizer.warmup_steps": 3}))
    hyper = hyper._replace(clip_norm=clip_norm, weight_decay=weight_decay, epsilon=epsilon, beta1=0.8, beta2=0.9)

    @jax.jit
    def update(params: Any, state: Any, grads: Any, hyper: Hyper) -> Any:
        updates, state = make_optimizer("linear", hyper).update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    params = random_tree(0)
    origin = expected = {k: p.astype(np.float64) for k, p in by_path(params).items()}
    reference, state = Adam("linear", hyper), make_optimizer("linear", hyper).init(params)
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
    _, hyper = split(small_config())
    grads, params = random_tree(1, norm), random_tree(0)
    optimizer = make_optimizer("none", hyper._replace(clip_norm=1.0))
    _, state = optimizer.update(grads, optimizer.init(params), params)
    first_moment = next(s.mu for s in state if hasattr(s, "mu"))
    expected = jax.tree.map(lambda g: (1 - hyper.beta1) * g * scaled / norm, grads)
    assert distance(first_moment, expected) < 1e-6


def test_without_clipping_and_decay_the_gradient_is_unchanged():
    _, hyper = split(small_config())
    grads, params = random_tree(1, 50.0), random_tree(0)
    optimizer = make_optimizer("none", hyper._replace(clip_norm=None, weight_decay=None))
    updates, state = optimizer.update(grads, optimizer.init(params), params)
    first_moment = next(s.mu for s in state if hasattr(s, "mu"))
    assert distance(first_moment, jax.tree.map(lambda g: (1 - hyper.beta1) * g, grads)) < 1e-6
    assert distance(updates, jax.tree.map(lambda g: -hyper.learning_rate * np.sign(g), grads)) < 1e-5


def test_weight_decay_is_decoupled_and_times_the_learning_rate():
    """A kernel without gradient shrinks by rate * decay and nothing else moves, however large the moments are."""
    _, hyper = split(small_config({"optimizer.learning_rate": 0.1, "optimizer.weight_decay": 0.5}))
    params = random_tree(0)
    zeros = jax.tree.map(jnp.zeros_like, params)
    optimizer = make_optimizer("none", hyper)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    expected = {k: -0.05 * p if DECAYED[k] else 0.0 * p for k, p in by_path(params).items()}
    assert distance(by_path(updates), expected) < 1e-6


def test_a_parameter_without_gradient_stays_whatever_the_epsilon():
    """Unused rows of a table, a ReLU that is never on: 0 / (0 + epsilon) must be 0."""
    least = hyper_fields()["optimizer.epsilon"].metadata["minimum"]
    _, hyper = split(small_config({"optimizer.epsilon": least}))
    params = random_tree(0)
    optimizer = make_optimizer("none", hyper._replace(weight_decay=None))
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    assert all(np.array_equal(u, np.zeros_like(u)) for u in jax.tree.leaves(updates))


def test_the_optimizer_state_always_has_two_moments_and_counts():
    _, hyper = split(small_config())
    params = random_tree(0)
    for clip_norm in (None, 1.0):
        for weight_decay in (None, 0.1):
            state = make_optimizer("linear", hyper._replace(clip_norm=clip_norm, weight_decay=weight_decay)).init(
                params
            )
            leaves = jax.tree.leaves(state)
            assert len(leaves) == 2 + 2 * len(jax.tree.leaves(params))  # the counts of Adam and the schedule
            assert not any(np.any(leaf) for leaf in leaves)


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
    mask = decayed(params)
    assert jax.tree.structure(mask) == jax.tree.structure(params)
    for path, decays in by_path(mask).items():
        assert decays == BY_NAME[path.split("/")[-1]], path


def test_the_mask_distinguishes_a_stacked_scale_from_a_matrix():
    params, mask = by_path(shapes_of({})), by_path(decayed(shapes_of({})))
    scale, kernel = "encoder/layers/feed_forward_residual/norm/scale", "encoder/layers/feed_forward/out/kernel"
    assert params[scale].ndim == 2
    assert (mask[scale], mask[kernel], mask["embedding/embedding"]) == (False, True, False)
    assert by_path(decayed(shapes_of({"model.tie_output": False})))["output/kernel"]


def test_the_mask_is_the_same_for_scanned_and_for_unstacked_layers():
    params = shapes_of({"model.num_decoder_layers": 3})
    mask = decayed(params)
    assert decayed(shapes_of({"model.num_decoder_layers": 3, "model.scan_layers": True})) == mask
    one_layer = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), params["decoder"]["layers"])
    assert decayed(one_layer) == mask["decoder"]["layers"]
