"""The explorer's page of classifiers, taggers and masked language models in a browser."""

import json

import jax
import pytest
from explorer_support import (
    classifier,
    idle,
    is_wider_than_the_screen,
    language_model,
    masked_model,
    opening,
    saved,
    served,
    tagger,
)

from transformer_jax.explorer.kinds import explored

pytestmark = pytest.mark.slow
PAIR = ("so dull and long", "no no")
WORDS = "Ann saw New York"
FIRST = "#text=so+dull+and+long&second=no+no"


def other_tagger():
    """Return a tagger of other parameters."""
    return tagger()._replace(params=jax.tree.map(lambda x: -x, tagger().params))


@pytest.fixture(scope="module")
def clients():
    with (
        served(classifier()) as pairs,
        served(tagger()) as tags,
        served(masked_model()) as masks,
        served(tagger(), other_tagger()) as two,
        served(tagger(), language_model()) as kinds,
    ):
        yield {"pairs": pairs, "tags": tags, "masks": masks, "two": two, "two kinds": kinds}


def of_percent(tags, place):
    return f"{100 * tags.probabilities[place][tags.tags[place]]:.1f} %)"


@pytest.fixture
def opened(browser, clients):
    with opening(browser) as open_:
        yield lambda name, address="", **size: open_(clients[name], address, **size)


def row_of(page, cells=".predictions tr:nth-child(2)"):
    return page.locator(cells).text_content()


def test_a_pair_of_texts_has_labels_and_attributions(opened, tmp_path, browser):
    page = opened("pairs")
    page.get_by_text("Type both texts.").wait_for()
    for name, text in zip(("text", "second"), PAIR, strict=True):
        page.fill(f"#{name}", text)
    page.wait_for_selector(".token small")
    idle(page)
    shown = explored(classifier(), "m")
    look = shown.look(PAIR[0], second=PAIR[1])
    (label, p), *_ = look["predictions"][0]
    assert row_of(page).startswith(f"{label}{100 * p:.1f} %")
    found = shown.attributions(PAIR[0], second=PAIR[1])
    written = [float(text.replace("\N{MINUS SIGN}", "-")) for text in page.locator(".token small").all_text_contents()]
    assert written == pytest.approx(found["by_token"], abs=6e-4)
    for number, classes in zip(found["by_token"], page.locator(".token").all(), strict=True):
        assert ("less" in classes.get_attribute("class")) == (number < 0)
    page.select_option("#measure", "effects")
    idle(page)
    page.locator("[data-head='1.0']").click()
    page.keyboard.press("a")
    page.wait_for_selector("[data-head='1.0'].out")
    idle(page)
    assert "with all heads" in row_of(page)
    files = saved(page, tmp_path)
    assert json.loads(files["json"].read_text())["models"][0]["attributions"]["by_token"] == found["by_token"]
    still = browser.new_page()
    still.goto(files["page"].as_uri())
    still.wait_for_selector("[data-head='1.0'].out")
    assert row_of(still) == row_of(page)
    assert still.locator(".token small").count() == len(written)
    still.close()


def test_the_words_of_a_tagger_are_chosen_by_keyboard(opened):
    page = opened("tags", "#text=Ann+saw+New+York", width=390)
    page.wait_for_selector("[data-unit='0'][aria-pressed=true]")
    idle(page)
    page.select_option("#measure", "effects")
    idle(page)
    before = page.locator("[data-head='0.0']").get_attribute("title")
    page.locator("[data-unit='0']").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    idle(page)
    assert page.evaluate("document.activeElement.dataset.unit") == "3"
    shown = explored(tagger(), "m")
    tag = shown.look(WORDS)["predictions"][3][0][0]
    assert page.locator("[data-unit='3']").text_content() == f"York{tag}"
    assert page.get_by_role("heading", name="Tag of “York”").count() == 1
    assert f"log P of “{shown.attributions(WORDS, unit=3)['of']}”" in page.locator(".hint").first.text_content()
    assert page.locator("[data-head='0.0']").get_attribute("title") != before
    assert page.locator(".lens td.here").count() == 3
    assert not is_wider_than_the_screen(page)
    again = opened("tags", f"#{page.url.partition('#')[2]}")
    again.wait_for_selector("[data-unit='3'][aria-pressed=true]")


def test_every_mask_has_its_tokens(opened):
    page = opened("masks")
    page.get_by_text("Type a text.").wait_for()
    page.fill("#text", "a dog")
    page.get_by_text("Write <mask> where a token is to be predicted.").wait_for()
    page.fill("#text", "a <mask> do<mask>")
    page.wait_for_selector(".masks tr:nth-child(2)")
    idle(page)
    look = explored(masked_model(), "m").look("a <mask> do<mask>")
    at = [place for place, token in enumerate(look["tokens"]["encoder"]) if token == "<mask>"]
    assert page.locator(".masks tr").count() == len(at) == 2
    assert page.locator("[data-unit][aria-pressed=true]").get_attribute("data-unit") == str(at[0])
    page.locator(f"[data-unit='{at[1]}']").click()
    idle(page)
    assert row_of(page).startswith(look["predictions"][at[1]][0][0])
    page.fill("#text", "<img src=x onerror=document.title='broken'>")
    page.wait_for_selector("[data-place='30']")
    assert page.locator("#main img").count() == 0
    assert page.title() == "Explorer"


def test_two_models_are_compared_and_other_kinds_stand_side_by_side(opened):
    page = opened("two", "#text=Ann+saw+New+York")
    tags = [explored(model, "m").predictor.predict([WORDS])[0] for model in (tagger(), other_tagger())]
    differ = [place for place in range(4) if tags[0].tags[place] != tags[1].tags[place]]
    said = f"The likeliest predictions differ at {len(differ)} of 4 places. {tags[0].words[differ[0]]}: "
    first = " and ".join(f"“{of.tags[differ[0]]}” (" + of_percent(of, differ[0]) for of in tags)
    page.locator(".compared", has_text=f"{said}{first}").wait_for()
    idle(page)
    page = opened("two kinds", "#text=12+7&generate=2.3")
    page.locator(".compared", has_text="of different kinds").wait_for()
    page.wait_for_selector(".tree .node", timeout=120_000)
    idle(page)
    assert page.locator(".model").count() == 2
    assert page.locator(".token small").count() == page.locator(".model").first.locator("[data-place]").count() + 2
