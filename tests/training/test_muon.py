"""Muon against its numbers, NumPy in float64, and loops over matrices."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_support import compiled_step, distance, identical, read_by, small_config, start, uneven_batch

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import OptimizerConfig
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.nn.axes import Axes
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.muon import newton_schulz_flops, orthogonalised, routes, scale_by_muon
from transformer_jax.training.optimizers import make_optimizer, updates_made
from transformer_jax.training.state import state_shapes, state_template

TABLE = {
    "embedding/embedding": Axes(("vocab",), ("emb",)),
    r"layers\w*/query/kernel": Axes(("emb",), ("heads", None)),
    r"layers\w*/out/kernel": Axes(("heads", None), ("emb",)),
    r"layers\w*/experts/kernel": Axes(("emb",), ("mlp",)),
    r"layers\w*/router/kernel": Axes(("emb",), (None,)),
    r"layers\w*/norm/scale": Axes((), (None,)),
    "cell/kernel": Axes(("emb",), ("mlp",), (None,)),
}
# D = 6, N = 2, H = 2, E = 3, F = 9, two or one layers; a cell with inputs of 5, 4 gates and a state of 7.
SHAPES: dict[str, Any] = {
    "embedding": {"embedding": (5, 6)},
    "decoder": {
        "layers": {"query": {"kernel": (2, 6, 2, 2)}, "out": {"kernel": (2, 2, 2, 6)}, "norm": {"scale": (2, 6)}},
        "layers_experts": {"experts": {"kernel": (1, 3, 6, 9)}, "router": {"kernel": (1, 6, 3)}},
    },
    "cell": {"kernel": (5, 4, 7)},
    "head": {"query": {"kernel": (6, 3)}},
}
MATRICES = {
    "decoder/layers/query/kernel",
    "decoder/layers/out/kernel",
    "decoder/layers_experts/experts/kernel",
    "cell/kernel",
}


def random_tree(seed: int, dtype: Any = np.float64) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: rng.standard_normal(shape).astype(dtype), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )


def by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def hyper_of(**fields: Any) -> tuple[OptimizerConfig, Hyper]:
    others = {"optimizer.layer_decay": 1.0, **{f"optimizer.{name}": value for name, value in fields.items()}}
    static, hyper = split(small_config({"optimizer.name": "muon", **others}))
    return static.optimizer, hyper


def newton_schulz(x: np.ndarray) -> np.ndarray:
    """The iteration on singular values, which the matrix products leave apart: U p(p(...S)) V^T."""
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    s = s / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ vt


def in_matrices(path: str, x: np.ndarray, scale: str) -> np.ndarray:
    """Return the update of an array u by a loop over its matrices, written out for every shape."""

    def one(matrix: np.ndarray) -> np.ndarray:
        inputs, outputs = matrix.shape
        factors = {"rms": 0.2 * math.sqrt(max(inputs, outputs)), "spectral": math.sqrt(max(1, outputs / inputs))}
        return factors[scale] * newton_schulz(matrix)

    if path.endswith("query/kernel"):
        return np.stack([one(layer.reshape(6, 4)).reshape(6, 2, 2) for layer in x])
    if path.endswith("out/kernel"):
        return np.stack([one(layer.reshape(4, 6)).reshape(2, 2, 6) for layer in x])
    if path.endswith("experts/kernel"):
        return np.stack([np.stack([one(expert) for expert in layer]) for layer in x])
    return np.stack([one(x[:, gate]) for gate in range(4)], axis=1)


# Jordan et al. 2024, five steps: a singular value of a matrix with norm 1, and what it becomes.
SINGULAR_VALUES = {1.0: 0.69644, 0.894427: 0.68876, 0.447214: 1.11416, 0.1: 0.71212, 0.01: 0.69892, 0.001: 0.47054}


def test_singular_values_become_those_of_the_polynomial():
    """Diagonal matrices; the last two are diag(2, 1), and zeros, which stay."""
    values = np.array([[s, math.sqrt(1 - s**2)] for s in SINGULAR_VALUES] + [[2, 1], [0, 0]], np.float32)
    y = np.asarray(jax.jit(orthogonalised)(values[:, :, None] * np.eye(2, dtype=np.float32)))
    found = np.diagonal(y, axis1=1, axis2=2)
    np.testing.assert_allclose(found[: len(SINGULAR_VALUES), 0], list(SINGULAR_VALUES.values()), atol=1e-5)
    np.testing.assert_allclose(found[-2], [0.68876, 1.11416], atol=1e-5)
    np.testing.assert_allclose(y[:, 0, 1], 0.0, atol=1e-6)
    assert not y[-1].any()


@pytest.mark.parametrize(
    ("scale", "dtype", "tolerance"),
    [("rms", np.float64, 1e-10), ("spectral", np.float64, 1e-10), ("rms", np.float32, 5e-5)],
)
def test_stacked_arrays_are_updated_matrix_by_matrix(scale, dtype, tolerance):
    """Layers, experts and gates one by one; the heads of a layer as one matrix. Two updates with momentum."""
    with jax.enable_x64(dtype == np.float64):
        rule = scale_by_muon(0.9, scale, TABLE)
        trees = [{p: g for p, g in by_path(random_tree(seed, dtype)).items() if p in MATRICES} for seed in (1, 2)]
        state, update = rule.init(trees[0]), jax.jit(rule.update)
        for grads in trees:
            updates, state = update(grads, state)
    first, second = ({p: g.astype(np.float64) for p, g in tree.items()} for tree in trees)
    for path in MATRICES:
        momentum = 0.9 * 0.1 * first[path] + 0.1 * second[path]
        expected = in_matrices(path, 0.9 * momentum + 0.1 * second[path], scale)
        assert updates[path].dtype == dtype
        assert distance(updates[path], expected) < tolerance, path


# torch.optim.Muon of PyTorch 2.14.1, which iterates in bfloat16: the first update of a parameter of zeros with lr=1,
# without decay, for the gradient of `test_an_update_of_pytorch` transposed. adjust_lr_fn: original, match_rms_adamw.
PYTORCH = {
    ("spectral", (4, 6)): [
        [0.443, -0.474, 0.299, 0.309, -0.529, -0.349],
        [0.366, 0.689, -0.239, -0.004, -0.627, -0.286],
        [-0.419, 0.371, 0.746, 0.349, -0.431, 0.293],
        [0.354, -0.050, -0.550, 1.009, -0.195, 0.414],
    ],
    ("spectral", (6, 4)): [
        [0.357, -0.248, 0.320, 0.369],
        [0.508, 0.547, -0.022, 0.089],
        [-0.330, 0.239, 0.652, 0.418],
        [0.236, 0.007, -0.451, 0.820],
        [0.275, -0.395, 0.645, 0.028],
        [-0.270, 0.617, 0.146, -0.035],
    ],
    ("rms", (4, 6)): [
        [0.177, -0.189, 0.120, 0.123, -0.211, -0.140],
        [0.146, 0.276, -0.096, -0.001, -0.251, -0.114],
        [-0.167, 0.148, 0.299, 0.140, -0.172, 0.117],
        [0.142, -0.020, -0.220, 0.404, -0.078, 0.166],
    ],
}


def test_an_update_of_pytorch():
    """Up to the rounding of bfloat16; all in one program."""
    table = {"kernel": Axes(("emb",), ("mlp",))}

    def first_update(scale: str, shape: tuple[int, ...]) -> Any:
        row, column = np.indices(shape)
        grads = (7 * row + 3 * column + row * column) % 11 - 5 + 8 * (row == column)
        params = {"kernel": jnp.asarray(grads, jnp.float32)}
        rule = scale_by_muon(0.95, scale, table)
        return rule.update(params, rule.init(params))[0]["kernel"]

    found = jax.jit(lambda: [first_update(*case) for case in PYTORCH])()
    for update, expected in zip(found, PYTORCH.values(), strict=True):
        assert np.linalg.norm(update - np.array(expected)) < 0.02 * np.linalg.norm(np.array(expected))


def test_twenty_updates_equal_numpy():
    """The whole chain in float64: clipping, both rules, decay, schedule, the factor of Adam's rate.

    The learning rate is a product in float32 here too.
    """
    static, hyper = hyper_of(
        **{"schedule": "constant", "learning_rate": 0.05, "warmup_steps": 16, "weight_decay": 0.3, "clip_norm": 9.0},
        **{"muon_momentum": 0.8, "adam_rate_factor": 0.4, "beta2": 0.9},
    )
    decayed = {path for path in by_path(SHAPES_AS_ARRAYS) if path.endswith("kernel")}
    params = expected = by_path(random_tree(0))
    moments: dict[str, Any] = dict.fromkeys(params, (0.0, 0.0))
    clipped = 0
    with jax.enable_x64(True):
        optimizer = make_optimizer(static, hyper, axes=TABLE)

        @jax.jit
        def step(params, state, grads):
            updates, state = optimizer.update(grads, state, params)
            return jax.tree.map(jnp.add, params, updates), state

        tree = random_tree(0)
        state = optimizer.init(tree)
        for t in range(1, 21):
            tree, state = step(tree, state, random_tree(t))
            grads = by_path(random_tree(t))
            rate = float(np.float32(0.05) * np.float32(min(1.0, t / 16)))
            norm = math.sqrt(sum((g**2).sum() for g in grads.values()))
            clipped += norm > 9.0
            new = {}
            for path, g in grads.items():
                g = g * min(1.0, 9.0 / norm)
                m, v = moments[path]
                if path in MATRICES:
                    m = 0.8 * m + 0.2 * g
                    update, own = in_matrices(path, 0.8 * m + 0.2 * g, "rms"), rate
                else:
                    m, v = hyper.beta1 * m + (1 - hyper.beta1) * g, 0.9 * v + 0.1 * g**2
                    update = m / (1 - hyper.beta1**t) / (np.sqrt(v / (1 - 0.9**t)) + hyper.epsilon)
                    own = 0.4 * rate
                moments[path] = (m, v)
                new[path] = expected[path] - own * (update + (0.3 * expected[path] if path in decayed else 0.0))
            expected = new
        assert int(updates_made(state)) == 20
    assert clipped > 0
    moved = {path: np.asarray(x) - params[path] for path, x in by_path(tree).items()}
    assert distance(moved, {path: expected[path] - params[path] for path in params}) < 1e-10


SHAPES_AS_ARRAYS = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, np.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
)


# Where a parameter goes.


def test_routes():
    found = by_path(routes(SHAPES_AS_ARRAYS, TABLE))
    assert {path for path, rule in found.items() if rule == "muon"} == MATRICES
    assert set(found.values()) == {"muon", "adam"}


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        (
            {**TABLE, "norm/scale": Axes((), (None,))},
            ValueError,
            "^decoder/layers/norm/scale: expected one entry .* 2 entries match",
        ),
        ({"embedding/embedding": TABLE["embedding/embedding"]}, ValueError, r"^cell/kernel: .* none matches"),
        (None, ConfigError, r"Architecture\.parameter_axes"),
        ({".*": Axes(("vocab",), ("emb",))}, ConfigError, r"optimizer\.name='muon': no hidden matrix is trained"),
    ],
    ids=["two entries", "no entry", "no axes", "no matrices"],
)
def test_a_model_that_muon_cannot_route_is_refused(table, error, message):
    static, hyper = hyper_of()
    with pytest.raises(error, match=message):
        make_optimizer(static, hyper, axes=table).init(random_tree(0))


def test_frozen_matrices_leave_nothing_for_muon():
    static, hyper = hyper_of()
    for freeze, fails in (("cell,decoder/layers:1", False), ("cell,decoder", True)):
        optimizer = make_optimizer(dataclasses.replace(static, freeze=freeze), hyper, axes=TABLE)
        if fails:
            with pytest.raises(ConfigError, match="freeze less"):
                jax.eval_shape(optimizer.init, SHAPES_AS_ARRAYS)
            continue
        moments = by_path(jax.eval_shape(optimizer.init, SHAPES_AS_ARRAYS))
        [momentum] = [x.shape for path, x in moments.items() if path.endswith("momentum/decoder/layers/query/kernel")]
        assert momentum == (1, 6, 2, 2)
        assert not [path for path in moments if "cell" in path]


@pytest.mark.parametrize("name", ["muon_momentum", "muon_scale", "adam_rate_factor"])
def test_fields_of_muon_belong_to_muon(name):
    value = {"muon_momentum": 0.9, "muon_scale": "spectral", "adam_rate_factor": 0.5}[name]
    hyper_of(**{name: value})
    with pytest.raises(ConfigError, match=rf"optimizer\.{name}=.* only with .*muon"):
        small_config({f"optimizer.{name}": value})


def test_moments_are_stored_in_the_type_that_the_config_names():
    """Momentum of Muon and the first moment of Adam, within the partition."""
    static, hyper = hyper_of()
    narrow = dataclasses.replace(static, momentum_dtype="bfloat16")
    for config, dtype in ((static, "float32"), (narrow, "bfloat16")):
        optimizer = make_optimizer(config, hyper, axes=TABLE)
        state = jax.eval_shape(optimizer.init, SHAPES_AS_ARRAYS)
        _, after = jax.eval_shape(optimizer.update, SHAPES_AS_ARRAYS, state, SHAPES_AS_ARRAYS)
        assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, state)
        types = {path: str(x.dtype) for path, x in by_path(after).items() if x.ndim}
        assert {t for path, t in types.items() if "/momentum/" in path or "/mu/" in path} == {dtype}
        assert {t for path, t in types.items() if "/nu/" in path} == {"float32"}
        assert sum(math.prod(x.shape) for x in jax.tree.leaves(after) if x.ndim) == sum(
            (1 if path in MATRICES else 2) * math.prod(x.shape) for path, x in by_path(SHAPES_AS_ARRAYS).items()
        )


def test_trials_with_other_rates_share_a_program():
    static, base = hyper_of(adam_rate_factor=0.5)
    hypers = [
        base._replace(learning_rate=rate, muon_momentum=momentum, adam_rate_factor=factor)
        for rate, momentum, factor in ((1e-3, 0.9, 0.5), (1e-2, 0.5, 2.0))
    ]

    def two_updates(hyper):
        optimizer, params = make_optimizer(static, hyper, axes=TABLE), random_tree(0, np.float32)
        _, state = optimizer.update(random_tree(1, np.float32), optimizer.init(params), params)
        return optimizer.update(random_tree(2, np.float32), state, params)[0]

    stacked = jax.tree.map(lambda *x: np.stack(x), *hypers)
    found = jax.jit(jax.vmap(two_updates))(stacked)
    alone = jax.jit(two_updates)
    for number, hyper in enumerate(hypers):
        assert distance(jax.tree.map(lambda x, n=number: x[n], found), alone(hyper)) < 5e-5
    assert not identical(alone(hypers[0]), alone(hypers[1]))


def test_operations_of_a_matrix():
    """Literals: 5 (4 m^2 n + 2 m^3) for each matrix."""
    assert newton_schulz_flops((6, 9), Axes(("emb",), ("mlp",))) == 5 * (4 * 36 * 9 + 2 * 216)
    assert newton_schulz_flops((2, 2, 2, 6), TABLE[r"layers\w*/out/kernel"]) == 2 * 5 * (4 * 16 * 6 + 2 * 64)
    assert newton_schulz_flops((5, 4, 7), TABLE["cell/kernel"]) == 4 * 5 * (4 * 25 * 7 + 2 * 125)


def test_rates_by_layer_multiply_the_update():
    """That of layer l is the update without `layer_decay` times decay^(3 - l); the experts are layer 2."""
    static, hyper = hyper_of()
    params, grads = random_tree(0, np.float32), random_tree(1, np.float32)
    numbers, results = {"decoder/layers": (0, 1), "decoder/layers_experts": (2,)}, []
    for decay in (None, 0.5):
        optimizer = make_optimizer(static, hyper._replace(layer_decay=decay), numbers, TABLE)
        results.append(jax.jit(optimizer.update)(grads, optimizer.init(params), params)[0])
    plain, slower = (by_path(updates) for updates in results)
    factors = {"layers/query/kernel": [0.125, 0.25], "layers_experts/experts/kernel": [0.5]}
    for end, of_layers in factors.items():
        expected = plain[f"decoder/{end}"] * np.array(of_layers, np.float32).reshape(-1, 1, 1, 1)
        np.testing.assert_allclose(slower[f"decoder/{end}"], expected, rtol=1e-6)
    np.testing.assert_allclose(slower["cell/kernel"], plain["cell/kernel"], rtol=1e-6)


@pytest.mark.slow
def test_layers_of_several_kinds_are_stored_and_resumed_bit_for_bit(tmp_path):
    """In parts of a batch, with a momentum in bfloat16 and the first layer frozen; every trained matrix changes."""
    config = small_config(
        {
            **{"model.architecture": "decoder_only", "task.name": "language_model", "model.num_decoder_layers": 4},
            **{"model.num_encoder_layers": 6, "model.layer_pattern": "AGXA", "model.norm_position": "pre"},
            "model.layer_kinds": "G: mixer=gated_delta; X: mixer=gated_delta, feed_forward=experts; A:",
            **{"model.scan_layers": True, "training.accumulation_steps": 2, "optimizer.freeze": "decoder/layers:1"},
            **{"optimizer.name": "muon", "optimizer.momentum_dtype": "bfloat16"},
        }
    )
    static, hyper = split(config)
    first = state = start(static, hyper)
    batches = [read_by("decoder_only", uneven_batch((5, 1, 0, 4) * 4, seed=seed)) for seed in range(3)]
    for batch in batches[:2]:
        state, _ = compiled_step(static)(state, batch, hyper)
    with CheckpointStore(tmp_path) as store:
        store.save(2, state, {}, {})
        expected, _ = compiled_step(static)(state, batches[2], hyper)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    restored = CheckpointStore(tmp_path).restore(
        state_template(static, hyper, jax.tree.map(lambda _: device, state_shapes(static, hyper)))
    )
    assert identical(compiled_step(static)(restored.state, batches[2], hyper)[0], expected)
    before, rules = by_path(first.params), by_path(routes(first.params, parameter_axes(static.model)))
    for path, x in by_path(expected.params).items():
        frozen = 1 if path.startswith("decoder/layers/") else 0
        np.testing.assert_array_equal(x[:frozen], before[path][:frozen])
        if rules[path] == "muon":
            assert all((new != old).any() for new, old in zip(x[frozen:], before[path][frozen:], strict=True)), path
    assert sum(rule == "muon" for rule in rules.values()) == 6 + 9 + 9
