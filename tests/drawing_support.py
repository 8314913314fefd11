"""Checks of drawings: texts can be read, and nothing lies on them."""

import itertools

from transformer_jax.inspection.drawing import Line, Rect, Text


def texts_of(drawing):
    return [shape for shape in drawing.shapes if isinstance(shape, Text)]


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def edges_of(rect):
    return rect.x, rect.y, rect.x + rect.width, rect.y + rect.height


def boxes_of_line(line):
    for (x0, y0), (x1, y1) in itertools.pairwise(line.points):
        yield min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)


def check_layout(drawing):
    """Check that texts overlap neither each other nor lines, and are inside the page and inside of their boxes."""
    texts = texts_of(drawing)
    for one, other in itertools.combinations(texts, 2):
        assert not overlap(one.box, other.box), (one.text, other.text)
    for text in texts:
        left, top, right, bottom = text.box
        assert left >= 0, text
        assert top >= 0, text
        assert right <= drawing.width, text
        assert bottom <= drawing.height, text
        for shape in drawing.shapes:
            if isinstance(shape, Line):
                assert not any(overlap(text.box, box) for box in boxes_of_line(shape)), text
            if isinstance(shape, Rect) and overlap(text.box, edges := edges_of(shape)):
                assert edges[0] <= left, text
                assert edges[1] <= top, text
                assert edges[2] >= right, text
                assert edges[3] >= bottom, text
    blocks = [shape for shape in drawing.shapes if isinstance(shape, Rect) and shape.kind != "frame"]
    for one, other in itertools.combinations(blocks, 2):
        assert not overlap(edges_of(one), edges_of(other))
