"""The gated delta rule: chunks, steps and a loop in float64 agree; padding, packing and hypotheses do not mix."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from flops_support import products
from support import assert_close, slow_but, tiny

from transformer_jax.nn.gated_delta import (
    CHUNK,
    LARGEST_RATE,
    PARAMETER_AXES,
    STEP_SIZES,
    TAPS,
    DeltaInputs,
    DeltaState,
    GatedDelta,
    activation_bytes,
    chunks_of,
    delta_chunks,
    delta_step,
    empty_state,
    forward_flops,
    short_convolution,
    unit_lower_inverse,
)
from transformer_jax.parallel.rules import shardings

B, N, H, HV = 2, 3, 4, 5
CONFIG = tiny(architecture="decoder_only", head_dim=6, value_head_dim=5)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def float64(tree):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), tree)


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def random_inputs(rng, length, log_decay=None, strength=None):
    """Return inputs of random unit keys; log decays down to -2 and strengths in (0, 1) by default."""
    query, key, value = (normal(rng, B, length, N, dim) for dim in (H, H, HV))
    log_decay = -2.0 * rng.random((B, length, N)) if log_decay is None else log_decay
    strength = rng.random((B, length, N)) if strength is None else strength
    return DeltaInputs(query, unit(key), value, jnp.float32(log_decay), jnp.float32(strength))


def expected_rule(memory, inputs):
    query, key, value, log_decay, strength = float64(inputs)
    return reference.gated_delta_rule(query, key, value, np.exp(log_decay), strength, float64(memory))


def stepwise(memory, inputs):
    """Return what `delta_chunks` returns, by `delta_step` token by token."""

    def step(memory, now):
        output, memory = delta_step(memory, now)
        return memory, output

    memory, outputs = jax.lax.scan(step, memory, jax.tree.map(lambda x: x.swapaxes(0, 1), inputs))
    return outputs.swapaxes(0, 1), memory


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(rule, memory, inputs):
    """Return outputs, the state, and the gradients of a sum in which every number of both has another weight."""

    def weighed(memory, inputs):
        results = rule(memory, inputs)
        return sum((x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)).sum() for x in results), results

    gradients, results = jax.grad(weighed, (0, 1), has_aux=True)(memory, inputs)
    return results, gradients


def check_rule(inputs, chunk, memory=None, tolerance=1e-5):
    """Check that chunks and steps equal the loop, and that their gradients are equal."""
    memory = normal(np.random.default_rng(9), B, N, H, HV) if memory is None else memory
    chunked, gradients = with_gradients(functools.partial(delta_chunks, chunk=chunk), memory, inputs)
    stepped, expected_gradients = with_gradients(stepwise, memory, inputs)
    for ours in (chunked, stepped):
        for x, expected in zip(ours, expected_rule(memory, inputs), strict=True):
            assert_close(x, expected, tolerance)
    for x, expected in zip(jax.tree.leaves(gradients), jax.tree.leaves(expected_gradients), strict=True):
        assert_close(x, expected, tolerance)


@pytest.mark.parametrize("chunk", slow_but(5, [1, 4, 5, CHUNK]))
def test_chunks_and_steps_equal_a_loop_in_float64(chunk):
    """13 tokens: 13 chunks of 1, 4 of 4 with 3 tokens of padding, 3 of 5 with 2, and one."""
    check_rule(random_inputs(np.random.default_rng(0), 13), chunk)


@pytest.mark.slow
def test_strong_and_weak_decays_keep_their_digits():
    """Decays of e^-200 and of 0 stand beside those of e^-.01, and every token overwrites what it answers to its key."""
    rng, length = np.random.default_rng(1), 150
    log_decay = np.where(rng.random((B, length, N)) < 0.2, -200.0, -0.01)
    log_decay[0, 70] = -np.inf
    strength = np.full((B, length, N), 1 - 1e-7)
    with jax.debug_nans(True):
        check_rule(random_inputs(rng, length, log_decay, strength), CHUNK)


def test_equal_keys_without_decay_keep_the_last_value():
    """The matrix to invert then has ones in its whole lower triangle."""
    rng, length = np.random.default_rng(2), 70
    inputs = random_inputs(rng, length, np.zeros((B, length, N)), np.ones((B, length, N)))
    key = jnp.broadcast_to(inputs.key[:, :1], inputs.key.shape)
    output, memory = jax.jit(delta_chunks)(normal(rng, B, N, H, HV), inputs._replace(key=key, query=key))
    assert_close(output, inputs.value)
    assert_close(jnp.einsum("bnhv,bnh->bnv", memory, key[:, -1]), inputs.value[:, -1])


def test_the_rule_with_literal_numbers():
    key = [[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]]
    value = [[1.0, 2.0], [3.0, -1.0], [0.0, 5.0]]
    strength, decay = [1.0, 0.5, 1.0], [1.0, 0.5, 1.0]
    states = ([[1.0, 2.0], [0.0, 0.0]], [[1.31, 0.52], [1.08, -0.64]], [[0.0, 5.0], [1.08, -0.64]])
    inputs = DeltaInputs(*(jnp.asarray(x)[None, :, None] for x in (key, key, value, np.log(decay), strength)))
    memory = jnp.zeros((1, 1, 2, 2))
    for t, expected in enumerate(states):
        output, memory = delta_step(memory, jax.tree.map(lambda x, t=t: x[:, t], inputs))
        assert_close(memory[0, 0], expected, 1e-6)
        assert_close(output[0, 0], np.array(key[t]) @ expected, 1e-6)
        first = jax.tree.map(lambda x, t=t: x[:, : t + 1], inputs)
        assert_close(delta_chunks(jnp.zeros((1, 1, 2, 2)), first)[1][0, 0], expected, 1e-6)


def test_orthonormal_keys_are_recalled_exactly():
    """Without decay and with strength 1, the state answers each of H keys with its value, also an overwritten one."""
    key = jnp.eye(H)[jnp.array([2, 0, 3, 1, 2])][None, :, None]  # key 2 twice
    value = normal(np.random.default_rng(3), 1, 5, 1, HV)
    inputs = DeltaInputs(key, key, value, jnp.zeros((1, 5, 1)), jnp.ones((1, 5, 1)))
    memory = delta_chunks(jnp.zeros((1, 1, H, HV)), inputs)[1]
    assert_close(memory[0, 0, jnp.array([0, 3, 1, 2])], value[0, 1:, 0], 1e-6)


@pytest.mark.parametrize(
    ("length", "expected"), [(0, (1, 1)), (1, (1, 1)), (64, (1, 64)), (65, (2, 33)), (128, (2, 64)), (300, (5, 60))]
)
def test_chunks_are_equal_and_hold_all_tokens(length, expected):
    assert chunks_of(length) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_the_inverse_and_its_gradient_equal_those_of_a_general_one(size):
    matrix, weights = (normal(np.random.default_rng(4), 2, 3, size, size) for _ in range(2))

    def general(matrix):
        return jnp.linalg.inv(jnp.tril(matrix, -1) + jnp.eye(size)[None, None])

    assert_close(unit_lower_inverse(matrix), general(matrix))
    ours, expected = (jax.grad(lambda m, f=f: (f(m) * weights).sum())(matrix) for f in (unit_lower_inverse, general))
    assert_close(ours, expected)


def test_the_convolution_with_literal_numbers():
    """The last tap reads the token itself, and a text does not read the one before it."""
    x = jnp.asarray([5.0, 7.0, 1.0, 2.0, 3.0]).reshape(1, 5, 1, 1)  # two tokens before, then three
    kernel = jnp.asarray([100.0, 10.0, 1.0]).reshape(3, 1, 1)
    assert short_convolution(x, kernel).ravel().tolist() == [571.0, 712.0, 123.0]
    begins = jnp.asarray([[False, True, False]])
    assert short_convolution(x, kernel, begins).ravel().tolist() == [571.0, 2.0, 23.0]
    assert short_convolution(x, kernel, jnp.asarray([[True, False, True]])).ravel().tolist() == [1.0, 12.0, 3.0]


def shapes_of(config, x):
    return jax.eval_shape(lambda x: GatedDelta(config, 4).init(jax.random.key(0), x, method="whole"), x)


@functools.cache
def random_params(config, seed=0):
    """Return parameters without zeros, with decays between about .4 and 1."""
    shapes = shapes_of(config, jnp.zeros((1, 1, config.emb_dim)))["params"]
    rng = np.random.default_rng(seed)

    def value(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        spread = {"decay/scale": 0.3, "decay/bias": 0.3, "convolution/kernel": 0.5}.get(name, 0.25)
        centre = {"decay/bias": -1.0, "norm/scale": 1.0}.get(name, 0.0)
        return jnp.asarray(centre + spread * rng.standard_normal(leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(value, shapes)


@functools.partial(jax.jit, static_argnames=("config", "method"))
def apply(config, params, *args, method="whole"):
    return GatedDelta(config, 4).apply({"params": params}, *args, method=method)


def texts(seed, *shape):
    return normal(np.random.default_rng(seed), *shape, CONFIG.emb_dim)


def start(rows, config=CONFIG):
    return empty_state(config, rows)


def expected_output(x, config=CONFIG):
    return reference.gated_delta(config, float64(random_params(config)), float64(x))


@pytest.mark.parametrize(
    "fields", [{}, {"use_bias": False, "value_head_dim": 11}], ids=["biases", "no biases, wide values"]
)
def test_the_module_equals_a_loop_in_float64(fields):
    config, x = tiny(head_dim=6, **{"value_head_dim": 5} | fields), texts(0, 2, 9)
    assert_close(apply(config, random_params(config), x), expected_output(x, config))


def test_reading_in_pieces_and_steps_equals_reading_at_once():
    x, params = texts(1, 2, 9), random_params(CONFIG)
    whole = apply(CONFIG, params, x, start(2), method="read_tokens")
    assert_close(whole.output, expected_output(x))
    outputs, state = [], start(2)
    for piece in (x[:, :2], x[:, 2:7]):  # the first is shorter than the convolution
        output, state = apply(CONFIG, params, piece, state, method="read_tokens")
        outputs.append(output)
    for t in (7, 8):
        output, state = apply(CONFIG, params, x[:, t : t + 1], state, method="step_tokens")
        outputs.append(output)
    assert_close(jnp.concatenate(outputs, axis=1), whole.output)
    jax.tree.map(assert_close, state, whole.state)


def test_reading_no_tokens_is_defined():
    x = jax.ShapeDtypeStruct((2, 0, CONFIG.emb_dim), jnp.float32)
    output, state = jax.eval_shape(
        lambda x, s: apply(CONFIG, random_params(CONFIG), x, s, method="read_tokens"), x, start(2)
    )
    assert output.shape == x.shape
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, start(2))


def test_padding_changes_nothing():
    """Rows of 6, 2 and no tokens: outputs, state, and all that follows equal those of the tokens alone."""
    x, more, params = texts(2, 3, 6), texts(3, 3, 4), random_params(CONFIG)
    lengths = (6, 2, 0)
    is_token = jnp.arange(6)[None] < jnp.asarray(lengths)[:, None]
    outputs, state = apply(
        CONFIG, params, jnp.where(is_token[..., None], x, jnp.nan), start(3), is_token, method="read_tokens"
    )
    following, _ = apply(CONFIG, params, more, state, method="read_tokens")
    for row, length in enumerate(lengths):
        expected = expected_output(jnp.concatenate([x[row : row + 1, :length], more[row : row + 1]], axis=1))[0]
        assert_close(outputs[row, :length], expected[:length])
        assert_close(following[row], expected[length:])
    for part in state:
        assert not part[2].any()


@pytest.mark.slow
def test_gradients_of_padding_are_zero_and_those_of_tokens_as_without_it():
    x, params = texts(4, 1, 8), random_params(CONFIG)

    @jax.jit
    def gradients(params, x, is_token):
        def loss(params, x):
            output = GatedDelta(CONFIG, 4).apply({"params": params}, x, is_token, method="whole")
            return (jnp.square(output) * is_token[..., None]).sum()

        return jax.grad(loss, (0, 1))(params, x)

    is_token = jnp.arange(8)[None] < 5
    of_params, of_x = gradients(params, x, is_token)
    alone_params, alone_x = gradients(params, x[:, :5], is_token[:, :5])
    assert not of_x[:, 5:].any()
    assert_close(of_x[:, :5], alone_x)
    jax.tree.map(assert_close, of_params, alone_params)
    assert all(np.abs(leaf).max() > 1e-4 for leaf in jax.tree.leaves(of_params))  # every parameter is read


def test_packed_texts_equal_those_alone_and_do_not_see_each_other():
    """Two chunks of 35 tokens; texts of 1 and 2 tokens are shorter than the convolution; 7 tokens of padding."""
    lengths, params = (1, 2, 40, 20), random_params(CONFIG)
    x, ends = texts(5, 1, 70), np.cumsum(lengths)
    segments = np.repeat([1, 2, 3, 4, 0], [*lengths, 7])[None]
    begins = jnp.asarray(np.isin(np.arange(70), [0, *ends]))[None]
    packed = apply(CONFIG, params, x, jnp.asarray(segments > 0), begins)
    for end, length in zip(ends, lengths, strict=True):
        assert_close(packed[:, end - length : end], expected_output(x[:, end - length : end]))

    third = jnp.asarray(segments == 3)

    @jax.jit
    def influence(x):
        """Return the gradient of the outputs of the third text."""
        outputs = functools.partial(GatedDelta(CONFIG, 4).apply, {"params": params}, method="whole")
        return jax.grad(lambda x: jnp.square(outputs(x, None, begins) * third[..., None]).sum())(x)

    gradient = np.asarray(influence(x)[0])
    np.testing.assert_array_equal(gradient.any(axis=-1), third[0])


@pytest.mark.slow
def test_extreme_gates_and_keys_stay_finite():
    """Maps a thousand times too large, and keys of zeros: outputs and gradients are finite, in bfloat16 too."""
    config = tiny(head_dim=6, value_head_dim=5, dtype="bfloat16")
    params = jax.tree.map(lambda p: 1000.0 * p, random_params(config))
    params["decay"]["scale"] = jnp.asarray([3.0, -80.0, 3.0, -80.0])  # no memory, and one without decay
    x = texts(6, 2, 70).astype(jnp.bfloat16).at[1].set(0.0)

    @jax.jit
    def gradients(params, x):
        def loss(params, x):
            output = GatedDelta(config, 4).apply({"params": params}, x, method="whole")
            return jnp.square(output.astype(jnp.float32)).mean(), output

        return jax.grad(loss, (0, 1), has_aux=True)(params, x)

    found, output = gradients(params, x)
    assert output.dtype == jnp.bfloat16
    for leaf in (output, *jax.tree.leaves(found)):
        assert np.isfinite(np.asarray(leaf, np.float32)).all()


@pytest.mark.slow
def test_bfloat16_rounds_only_maps_and_keeps_the_state_in_float32():
    config, params = tiny(head_dim=6, value_head_dim=5, dtype="bfloat16"), random_params(CONFIG)
    x = texts(7, 2, 9).astype(jnp.bfloat16)
    outputs, state = apply(config, params, x[:, :8], start(2, config), method="read_tokens")
    last, after = apply(config, params, x[:, 8:], state, method="step_tokens")
    assert outputs.dtype == last.dtype == after.tail.dtype == state.tail.dtype == jnp.bfloat16
    assert after.memory.dtype == state.memory.dtype == jnp.float32
    assert_close(jnp.concatenate([outputs, last], axis=1), expected_output(x), 0.03)


def test_hypotheses_do_not_mix_and_follow_their_parents():
    """Three hypotheses per row equal three texts by themselves, also after their states were gathered by parent."""
    prompt, params = texts(8, 2, 5), random_params(CONFIG)
    state = apply(CONFIG, params, prompt, start(2), method="read_tokens").state
    state = DeltaState(*(jnp.repeat(part, 3, axis=1) for part in state))
    first, second = texts(9, 2, 3), texts(10, 2, 3)
    one, state = apply(CONFIG, params, first, state, method="step_tokens")
    parents = jnp.asarray([[2, 0, 0], [1, 1, 2]])
    gathered = DeltaState(*(part[jnp.arange(2)[:, None], parents] for part in state))
    two, _ = apply(CONFIG, params, second, gathered, method="step_tokens")
    for row, width in np.ndindex(2, 3):
        history = jnp.stack([first[row, width]])[None]
        text = jnp.concatenate([prompt[row : row + 1], history], axis=1)
        assert_close(one[row, width], expected_output(text)[0, -1])
        history = jnp.stack([first[row, parents[row, width]], second[row, width]])[None]
        text = jnp.concatenate([prompt[row : row + 1], history], axis=1)
        assert_close(two[row, width], expected_output(text)[0, -1])


def test_a_sequence_is_read_from_one_hypothesis_only():
    state = DeltaState(*(jnp.repeat(part, 2, axis=1) for part in start(1)))
    with pytest.raises(ValueError, match="states of 2 hypotheses"):
        apply(CONFIG, random_params(CONFIG), texts(0, 1, 3), state, method="read_tokens")


def gradient_of(config, x):
    params = shapes_of(config, x)
    return jax.grad(lambda p, x: GatedDelta(config, 4).apply(p, x, method="whole").astype(jnp.float32).sum()), params


def elements(jaxpr):
    """Return the elements of all arrays that a program computes; those of a loop are counted once."""
    total = 0
    for equation in jaxpr.eqns:
        total += sum(v.aval.size for v in equation.outvars)
        for value in equation.params.values():
            if inner := getattr(value, "jaxpr", value if hasattr(value, "eqns") else None):
                total += elements(inner)
    return total


def test_memory_and_operations_of_training_grow_with_the_length_only():
    totals = []
    for length in (1024, 2048):
        x = jax.ShapeDtypeStruct((1, length, CONFIG.emb_dim), jnp.float32)
        gradient, params = gradient_of(CONFIG, x)
        jaxpr = jax.make_jaxpr(gradient)(params, x).jaxpr
        totals.append((elements(jaxpr), products(jaxpr)))
    for once, twice in zip(*totals, strict=True):
        assert once < twice <= 2 * once


@pytest.mark.parametrize("length", [1, 4, 32, 64, 128])
def test_flops_are_those_of_the_products(length):
    config = tiny(head_dim=6, value_head_dim=5, num_heads=3)
    x = jax.ShapeDtypeStruct((2, length, config.emb_dim), jnp.float32)
    params = shapes_of(config, x)
    forward = jax.make_jaxpr(functools.partial(GatedDelta(config, 4).apply, method="whole"))(params, x)
    assert 2 * length * forward_flops(config, length) == products(forward.jaxpr)


def test_flops_of_a_length_that_chunks_do_not_divide_are_rounded_down():
    """65 tokens are 2 chunks of 33, whose inverse has a row of 64."""
    config = tiny(head_dim=6, value_head_dim=5, num_heads=3)
    maps, chunks = 2 * 16 * (2 * 6 + 3 * 5 + 2), 33 * (6 * 6 + 4 * 5) + 6 * 6 * 5
    assert forward_flops(config, 65) == math.floor(3 * (maps + chunks + 2 * 64 * (64**2 - 1) / 3 / 33))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "length"), [("float32", 128), ("bfloat16", 32)])
def test_activations_are_about_what_the_compiler_allocates_per_looped_layer(dtype, length):
    config = tiny(emb_dim=128, head_dim=32, value_head_dim=48, dtype=dtype)
    rows, module = 1024 // length, GatedDelta(config, 4)
    x = jax.ShapeDtypeStruct((rows, length, 128), dtype)
    params = shapes_of(config, x)

    def allocated(layers):
        def loss(params, x):
            x, _ = jax.lax.scan(lambda x, own: (x + module.apply(own, x, method="whole"), None), x, params)
            return jnp.square(x.astype(jnp.float32)).sum()

        stacked = jax.tree.map(lambda p: jax.ShapeDtypeStruct((layers, *p.shape), p.dtype), params)
        return jax.jit(jax.grad(loss)).lower(stacked, x).compile().memory_analysis().temp_size_in_bytes

    per_layer = (allocated(5) - allocated(2)) / 3
    assert 0.6 < activation_bytes(config, length) * rows * length / per_layer < 1.3


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_training_can_be_lowered_for(platform):
    x = jax.ShapeDtypeStruct((2, 100, CONFIG.emb_dim), jnp.bfloat16)
    gradient, params = gradient_of(CONFIG, x)
    assert jax.export.export(jax.jit(gradient), platforms=[platform])(params, x).platforms == (platform,)


def test_logical_axes_fit_every_parameter():
    mesh = jax.sharding.AbstractMesh((2, 2), ("fsdp", "tensor"))
    params = jax.tree.map(lambda p: jax.ShapeDtypeStruct((7, *p.shape), p.dtype), random_params(CONFIG))  # 7 layers
    specs = jax.tree.map(lambda s: s.spec, shardings(params, PARAMETER_AXES, mesh))
    for path, spec in jax.tree_util.tree_leaves_with_path(specs, is_leaf=lambda s: not isinstance(s, dict)):
        *_, module, name = (key.key for key in path)
        shape = params[module][name].shape
        divided = {axis: shape[place] for place, axis in enumerate(spec) if axis is not None}
        expected = {"fsdp": CONFIG.emb_dim, "tensor": CONFIG.num_heads}
        if name != "kernel" or module == "convolution":
            del expected["fsdp"]
        if (module, name) in (("norm", "scale"), ("out", "bias")):
            expected = {}
        assert divided == expected, path


def test_initial_values():
    config = tiny(architecture="decoder_only", num_heads=2000, head_dim=1, init="normal", init_std=0.5)
    params = GatedDelta(config, 16).init(jax.random.key(0), jnp.zeros((1, 1, config.emb_dim)), method="whole")["params"]
    rates, steps = np.exp(params["decay"]["scale"]), np.log1p(np.exp(params["decay"]["bias"]))
    assert np.quantile(rates, [0.0, 0.5, 1.0]) == pytest.approx([0.0, LARGEST_RATE / 2, LARGEST_RATE], abs=0.5)
    assert np.quantile(steps, [0.0, 0.5, 1.0]) == pytest.approx([0.001, math.sqrt(0.001 * 0.1), 0.1], rel=0.1)
    assert STEP_SIZES[0] * 0.999 < steps.min() < steps.max() < STEP_SIZES[1] * 1.001
    for name, std in (("query", 0.5), ("decay", 0.5), ("convolution", 0.5), ("out", 0.125)):
        assert np.std(params[name]["kernel"]) == pytest.approx(std, rel=0.05)
    limit = (6 / (2 * TAPS)) ** 0.5  # glorot: each feature has TAPS inputs and serves TAPS outputs
    kernel = GatedDelta(CONFIG, 16).init(jax.random.key(0), jnp.zeros((1, 1, 16)), method="whole")["params"][
        "convolution"
    ]["kernel"]
    assert 0.9 * limit < np.abs(kernel).max() <= limit
