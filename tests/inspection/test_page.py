"""The page contains the exact weights, shows text as text, and works in a browser by pointer and by keyboard."""

import base64
import json
import re

import numpy as np
import pytest
from inspection_support import everything, make_maps

from transformer_jax.inspection.attention import KINDS, Selection
from transformer_jax.inspection.page import attention_page

EVIL = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"> & <!-- ü"


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_the_page_has_every_weight_bit_for_bit():
    maps = make_maps()
    data = data_of(attention_page(maps, everything(2, 6), {"text": EVIL}))
    assert data["about"] == [["text", EVIL]]
    assert [one["title"] for one in data["kinds"]] == list(KINDS.values())
    for one, kind in zip(data["kinds"], KINDS, strict=True):
        weights = np.frombuffer(base64.b64decode(one["weights"]), "<f4").reshape(maps.weights[kind].shape)
        np.testing.assert_array_equal(weights, maps.weights[kind])
        assert (one["rows"], one["columns"]) == (maps.queries(kind), maps.keys(kind))
        assert (one["layers"], one["heads"]) == ([0, 1], [0, 1, 2, 3, 4, 5])
        assert one["causal"] == (kind == "decoder_self_attention")


def test_the_page_of_a_selection():
    maps = make_maps()
    layers = {"encoder_self_attention": [1], "decoder_self_attention": [], "decoder_cross_attention": []}
    (one,) = data_of(attention_page(maps, Selection(layers, [4, 5]), {}))["kinds"]
    weights = np.frombuffer(base64.b64decode(one["weights"]), "<f4").reshape(1, 2, 5, 5)
    np.testing.assert_array_equal(weights, maps.weights["encoder_self_attention"][1:, 4:])
    assert (one["layers"], one["heads"]) == ([1], [4, 5])


def test_the_page_uses_no_network():
    page = attention_page(make_maps(), everything(2, 6), {})
    assert not re.search(r"https?:|src=|@import|url\(", page)


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of long labels at a width; return (page, messages of the console and failed requests)."""
    pages = []

    def show(maps, shown, width):
        file = tmp_path / "attention.html"
        file.write_text(attention_page(maps, shown, {"text": EVIL * 3}), encoding="utf-8")
        page, said = browser.new_page(), []
        page.set_viewport_size({"width": width, "height": 800})
        pages.append(page)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        return page, said

    yield show
    for page in pages:
        page.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_does_not_overflow_execute_labels_or_request_files(opened, width):
    maps = make_maps(source=40, target=38, labels=["x" * 60, *make_maps().source])
    page, said = opened(maps, everything(2, 6), width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.getElementById('map').scrollWidth") > 360  # the map scrolls by itself
    assert page.title() == "Attention"
    assert page.locator("dd").inner_text() == EVIL * 3
    assert [url for url in said if url != "data:,"] == []


@pytest.mark.slow
def test_every_weight_can_be_read_by_keyboard(opened):
    maps = make_maps()
    page, _ = opened(maps, everything(2, 6), 360)
    for kind, title in KINDS.items():
        page.select_option("#kind", label=title)
        page.select_option("#layer", "1")
        page.select_option("#head", "4")
        weights = maps.weights[kind][1, 4]
        page.focus("#map")
        for key in ("ArrowUp", "ArrowLeft") * 6:
            page.keyboard.press(key)
        for row, query in enumerate(maps.queries(kind)):
            page.keyboard.press("Home")
            for column, token in enumerate(maps.keys(kind)):
                hidden = kind == "decoder_self_attention" and column > row
                value = "masked" if hidden else f"{weights[row, column]:.4f}"
                expected = f"{value} · query {row + 1}: {query} · key {column + 1}: {token}"
                said = page.locator("#cell").text_content()
                assert re.sub(r"0\.\d{4}", "", said) == re.sub(r"0\.\d{4}", "", expected)
                if not hidden:  # JavaScript and Python round halves differently
                    assert abs(float(said.split()[0]) - weights[row, column]) <= 0.5001e-4
                page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowDown")
        name = f"{title}, layer 1, head 4"
        assert page.get_attribute("#map", "aria-label") == name
        described = page.get_attribute("#canvas", "aria-label")
        assert described.startswith(f"{name}: weights of {len(weights)} queries to {weights.shape[1]} keys")
        assert f"largest is {weights.max():.4f}" in described
    assert page.get_attribute("#canvas", "role") == "img"


@pytest.mark.slow
def test_a_weight_is_read_where_the_pointer_is_and_drawn_in_its_colour(opened):
    maps = make_maps(layers=1, heads=1)
    maps.weights["decoder_cross_attention"][:] = np.eye(4, 5)
    page, _ = opened(maps, everything(1, 1), 1280)
    box = page.locator("#canvas").bounding_box()
    left, above, cell = page.evaluate("[left, above, cell]")
    page.mouse.move(box["x"] + left + 3.5 * cell, box["y"] + above + 2.5 * cell)
    assert page.locator("#cell").text_content().startswith("0.0000 · query 3:")
    page.mouse.move(box["x"] + left + 2.5 * cell, box["y"] + above + 2.5 * cell)
    assert page.locator("#cell").text_content().startswith("1.0000 · query 3:")

    def colour(row, column):
        at = [left + (column + 0.5) * cell, above + (row + 0.5) * cell]
        return page.evaluate("([x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data].slice(0, 3)", at)

    assert colour(1, 1) == [8, 48, 107]
    assert colour(0, 1) == [247, 251, 255]
    page.select_option("#kind", label=KINDS["decoder_self_attention"])
    left, above, cell = page.evaluate("[left, above, cell]")
    assert colour(0, 1) == [221, 221, 221]
