"""What the explorer shows equals what the model computes, with all heads and without some."""

import base64
import dataclasses
import functools
from concurrent.futures import CancelledError

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorer_support import TEXT, language_model
from support import assert_close, random_params

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.explorer.explored import head_numbers
from transformer_jax.explorer.passes import Head, names_of
from transformer_jax.explorer.views import ExploredLanguageModel
from transformer_jax.inspection.ablation import log_prob
from transformer_jax.inspection.attention import capture
from transformer_jax.inspection.patching import patch_effects
from transformer_jax.inspection.places import run_with

pytestmark = pytest.mark.slow
OWN = "decoder/self_attention"


def of(layer, head):
    return Head(OWN, layer, head)


@pytest.fixture(scope="module")
def model():
    return language_model()


def read_of(model, text=TEXT):
    return [model.config.model.decoder_start_id, *model.encode([text])[0]]


def computed(model, params, text=TEXT):
    """Return the log-probabilities [T, V] and the attention weights of a text without padding."""
    batch = {"decoder_inputs": jnp.asarray([read_of(model, text)])}
    logits, weights = capture(model.config.model, params, batch)
    return np.asarray(jax.nn.log_softmax(logits[0])), weights["decoder_self_attention"][:, 0]


def check_predictions(look, log_probs, read):
    assert_close(look["losses"], -log_probs[np.arange(len(read) - 1), read[1:]], 2e-5)
    best = np.sort(np.exp(log_probs), axis=-1)[:, ::-1][:, :5]
    assert_close([[p for _, p in row] for row in look["predictions"]], best, 2e-5)


def test_a_look_is_the_models_own_pass(model):
    look, read = ExploredLanguageModel(model, "m").look(TEXT), read_of(model)
    log_probs, weights = computed(model, model.params)
    check_predictions(look, log_probs, read)
    assert look["tokens"]["decoder"] == model.tokenizer.tokens(read)
    assert look["predictions"][2][0][0] == model.tokenizer.tokens([int(log_probs[2].argmax())])[0]
    sent = np.frombuffer(base64.b64decode(look["attention"][OWN]["weights"]), "<u2").reshape(weights.shape) / 65535
    np.testing.assert_allclose(sent, weights, atol=1e-5)
    assert look["lens"][-1] == [row[:3] for row in look["predictions"]]
    assert len(look["lens"]) == 3


def without(params, layer, head, mean=None):
    """Return parameters whose output projection ignores a head, or adds what its mean [H] gives, to every token."""
    out = params["decoder"]["layers"]["self_attention"]["out"]
    kernel, bias = out["kernel"], out["bias"]
    if mean is not None:
        bias = bias.at[layer].add(mean @ kernel[layer, head])
    changed = {"kernel": kernel.at[layer, head].set(0), "bias": bias}
    layers = params["decoder"]["layers"]
    attention = {**layers["self_attention"], "out": changed}
    return {**params, "decoder": {**params["decoder"], "layers": {**layers, "self_attention": attention}}}


def test_a_head_that_is_left_out_is_one_that_the_output_ignores(model):
    look, read = ExploredLanguageModel(model, "m").look(TEXT, [of(1, 0)]), read_of(model)
    check_predictions(look, computed(model, without(model.params, 1, 0))[0], read)


def test_a_head_that_is_replaced_by_its_mean_adds_the_same_to_every_token(model):
    look, read = ExploredLanguageModel(model, "m").look(TEXT, [of(0, 1)], by_mean=True), read_of(model)
    batch = {"decoder_inputs": jnp.asarray([read])}
    heads = run_with(model.config.model, model.params, batch, ["decoder/0/self_attention/heads"]).places
    mean = heads["decoder/0/self_attention/heads"][0, :, 1].mean(0)
    check_predictions(look, computed(model, without(model.params, 0, 1, mean))[0], read)


def test_the_effect_of_a_head_is_the_rise_of_the_mean_loss_without_it(model):
    explored = ExploredLanguageModel(model, "m")
    before = np.mean(explored.look(TEXT)["losses"])
    effects = explored.effects(TEXT)[OWN]
    assert np.shape(effects) == (2, 2)
    assert effects[1][0] == pytest.approx(np.mean(explored.look(TEXT, [of(1, 0)])["losses"]) - before, abs=3e-5)


def test_effects_can_be_cancelled_between_passes(model):
    asked = []

    def cancelled():
        asked.append(None)
        return len(asked) > 2

    with pytest.raises(CancelledError):
        ExploredLanguageModel(model, "m").effects(TEXT, cancelled=cancelled)
    assert len(asked) == 3


def test_a_head_that_attends_as_far_back_as_the_repetition_has_the_induction_score_one():
    """Positions are unit vectors; a query at t asks for the key at t - 23, as a token of 24 that are repeated does."""
    planted = language_model(
        **{"emb_dim": 128, "head_dim": 128, "position_encoding": "learned", "scale_embeddings": False},
        **{"use_bias": False, "max_length": 128, "num_decoder_layers": 1},
    )
    params = jax.tree.map(jnp.zeros_like, planted.params)
    decoder = params["decoder"]
    eye = jnp.eye(128)
    layers = decoder["layers"]
    attention = {
        **layers["self_attention"],
        "query": {"kernel": layers["self_attention"]["query"]["kernel"].at[0, :, 1].set(10 * jnp.roll(eye, -23, 1))},
        "key": {"kernel": layers["self_attention"]["key"]["kernel"].at[0, :, 1].set(eye)},
    }
    norms = jax.tree.map(jnp.ones_like, layers["self_attention_residual"])
    layers = {**layers, "self_attention": attention, "self_attention_residual": norms}
    table = {"learned": {"embedding": eye}}
    params = {**params, "decoder": {**decoder, "layers": layers, "position_embedding": table}}
    scores = ExploredLanguageModel(dataclasses.replace(planted, params=params), "m").induction[OWN]
    assert scores[0][1] > 0.99
    assert scores[0][0] < 0.05


def test_the_induction_score_of_equal_weights():
    """Without queries, a query attends equally to all tokens before it and to itself."""
    model = language_model()
    flat = jax.tree.map(jnp.zeros_like, model.params["decoder"]["layers"]["self_attention"]["query"])
    layers = model.params["decoder"]["layers"]
    attention = {**layers["self_attention"], "query": flat}
    params = {**model.params, "decoder": {**model.params["decoder"], "layers": {**layers, "self_attention": attention}}}
    scores = ExploredLanguageModel(dataclasses.replace(model, params=params), "m").induction[OWN]
    np.testing.assert_allclose(scores, np.full((2, 2), np.mean([1 / (t + 1) for t in range(25, 49)])), atol=2e-5)


def test_numbers_of_heads():
    weights = np.array([[[[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.5, 0.25]]]])
    found = head_numbers(weights)
    assert found["entropy"] == [[round((np.log(2) + 1.5 * np.log(2)) / 3, 5)]]
    assert found["previous"] == [[0.5]]
    assert found["first"] == [[0.375]]
    assert head_numbers(np.ones((1, 1, 1, 1)))["previous"] == [[0.0]]


def test_layers_without_attention_have_no_heads():
    fields = {"layer_pattern": "GA", "layer_kinds": "G: mixer=gated_delta; A:", "position_encoding": "rotary"}
    look = ExploredLanguageModel(language_model(**fields), "m").look(TEXT, [of(1, 0)])
    assert look["attention"][OWN]["layers"] == [1]
    with pytest.raises(DataError, match="no head 0 in layer 0 of 'decoder/self_attention'"):
        ExploredLanguageModel(language_model(**fields), "m").look(TEXT, [of(0, 0)])


@pytest.mark.parametrize(
    ("text", "ablated", "message"),
    [
        ("12 " * 100, [], r"the text has [\d,]+ tokens; the page shows at most 255"),
        (TEXT, [of(2, 0)], "no head 0 in layer 2"),
        (TEXT, [of(0, -1)], "no head -1 in layer 0"),
    ],
)
def test_what_cannot_be_shown(model, text, ablated, message):
    with pytest.raises(DataError, match=message):
        ExploredLanguageModel(model, "m").look(text * 2, ablated)


def test_an_empty_text_shows_the_start_alone(model):
    look = ExploredLanguageModel(model, "m").look("")
    assert (len(look["tokens"]["decoder"]), look["losses"]) == (1, [])
    with pytest.raises(DataError, match="no token whose loss could change"):
        ExploredLanguageModel(model, "m").effects("")


OTHER = "12 8 is a text"


def test_patching_equals_the_library(model):
    found = ExploredLanguageModel(model, "m").patch(TEXT, OTHER)
    ids, other = read_of(model), read_of(model, OTHER)
    assert len(ids) == len(other)
    batches = [{"decoder_inputs": jnp.asarray([row])} for row in (ids, other)]
    before, after = (np.asarray(computed(model, model.params, text)[0][-1]) for text in (TEXT, OTHER))
    measure = functools.partial(log_prob, position=len(ids) - 1, token=int(after.argmax()))
    if before.argmax() != after.argmax():
        measure = functools.partial(measure, other=int(before.argmax()))
    expected = patch_effects(model.config.model, model.params, *batches, measure)
    assert_close([found["value"], found["other_value"]], [expected.value, expected.other], 2e-5)
    assert_close(found["shares"], np.stack([*expected.shares.values()]), 2e-4)
    # The last value of the last stream is all that the prediction reads.
    assert found["shares"][-1][-1] == pytest.approx(1, abs=1e-4)
    assert found["likely"][-1][-1][0][0] == model.tokenizer.tokens([int(after.argmax())])[0]
    assert not any(found["shares"][-1][:-1])


def test_what_cannot_be_patched(model):
    explored = ExploredLanguageModel(model, "m")
    with pytest.raises(DataError, match=r"the texts have \d+ and \d+ tokens; patching needs equal numbers"):
        explored.patch(TEXT, f"{TEXT} 12")
    with pytest.raises(DataError, match="the same prediction"):
        explored.patch(TEXT, TEXT)
    with pytest.raises(CancelledError):
        explored.patch(TEXT, OTHER, cancelled=lambda: True)


def test_a_recurrent_model_has_no_residual_stream():
    config = ModelConfig(architecture="recurrent", num_encoder_layers=0, tie_output=False, vocab_size=19)
    with pytest.raises(ConfigError, match="architecture=recurrent has no residual stream; expected a Transformer"):
        names_of(config.resolved())


def test_a_diverged_model_is_named(model):
    params = jax.tree.map(lambda x: x * jnp.nan, model.params)
    for look in (ExploredLanguageModel.look, ExploredLanguageModel.effects):
        with pytest.raises(DataError, match="outputs are not finite"):
            look(ExploredLanguageModel(dataclasses.replace(model, params=params), "m"), TEXT)


def test_random_parameters_of_another_seed_are_another_model(model):
    assert not np.allclose(
        ExploredLanguageModel(model, "m").look(TEXT)["losses"],
        ExploredLanguageModel(dataclasses.replace(model, params=random_params(model.config.model, 5)), "m").look(TEXT)[
            "losses"
        ],
    )
