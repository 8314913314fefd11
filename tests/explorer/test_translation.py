"""What the explorer shows of an encoder-decoder equals what the model computes."""

import base64
import dataclasses

import jax
import numpy as np
import pytest
from explorer_support import TEXT, served, translator
from support import assert_close

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.explorer.kinds import explored
from transformer_jax.explorer.passes import Head
from transformer_jax.inspection.attention import attention_maps
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.row_translator import RowTranslator

pytestmark = pytest.mark.slow
TARGET = "7 is 12"
PARTS = ("decoder/self_attention", "decoder/cross_attention", "encoder/self_attention")


@pytest.fixture(scope="module")
def model():
    return translator()


@pytest.fixture(scope="module")
def shown(model):
    return explored(model, "m")


def without(params, stack, part, layer, head):
    """Return parameters whose output projection ignores a head."""

    def changed(path, array):
        if jax.tree_util.keystr(path, simple=True, separator="/") != f"{stack}/layers/{part}/out/kernel":
            return array
        return array.at[layer, head].set(0)

    return jax.tree_util.tree_map_with_path(changed, params)


def test_losses_and_weights_are_the_models_own(model, shown):
    look = shown.look(TEXT, second=TARGET)
    (expected,) = model.token_log_probs([(TEXT, TARGET)])
    assert_close(look["losses"], -np.asarray(expected.log_probs), 2e-5)
    assert look["tokens"]["decoder"][1:] == [*expected.tokens]
    maps = attention_maps(model, TEXT, TARGET)
    assert look["tokens"]["encoder"] == maps.source
    assert look["attention"].keys() == {*PARTS}
    for name, found in look["attention"].items():
        expected = maps.weights[name.replace("/", "_")]
        T, S = (len(look["tokens"][found[side]]) for side in ("queries", "keys"))
        sent = np.frombuffer(base64.b64decode(found["weights"]), "<u2").reshape(*expected.shape[:2], T, S) / 65535
        assert (expected.shape[2:]) == (T - (found["queries"] == "decoder"), S - (name == PARTS[0]))
        np.testing.assert_allclose(sent[:, :, : expected.shape[2], : expected.shape[3]], expected, atol=1e-5)
    assert look["lens"][-1] == [row[:3] for row in look["predictions"]]


def test_without_a_target_the_model_writes_it(model, shown):
    """Its own tokens are shown: splitting its text again could give others."""
    look = shown.look(TEXT)
    assert look["target"] == model.translate_all([TEXT])[0]
    assert look["tokens"]["decoder"][1:] == attention_maps(model, TEXT).predicted
    (output,) = model.generate_chunk([Line(TEXT)])
    assert_close(look["losses"], -np.asarray(output.outputs[0].log_probs), 2e-5)


@pytest.mark.parametrize("name", PARTS)
def test_heads_of_every_attention_can_be_left_out(model, shown, name):
    stack, part = name.split("/")
    other = dataclasses.replace(model, params=without(model.params, stack, part, 0, 1))
    (expected,) = other.token_log_probs([(TEXT, TARGET)])
    found = shown.look(TEXT, [Head(name, 0, 1)], second=TARGET)["losses"]
    assert_close(found, -np.asarray(expected.log_probs), 2e-5)
    before = np.mean(shown.look(TEXT, second=TARGET)["losses"])
    assert shown.effects(TEXT, second=TARGET)[name][0][1] == pytest.approx(np.mean(found) - before, abs=3e-5)


def test_an_empty_source_has_no_output(shown):
    look = shown.look("")
    assert (look["tokens"], look["losses"]) == ({"encoder": ["</s>"], "decoder": ["<s>"]}, [])
    with pytest.raises(DataError, match="no token whose loss could change"):
        shown.effects("")


def test_what_cannot_be_shown(model, shown):
    with pytest.raises(DataError, match=r"the target has [0-9]+ tokens; the page shows at most 255"):
        shown.look(TEXT, second="12 " * 300)
    with pytest.raises(DataError, match="no head 0 in layer 1 of 'encoder/self_attention'"):
        shown.look(TEXT, [Head("encoder/self_attention", 1, 0)])
    row = RowTranslator(model.config, model.params, model.tokenizer)
    with pytest.raises(ConfigError, match="reads source and translation in one row is not shown"):
        explored(row, "m")


def test_a_target_that_fills_a_table_of_positions():
    """The last token is predicted, and needs no position of its own."""
    short = explored(translator(position_encoding="learned", max_length=6), "m")
    look = short.look("12")
    assert len(look["tokens"]["decoder"]) == 6


def test_the_page_shows_source_target_and_every_attention(browser, model, shown):
    errors = []
    with served(model) as client:
        page = browser.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_viewport_size({"width": 390, "height": 900})
        page.goto(f"http://127.0.0.1:{client.port}/")
        page.fill("#text", TEXT)
        page.wait_for_selector("[data-source='1']")
        page.locator("#status:empty").wait_for(state="attached")
        page.fill("#target", TARGET)
        count = len(shown.look(TEXT, second=TARGET)["tokens"]["decoder"])
        page.locator(f"[data-place='{count}']").wait_for(state="detached")
        page.wait_for_selector(f"[data-place='{count - 1}']")
        page.locator("#status:empty").wait_for(state="attached")
        for name in PARTS:
            page.select_option("#attention", name)
            count = page.locator(".picture text").count()
            sides = [page.locator(f"[data-{side}]").count() for side in ("place", "source")]
            assert count == {PARTS[0]: 2 * sides[0], PARTS[1]: sum(sides), PARTS[2]: 2 * sides[1]}[name]
        page.locator("[data-source='1']").focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.source") == "2"
        page.locator("[data-head='0.1']").click()
        page.keyboard.press("a")
        page.wait_for_selector("[data-head='0.1'].out")
        page.select_option("#form-of", "matrix")
        assert page.locator(".picture rect.cell").count() == sides[1] ** 2
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.close()
    assert errors == []
