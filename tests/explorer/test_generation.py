"""The tree of a generation is the library's own beam search, and its numbers are those of full passes."""

import dataclasses
import functools
from concurrent.futures import CancelledError

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from explorer_support import TEXT, language_model, translator
from support import assert_close

from transformer_jax.errors import DataError
from transformer_jax.explorer.generation import MAX_STEPS, MAX_WIDTH
from transformer_jax.explorer.kinds import explored
from transformer_jax.inspection.attention import capture
from transformer_jax.tasks.trained.lines import Line

pytestmark = pytest.mark.slow
MODELS = {"language": language_model, "translation": functools.partial(translator, seed=1)}
STEPS = 7
FEW = ",".join(map(str, range(30, 290)))
"""Ids without which outputs of random models end now and then."""


@pytest.fixture(scope="module")
def models():
    return {kind: make() for kind, make in MODELS.items()}


def with_decode(model, **fields):
    decode = dataclasses.replace(model.config.decode, **fields)
    return dataclasses.replace(model, config=dataclasses.replace(model.config, decode=decode))


def paths(found):
    """Return the hypotheses of every step as lists of nodes, by their parents."""
    steps = []
    for number, step in enumerate(found["steps"]):
        assert all((node["parent"] is None) == (number == 0) for node in step)
        steps.append([[*(steps[-1][node["parent"]] if number else []), node] for node in step])
    return steps


def full_log_probs(model, kind, outputs):
    """Return the log-probabilities [N, T, V] of all tokens at the places of outputs, by a pass without a cache."""
    start = [model.config.model.decoder_start_id]
    prompt = start + (model.encode([TEXT])[0] if kind == "language" else [])
    read = np.zeros((len(outputs), len(prompt) + STEPS), np.int32)
    for row, ids in enumerate(outputs):
        read[row, : len(prompt) + len(ids)] = [*prompt, *ids]
    batch = {"decoder_inputs": jnp.asarray(read)}
    if kind == "translation":
        source = np.tile(model.encode_sources([TEXT])[0], (len(outputs), 1))
        batch |= {"inputs": jnp.asarray(source), "inputs_mask": jnp.ones(source.shape, bool)}
    logits, _ = capture(model.config.model, model.params, batch)
    return np.asarray(jax.nn.log_softmax(logits))[:, len(prompt) - 1 : -1]


@pytest.mark.parametrize("fields", [{}, {"forbidden_ids": FEW}, {"forbidden_ids": FEW, "cut_hypotheses": "compete"}])
@pytest.mark.parametrize(("kind", "width"), [("language", 1), ("language", 3), ("translation", 3)])
def test_the_best_path_is_the_librarys_output(models, kind, width, fields):
    model = with_decode(models[kind], **fields)
    found = explored(model, "m").generate(TEXT, width, STEPS)
    (line,) = with_decode(model, beam_size=width, max_new_tokens=STEPS).generate_chunk([Line(TEXT)])
    (expected,) = line.outputs
    assert found["best"]["ids"] == expected.ids
    assert found["best"]["finished"] == expected.finished
    assert found["best"]["text"] == model.decode([expected.ids])[0]
    steps = zip(paths(found), found["best"]["path"], strict=False)
    (path,) = [step[number] for step, number in [*steps][-1:]]
    assert [node["id"] for node in path] == expected.ids
    assert_close([node["log_prob"] for node in path], expected.log_probs, 2e-5)
    if width > 1:  # greedy search has no scores
        assert found["best"]["score"] == path[-1]["score"] == pytest.approx(expected.score, abs=2e-5)


def test_some_hypotheses_end_before_the_limit(models):
    """Else the test above says nothing of them."""
    found = explored(with_decode(models["translation"], forbidden_ids=FEW), "m").generate(TEXT, 3, STEPS)
    assert any(node["finished"] for step in found["steps"][:-1] for node in step)


@pytest.mark.parametrize("kind", MODELS)
def test_every_number_is_that_of_a_full_pass(models, kind):
    model = with_decode(models[kind], forbidden_ids=FEW)
    found = explored(model, "m").generate(TEXT, 3, STEPS)
    special = model.tokenizer.special_ids
    for step in found["steps"]:
        assert 1 <= sum(not node["finished"] for node in step) <= 3
        assert [node["score"] for node in step] == sorted((node["score"] for node in step), reverse=True)
    hypotheses = [path for step in paths(found) for path in step]
    log_probs = full_log_probs(model, kind, [[node["id"] for node in path] for path in hypotheses])
    for row, path in enumerate(hypotheses):
        expected = log_probs[row, np.arange(len(path)), [node["id"] for node in path]]
        assert_close([node["log_prob"] for node in path], expected, 2e-5)
        divisor = ((5 + len(path)) / 6) ** 0.6
        assert path[-1]["score"] == pytest.approx(expected.sum() / divisor, abs=5e-5)
        assert [node["finished"] for node in path] == [node["id"] == special.eos for node in path]
        assert path[-1]["text"] == model.decode([[node["id"] for node in path]])[0]
        assert path[-1]["token"] == model.tokenizer.tokens([path[-1]["id"]])[0]


def test_more_tokens_only_go_on(models):
    """The number of tokens is no part of the program, and does not change what comes before."""
    shown = explored(models["language"], "m")
    few, many = (shown.generate(TEXT, 3, steps)["steps"] for steps in (2, STEPS))
    assert (len(few), len(many)) == (2, STEPS)
    assert many[:2] == few


def test_it_can_be_cancelled_between_steps(models):
    asked = []

    def cancelled():
        asked.append(True)
        return len(asked) == 3

    with pytest.raises(CancelledError):
        explored(models["language"], "m").generate(TEXT, 3, STEPS, cancelled)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("width", "steps", "message"),
    [
        (0, 1, f"generation with 0 beams: expected 1 to {MAX_WIDTH}"),
        (MAX_WIDTH + 1, 1, f"with {MAX_WIDTH + 1} beams: expected 1 to {MAX_WIDTH}"),
        (1, 0, f"generation with 0 tokens: expected 1 to {MAX_STEPS}"),
        (1, MAX_STEPS + 1, f"with {MAX_STEPS + 1} tokens: expected 1 to {MAX_STEPS}"),
    ],
)
@pytest.mark.parametrize("kind", MODELS)
def test_numbers_out_of_range(models, kind, width, steps, message):
    with pytest.raises(DataError, match=message):
        explored(models[kind], "m").generate(TEXT, width, steps)


def test_texts_that_have_no_output(models):
    for text in ("", "  "):
        with pytest.raises(DataError, match="the text is empty; generation needs a source"):
            explored(models["translation"], "m").generate(text, 2, 4)
    for model in models.values():
        with pytest.raises(DataError, match=r"the text has [0-9]+ tokens; the page shows at most 255"):
            explored(model, "m").generate("12 " * 300, 2, 4)
    short = explored(language_model(position_encoding="learned", max_length=20), "m")
    with pytest.raises(DataError, match=r"the text has [0-9]+ tokens, and 18 more exceed the 20 positions"):
        short.generate(TEXT, 2, 18)
