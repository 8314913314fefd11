"""Pictures show the exact numbers, with any text."""

import io
import itertools

import numpy as np
import pytest
from inspection_support import make_maps
from matplotlib.figure import Figure
from matplotlib.image import imread

from transformer_jax.errors import ConfigError
from transformer_jax.inspection.attention import KINDS, Selection
from transformer_jax.inspection.heat_maps import heat_map, write_heat_maps
from transformer_jax.inspection.pictures import DPI, new_figure, output_folder, save, shortened


@pytest.mark.parametrize("kind", KINDS)
def test_a_figure_has_a_panel_per_head_with_its_weights(kind):
    maps = make_maps()
    figure = heat_map(maps, kind, layer=1)
    *panels, bar = figure.axes
    assert len(panels) == 6
    for head, axes in enumerate(panels):
        shown, weights = axes.images[0].get_array(), maps.weights[kind][1, head]
        np.testing.assert_array_equal(np.ma.getmaskarray(shown), hidden(kind, weights))
        np.testing.assert_array_equal(shown.compressed(), weights[~hidden(kind, weights)])
        assert axes.images[0].get_clim() == (0, 1)
        assert axes.get_xlabel() == f"head {head}"
        assert [label.get_text() for label in axes.get_xticklabels()] == maps.keys(kind)
        rows = maps.queries(kind) if head % 4 == 0 else []
        assert [label.get_text() for label in axes.get_yticklabels()] == rows
    assert [text.get_text() for text in figure.texts] == [f"{KINDS[kind]}, layer 1"]
    assert bar.get_ylim() == (0, 1)


def hidden(kind, weights):
    """Return the cells that a causal mask hides."""
    return np.triu(np.ones_like(weights, bool), 1) if kind == "decoder_self_attention" else np.zeros_like(weights, bool)


def test_labels_of_forty_tokens_do_not_overlap_and_stay_inside():
    maps = make_maps(source=40, target=38, heads=2, labels=["▁dreiundzwanzig", "▁Kilometer"])
    figure = heat_map(maps, "decoder_cross_attention")
    figure.canvas.draw()
    for axes in figure.axes[:2]:
        for ticks, side in ((axes.get_xticklabels(), "x"), (axes.get_yticklabels(), "y")):
            boxes = [label.get_window_extent() for label in ticks]
            starts = sorted((getattr(box, f"{side}0"), getattr(box, f"{side}1")) for box in boxes)
            assert all(end <= start + 1 for (_, end), (start, _) in itertools.pairwise(starts))
            for box in boxes:
                assert box.x0 >= 0
                assert box.y0 >= 0
                assert box.x1 <= figure.get_figwidth() * DPI
                assert box.y1 <= figure.get_figheight() * DPI


def test_the_title_of_one_head_of_a_short_sentence_fits():
    figure = heat_map(make_maps(source=2, target=1, labels=["a"]), "decoder_self_attention", heads=[0])
    figure.canvas.draw()
    assert figure.texts[0].get_window_extent().x1 <= figure.get_figwidth() * DPI


def test_files_of_this_text_only(tmp_path):
    maps = make_maps(heads=1)
    layers = {"encoder_self_attention": [0, 1], "decoder_self_attention": [0, 1], "decoder_cross_attention": [0, 1]}
    files = write_heat_maps(maps, Selection(layers, [0]), tmp_path)
    assert {path.name for path in files} == {f"{kind}_layer_{n}.png" for kind in KINDS for n in (0, 1)}
    (tmp_path / "mine.png").write_bytes(b"")
    only = {"encoder_self_attention": [], "decoder_self_attention": [], "decoder_cross_attention": [1]}
    files = write_heat_maps(maps, Selection(only, [0]), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decoder_cross_attention_layer_1.png", "mine.png"]
    width, height = heat_map(maps, "decoder_cross_attention", 1).get_size_inches() * DPI
    assert imread(files[0]).shape[:2] == pytest.approx((height, width), abs=1)


def test_the_same_figure_is_the_same_file(tmp_path):
    files = [save(heat_map(make_maps(), "encoder_self_attention"), tmp_path / f"{n}.png") for n in (1, 2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_character_without_a_glyph_is_reported(tmp_path, caplog):
    figure = new_figure(1, 1)
    figure.text(0, 0, "\U0001f937 \u0f00\ua000")
    save(figure, tmp_path / "x.png")
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'x.png'}: no installed font has all of its characters; missing ones are drawn as boxes"
    ]


def test_figures_do_not_use_pyplot():
    assert isinstance(new_figure(1, 1), Figure)
    buffer = io.BytesIO()
    new_figure(1, 1).savefig(buffer)
    assert buffer.getvalue().startswith(b"\x89PNG")


def test_long_labels_are_shortened():
    assert shortened("x" * 24) == "x" * 24
    assert shortened("x" * 25) == "x" * 23 + "…"


def test_a_folder_that_cannot_be_created(tmp_path):
    assert output_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--output=.*/file/x: cannot be made: Not a directory"):
        output_folder(tmp_path / "file" / "x")
    with pytest.raises(ConfigError, match=r"--output=.*/file: cannot be made: File exists"):
        output_folder(tmp_path / "file")


def test_a_folder_without_write_permission(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(ConfigError, match="cannot be written to; choose another folder"):
        output_folder(tmp_path)
