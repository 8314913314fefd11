"""Heat maps of effects: what stands in the cells, that it can be read, and that nothing is cut off."""

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from transformer_jax.inspection.effect_maps import MOST_COLUMNS, effect_map

TITLE = "Share of the difference in log p(5) - log p(2) that one value of the other text makes"


def rows_of(count, columns, seed=0):
    values = np.random.default_rng(seed).normal(size=(count, columns))
    return {f"decoder/{layer}/self_attention/heads": row for layer, row in enumerate(values)}


def words_of(rows):
    return [[f"{x:+.2f}" for x in row] for row in rows.values()]


def texts_of(figure):
    """Return the artists of all texts that are drawn, with the size of the figure in pixels."""
    renderer = FigureCanvasAgg(figure)
    renderer.draw()
    axes, bar = figure.axes
    ticks = [*axes.get_xticklabels(), *axes.get_yticklabels(), *bar.get_yticklabels()]
    return [text for text in [*figure.texts, *axes.texts, *ticks] if text.get_text()], renderer.get_width_height()


@pytest.mark.parametrize(
    ("columns", "label"),
    list(itertools.product([1, 4, 9, MOST_COLUMNS + 1], ["head", "a longer token | another one"])),
)
def test_no_text_is_cut_off_and_no_two_overlap(columns, label):
    rows = rows_of(3, columns)
    figure = effect_map(rows, [label] * columns, True, TITLE, words_of(rows))
    texts, (width, height) = texts_of(figure)
    boxes = {text: text.get_window_extent() for text in texts}
    for text, box in boxes.items():
        assert 0 <= box.x0 <= box.x1 <= width, text
        assert 0 <= box.y0 <= box.y1 <= height, text
    for (one, box), (two, other) in itertools.combinations(boxes.items(), 2):
        assert not box.overlaps(other), (one, two)


def test_the_title_is_whole_and_a_cell_has_its_word():
    rows = rows_of(2, 3)
    words = [["a", "b", "c"], ["d", "e", "a word that is too long"]]
    figure = effect_map(rows, ["x", "y", "z"], True, TITLE, words)
    assert " ".join(text.get_text() for text in figure.texts) == TITLE
    shown = {(*map(round, text.get_position()),): text.get_text() for text in figure.axes[0].texts}
    assert [shown[x, 0] for x in range(3)] == ["a", "b", "c"]
    assert [shown[x, 1] for x in range(3)] == ["d", "e", "a word that…"]
    (image,) = figure.axes[0].images
    np.testing.assert_array_equal(image.get_array(), np.stack(list(rows.values())))


def test_many_columns_have_no_words():
    rows = rows_of(2, MOST_COLUMNS + 1)
    figure = effect_map(rows, ["x"] * (MOST_COLUMNS + 1), True, TITLE, words_of(rows))
    assert not figure.axes[0].texts


def luminance(colour):
    """Relative luminance of WCAG 2.2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return np.dot((0.2126, 0.7152, 0.0722), linear)


@pytest.mark.parametrize("signed", [True, False])
def test_every_word_has_a_contrast_of_4_5_to_its_cell(signed):
    """That of text in WCAG 2.2, over the whole range of colours."""
    values = {"row": np.linspace(-1 if signed else 0, 1, MOST_COLUMNS)}
    figure = effect_map(values, ["x"] * MOST_COLUMNS, signed, words=[["w"] * MOST_COLUMNS])
    (image,) = figure.axes[0].images
    for text in figure.axes[0].texts:
        cell = image.to_rgba(values["row"])[round(text.get_position()[0]), :3]
        low, high = sorted([luminance(cell), luminance(to_rgb(text.get_color()))])
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_a_map_of_zeros_has_colours():
    figure = effect_map({"a": np.zeros(2)}, ["x", "y"], True)
    (image,) = figure.axes[0].images
    assert image.get_clim() == (-1, 1)
