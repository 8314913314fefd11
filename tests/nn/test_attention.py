import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, tiny

from transformer_jax.nn.attention import MultiHeadAttention, dot_product_attention
from transformer_jax.nn.dropout import Dropout, DropoutRates, keep_mask
from transformer_jax.nn.kv_cache import KeyValue, cache_layout, cached_attention
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.nn.softmax import masked_softmax

B, T, S, N, H, HV = 2, 3, 5, 4, 6, 7
RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def float64(*arrays):
    return [None if a is None else np.asarray(a, np.float64) for a in arrays]


def random_mask(*shape):
    mask = RNG.random(shape) < 0.5
    mask[..., 0] = True
    return jnp.asarray(mask)


MASKS = {
    "no mask": lambda: None,
    "mask of keys": lambda: random_mask(B, 1, 1, S),
    "mask of queries and keys": lambda: random_mask(1, 1, T, S),
    "mask of everything": lambda: random_mask(B, N, T, S),
    "queries without keys": lambda: random_mask(B, 1, T, S).at[0, :, 1].set(False).at[1].set(False),
}
BIASES = {"no bias": lambda: None, "bias": lambda: normal(B, N, T, S), "bias of the batch": lambda: normal(1, N, T, S)}


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_equals_a_loop_in_float64(kv_heads, mask, bias):
    query, key, value = normal(B, T, N, H), normal(B, S, kv_heads, H), normal(B, S, kv_heads, HV)
    mask, bias = MASKS[mask](), BIASES[bias]()
    for scale in (1.0, H**-0.5):
        output, weights = dot_product_attention(query, key, value, mask, bias, scale)
        expected, expected_weights = reference.attention(*float64(query, key, value), mask, *float64(bias), scale)
        assert_close(output, expected, 2e-6)
        assert_close(weights, expected_weights, 2e-6)


def test_shared_heads_are_neighbours():
    """Query heads 0 and 1 read key head 0, heads 2 and 3 key head 1: repeating the keys gives the same."""
    query, key, value = normal(B, T, 4, H), normal(B, S, 2, H), normal(B, S, 2, HV)
    shared, _ = dot_product_attention(query, key, value)
    repeated, _ = dot_product_attention(query, jnp.repeat(key, 2, axis=2), jnp.repeat(value, 2, axis=2))
    assert_close(shared, repeated, 1e-6)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_dropout_applies_to_the_weights_but_not_to_the_returned_ones(kv_heads):
    query, key, value = normal(B, T, N, H), normal(B, S, kv_heads, H), normal(B, S, kv_heads, HV)
    dropout = Dropout(jnp.uint32(9), jnp.arange(B), DropoutRates(residual=0.9, attention=0.3))
    output, weights = dot_product_attention(query, key, value, scale=0.5, dropout=dropout)
    keep = np.asarray(keep_mask(dropout.seed, dropout.row_ids, (B, N, T, S), 0.3))
    assert 0 < keep.sum() < keep.size
    expected, expected_weights = reference.attention(
        *float64(query, key, value), scale=0.5, drop=lambda w, place: {"attention": w * keep / 0.7}[place]
    )
    assert_close(output, expected, 2e-6)
    assert_close(weights, expected_weights, 2e-6)


def test_masked_softmax_literal():
    logits = jnp.log(jnp.array([[1.0, 3.0, 4.0], [2.0, 2.0, 6.0], [5.0, 6.0, 7.0]]))
    mask = jnp.array([[True, True, False], [True, True, True], [False, False, False]])
    assert_close(masked_softmax(logits, mask), [[0.25, 0.75, 0], [0.2, 0.2, 0.6], [0, 0, 0]], 1e-6)
    assert_close(masked_softmax(logits, None)[0], [0.125, 0.375, 0.5], 1e-6)


@pytest.mark.parametrize("hidden", [1e30, np.inf, np.nan])
def test_masked_keys_have_no_influence(hidden):
    """The weight is exactly zero for every logit, even if a cache or a padded row contains garbage."""
    logits = jnp.array([[1.0, 2.0, 0.5]])
    mask = jnp.array([[True, True, False]])
    weights = masked_softmax(logits.at[0, 2].set(hidden), mask)
    assert weights[0, 2] == 0
    np.testing.assert_array_equal(weights, masked_softmax(logits, mask))
    assert_close(weights[0, :2], masked_softmax(logits[:, :2], None)[0], 1e-6)


def test_large_logits_do_not_overflow():
    weights = masked_softmax(jnp.array([[1e5, 1e5 - 1, -1e5]]), jnp.ones((1, 3), bool))
    assert_close(weights, [[1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0]], 1e-6)
    # A masked logit is smaller than any allowed one.
    weights = masked_softmax(jnp.array([[-1e5, -1e5 - 1, 0.0]]), jnp.array([[True, True, False]]))
    assert_close(weights, [[1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0]], 1e-6)


def test_a_query_without_keys_gets_zeros_and_passes_no_gradient():
    query, key, value, bias = normal(1, T, N, H), normal(1, S, N, H), normal(1, S, N, HV), normal(1, N, T, S)
    mask = jnp.ones((1, 1, T, S), bool).at[:, :, 1].set(False)

    weight = normal(1, T, N, HV)

    def output(query, key, value, bias):
        return dot_product_attention(query, key, value, mask, bias)[0]

    def of_row(row):
        def f(*args):
            return (output(*args) * weight)[:, row].sum()

        return jax.jit(jax.grad(f, argnums=(0, 1, 2, 3)))(query, key, value, bias)

    with jax.debug_nans(True):  # not even in intermediate values
        assert not np.any(output(query, key, value, bias)[:, 1])
    for gradient in of_row(1):
        np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))
    for gradient in of_row(0):
        assert np.isfinite(gradient).all()
        assert np.any(gradient)


def test_masked_keys_and_values_get_exactly_zero_gradient():
    query, key, value = normal(B, T, N, H), normal(B, S, N, H), normal(B, S, N, HV)
    mask = jnp.ones((B, 1, 1, S), bool).at[0, ..., 3].set(False)
    gradients = jax.grad(lambda *kv: jnp.square(dot_product_attention(query, *kv, mask)[0]).sum(), (0, 1))
    for gradient in jax.jit(gradients)(key, value):
        assert not np.any(gradient[0, 3])
        assert np.all(np.any(gradient[1], axis=(1, 2)))


def primitives(jaxpr):
    """Yield every equation of a jaxpr and of nested ones."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from primitives(inner)


def test_bfloat16_logits_are_not_rounded():
    """The weights equal those of the rounded operands; logits near 100 rounded to 8 bits would be off by 0.25."""
    query, key, value = ((8.0 * normal(B, T, N, H)).astype(jnp.bfloat16) for _ in range(3))
    wide = [x.astype(jnp.float32) for x in (query, key, value)]
    _, weights = dot_product_attention(query, key, value)
    _, expected = dot_product_attention(*wide)
    assert_close(weights, expected, 2.0**-8)


def test_bfloat16_attention_has_a_float32_softmax():
    query, key, value = (normal(B, T, N, H).astype(jnp.bfloat16) for _ in range(3))
    mask = jnp.ones((1, 1, T, T), bool)
    equations = list(primitives(jax.make_jaxpr(dot_product_attention)(query, key, value, mask).jaxpr))
    for equation in equations:
        if equation.primitive.name in ("exp", "div", "reduce_sum"):
            assert equation.invars[0].aval.dtype == jnp.float32, equation
    assert "exp" in {equation.primitive.name for equation in equations}
    output, weights = dot_product_attention(query, key, value, mask)
    assert output.dtype == weights.dtype == jnp.bfloat16
    expected, _ = reference.attention(*float64(query, key, value))
    assert_close(output, expected, 0.03)


@pytest.mark.parametrize("attention_scale", [True, False])
@pytest.mark.parametrize("position_encoding", ["none", "rotary"])
def test_multi_head_attention_equals_its_equation(position_encoding, attention_scale):
    config = tiny(
        position_encoding=position_encoding,
        attention_scale=attention_scale,
        num_kv_heads=2,
        head_dim=6,
        value_head_dim=3,
        rotary_base=100.0,
    )
    params = {
        "query": {"kernel": normal(16, 4, 6), "bias": normal(4, 6)},
        "key": {"kernel": normal(16, 2, 6), "bias": normal(2, 6)},
        "value": {"kernel": normal(16, 2, 3), "bias": normal(2, 3)},
        "out": {"kernel": normal(4, 3, 16), "bias": normal(16)},
    }
    params = jax.tree.map(lambda p: p / 3, params)
    x, memory = normal(B, T, 16), normal(B, S, 16)
    positions, mask = jnp.array([[0, 1, 2], [4, 2, 3]]), random_mask(B, 1, T, T)
    module = MultiHeadAttention(config, 2, return_weights=True)
    model = reference.Model(config, None)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def self_attention(module, x):
        query, tokens = module.project(x, positions)
        return module.attend(query, tokens, AttentionMask(mask), None, None)

    own, own_weights = module.apply({"params": params}, x, method=self_attention)
    expected, expected_weights = model.heads(config, p, *float64(x, x), np.asarray(positions), mask, None)
    assert_close(own, expected, 2e-6)
    assert_close(own_weights, expected_weights, 2e-6)

    def cross_attention(module, x, memory):
        tokens = module.project_memory(memory)
        return module.attend(module.query(x), tokens, AttentionMask(mask_of_keys), None, None)

    mask_of_keys = random_mask(B, 1, 1, S)
    expected, expected_weights = model.heads(config, p, *float64(x, memory), None, mask_of_keys, None)
    read, read_weights = module.apply({"params": params}, x, memory, method=cross_attention)
    assert_close(read, expected, 2e-6)  # no rotation: target and source positions have no common origin
    assert_close(read_weights, expected_weights, 2e-6)


def test_the_key_bias_has_no_effect():
    config = tiny(position_encoding="none")
    x, positions = normal(B, T, 16), jnp.arange(T)[None]
    module = MultiHeadAttention(config, 2)

    def self_attention(module, x):
        return module.attend(*module.project(x, positions), None, None, None)[0]

    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, method=self_attention))
    params = jax.tree.map(lambda s: normal(*s.shape), shapes)

    def loss(params):
        return jnp.square(module.apply(params, x, method=self_attention)).sum()

    gradient = jax.jit(jax.grad(loss))(params)["params"]
    sizes = {name: float(np.abs(g["bias"]).max()) for name, g in gradient.items()}
    assert sizes["key"] < 1e-5 * sizes["query"]


@pytest.mark.parametrize("length", [1, 3, 20])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_over_a_cache_is_attention(length, kv_heads):
    random = np.random.default_rng(length)
    query, key, value = (
        jnp.asarray(random.standard_normal((2, size, heads, width)), jnp.float32)
        for size, heads, width in ((length, 4, 6), (9, kv_heads, 6), (9, kv_heads, 5))
    )
    mask = jnp.asarray(random.random((2, 1, length, 9)) < 0.6).at[0, 0, 0].set(False)
    bias = jnp.asarray(random.standard_normal((1, 4, length, 9)), jnp.float32)
    cache = cache_layout(KeyValue(key, value))
    for options in ({}, {"mask": mask}, {"mask": mask, "bias": bias, "scale": 0.3}):
        expected, _ = dot_product_attention(query, key, value, **options)
        assert_close(jax.jit(functools.partial(cached_attention, **options))(query, cache), expected, 1e-6)
