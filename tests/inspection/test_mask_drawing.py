"""The masks in the drawing are those that queries and keys of models have."""

import numpy as np
from drawing_support import check_layout, texts_of

from transformer_jax.inspection.drawing import Rect
from transformer_jax.inspection.mask_drawing import example_masks, masks_drawing

EXPECTED = {
    "encoder": ["111100"] * 6,
    "causal decoder": ["100000", "110000", "111000", "111100", "111110", "111111"],
    "cross-attention": ["111100"] * 4,
    "packed rows": ["100000", "110000", "111000", "000100", "000110", "000000"],
    "prefix": ["111000", "111000", "111000", "111100", "111110", "111111"],
}


def as_digits(allowed):
    return ["".join(str(int(value)) for value in row) for row in allowed]


def test_the_examples():
    assert {title: as_digits(example.allowed) for title, example in example_masks().items()} == EXPECTED
    for example in example_masks().values():
        assert example.allowed.shape == (len(example.queries), len(example.keys))


def test_the_cells_of_the_drawing_are_the_masks():
    cells = [shape for shape in masks_drawing().shapes if isinstance(shape, Rect)]
    drawn = [cell.kind == "on" for cell in cells]
    expected = np.concatenate([example.allowed.ravel() for example in example_masks().values()])
    assert drawn == expected.tolist()


def test_the_drawing_can_be_read():
    drawing = masks_drawing()
    check_layout(drawing)
    words = {text.text for text in texts_of(drawing)}
    assert set(EXPECTED) <= words
    for query in ("drei to drei", "der to the dog bites </s>", "<pad> to nothing"):
        assert query in drawing.alt
