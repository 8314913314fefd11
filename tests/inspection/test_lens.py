"""Logit lens, ablation, patching and attribution: against GPT-2 in NumPy, and by what must hold for every model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpt2_support import NumpyGpt2, log_softmax
from support import assert_close, forward, make_batch, random_params, tiny

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.ablation import ablation_effects, log_prob, mean_loss
from transformer_jax.inspection.attribution import input_gradients, integrated_gradients, logit_attributions
from transformer_jax.inspection.lens import logit_lens, top_predictions
from transformer_jax.inspection.patching import patch_effects
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import without_heads

IDS, OTHER = np.array([5, 2, 9, 11, 2, 7]), np.array([5, 3, 9, 1, 2, 8])
RECURRENT = ModelConfig(architecture="recurrent", vocab_size=19, emb_dim=8, hidden_dim=8).resolved()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    theirs = NumpyGpt2()
    ours = theirs.imported(tmp_path_factory.mktemp("gpt2"))
    return theirs, ours.config, ours.params


def batch_of(ids):
    return {"decoder_inputs": jnp.asarray(ids)[None]}


@pytest.mark.slow
def test_the_lens_of_gpt2_is_that_of_numpy_and_ends_in_the_logits(gpt2):
    theirs, config, params = gpt2
    lens = logit_lens(config, params, batch_of(IDS))
    expected = theirs.logits(IDS)
    names = ["decoder/embedding", *(f"decoder/{layer}/feed_forward/stream" for layer in range(theirs.depth))]
    assert [*lens] == names
    for name, stream in zip(names, theirs.streams, strict=True):
        assert_close(lens[name][0], theirs.end(stream))
    assert_close(lens[names[-1]][0], expected)
    np.testing.assert_array_equal(lens[names[-1]], run_with(config, params, batch_of(IDS)).outputs)


@pytest.mark.slow
def test_the_lens_without_heads_is_that_of_numpy(gpt2):
    theirs, config, params = gpt2
    replace = without_heads(config, batch_of(IDS), {"decoder/0/self_attention": [1]})
    lens = logit_lens(config, params, batch_of(IDS), replace)
    theirs.logits(IDS, without=[(0, 1)])
    for logits, stream in zip(lens.values(), theirs.streams, strict=True):
        assert_close(logits[0], theirs.end(stream))


@pytest.mark.slow
def test_effects_of_heads_and_parts_of_gpt2_are_those_of_numpy(gpt2):
    theirs, config, params = gpt2
    targets = np.roll(IDS, -1)

    def loss(logits):
        return -log_softmax(logits)[np.arange(len(IDS)), targets].mean()

    measure = functools.partial(mean_loss, targets=jnp.asarray(targets)[None])
    found = ablation_effects(config, params, batch_of(IDS), measure)
    value = loss(theirs.logits(IDS))
    assert found.value == pytest.approx(value, abs=1e-5)
    for layer in range(theirs.depth):
        expected = [loss(theirs.logits(IDS, without=[(layer, head)])) - value for head in range(theirs.heads)]
        assert_close(found.changes[f"decoder/{layer}/self_attention/heads"], expected)
        assert np.abs(expected).max() > 1e-4
    parts = ablation_effects(config, params, batch_of(IDS), measure, "parts")
    name = "decoder/0/feed_forward/output"
    without = run_with(config, params, batch_of(IDS), replace={name: jnp.zeros_like}).outputs
    assert parts.changes[name].shape == ()
    assert float(parts.changes[name]) == pytest.approx(float(measure(without)) - value, abs=1e-5)


@pytest.mark.slow
def test_a_mean_over_the_tokens_of_another_batch_takes_the_place_of_a_head(gpt2):
    theirs, config, params = gpt2
    measure = functools.partial(log_prob, position=-1, token=4)
    found = ablation_effects(config, params, batch_of(IDS), measure, reference=batch_of(OTHER))
    theirs.logits(OTHER)
    mean = jnp.asarray(theirs.outputs[0].mean(0), jnp.float32)
    name = "decoder/0/self_attention/heads"
    replaced = run_with(config, params, batch_of(IDS), replace={name: lambda x: x.at[:, :, 2].set(mean[2])}).outputs
    assert float(found.changes[name][2]) == pytest.approx(float(measure(replaced)) - found.value, abs=1e-5)


@pytest.mark.slow
def test_patches_of_gpt2_are_those_of_numpy_and_all_streams_are_the_other_run(gpt2):
    theirs, config, params = gpt2

    def number(logits):
        return log_softmax(logits)[-1, 4] - log_softmax(logits)[-1, 6]

    measure = functools.partial(log_prob, position=-1, token=4, other=6)
    found = patch_effects(config, params, batch_of(IDS), batch_of(OTHER), measure)
    other = number(theirs.logits(OTHER))
    streams = [stream.copy() for stream in theirs.streams]
    assert found.other == pytest.approx(other, abs=1e-5)
    for index, values in enumerate(found.patched.values()):
        expected = [
            number(theirs.logits(IDS, patches={(index, position): streams[index][position]}))
            for position in range(len(IDS))
        ]
        assert_close(values, expected)
    assert found.value == pytest.approx(number(theirs.logits(IDS)), abs=1e-5)
    *_, last = found.shares.values()
    assert_close(last, [0, 0, 0, 0, 0, 1], 1e-4)  # the last stream at the last position is all that the number reads
    same = patch_effects(config, params, batch_of(IDS), batch_of(IDS), measure, "heads")
    for values in same.patched.values():
        assert values.shape == (len(IDS), theirs.heads)
        assert_close(values, np.full(values.shape, same.value))


MODELS = {
    "gains": {"norm_position": "pre", "residual_scale": "vector", "residual_multiplier": 0.7, "scan_layers": True},
    "inside": {"norm_position": "sandwich", "norm": "rmsnorm", "norm_scale": "offset", "logits_multiplier": 0.5},
    "parallel": {"norm_position": "pre", "norm": "rmsnorm", "parallel": "one_norm", "output_bias": True},
    "both": {"norm_position": "pre", "architecture": "encoder_decoder", "norm": "none"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_attributions_sum_to_the_logit(name):
    output = {"tie_output": False} if "output_bias" in MODELS[name] else {}
    config = tiny(**{"architecture": "decoder_only", **MODELS[name], **output})
    params, batch = random_params(config), make_batch(rows=1, seed=2)
    if config.architecture == "decoder_only":
        batch = {"decoder_inputs": batch["decoder_inputs"]}
    logits = forward(config, params, batch)[0, -1]
    terms = logit_attributions(config, params, batch, -1, 7, 5)
    assert sum(terms.values()) == pytest.approx(float(logits[7] - logits[5]), abs=1e-5)
    heads = [term for term in terms if "/heads/" in term]
    attentions = 2 if name == "both" else 1
    expected = 0 if name == "inside" else config.num_heads * config.num_decoder_layers * attentions
    assert len(heads) == expected
    assert sum(abs(value) > 1e-4 for value in terms.values()) > len(terms) // 2


@pytest.mark.slow
def test_the_attribution_of_a_head_of_gpt2_is_that_of_numpy(gpt2):
    theirs, config, params = gpt2
    terms = logit_attributions(config, params, batch_of(IDS), 3, 8)
    logits = theirs.logits(IDS)
    assert sum(terms.values()) == pytest.approx(logits[3, 8], abs=1e-5)
    last = theirs.streams[-1][3]
    scale = np.sqrt(last.var() + theirs.config["layer_norm_epsilon"])
    for layer in range(theirs.depth):
        kernel = theirs.get(f"h.{layer}.attn.c_proj.weight").reshape(theirs.heads, -1, len(last))
        for head in range(theirs.heads):
            added = theirs.outputs[layer][3, head] @ kernel[head]
            part = (added - added.mean()) / scale * theirs.get("ln_f.weight") @ theirs.get("wte.weight")[8]
            assert terms[f"decoder/{layer}/self_attention/heads/{head}"] == pytest.approx(part, abs=1e-5)


def slopes(theirs, embedded):
    """Return the gradient [T, D] of the last log probability of id 4, by central differences in float64."""

    def number(position, vector):
        patches = {(0, place): row for place, row in enumerate(embedded)} | {(0, position): vector}
        return log_softmax(theirs.logits(IDS, patches=patches)[-1])[4]

    found = np.zeros(embedded.shape)
    for position, feature in np.ndindex(embedded.shape):
        step = 1e-5 * np.eye(embedded.shape[1])[feature]
        ends = [number(position, embedded[position] + sign * step) for sign in (1, -1)]
        found[position, feature] = (ends[0] - ends[1]) / 2e-5
    return found


@pytest.mark.slow
def test_gradients_to_the_embeddings_of_gpt2_are_slopes_in_float64(gpt2):
    theirs, config, params = gpt2
    theirs.logits(IDS)
    embedded = theirs.streams[0]
    measure = functools.partial(log_prob, position=-1, token=4)
    assert_close(input_gradients(config, params, batch_of(IDS), measure)[0], slopes(theirs, embedded))
    found = integrated_gradients(config, params, batch_of(IDS), measure, steps=2)
    points = [0.5 - 0.5 / np.sqrt(3), 0.5 + 0.5 / np.sqrt(3)]  # Gauss and Legendre's, each of weight 1/2
    expected = embedded * np.mean([slopes(theirs, point * embedded) for point in points], 0)
    assert_close(found.values[0], expected)
    assert_close(found.by_token[0], expected.sum(-1))
    expected = embedded * np.mean([3 * point**2 * slopes(theirs, point**3 * embedded) for point in points], 0)
    assert_close(integrated_gradients(config, params, batch_of(IDS), measure, steps=2, power=3).values[0], expected)
    nothing = log_softmax(theirs.logits(IDS, patches={(0, t): 0 * row for t, row in enumerate(embedded)})[-1])[4]
    assert found.difference == pytest.approx(log_softmax(theirs.logits(IDS)[-1])[4] - nothing, abs=1e-5)


@pytest.mark.slow
def test_integrated_gradients_sum_to_the_difference_and_are_the_terms_of_a_linear_model():
    config = of(norm="none", activation="gelu")
    params, batch = random_params(config), batch_of(IDS)

    def number(outputs):
        return outputs[0, -1, 4]

    found = integrated_gradients(config, params, batch, number, steps=32)
    assert abs(found.difference) > 0.1
    assert found.values.sum() == pytest.approx(found.difference, abs=1e-5)
    for part in params["decoder"]["layers"].values():
        part["out"] = jax.tree.map(jnp.zeros_like, part["out"])
    embedded = run_with(config, params, batch, ["decoder/embedding"]).places["decoder/embedding"]
    expected = np.zeros(embedded.shape)
    expected[0, -1] = embedded[0, -1] * params["embedding"]["embedding"][4]
    linear = integrated_gradients(config, params, batch, number, steps=1)
    assert_close(linear.values, expected, 1e-6)
    # The gradient is constant, and the rule of two points is exact for the derivative of a third power.
    assert_close(integrated_gradients(config, params, batch, number, steps=2, power=3).values, expected, 1e-6)
    assert linear.difference == pytest.approx(expected.sum(), abs=1e-6)


def test_top_predictions():
    top = top_predictions(np.log(np.array([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]], np.float32)), 2)
    np.testing.assert_array_equal(top.ids, [[1, 2], [0, 2]])
    assert_close(np.exp(top.log_probs), [[0.6, 0.3], [0.5, 0.3]])
    for k in (0, 4):
        with pytest.raises(DataError, match=f"k={k}: expected 1 to 3, the number of ids"):
            top_predictions(np.zeros((2, 3), np.float32), k)


def of(**fields):
    return tiny(**{"architecture": "decoder_only", "norm_position": "pre", **fields})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c, b: logit_lens(RECURRENT, {}, make_batch(rows=1)), ConfigError, "recurrent has no residual stream"),
        (lambda c, b: ablation_effects(c, {}, b, jnp.sum, "head"), ConfigError, "'head': expected one of .*'heads'"),
        (lambda c, b: without_heads(c, b, {"decoder/0/self_atention": [0]}), ConfigError, "no heads .did you mean"),
        (
            lambda c, b: without_heads(c, b, {"decoder/0/self_attention": [4]}),
            ConfigError,
            "no head 4; expected 0 to 3",
        ),
        (lambda c, b: patch_effects(c, {}, b, batch_of(IDS[:4]), jnp.sum), DataError, "texts have 6 and 4 tokens"),
        (lambda c, b: patch_effects(c, {}, make_batch(rows=2), b, jnp.sum), DataError, "takes one text.* has 2 rows"),
        (lambda c, b: integrated_gradients(c, {}, b, jnp.sum, 0), ConfigError, "steps=0: expected 1 or more"),
        (lambda c, b: integrated_gradients(c, {}, b, jnp.sum, power=0), ConfigError, "power=0: expected 1 or more"),
        (lambda c, b: logit_attributions(of(norm_position="post"), {}, b, 0, 1), ConfigError, "norm_position=post: "),
        (lambda c, b: logit_attributions(of(norm="dyt"), {}, b, 0, 1), ConfigError, "model.norm=dyt: .*layernorm"),
        (lambda c, b: logit_attributions(of(output_logit_cap=2.0), {}, b, 0, 1), ConfigError, "logits with a cap"),
        (lambda c, b: logit_attributions(of(residual_lambdas=True), {}, b, 0, 1), ConfigError, "residual_lambdas=True"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(of(), batch_of(IDS))
