"""The page in headless Chromium."""

import io
import os
import shutil

import matplotlib.image
import numpy as np
import pytest
from report_support import STUDY, write_workdir

from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import GROUND, IN_THE_DARK, INK
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.report.write import write_report

pytestmark = pytest.mark.slow

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
LONG = "a_value_with_a_name_that_does_not_end_soon_and_has_no_space_in_it_at_all"
FIGURES = """figures=(MetricByVariant("test/exact_match"), Curves("valid/loss", log_y=True),
    MetricByBin("test[*]/exact_match"),
    CustomFigure(lambda axes, results: axes.plot([1, 2]) and None, "Ours <b>", "A line & no more")),"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    named = f'axes=(Axis("num_heads", {{"{LONG}" if n == 8 else str(n): {{"model.num_heads": n}} for n in HEADS}}),),'
    text = STUDY.replace("STUDY = ", "HEADS = (1, 2, 4, 8, 16)\nSTUDY = ")
    text = text.replace('axes=(over("model.num_heads", 1, 2, 4, 8, 16),),', named)
    results = collect(*write_workdir(tmp_path_factory.mktemp("study"), FIGURES, text))
    assert LONG in results.variants[3].name
    output = tmp_path_factory.mktemp("report")
    write_report(results, summarise(results), effects(results), output)
    return output / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("CI is set, and there is no Chromium")
        pytest.skip("there is no Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        folder = tmp_path_factory.mktemp("profile")
        context = playwright.chromium.launch_persistent_context(folder, executable_path=CHROMIUM, args=FLAGS)
        yield context
        context.close()


@pytest.fixture
def opened(browser, page_file):
    """Open the page; return its requests and the messages of its console."""
    page = browser.new_page()
    requests, said = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def open_at(width, scheme="light"):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(page_file.as_uri(), wait_until="networkidle")
        return page

    yield open_at, requests, said
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_fits_the_window_and_is_complete(opened, page_file, width, scheme):
    open_at, requests, said = opened
    page = open_at(width, scheme)
    for state in ("closed", "open"):
        assert page.evaluate("document.documentElement.scrollWidth") <= width, state
        assert page.evaluate("document.body.scrollWidth") <= width, state
        page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    assert [url for url in requests if not url.startswith("data:")] == [page_file.as_uri()]
    assert said == []
    images = page.locator("img")
    assert images.count() == 4
    for image in images.all():
        assert len(image.get_attribute("alt")) > 10
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")


def test_figures_have_the_colours_of_the_page(opened):
    """Ground and ink of every figure; the first switch is without a reload, as when the system turns dark at dusk."""
    page = opened[0](1280)
    for scheme in ("light", "dark", "light"):
        page.emulate_media(color_scheme=scheme)
        for image in page.locator("img").all():
            pixels = matplotlib.image.imread(io.BytesIO(image.screenshot()))[8:-8, 8:-8, :3]
            colours, counts = np.unique((255 * pixels).round().astype(int).reshape(-1, 3), axis=0, return_counts=True)
            common = {"#{:02x}{:02x}{:02x}".format(*colours[i]): counts[i] for i in np.argsort(-counts)[:40]}
            ground, ink = (IN_THE_DARK[c] if scheme == "dark" else c for c in (GROUND, INK))
            assert next(iter(common)) == ground
            assert common[ink] > 20


def test_text_has_enough_contrast(opened):
    """Contrast of body text of at least 7 to 1, and of secondary text 4.5 to 1 (WCAG 2.2, 1.4.6 and 1.4.3)."""
    for scheme in ("light", "dark"):
        page = opened[0](1280, scheme)
        for selector, least in (("body", 7.0), (".soft", 4.5), ("tbody th", 7.0), (".star", 3.0)):
            ink = page.locator(selector).first.evaluate("e => getComputedStyle(e).color")
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            bright, dim = sorted((luminance(ink), luminance(ground)), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= least, (scheme, selector)


def luminance(colour: str) -> float:
    """Return the relative luminance of `rgb(r, g, b)` (WCAG 2.2)."""
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_wide_tables_scroll_by_keyboard_in_place(opened):
    page = opened[0](360)
    table = page.locator(".scroll").first
    assert table.evaluate("e => e.scrollWidth > e.clientWidth")
    table.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("document.querySelector('.scroll').scrollLeft > 0")
    assert page.evaluate("window.scrollX") == 0


def test_data_is_text(opened):
    page = opened[0](1280)
    assert page.locator("script").count() == 0
    assert page.locator("h1").inner_text() == "Is it <b>heads</b> & *what* else? <script>alert(1)</script>"
