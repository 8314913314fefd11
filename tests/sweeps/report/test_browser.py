"""The page in headless Chromium."""

import csv
import io
import itertools

import matplotlib.image
import numpy as np
import pytest
from report_support import CROSSED, STUDY, write_workdir

from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import GROUND, IN_THE_DARK, INK
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results import RESULT, TRIALS

pytestmark = pytest.mark.slow

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
    return written(results, tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def crossed_file(tmp_path_factory):
    """The page of a study with two axes, seven contrasts and a trial without a result."""
    workdir, folder = write_workdir(tmp_path_factory.mktemp("study"), text=CROSSED)
    (workdir / TRIALS / "num_heads=2,norm=post,seed=1" / RESULT).unlink()
    return written(collect(workdir, folder), tmp_path_factory.mktemp("report"))


def written(results, output):
    write_report(results, summarise(results), effects(results), output)
    return output / "report.html"


@pytest.fixture(scope="module")
def tab(browser):
    """A tab for all tests, with its requests and the messages of its console."""
    page = browser.new_page()
    requests, said = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    yield page, requests, said
    page.close()


@pytest.fixture
def opened(tab, page_file):
    """Open a page; return its requests and the messages of its console."""
    page, requests, said = tab
    requests.clear()
    said.clear()

    def open_at(width, scheme="light", file=page_file, height=900):
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        page.goto(file.as_uri())
        return page

    return open_at, requests, said


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 768, 1200, 1600])
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


COLOURS = """() => {
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.tagName === "SCRIPT") continue;
    let behind = element;
    while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
    const key = [getComputedStyle(element).color, getComputedStyle(behind).backgroundColor];
    found.set(key.join("; "), [...key, `${element.tagName} ${element.className}: ${element.textContent.trim()}`]);
  }
  for (const button of document.querySelectorAll("th button")) {
    const key = [getComputedStyle(button, "::after").color, getComputedStyle(button.parentElement).backgroundColor];
    found.set(key.join("; "), [...key, "the arrow of a head"]);
  }
  return [...found.values()];
}"""


def test_text_has_enough_contrast(opened, page_file, crossed_file):
    """All text: at least 4.5 to 1; body text and names of rows 7 to 1 (WCAG 2.2, 1.4.3 and 1.4.6)."""
    for scheme in ("light", "dark"):
        for file in (page_file, crossed_file):
            page = opened[0](1280, scheme, file)
            page.locator("th button").first.click()
            found = page.evaluate(COLOURS)
            assert len(found) >= 5
            for ink, ground, what in found:
                assert contrast(ink, ground) >= 4.5, (scheme, what)
        for selector in ("body", "tbody th", ".answer"):
            ink = page.locator(selector).first.evaluate("e => getComputedStyle(e).color")
            assert contrast(ink, page.evaluate("getComputedStyle(document.body).backgroundColor")) >= 7.0


def contrast(ink: str, ground: str) -> float:
    bright, dim = sorted((luminance(ink), luminance(ground)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


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
    scrolled = "new Promise(resolve => { document.querySelector('.scroll').onscroll = resolve })"
    page.evaluate(f"() => {{ window.scrolled = {scrolled} }}")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("window.scrolled.then(() => document.querySelector('.scroll').scrollLeft)") > 0
    assert page.evaluate("window.scrollX") == 0


def test_data_is_text(opened):
    page = opened[0](1280)
    assert page.locator("script").count() == 1
    assert page.locator("b, cpu").count() == 0
    assert page.locator("h1").inner_text() == "Is it <b>heads</b> & *what* else? <script>alert(1)</script>"


@pytest.mark.parametrize("file", ["page_file", "crossed_file"])
def test_the_structure_is_that_which_screen_readers_need(opened, request, file):
    """One h1, no level left out, every table with caption, label and heads, every control with a name."""
    page = opened[0](1280, file=request.getfixturevalue(file))
    levels = [int(e.evaluate("e => e.tagName[1]")) for e in page.locator("h1, h2, h3, h4").all()]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for table in page.locator("table").all():
        assert table.locator("caption").text_content().strip()
        assert table.locator("xpath=..").get_attribute("aria-label")
        assert table.locator("xpath=..").get_attribute("role") == "region"
        columns = table.locator("tbody tr").first.locator("th, td").count()
        assert table.locator("thead button").count() == columns
        names = [button.get_attribute("aria-label") for button in table.locator("thead button").all()]
        assert len(set(names)) == columns
    for select in page.locator("select").all():
        assert select.get_attribute("aria-label").startswith("Filter by ")
    assert page.locator("[role=status]").count() == page.locator("table").count()


@pytest.mark.parametrize(("width", "height"), [(375, 812), (1200, 800)])
def test_the_first_screen_has_question_answer_and_the_start_of_a_picture_or_table(opened, crossed_file, width, height):
    page = opened[0](width, file=crossed_file, height=height)
    answer = page.locator(".answer")
    assert answer.locator("> li").count() >= 3
    assert float(answer.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")) >= 16
    start = page.locator("figure, .scroll").first.bounding_box()
    said = answer.bounding_box()
    is_beside = start["x"] > said["x"] + said["width"]
    assert is_beside or said["y"] + said["height"] < start["y"]
    assert start["y"] < height - 60


CASES = [
    ("answer", "num_heads", None, "num_heads"),
    ("answer", "test exact match (%), mean ± 95 %", "test/exact_match", "mean"),
    ("answer", "test loss (nats per token), mean ± 95 %", "test/loss", "mean"),
    ("differences", "test exact match (%), difference", "test/exact_match", "difference"),
    ("differences", "test loss (nats per token), p (Holm)", "test/loss", "p_value_holm"),
    ("trials", "test loss (nats per token)", None, "test/loss"),
    ("trials", "seed", None, "seed"),
]
FILES = {"answer": "summary.csv", "differences": "contrasts.csv", "trials": "results.csv"}


@pytest.mark.parametrize("key", ["click", "Enter", " "])
def test_rows_are_sorted_in_both_directions(opened, crossed_file, key):
    """As Python sorts the lines of the CSV, with missing values last; equal ones stay in the study's order."""
    page = opened[0](1280, file=crossed_file)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    for label, name, metric, column in CASES:
        lines = list(csv.DictReader((crossed_file.parent / FILES[label]).read_text().splitlines()))
        if FILES[label] != "results.csv":
            lines = [line for line in lines if line["metric"] == (metric or "test/exact_match")]
        values = [float(line[column]) if line[column] else None for line in lines]
        region = page.locator(f'[aria-label="{label}"]')
        button = region.locator(f'thead button[aria-label="{name}"]')
        for direction, sign in (("ascending", 1), ("descending", -1)):
            button.click() if key == "click" else button.press(key)
            expected = sorted(
                range(len(lines)), key=lambda i: (values[i] is None, 0 if values[i] is None else sign * values[i])
            )
            assert button.locator("xpath=..").get_attribute("aria-sort") == direction
            assert region.locator("[aria-sort]").count() == 1
            assert order(region) == expected, (label, name, direction)
            status = page.locator(f'[aria-label="Rows of the table: {label}"] [role=status]').text_content()
            assert status == f"{len(lines)} of {len(lines)} rows, sorted by {name}, {direction}"
    assert page.evaluate("document.activeElement.textContent") == "seed"


def order(region):
    """Return the places in the study's order of the rows that are shown."""
    return region.locator("tbody").evaluate(
        "body => [...body.rows].filter(row => !row.hidden).map(row => Number(row.dataset.place))"
    )


def test_keys_reach_heads_and_filters(opened, crossed_file):
    page = opened[0](1280, file=crossed_file)
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getAttribute('aria-label') ?? ''"))
        shown = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert shown != "none"
    start = reached.index("Filter by num_heads")
    assert reached[start : start + 5] == ["Filter by num_heads", "Filter by norm", "answer", "num_heads", "norm"]


def test_rows_are_filtered_by_the_values_of_axes(opened, crossed_file):
    page = opened[0](1280, file=crossed_file)
    tools, region = page.locator(".tools").first, page.locator('[aria-label="answer"]')
    status, reset = tools.locator("[role=status]"), tools.locator("button")
    everything = [(heads, norm) for heads in "124" for norm in ("pre", "post")]
    assert status.text_content() == "6 of 6 rows"
    assert not reset.is_visible()
    tools.locator("select").nth(1).select_option(label="norm: pre")
    assert [everything[i] for i in order(region)] == [("1", "pre"), ("2", "pre"), ("4", "pre")]
    assert status.text_content() == "3 of 6 rows"
    region.locator("thead button").first.click()
    region.locator("thead button").first.click()
    assert [everything[i] for i in order(region)] == [("4", "pre"), ("2", "pre"), ("1", "pre")]
    tools.locator("select").first.select_option(label="num_heads: 2")
    assert [everything[i] for i in order(region)] == [("2", "pre")]
    assert status.text_content().startswith("1 of 6 rows")
    reset.click()
    assert order(region) == list(range(6))
    assert status.text_content() == "6 of 6 rows"
    assert page.locator("[aria-sort]").count() == 0
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Filter by num_heads"


@pytest.mark.parametrize("file", ["page_file", "crossed_file"])
def test_the_names_of_rows_stay_in_view(opened, request, file):
    page = opened[0](375, file=request.getfixturevalue(file))
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    for box in page.locator(".scroll").all():
        names = box.locator("tbody tr").first.locator("th").count()
        box.locator("tbody .fixed").first.wait_for()
        before = box.locator("tbody tr").first.locator("th").first.bounding_box()
        if not box.evaluate("e => { e.scrollLeft = e.scrollWidth; return e.scrollLeft }"):
            continue
        after = [cell.bounding_box() for cell in box.locator("tbody tr").first.locator(".fixed").all()]
        head = box.locator("thead th").first.bounding_box()
        assert after[0]["x"] == pytest.approx(before["x"], abs=1) == pytest.approx(head["x"], abs=1)
        for one, other in itertools.pairwise(after):
            assert one["x"] + one["width"] == pytest.approx(other["x"], abs=1)
        assert len(after) == names or file == "page_file" or names > 2
        width = box.bounding_box()["width"]
        assert sum(of["width"] for of in after) <= max(width * 2 / 3, after[0]["width"]) + 1
        last = box.locator("tbody tr").first.locator("td").last.bounding_box()
        assert last["x"] >= after[-1]["x"] + after[-1]["width"] - last["width"]


def test_without_javascript_the_page_is_whole(opened, tab, crossed_file):
    page = tab[0]
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened[0](375, file=crossed_file)
        rows = page.locator('[aria-label="answer"] tbody tr')
        assert rows.count() == 6
        assert all(row.is_visible() for row in rows.all())
        assert page.locator("button, select").count() == 0
        page.locator("summary", has_text="Every trial").click()
        assert page.locator('[aria-label="trials"] tbody tr').last.is_visible()
    finally:
        session.send("Emulation.setScriptExecutionDisabled", {"value": False})
        session.detach()
