import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, slow_but, tiny

from transformer_jax.config.model import WITHOUT_HEAD_GAINS
from transformer_jax.nn import positions
from transformer_jax.nn.attention import QK_NORMS, MultiHeadAttention, dot_product_attention, key_bias_matters
from transformer_jax.nn.dropout import Dropout, DropoutRates, keep_mask
from transformer_jax.nn.kv_cache import KeyValue, cache_layout, cached_attention
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.nn.places import Visit, visit
from transformer_jax.nn.positions import ENCODINGS, LinearBias
from transformer_jax.nn.softmax import attention_weights, masked_softmax

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
    module = MultiHeadAttention(config, 2)
    model = reference.Model(config, None)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def self_attention(module, x):
        query, tokens = module.project(x, positions)
        return module.attend(query, tokens, AttentionMask(mask), None, None)

    def applied(method, *inputs):
        """Return the output and the attention weights."""
        with visit(Visit(["weights"])) as visited:
            return module.apply({"params": params}, *inputs, method=method), visited.found["weights"]

    own, own_weights = applied(self_attention, x)
    expected, expected_weights = model.heads(config, p, *float64(x, x), np.asarray(positions), mask, None)
    assert_close(own, expected, 2e-6)
    assert_close(own_weights, expected_weights, 2e-6)

    def cross_attention(module, x, memory):
        tokens = module.project_memory(memory)
        return module.attend(module.query(x), tokens, AttentionMask(mask_of_keys), None, None)

    mask_of_keys = random_mask(B, 1, 1, S)
    expected, expected_weights = model.heads(config, p, *float64(x, memory), None, mask_of_keys, None)
    read, read_weights = applied(cross_attention, x, memory)
    assert_close(read, expected, 2e-6)  # no rotation: target and source positions have no common origin
    assert_close(read_weights, expected_weights, 2e-6)


KEY_BIAS = {
    "plain": {},
    "linear biases": {"position_encoding": "alibi"},
    "rotary": {"position_encoding": "rotary"},
    "rotary, no width": {"position_encoding": "rotary", "rotary_fraction": 0.0},
    "norm": {"qk_norm": "rms_full"},
    "cap": {"attention_logit_cap": 1.0},
    "sink": {"attention_sink": "zero"},
}


@pytest.mark.parametrize("fields", slow_but(KEY_BIAS["plain"], KEY_BIAS.values()), ids=str)
def test_whether_the_key_bias_has_an_effect(fields):
    """In the plain softmax the logits of a query all get the same number from it."""
    config = tiny(**{"position_encoding": "none", **fields})
    x, positions = normal(B, T, 16), jnp.arange(T)[None]
    module = MultiHeadAttention(config, 2)
    make_bias = ENCODINGS[config.position_encoding].bias
    bias = None if make_bias is None else make_bias(config, True).apply({}, positions, positions)

    def self_attention(module, x):
        return module.attend(*module.project(x, positions), None, bias, None)

    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), x, method=self_attention))
    params = jax.tree.map(lambda s: normal(*s.shape), shapes)

    def loss(params):
        return jnp.square(module.apply(params, x, method=self_attention)).sum()

    gradient = jax.jit(jax.grad(loss))(params)["params"]
    sizes = {name: float(np.abs(gradient[name]["bias"]).max()) for name in ("query", "key")}
    assert key_bias_matters(config) == (
        fields not in [KEY_BIAS[n] for n in ("plain", "linear biases", "rotary, no width")]
    )
    assert (sizes["key"] > 1e-5 * sizes["query"]) == key_bias_matters(config)


def softened(logits, **options):
    """Return the weights of one query with these logits."""
    return attention_weights(jnp.asarray(logits)[None, None, None], None, None, **options)[0, 0, 0]


@pytest.mark.parametrize(
    ("cap", "logit", "expected"),
    [(50.0, 30.0, 26.852478), (50.0, 50.0, 38.079708), (50.0, 100.0, 48.201379), (15.0, 5.0, 4.822691),
     (15.0, 15.0, 11.423912)],
)  # fmt: skip
def test_bounded_logits_by_hand(cap, logit, expected):
    """The ratio of two weights is that of the exponentials of their logits."""
    weights = softened([logit, 0.0], cap=cap)
    assert float(jnp.log(weights[0] / weights[1])) == pytest.approx(expected, rel=1e-6)


def test_a_bound_far_away_is_none_and_comes_before_the_mask():
    logits, bias = 4 * normal(1, 2, T, S), normal(1, 2, T, S)
    mask = random_mask(1, 1, T, S)
    plain = attention_weights(logits, mask, bias)
    assert_close(attention_weights(logits, mask, bias, cap=1e6), plain, 1e-6)
    bounded = attention_weights(logits, mask, bias, cap=0.5)
    assert not np.asarray(bounded)[~np.broadcast_to(mask, bounded.shape)].any()
    expected = attention_weights(0.5 * jnp.tanh((logits + bias) / 0.5), mask, None)
    assert_close(bounded, expected, 1e-6)


def test_sinks_by_hand():
    with jax.enable_x64(True):
        logits = np.array([1.0, 0.0])
        assert_close(softened(logits, sinks=jnp.array([0.0])), [0.576117, 0.211942], 1e-6)
        plain = softened(logits)
        assert_close(softened(logits, sinks=jnp.array([-30.0])), plain, 1e-9)
        for sink in (-1.0, 2.5):  # o_plain * sigmoid(logsumexp - s)
            factor = 1 / (1 + np.exp(sink - np.log(np.exp(logits).sum())))
            assert_close(softened(logits, sinks=jnp.array([sink])), plain * factor, 1e-12)


def test_a_sink_is_a_key_without_a_value():
    """One more key of zeros, whose value is zero, has the logit 0."""
    query, key, value = normal(B, T, N, H), normal(B, S, N, H), normal(B, S, N, HV)
    mask = random_mask(B, 1, T, S).at[0, :, 1].set(False)
    longer = [jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0))) for x in (key, value)]
    wider = jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=True)
    expected, _ = dot_product_attention(query, *longer, wider)
    found, weights = dot_product_attention(query, key, value, mask, sinks=jnp.zeros(N))
    assert_close(found, expected, 1e-6)
    assert (np.asarray(weights).sum(-1) < 1).all()
    assert not np.any(found[0, 1])


NORMS = ("rms", "rms_full", "layernorm", "l2")


def test_the_config_knows_which_norms_of_heads_have_gains():
    without = {name for name, norm in QK_NORMS.items() if norm is None or norm.learns_scale}
    assert without == {*WITHOUT_HEAD_GAINS}
    assert {*NORMS} == {name for name, norm in QK_NORMS.items() if norm is not None}


def of_tokens(config, params, x):
    """Return the output [B, T, D] of self-attention over x, its queries and its keys."""
    module = MultiHeadAttention(config, 2)

    def self_attention(module):
        query, tokens = module.project(x, jnp.arange(x.shape[1])[None])
        return module.attend(query, tokens, None, None, None), query, tokens.key

    return module.apply({"params": params}, method=self_attention)


def random_attention(config):
    """Return random parameters of one attention."""
    rng, module = np.random.default_rng(5), MultiHeadAttention(config, 2)

    def self_attention(module):
        query, tokens = module.project(jnp.zeros((1, 2, 16)), jnp.zeros((1, 2), jnp.int32))
        return module.attend(query, tokens, None, None, None)

    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), method=self_attention))
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape), jnp.float32), shapes["params"])


@pytest.mark.parametrize("name", NORMS)
def test_normalised_queries_do_not_depend_on_the_size_of_their_kernel(name):
    config = tiny(qk_norm=name, position_encoding="none", norm_epsilon=1e-12)
    params, x = random_attention(config), normal(B, T, 16)
    output, query, key = of_tokens(config, params, x)
    larger = {**params, "query": jax.tree.map(lambda p: 10 * p, params["query"])}
    assert_close(of_tokens(config, larger, x)[0], output, 1e-5)
    gains = [np.abs(params[f"{of}_norm"]["scale"]).max() for of in ("query", "key") if f"{of}_norm" in params]
    if name in ("rms", "layernorm"):  # a length of sqrt(H) before the gains
        logits = np.einsum("btnh,bsnh->bnts", query, key) / 2.0
        assert np.abs(logits).max() <= 2.0 * gains[0] * gains[1] * (1 + 1e-5)
    if name == "l2":
        assert (np.abs(np.einsum("btnh,bsnh->bnts", query, key)) <= gains[0] * (1 + 1e-5)).all()


def test_the_norm_before_and_after_the_rotation():
    """RMSNorm with equal gains commutes with the rotation; with others, and with LayerNorm's mean, it does not."""
    x = normal(B, T, 16)
    for name, gains, same in (("rms", 1.5, True), ("rms", None, False), ("layernorm", 1.5, False), ("l2", 2.0, True)):
        outputs = []
        for after in (False, True):
            config = tiny(position_encoding="rotary", qk_norm=name, qk_norm_after_rotation=after)
            params = random_attention(config)
            if gains is not None:
                for of in {"query_norm", "key_norm"} & {*params}:
                    params[of] = {"scale": jnp.full_like(params[of]["scale"], gains)}
            outputs.append(np.asarray(of_tokens(config, params, x)[0]))
        assert (np.abs(outputs[0] - outputs[1]).max() < 1e-4) == same, name


def test_a_rotation_of_no_dimension_is_no_positions():
    """Bit for bit: outputs, queries and keys. A rotation of half of them is something else."""
    x, plain = normal(B, T, 16), tiny(position_encoding="none")
    params = random_attention(plain)
    expected = of_tokens(plain, params, x)
    for fraction, same in ((0.0, True), (0.5, False)):
        found = of_tokens(tiny(position_encoding="rotary", rotary_fraction=fraction), params, x)
        assert [np.array_equal(*pair) for pair in zip(found, expected, strict=True)] == [same] * 3


def test_linear_biases_with_slopes_of_0_are_no_positions(monkeypatch):
    """Bit for bit; with their own slopes they are something else."""
    query, key, value = normal(B, T, N, H), normal(B, T, N, H), normal(B, T, N, HV)
    expected, numbers = dot_product_attention(query, key, value).output, jnp.arange(T)[None]
    assert tiny().num_heads == N
    for slopes, same in ((None, False), ((0.0,) * N, True)):
        if slopes is not None:
            monkeypatch.setattr(positions, "alibi_slopes", lambda heads, slopes=slopes: slopes)
        bias = LinearBias(tiny(position_encoding="alibi"), True).apply({}, numbers, numbers)
        found = dot_product_attention(query, key, value, bias=bias).output
        assert np.array_equal(found, expected) == same


def test_the_learned_scale_begins_at_10_and_a_sink_at_0():
    config = tiny(qk_norm="l2", attention_sink="learned", position_encoding="none")
    module = MultiHeadAttention(config, 2)
    params = jax.jit(
        lambda: module.init(jax.random.key(0), normal(1, 2, 16), method=MultiHeadAttention.project_query)
    )()
    np.testing.assert_array_equal(params["params"]["query_norm"]["scale"], np.full(4, 10.0))
    np.testing.assert_array_equal(params["params"]["sinks"], np.zeros(4))


def test_a_multiplier_of_one_by_the_root_is_the_default():
    x, plain = normal(B, T, 16), tiny(position_encoding="none")
    params = random_attention(plain)
    for scale in (True, False):
        given = tiny(position_encoding="none", attention_multiplier=0.5, attention_scale=scale)
        assert_close(of_tokens(given, params, x)[0], of_tokens(plain, params, x)[0], 1e-6)
    other = tiny(position_encoding="none", attention_multiplier=0.4)
    assert np.abs(of_tokens(other, params, x)[0] - of_tokens(plain, params, x)[0]).max() > 1e-2


DIFFERENTIATED = (
    {"qk_norm": "rms_full", "attention_sink": "learned", "attention_logit_cap": 0.7, "rotary_fraction": 0.5},
    {"qk_norm": "l2", "attention_sink": "zero", "qk_norm_after_rotation": True},
    {"qk_norm": "layernorm", "attention_multiplier": 0.3},
)


@pytest.mark.parametrize("fields", slow_but(DIFFERENTIATED[0], DIFFERENTIATED), ids=lambda fields: fields["qk_norm"])
def test_gradients_equal_finite_differences_in_float64(fields):
    """Of the reference, which computes in float64."""
    config = tiny(position_encoding="rotary", num_kv_heads=2, **fields)
    params, x = random_attention(config), normal(1, T, 16)
    model, x64 = reference.Model(config, None), np.asarray(x, np.float64)
    leaves, tree = jax.tree.flatten(params)
    gradient = jax.tree.leaves(jax.jit(jax.grad(lambda p: jnp.square(of_tokens(config, p, x)[0]).sum()))(params))

    def loss(number, step):
        arrays = [np.asarray(leaf, np.float64) for leaf in leaves]
        arrays[number] = arrays[number] + step
        output, _ = model.heads(config, jax.tree.unflatten(tree, arrays), x64, x64, np.arange(T)[None], None, None)
        return np.square(output).sum()

    for number, leaf in enumerate(leaves):
        direction = np.random.default_rng(number).normal(size=leaf.shape)
        expected = (loss(number, 1e-5 * direction) - loss(number, -1e-5 * direction)) / 2e-5
        found = (np.asarray(gradient[number], np.float64) * direction).sum()
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-3), number


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
    sinks = jnp.asarray(random.standard_normal(4), jnp.float32)
    everything = {"mask": mask, "bias": bias, "scale": 0.3, "cap": 0.8, "sinks": sinks}
    for options in ({}, {"mask": mask}, everything):
        expected, _ = dot_product_attention(query, key, value, **options)
        assert_close(jax.jit(functools.partial(cached_attention, **options))(query, cache), expected, 1e-6)
