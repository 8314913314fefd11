"""Drawings as SVG, PDF and PNG: their text, alt text, colours and bytes."""

import io
import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.inspection.drawing import (
    EDGE,
    ENDINGS,
    GROUND,
    INK,
    SHADES,
    Drawing,
    Line,
    Rect,
    Sum,
    Text,
    check_ending,
    moved,
    svg,
    text_width,
    write_drawing,
)
from transformer_jax.sweeps.report import drawing as report

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = (
    *(Rect(10, 10 + 20 * number, 80, 16, kind) for number, kind in enumerate(SHADES)),
    Line(((5, 5), (95, 5), (95, 50)), has_head=True),
    Sum(50, 150),
    Text(50, 22, "a < b & √2"),
    Text(8, 60, "$x_1$ upwards", anchor="start", is_vertical=True, is_bold=True),
)
DRAWING = Drawing(100, 300, "A title & more", "An alt <text>", SHAPES)


def test_an_svg_has_real_text_a_title_and_an_alt_text():
    root = ElementTree.fromstring(svg(DRAWING))
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("100", "300", "0 0 100 300")
    assert root.find(f"{SVG}title").text == "A title & more"
    assert root.find(f"{SVG}desc").text == "An alt <text>"
    assert root.get("role") == "img"
    assert [text.text for text in root.iter(f"{SVG}text")] == ["a < b & √2", "$x_1$ upwards"]
    assert [text.get("transform") for text in root.iter(f"{SVG}text")] == [None, "rotate(-90 8 60)"]


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    """As in the Web Content Accessibility Guidelines 2.2."""
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def test_text_can_be_read_on_every_colour_on_light_and_dark_pages():
    for theme in ("light", "dark"):
        ink = getattr(INK, theme)
        for kind, shade in {**SHADES, "ground": GROUND}.items():
            if kind not in ("on", "off"):  # without text
                assert contrast(ink, getattr(shade, theme)) >= 7, (theme, kind)
        assert contrast(getattr(EDGE, theme), getattr(GROUND, theme)) >= 3
        assert contrast(getattr(SHADES["on"], theme), getattr(SHADES["off"], theme)) >= 3


def test_ground_and_ink_are_those_of_reports():
    assert (GROUND.light, INK.light) == (report.GROUND, report.INK)
    assert (GROUND.dark, INK.dark) == (report.IN_THE_DARK[report.GROUND], report.IN_THE_DARK[report.INK])


def test_an_svg_follows_the_theme_of_its_page():
    light, dark = svg(DRAWING).decode().split("@media (prefers-color-scheme:dark)")
    for kind, shade in SHADES.items():
        assert f".{kind}{{fill:{shade.light}}}" in light
        assert f".{kind}{{fill:{shade.dark}}}" in dark
    classes = {name for found in re.findall(r'class="([\w ]+)"', svg(DRAWING).decode()) for name in found.split()}
    assert classes - {"bold"} <= set(re.findall(r"\.(\w+)[,{]", light))


@pytest.mark.parametrize("ending", ENDINGS)
def test_equal_drawings_give_equal_files(ending, tmp_path):
    files = [write_drawing(DRAWING, tmp_path / f"{name}{ending.upper()}").read_bytes() for name in "ab"]
    assert files[0] == files[1]
    assert files[0].startswith({".svg": b"<svg", ".pdf": b"%PDF", ".png": b"\x89PNG"}[ending])


def test_a_png_has_its_alt_text_and_twice_the_pixels(tmp_path):
    image = Image.open(io.BytesIO(write_drawing(DRAWING, tmp_path / "a.png").read_bytes()))
    assert image.size == (200, 600)
    assert image.info["Description"] == "An alt <text>"
    colours = {image.convert("RGB").getpixel((160, 2 * (10 + 20 * number + 12))) for number in range(len(SHADES))}
    assert {f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in colours} >= {
        shade.light.lower() for kind, shade in SHADES.items() if kind != "dropout"
    }


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a.jpg", r"--output=a.jpg: expected a file that ends in \.svg, \.pdf, \.png"),
        ("a.sgv", r"expected .* \(did you mean '\.svg'\?\)"),
        ("folder", r"--output=folder: expected a file that ends in \.svg, \.pdf, \.png$"),
    ],
)
def test_other_endings_are_refused(path, message):
    with pytest.raises(ConfigError, match=message):
        check_ending(Path(path), "output")


def test_a_folder_with_the_name_of_the_file(tmp_path):
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(CheckpointError, match=r"a\.svg: could not be written: Is a directory"):
        write_drawing(DRAWING, tmp_path / "a.svg")


def test_the_box_of_a_text():
    """Texts of other anchors and directions cover the same area at another place."""
    width = text_width("heads")
    assert text_width("heads", 22) == pytest.approx(2 * width)
    assert text_width("heads heads") > 2 * width
    for anchor, is_vertical in itertools.product(("start", "middle", "end"), (False, True)):
        left, top, right, bottom = Text(100, 100, "heads", anchor=anchor, is_vertical=is_vertical).box
        sides = sorted((right - left, bottom - top))
        assert sides == pytest.approx([1.05 * 11, width])
    assert Text(100, 100, "heads", anchor="start").box[0] == 100
    assert Text(100, 100, "heads", anchor="end").box[2] == 100
    assert Text(100, 100, "heads", anchor="start", is_vertical=True).box[3] == 100


def test_a_moved_shape():
    for shape in SHAPES:
        there = moved(moved(shape, 3, 4), -3, -4)
        assert there == shape
    assert moved(Text(1, 2, "a"), 3, 4) == Text(4, 6, "a")
    assert moved(Line(((1, 2), (3, 4))), 1, 1).points == ((2, 3), (4, 5))
