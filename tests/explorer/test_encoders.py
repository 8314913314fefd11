"""What the explorer shows of classifiers, taggers and masked language models equals what they compute."""

import base64
import dataclasses
import functools
from concurrent.futures import CancelledError

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorer_support import classifier, decoder_classifier, masked_model, tagger
from support import assert_close

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.explorer.encoders import log_prob_of
from transformer_jax.explorer.kinds import explored
from transformer_jax.explorer.passes import Head, seen
from transformer_jax.inspection.attribution import integrated_gradients
from transformer_jax.inspection.places import run_with

OWN = "encoder/self_attention"
PAIR = ("so dull and long", "no no")
WORDS = "Ann saw New York"


def shown(predictions):
    return dict(map(tuple, predictions))


def weights_of(look):
    """Return the weights [L, N, T, T] that are sent."""
    attention, places = look["attention"][OWN], len(look["tokens"]["encoder"])
    shape = (len(attention["layers"]), attention["heads"], places, places)
    return np.frombuffer(base64.b64decode(attention["weights"]), "<u2").reshape(shape) / 65535


@pytest.mark.slow
def test_labels_of_a_pair_of_texts_are_those_of_predict():
    page = explored(classifier(), "m")
    look = page.look(PAIR[0], second=PAIR[1])
    (label,) = page.predictor.predict([PAIR])
    (predictions,) = look["predictions"]
    assert predictions[0][0] == label.label
    assert shown(predictions) == pytest.approx(label.probabilities, abs=2e-5)
    assert look["lens"][-1] == [predictions]
    assert len(look["lens"]) == 3
    assert [token for token in look["tokens"]["encoder"] if not token.startswith("<")] == " ".join(PAIR).split()
    assert_close(weights_of(look).sum(-1), np.ones((2, 2, len(look["tokens"]["encoder"]))), 1e-3)


@pytest.mark.slow
def test_a_decoder_reads_a_text_without_its_padding():
    page = explored(decoder_classifier(), "m")
    look = page.look(PAIR[0])
    (label,) = page.predictor.predict([PAIR[0]])
    assert shown(look["predictions"][0]) == pytest.approx(label.probabilities, abs=2e-5)
    assert [token for token in look["tokens"]["decoder"] if not token.startswith("<")] == PAIR[0].split()
    assert look["attention"]["decoder/self_attention"]["causal"]
    found, row = page.attributions(PAIR[0]), page.row(PAIR[0])
    assert row.length < row.padded
    alone = {name: jnp.asarray(array[:, : row.length]) for name, array in row.batch.items()}
    measure = functools.partial(log_prob_of, place=(), number=page.trained.labels.index(found["of"]))
    expected = integrated_gradients(page.model, page.trained.params, alone, measure, head=page.head, power=3)
    assert_close(found["by_token"], expected.by_token[0], 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("made", [classifier, tagger, masked_model])
def test_a_short_text_compiles_nothing_after_the_start(made):
    page = explored(made(), "m")
    page.warm_up()
    before = seen._cache_size()
    page.look("fine film", second="yes" if len(page.reads) > 1 else "")
    assert seen._cache_size() == before


@pytest.mark.slow
def test_tags_of_words_are_those_of_predict():
    page = explored(tagger(), "m")
    look = page.look(WORDS)
    (tags,) = page.predictor.predict([WORDS])
    assert [unit["name"] for unit in look["units"]] == tags.words
    assert [look["tokens"]["encoder"][unit["place"]] for unit in look["units"]] == tags.words
    assert [predictions[0][0] for predictions in look["predictions"]] == tags.tags
    for predictions, probabilities in zip(look["predictions"], tags.probabilities, strict=True):
        assert shown(predictions) == pytest.approx(probabilities, abs=2e-5)


@pytest.mark.slow
def test_masks_and_tokens_are_predicted_at_their_places():
    page = explored(masked_model(), "m")
    look = page.look("a <mask> dog")
    tokens = look["tokens"]["encoder"]
    assert tokens.count("<mask>") == 1
    assert [unit["place"] for unit in look["units"]] == [*range(len(tokens))]
    ids = np.asarray(page.row("a <mask> dog").batch["inputs"])[:, : len(tokens)]
    batch = {"inputs": jnp.asarray(ids), "inputs_mask": jnp.ones(ids.shape, bool)}
    outputs = run_with(page.model, page.trained.params, batch, head=page.head).outputs
    probabilities = np.asarray(jax.nn.softmax(outputs[0]))
    best = np.sort(probabilities, -1)[:, ::-1][:, :5]
    assert_close([[p for _, p in predictions] for predictions in look["predictions"]], best, 2e-5)
    at = tokens.index("<mask>")
    assert look["predictions"][at][0][0] == page.class_names([int(probabilities[at].argmax())])[0]
    assert look["lens"][-1][at] == look["predictions"][at][:3]
    assert page.about()["mask"] == "<mask>"


@pytest.mark.slow
def test_effects_are_falls_of_the_predicted_label_without_a_head():
    page = explored(classifier(), "m")
    before = page.look(PAIR[0], second=PAIR[1])["predictions"][0][0]
    found = page.effects(PAIR[0], second=PAIR[1])[OWN]
    assert np.shape(found) == (2, 2)
    after = shown(page.look(PAIR[0], [Head(OWN, 1, 0)], second=PAIR[1])["predictions"][0])[before[0]]
    assert found[1][0] == pytest.approx(np.log(before[1]) - np.log(after), abs=2e-4)
    assert abs(found[1][0]) > 1e-3
    replace = {"encoder/1/self_attention/heads": no_head}
    zeroed = run_with(page.model, page.trained.params, page.row(*PAIR).batch, (), replace, page.head).outputs[0]
    expected = jax.nn.log_softmax(zeroed)[page.trained.labels.index(before[0])]
    assert np.log(after) == pytest.approx(float(expected), abs=1e-4)


def no_head(heads):
    return heads.at[:, :, 0].set(0)


@pytest.mark.slow
def test_attributions_are_integrated_gradients_without_padding():
    page = explored(tagger(), "m")
    found, row = page.attributions(WORDS, unit=2), page.row(WORDS)
    alone = {name: jnp.asarray(array[:, : row.length]) for name, array in row.batch.items()}
    best = page.trained.labels.index(found["of"])
    measure = functools.partial(log_prob_of, place=row.units[2].place, number=best)
    expected = integrated_gradients(page.model, page.trained.params, alone, measure, head=page.head, power=3)
    assert_close(found["by_token"], expected.by_token[0], 2e-5)
    assert found["difference"] == pytest.approx(expected.difference, abs=2e-5)
    assert found["sum"] == pytest.approx(sum(found["by_token"]), abs=1e-4)
    assert found["of"] == page.look(WORDS)["predictions"][2][0][0]
    asked = []

    def cancelled():
        asked.append(None)
        return len(asked) > 3

    with pytest.raises(CancelledError):
        page.attributions(WORDS, cancelled=cancelled)
    assert len(asked) == 4


@pytest.mark.slow
def test_a_diverged_model_is_named():
    loaded = classifier()
    page = explored(loaded._replace(params=jax.tree.map(lambda x: x * jnp.nan, loaded.params)), "m")
    for ask in (page.look, page.effects, page.attributions):
        with pytest.raises(DataError, match="outputs are not finite"):
            ask(PAIR[0], second=PAIR[1])


@pytest.mark.parametrize(
    ("made", "texts", "message"),
    [
        (classifier, ("one",), "the text has no text"),
        (classifier, ("a", " "), "the text has no text"),
        (classifier, ("fine " * 300, "no"), r"the text has 304 tokens with its marks; the page shows at most 24"),
        (classifier, ("a \ud800", "b"), "half of a surrogate pair"),
        (tagger, ("",), "the text has no words"),
        (tagger, ("Ann", "Bob"), "the model reads one text"),
        (tagger, ("Ann " * 30,), "the text has 32 tokens with its marks; the page shows at most 24"),
        (masked_model, ("a", "b"), "the model reads one text"),
        (masked_model, ("a" * 300,), "the page shows at most 256"),
        (masked_model, ("a \ud800",), "half of a surrogate pair"),
    ],
)
def test_texts_that_cannot_be_read(made, texts, message):
    with pytest.raises(DataError, match=message):
        explored(made(), "m").row(*texts)


@pytest.mark.slow
def test_heads_and_predictions_that_there_are_not():
    page = explored(tagger(), "m")
    with pytest.raises(DataError, match=f"no head 2 in layer 0 of '{OWN}'"):
        page.look(WORDS, [Head(OWN, 0, 2)])
    for ask in (page.effects, page.attributions):
        with pytest.raises(DataError, match="there is no prediction 4; the last one is 3"):
            ask(WORDS, unit=4)


def test_another_task_is_refused_with_its_name():
    loaded = classifier()
    config = dataclasses.replace(loaded.config, task=dataclasses.replace(loaded.config.task, name="span_qa"))
    message = r"m: models of task.name='span_qa' are not shown; shown are those of classification, tagging"
    with pytest.raises(ConfigError, match=message):
        explored(loaded._replace(config=config), "m")
