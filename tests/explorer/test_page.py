"""The explorer's page in a browser: with the pointer, with the keyboard alone, on a telephone, saved."""

import json

import pytest
from explorer_support import TEXT, idle, is_wider_than_the_screen, language_model, opening, saved, served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def clients():
    with (
        served(language_model()) as one,
        served(language_model(), language_model(seed=1)) as two,
        served(language_model(), token="secret") as closed,
        served(language_model(), language_model(size=280)) as different,
    ):
        yield {1: one, 2: two, "with a token": closed, "two tokenizers": different}


@pytest.fixture
def opened(browser, clients):
    """Return a function that opens a page; afterwards no page has written an error."""
    with opening(browser) as open_:
        token = {"with a token": "?token=secret"}
        yield lambda models=1, hash_="", **size: open_(clients[models], f"{token.get(models, '')}{hash_}", **size)


def typed(page, text=TEXT):
    page.fill("#text", text)
    page.wait_for_selector("[data-place='1']")
    idle(page)


def loss(page):
    return page.locator(".hint").first.text_content()


def test_type_choose_and_leave_out(opened):
    page = opened()
    typed(page)
    before = loss(page)
    assert before.startswith("Loss ")
    page.locator("[data-place='2']").click()
    assert "After" in page.locator("h2", has_text="After").text_content()
    page.locator("[data-head='1.0']").click()
    page.get_by_role("button", name="Leave out head 1.0").click()
    page.wait_for_selector("[data-head='1.0'].out")
    assert "with all heads" in loss(page)
    page.get_by_role("button", name="Restore all heads").click()
    page.wait_for_selector("[data-head='1.0']:not(.out)")
    assert loss(page) == before


def test_every_number_of_heads_and_both_pictures(opened):
    page = opened()
    typed(page)
    for measure in ("previous", "first", "induction", "effects", "entropy"):
        page.select_option("#measure", measure)
        idle(page)
        assert page.locator("[data-head]").count() == 4
    page.select_option("#order", "number")
    page.locator(".picture line").first.wait_for(state="attached")
    page.select_option("#form-of", "matrix")
    places = page.locator(".token").count()
    assert page.locator(".picture rect.cell").count() == places * (places + 1) // 2
    page.locator(".picture rect.cell").nth(5).hover()
    beyond = """([picture]) => {
      const { top, right } = picture.getBoundingClientRect();
      return [...picture.querySelectorAll("text")].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.right > right || box.top < top;
      }).map((text) => text.textContent);
    }"""
    assert page.locator(".token").last.text_content() == "▁text"  # the longest label
    assert page.locator(".picture svg").evaluate_all(beyond) == []


def test_the_address_shows_the_same_again(opened):
    page = opened()
    typed(page)
    page.locator("[data-place='2']").click()
    page.locator("[data-head='0.1']").click()
    page.keyboard.press("a")
    page.wait_for_selector("[data-head='0.1'].out")
    said, address = loss(page), page.url.partition("#")[2]
    again = opened(hash_=f"#{address}")
    again.wait_for_selector("[data-head='0.1'].out")
    assert loss(again) == said
    assert again.locator("[data-place='2']").get_attribute("aria-pressed") == "true"


def test_by_keyboard_alone(opened):
    page = opened()
    page.keyboard.press("Tab")
    page.keyboard.type(TEXT)
    page.wait_for_selector("[data-place='3']")
    idle(page)
    focused = "document.activeElement.dataset"
    while page.evaluate(f"{focused}.place") is None:
        page.keyboard.press("Tab")
    last = int(page.evaluate(f"{focused}.place"))
    assert last == page.locator("[data-place]").count() - 1
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(f"{focused}.place") == str(last - 1)
    while page.evaluate(f"{focused}.head") is None:
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(f"{focused}.head") == "1.0"
    page.keyboard.press("a")
    page.wait_for_selector("[data-head='1.0'].out")
    assert page.evaluate(f"{focused}.head") == "1.0"


def test_two_models_are_compared(opened):
    page = opened(models=2)
    typed(page)
    assert page.locator(".model").count() == 2
    assert "model 1 less model 0: " in page.locator(".compared").text_content()


def test_patch_from_a_second_text(opened):
    page = opened()
    typed(page)
    page.get_by_text("Patch from a second text").click()
    page.fill("#other", TEXT.replace("7", "8"))
    cell = page.locator("[data-patch='0.2']")
    cell.wait_for()
    idle(page)
    assert page.locator("[data-patch]").count() == 3 * page.locator("[data-place]").count()
    cell.focus()
    page.keyboard.press("Enter")
    assert "With this value of the second text" in page.locator(".then").text_content()
    again = opened(hash_=f"#{page.url.partition('#')[2]}")
    again.wait_for_selector("[data-patch='0.2'][aria-pressed=true]")


def test_a_generation_grows_as_a_tree(opened):
    page = opened(width=390)
    typed(page)
    page.fill("[data-of='beams']", "3")
    page.fill("[data-of='tokens']", "5")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector(".tree .node", timeout=120_000)  # it compiles two programs
    idle(page)
    assert page.locator(".tree .node").count() == 15
    assert page.locator(".tree .branch").count() == 12
    assert page.locator(".tree .branch.best").count() == 4
    page.locator(".node.here").focus()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowUp", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.node") == "2.0"
    page.keyboard.press("ArrowDown")
    text = page.locator("[data-node='2.1'] title").text_content().split("\n")[0]
    assert page.locator(".said").text_content().startswith(f"“{text}”")
    assert not is_wider_than_the_screen(page)
    again = opened(hash_=f"#{page.url.partition('#')[2]}")
    again.wait_for_selector("[data-node='2.1'].here")


def test_models_with_different_tokenizers_stand_side_by_side(opened):
    page = opened(models="two tokenizers")
    typed(page)
    assert page.locator(".model").count() == 2
    assert "different tokenizers, so their tokens cannot be compared" in page.locator(".compared").text_content()


@pytest.mark.parametrize("width", [390, 1400])
def test_the_page_is_no_wider_than_the_screen(opened, width):
    page = opened(models=2, width=width)
    typed(page)
    assert not is_wider_than_the_screen(page)


def test_markup_in_a_text_is_shown_as_text(opened):
    page = opened()
    page.fill("#text", "<img src=x onerror=document.title='broken'>")
    page.wait_for_selector("[data-place='5']")
    assert page.locator("#main img").count() == 0
    assert page.title() == "Explorer"


def test_texts_that_do_not_fit_are_said(browser, clients):
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{clients[1].port}/")
    page.fill("#text", "12 7 " * 1000)
    page.wait_for_selector("#status.error")
    assert "the page shows at most 255" in page.locator("#status").text_content()
    page.fill("#text", TEXT)
    page.get_by_text("Patch from a second text").click()
    page.fill("#other", f"{TEXT} 12")
    page.get_by_text("patching needs equal numbers").wait_for()
    assert page.locator("[data-place]").count() > 1
    page.close()


def test_an_address_with_choices_that_there_are_not_shows_the_usual_ones(opened):
    page = opened(hash_="#text=12+7&measure=weights&form=cube&layer=9&place=40&ablated=x")
    page.wait_for_selector("[data-place='1']")
    assert page.input_value("#measure") == "entropy"
    assert page.locator("[data-head][tabindex='0']").count() == 1
    assert page.locator("[data-place][tabindex='0']").count() == 1


def test_the_keyboard_stays_with_its_model(opened):
    page = opened(models=2)
    typed(page)
    second = page.locator(".model").nth(1)
    second.locator("[data-place='0']").focus()
    page.keyboard.press("ArrowRight")
    assert second.locator("[data-place='1']").evaluate("button => button === document.activeElement")


@pytest.mark.parametrize("models", [1, "with a token"])
def test_saved_files_show_what_was_shown(opened, browser, tmp_path, models):
    page = opened(models=models)
    typed(page)
    page.locator("[data-head='1.1']").click()
    files = saved(page, tmp_path)
    assert files["svg"].read_text().startswith("<svg ")
    assert json.loads(files["json"].read_text())["models"][0]["look"]["text"] == TEXT
    errors = []
    still = browser.new_page()
    still.on("pageerror", lambda error: errors.append(str(error)))
    still.goto(files["page"].as_uri())
    still.wait_for_selector("[data-head='1.1'][aria-pressed=true]")
    assert loss(still) == loss(page)
    still.locator("[data-place='2']").click()
    assert still.locator("[data-place='2']").get_attribute("aria-pressed") == "true"
    assert still.locator("#measure option:disabled").count() == 2
    assert errors == []
    still.close()
