"""Sources of images: their splits and labels, the column of bytes, and images that do not fit."""

import dataclasses
import io
import os
import re
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from image_support import LABELS, SPLITS, config, npz_config, pictures, write_folder, write_npz
from PIL import Image

from transformer_jax.config import DataConfig
from transformer_jax.data import sources
from transformer_jax.data.images import (
    ImageColumn,
    Picture,
    _pixels_of,
    converted,
    cropped,
    decoded,
    read_picture,
    squashed,
)
from transformer_jax.data.sources import load_source, open_test_set
from transformer_jax.data.sources.images.image_source import Part, parts_of
from transformer_jax.data.sources.images.shapes import FIGURES, drawn
from transformer_jax.data.token_cache import open_split
from transformer_jax.data.tokenizers import NoText, load_tokenizer
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks.task import TASKS

TOKENIZER = NoText()


def load(source, folder, **fields):
    return load_source(DataConfig(source=source, dir=str(folder), **fields))


def read(source, split="train", size=1000):
    """Return the pixels and the labels of a split."""
    chunks = list(source.chunks(split, size))
    return [p.load() for c in chunks for p in c.features["inputs"]], [t for c in chunks for t in c.features["targets"]]


def stored(settings, folder, split="train"):
    """Return a split as the cache stores it, without labels."""
    column, _ = TASKS["images"].columns(settings)
    return open_split(folder / "cache", load_source(settings.data), split, TOKENIZER, (column,))


# Sources.


def test_arrays_of_an_npz_file(tmp_path):
    path = write_npz(tmp_path)
    images, labels = pictures(36)
    for folder in (path, tmp_path):
        source = load("npz", folder, **SPLITS)
        assert source.split_names == ("train", "valid", "test")
        assert [source.num_examples(name) for name in source.split_names] == [24, 12, 9]
        for split, part in (("train", slice(24)), ("valid", slice(24, 36))):
            found, texts = read(source, split, size=5)
            np.testing.assert_array_equal(found, images[part])
            assert texts == [str(label) for label in labels[part]]


def test_the_other_names_of_keras_and_labels_in_a_column(tmp_path):
    images, labels = pictures(6, channels=3)
    names = np.array(LABELS)[labels]
    np.savez(tmp_path / "a.npz", x_train=images, y_train=names[:, None], x_test=images[..., 0], y_test=names)
    source = load("npz", tmp_path, valid_split="")
    assert read(source)[1] == names.tolist()
    assert np.shape(read(source)[0]) == (6, 8, 8, 3)
    assert np.shape(read(source, "test")[0]) == (6, 8, 8, 1)


def test_a_folder_of_files(tmp_path):
    source = load("image_folder", write_folder(tmp_path), test_sets="all=train+valid[:5]")
    assert [source.num_examples(name) for name in source.split_names] == [9, 9, 9, 14]
    features = source.split("train").features
    for picture, label in zip(features["inputs"], features["targets"], strict=True):
        split, folder, name = picture.name.split("/")
        assert (split, folder) == ("train", label)
        number = int(name.partition(".")[0])
        expected = pictures(9)[0][number]
        assert np.abs(picture.load().astype(int) - expected).max() <= (60 if name.endswith("jpg") else 0)
    # A part has images of every label, though the files of a folder stand together.
    half = load("image_folder", tmp_path, train_split="train[:60%]", valid_split="train[60%:]")
    assert {*read(half)[1]} == {*LABELS}
    assert sorted(read(half)[1] + read(half, "valid")[1]) == sorted(features["targets"])


def test_files_that_are_left_out_of_a_folder_are_counted_and_named(tmp_path, caplog):
    folder = write_folder(tmp_path)
    load("image_folder", folder)
    assert not caplog.text
    label = folder / "train" / "dark"
    for name in ("notes.txt", "a.gif", "b.PNG.bak"):
        (label / name).write_text("x")
    (label / "more").mkdir()
    (label / "more" / "c.png").write_bytes((label / "3.png").read_bytes())
    (folder / "train" / ".hidden").mkdir()
    (folder / "train" / "list.csv").write_text("x")
    (label / "3.png").rename(label / "3.PNG")
    source = load("image_folder", folder)
    assert source.num_examples("train") == 9  # the suffix in any case
    assert caplog.text.count("left out") == 1
    assert f"{folder / 'train'}: left out 6 of its files and folders, each of which is not an image" in caplog.text
    assert ": .hidden/, list.csv, dark/a.gif, dark/b.PNG.bak, dark/more/, ..." in caplog.text


def test_names_that_are_not_utf8(tmp_path):
    folder = write_folder(tmp_path)
    before = load("image_folder", folder).fingerprint()
    path = folder / "train" / "dark" / "3.png"
    path.rename(path.with_name("caf\udce9.png"))
    source = load("image_folder", folder)
    assert len(read(source)[0]) == 9
    assert source.fingerprint() != before
    (folder / "train" / "dark").rename(folder / "train" / "d\udce9")
    with pytest.raises(DataError, match="is the folder of a label, but its name is not UTF-8; rename it"):
        load("image_folder", folder)


def test_shapes_follow_from_their_numbers():
    small, large = (DataConfig(source="shapes", num_train_pairs=n, num_eval_pairs=10) for n in (100, 200))
    one, other = (read(load_source(c)) for c in (small, large))
    assert one[1] == other[1][:100]
    np.testing.assert_array_equal(one[0], other[0][:100])
    assert {*other[1]} == {*FIGURES}
    assert np.shape(one[0]) == (100, 28, 28, 1)
    assert len({x.tobytes() for x in other[0]} | {x.tobytes() for x in read(load_source(large), "valid")[0]}) == 210
    assert load_source(small).fingerprint() != load_source(large).fingerprint()


def test_a_figure_is_brighter_than_its_background():
    """A literal: the star of seed 0 touches its centre's rows and stays within the image."""
    pixels = drawn("circle", np.random.default_rng(0))[..., 0].astype(int)
    assert pixels.max() - np.median(pixels) > 60
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert border.max() < pixels.max() - 60


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", [(0, 10)]),
        ("train[:25%]", [(0, 2)]),
        ("train[25%:]+train[:3]", [(2, 10), (0, 3)]),
        ("train[4:6]", [(4, 6)]),
    ],
)
def test_parts_of_a_set(text, expected):
    parts = parts_of("data.train_split=...", text, lambda name: {"train": range(10)}[name])
    assert [(p.places.start, p.places.stop) for p in parts] == expected
    assert all(isinstance(p, Part) for p in parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train[:", "expected a set or a part of one"),
        ("train[3:3]", "the part 3:3 has none"),
        ("train[5:11]", "'train' has 10 images; the part 5:11"),
    ],
)
def test_parts_that_cannot_be(text, message):
    with pytest.raises(DataError, match=r"data\.train_split=x: ") as raised:
        parts_of("data.train_split=x", text, lambda name: range(10))
    assert message in str(raised.value)


def test_the_fingerprint_is_that_of_content_and_settings(tmp_path):
    write_npz(tmp_path / "a")
    write_npz(tmp_path / "b")
    images, _ = pictures(36)
    images[0, 0, 0] ^= 1
    write_npz(tmp_path / "c", train_x=images)
    a, b, c = (load("npz", tmp_path / name, **SPLITS).fingerprint() for name in "abc")
    assert a == b != c
    for fields in ({"colours": "rgb"}, {"unfit_images": "leave_out"}, {"train_split": "train[:23]"}):
        assert load("npz", tmp_path / "a", **SPLITS | fields).fingerprint() != a
    source = load("npz", tmp_path / "a", **SPLITS, test_sets="more=train")
    assert source.fingerprint() == a != source.fingerprint("more")


# Pixels.


def encoded(image, kind="PNG"):
    data = io.BytesIO()
    image.save(data, kind)
    return data.getvalue()


def test_channels_of_files():
    grey = Image.new("L", (3, 2), 77)
    assert decoded(encoded(grey)).tolist() == [[[77]] * 3] * 2
    assert decoded(encoded(grey), "RGB").tolist() == [[[77, 77, 77]] * 3] * 2
    assert decoded(encoded(Image.new("RGB", (1, 1), (255, 0, 0)).convert("P"))).tolist() == [[[255, 0, 0]]]
    assert decoded(encoded(Image.new("1", (1, 1), 1))).tolist() == [[[255]]]
    assert decoded(encoded(Image.new("RGBA", (1, 1), (1, 2, 3, 4)))).tolist() == [[[1, 2, 3, 4]]]
    assert decoded(encoded(Image.new("RGB", (1, 1), (255, 0, 0))), "L").tolist() == [[[76]]]  # 0.299 * 255
    with pytest.raises(ValueError, match="cannot be read as PNG or JPEG"):
        decoded(encoded(grey)[:-30])
    with pytest.raises(ValueError, match="cannot be read as PNG or JPEG"):
        decoded(encoded(grey, "BMP"))


def png(width: int, bits: int, kind: int, rows: bytes, *chunks: tuple[bytes, bytes], height: int = 1) -> bytes:
    """Return a PNG file by hand; kind: 0 grey, 2 colours, 3 palette, 4 grey with alpha, 6 colours with alpha."""
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    written = [struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x)) for name, x in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def shorts(*values: int) -> bytes:
    return struct.pack(f">{len(values)}H", *values)


def clear(*values: int) -> tuple[bytes, bytes]:
    """Return the chunk of the transparent colour, or of the transparency of a palette."""
    return b"tRNS", shorts(*values)


PALETTE = (b"PLTE", bytes([0, 0, 0, 200, 100, 50]))
W = 255


@pytest.mark.parametrize(
    ("data", "stored", "grey"),
    [
        # 16 bits: v * 255 / 65535, rounded. Two values may share 8 bits when only one of them is transparent.
        (png(4, 16, 0, b"\0" + shorts(0, 1000, 60_000, 65_535)), [[0], [4], [233], [255]], [0, 4, 233, 255]),
        (png(3, 16, 0, b"\0" + shorts(1000, 1001, 9), clear(1000)), [[W], [4], [0]], [W, 4, 0]),
        (png(1, 16, 2, b"\0" + shorts(1000, 256, 767)), [[3, 1, 2]], [2]),
        (png(2, 16, 2, b"\0" + shorts(512, 0, 0, 0, 0, 0), clear(512, 0, 0)), [[W] * 3, [0] * 3], [W, 0]),
        (png(2, 16, 4, b"\0" + shorts(0, 0, 512, 65_535)), [[0] * 4, [2, 2, 2, 255]], [W, 2]),  # 4 channels by Pillow
        # Transparency as a channel, which stays unless the colours are converted: black is laid on white.
        (png(3, 8, 4, b"\0" + bytes([0, 0, 0, 255, 0, 51])), [[0, 0], [0, 255], [0, 51]], [W, 0, 204]),
        (png(2, 8, 6, b"\0" + bytes([0, 0, 0, 0, 9, 9, 9, 255])), [[0] * 4, [9, 9, 9, 255]], [W, 9]),
        # Transparency of a colour: 1, 2, 4 and 8 bits of grey, colours, and a palette.
        (png(2, 1, 0, b"\0\x40", clear(0)), [[W], [W]], [W, W]),
        (png(2, 1, 0, b"\0\x40", clear(1)), [[0], [W]], [0, W]),
        (png(4, 2, 0, b"\0\x1b", clear(1)), [[0], [W], [170], [255]], [0, W, 170, 255]),
        (png(2, 4, 0, b"\0\x03", clear(0)), [[W], [51]], [W, 51]),
        (png(2, 8, 0, b"\0\x00\x07", clear(0)), [[W], [7]], [W, 7]),
        (png(2, 8, 2, b"\0\1\2\3\1\2\4", clear(1, 2, 3)), [[W] * 3, [1, 2, 4]], [W, 2]),
        (png(2, 8, 3, b"\0\x00\x01", PALETTE, (b"tRNS", b"\0")), [[W] * 3, [200, 100, 50]], [W, 124]),
        (png(2, 8, 3, b"\0\x00\x01", PALETTE, (b"tRNS", b"\xff\x33")), [[0] * 3, [244, 224, 214]], [0, 229]),
        (png(2, 1, 3, b"\0\x40", PALETTE), [[0] * 3, [200, 100, 50]], [0, 124]),
    ],
)
def test_16_bits_and_transparency(data, stored, grey):
    assert decoded(data).tolist() == [stored]
    assert decoded(data, "L").tolist() == [[[value] for value in grey]]
    colours = decoded(data, "RGB")
    assert colours.shape == (1, len(grey), 3)
    assert np.abs(colours.mean(-1).round().astype(int) - grey).max() <= 25  # grey weighs the colours
    # Arrays of .npz files and TFDS, of the same pixels, are converted in the same way.
    assert converted(decoded(data), "L").tolist() == [[[value] for value in grey]]


def test_every_mode_of_pillow_is_read_or_refused():
    whole = np.array([[0, 1000], [60_000, 65_535]])
    for mode, dtype in (("I", np.int32), ("I;16", np.uint16), ("I;16B", ">u2")):
        image = Image.fromarray(whole.astype(dtype))
        assert (image.mode, _pixels_of(image, "L", 8).ravel().tolist()) == (mode, [0, 4, 233, 255])
    for bad in (whole.astype(np.float32), whole.astype(np.int32) - 1, whole.astype(np.int32) + 1):
        with pytest.raises(ValueError, match=r"mode [FI]; expected 8 or 16 bits a channel"):
            _pixels_of(Image.fromarray(bad), "L", 8)
    cmyk = encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), "JPEG")
    assert decoded(cmyk).shape == (8, 8, 3)
    assert decoded(cmyk, "L").max() < 5
    assert _pixels_of(Image.new("PA", (1, 1), (0, 0)), None, 8).shape == (1, 1, 4)
    with pytest.raises(ValueError, match="5 channels; expected 1 to 4 channels"):
        converted(np.zeros((2, 2, 5), np.uint8), "L")
    assert converted(np.array([[[0, 0], [0, 255]]], np.uint8), "RGB").tolist() == [[[W] * 3, [0] * 3]]


def test_the_first_image_of_an_animation_is_read():
    data = io.BytesIO()
    Image.new("L", (2, 1), 10).save(data, "PNG", save_all=True, append_images=[Image.new("L", (2, 1), 99)])
    assert decoded(data.getvalue()).ravel().tolist() == [10, 10]


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        ((80_000_000, 1), "has 80,000,000 x 1 pixels; expected at most 65,536 a side and 178,956,970 in all"),
        ((1, 80_000_000), "has 1 x 80,000,000 pixels"),
        ((65_536, 65_536), "has 65,536 x 65,536 pixels"),
        ((1 << 31, 1), "damaged or cut short|pixels"),
        ((0, 1), "damaged or cut short"),
        ((100, 100), "damaged or cut short"),  # fewer rows than it says
    ],
)
def test_large_and_damaged_images_are_refused_before_they_are_decoded(tmp_path, size, problem):
    data = png(size[0], 8, 2, b"\0\0\0\0", height=size[1])
    (tmp_path / "a.png").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=problem):
            decoded(data, "L")
        with pytest.raises(ValueError, match=problem):
            read_picture(tmp_path / "a.png", "a.png").load()
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_every_damaged_byte_of_an_image_is_an_image_or_an_error(tmp_path):
    whole = png(4, 8, 3, b"\0\x00\x01\1\0", PALETTE, clear(0), (b"gAMA", b"\0\0\1\0"))
    jpeg = encoded(Image.new("RGB", (8, 8), (9, 99, 199)), "JPEG")
    rng = np.random.default_rng(0)
    for data in (whole, jpeg):
        for place in range(len(data)):
            changed = bytearray(data)
            changed[place] ^= int(rng.integers(1, 256))
            for damaged in (bytes(changed), data[:place]):
                try:
                    assert decoded(damaged, "RGB").dtype == np.uint8
                except ValueError as error:
                    assert re.search("PNG or JPEG|pixels", str(error))  # noqa: PT017


def test_files_that_are_no_images_are_refused(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    for path, problem in ((tmp_path / "a.png", "a pipe or a device"), (tmp_path / "none.png", "No such file")):
        with pytest.raises(ValueError, match=problem):
            read_picture(path, "a").load()


def test_a_long_strip_is_cropped_without_scaling_all_of_it():
    """Its scaled copy would have 64 x 3,200,000 x 64 pixels and more."""
    strip = np.zeros((1, 50_000, 1), np.uint8)
    strip[:, 24_999:25_001] = 255
    tracemalloc.start()
    try:
        centre = cropped(strip, 64)
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    assert centre.shape == (64, 64, 1)
    assert (centre == 255).all()
    assert (cropped(strip.swapaxes(0, 1), 64) == 255).all()


def test_resizing():
    wide = np.zeros((4, 8, 2), np.uint8)
    wide[:, 2:6] = 200  # the middle
    assert (cropped(wide, 4) == 200).all()
    assert squashed(wide, 4).shape == (4, 4, 2)
    assert squashed(wide, 4)[0, :, 0].tolist() == squashed(wide, 4)[0, ::-1, 0].tolist()
    assert 0 < squashed(wide, 4).mean() < 200
    np.testing.assert_array_equal(cropped(wide[:, :4], 4), wide[:, :4])
    assert cropped(np.zeros((5, 9, 1), np.uint8), 16).shape == (16, 16, 1)


def test_the_cache_has_the_bytes(tmp_path):
    settings = npz_config(write_npz(tmp_path))
    split = stored(settings, tmp_path)
    values = split.values("images", np.array([3, -1, 0]))
    assert values.dtype == np.uint8
    images, _ = pictures(36)
    np.testing.assert_array_equal(values, [images[3], np.zeros_like(images[0]), images[0]])
    larger = dataclasses.replace(settings.data, resize="squash")
    settings = dataclasses.replace(settings, model=dataclasses.replace(settings.model, image_size=12), data=larger)
    assert stored(settings, tmp_path).values("images", np.array([0])).shape == (1, 12, 12, 1)


def test_a_place_without_text():
    assert load_tokenizer(TOKENIZER.model_bytes).sha256 == TOKENIZER.sha256
    assert (TOKENIZER.vocab_size, TOKENIZER.tokens([])) == (0, [])
    for use in (TOKENIZER.encode_batch, TOKENIZER.encode_spans, TOKENIZER.decode, TOKENIZER.decode_batch):
        with pytest.raises(DataError, match="reads images and has no tokenizer"):
            use([])
    with pytest.raises(DataError, match="damaged"):
        load_tokenizer(TOKENIZER.model_bytes + b"x")


# Bad input.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"test_y": None}, "has no labels of 'test', test_y or y_test; it has train_x"),
        ({"test_x": np.zeros((9, 8, 8), np.float32)}, "images of 'test' are float32 [9, 8, 8], expected uint8"),
        ({"test_y": np.arange(8)}, "labels of 'test' are int64 [8], expected integers or texts [9]"),
        ({"test_y": np.array([0, -1] + [0] * 7)}, "image 2 of 'test' has no label (-1)"),
        (
            {"test_x": np.array([np.zeros((2, 2)), np.zeros((3, 3))], object)},
            "it holds Python objects, as of images of unequal sizes",
        ),
    ],
)
def test_bad_npz_files(tmp_path, changed, message):
    with pytest.raises(DataError) as raised:
        load("npz", write_npz(tmp_path, **changed), **SPLITS)
    assert message in str(raised.value)


def test_npz_files_that_are_none(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"PK no zip")
    for folder, message in (
        (tmp_path, "cannot be read as an .npz"),
        (tmp_path / "x", "does not exist"),
        ("", "not set"),
    ):
        with pytest.raises(DataError, match=message):
            load("npz", folder)
    (tmp_path / "two.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"expected one \.npz file, found 2"):
        load("npz", tmp_path)


def _empty_label(folder):
    (folder / "valid" / "zebra").mkdir()


def _stray(folder):
    (folder / "test" / "light" / "1.png").rename(folder / "test" / "1.png")


def _no_set(folder):
    (folder / "valid").rename(folder / "validation")


def _no_labels(folder):
    for path in (folder / "valid").iterdir():
        path.rename(folder / "train" / f"{path.name}2")


def _unknown_label(folder):
    (folder / "test" / "light").rename(folder / "test" / "lights")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            _unknown_label,
            r"test/lights: the label of this folder is not one of the 3 labels of the training set .*mean 'light'",
        ),
        (_empty_label, "valid/zebra is the folder of a label, but has no image"),
        (_stray, "test/1.png has no label; expected it in a sub-folder"),
        (_no_set, "valid does not exist; the folders of .* are test, train, validation"),
        (_no_labels, "valid has no sub-folders; expected one per label"),
    ],
)
def test_bad_folders(tmp_path, damage, message):
    damage(write_folder(tmp_path))
    with pytest.raises(DataError, match=message):
        load("image_folder", tmp_path)


def _another_size(path):
    Image.new("L", (9, 8)).save(path)


def _another_mode(path):
    Image.new("RGB", (8, 8)).save(path)


def _damage(path):
    path.write_bytes(path.read_bytes()[:40])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (_another_size, "9 x 8 pixels in 1 channel, but model.image_size=8; set data.resize=crop or squash"),
        (_another_mode, "8 x 8 pixels in 3 channels, but model.image_channels=1; set it to 3, or data.colours=grey"),
        (
            _damage,
            "cannot be read as PNG or JPEG: it is damaged or cut short; repair or remove it, or train with data.",
        ),
    ],
)
def test_an_image_that_does_not_fit_is_named_or_left_out(tmp_path, caplog, damage, problem):
    folder = write_folder(tmp_path / "data")
    damage(folder / "train" / "light" / "4.png")
    settings = config({"source": "image_folder", "dir": str(folder)})
    with pytest.raises(DataError) as raised:
        stored(settings, tmp_path)
    assert "split 'train', example " in str(raised.value)
    assert f"train/light/4.png: {problem}" in str(raised.value)
    tolerant = dataclasses.replace(settings, data=dataclasses.replace(settings.data, unfit_images="leave_out"))
    assert stored(tolerant, tmp_path).num_examples == 8
    assert "left out 1 of 9 images of split 'train'; the first is train/light/4.png: " in caplog.text
    assert stored(tolerant, tmp_path, "valid").num_examples == 9


def test_no_image_fits(tmp_path):
    folder = write_folder(tmp_path)
    for path in folder.glob("valid/*/*"):
        _another_size(path)
    source = load("image_folder", folder, unfit_images="leave_out")
    with pytest.raises(DataError, match="split 'valid': none of its 9 images fits; valid/"):
        read(source, "valid")
    for path in folder.glob("train/*/*"):
        _damage(path)
    with pytest.raises(DataError, match="split 'train': none of its first images can be read"):
        read(load("image_folder", folder, unfit_images="leave_out"))


def test_texts_are_no_images():
    with pytest.raises(DataError, match="feature 'inputs' has no images, but str"):
        ImageColumn("images", "inputs", (8, 8, 1)).encode(["a text"], TOKENIZER)
    assert str(Picture("a name", lambda: np.zeros((1, 1, 1), np.uint8))) == "a name"


def test_a_test_set_of_images_is_a_split():
    with pytest.raises(ConfigError, match=r"--input=x: is for text; .* --data.test_sets=more=SET"):
        open_test_set(DataConfig(source="shapes"), sources.TestFiles("more", "x"))
