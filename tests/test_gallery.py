"""The pictures of docs/gallery.md are those of docs/tools/gallery.py, small, and shown with their commands."""

import io
import re
import shlex
import signal
import sys

import numpy as np
import pytest
from docs_support import DOCS, program
from PIL import Image

from transformer_jax.cli.main import main as transformer_jax

gallery = program("gallery")
PAGE = (DOCS / "gallery.md").read_text()
BLOCKS = re.findall(r"^```\n(.*?)\n```$", PAGE, re.M | re.S)
SHOWN = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", PAGE)


def test_the_page_shows_every_picture_with_its_command():
    ours = [name.removeprefix("gallery/") for name in SHOWN if name.startswith("gallery/")]
    assert sorted(ours) == sorted(picture.file for picture in gallery.PICTURES)
    assert sorted(path.name for path in gallery.FOLDER.iterdir()) == sorted(ours)
    lines = "\n".join(BLOCKS).splitlines()
    assert set(gallery.commands()) <= set(lines)


def test_every_entry_has_one_sentence_a_picture_and_a_command_or_the_page_that_has_it():
    for section in re.split(r"(?m)^## ", PAGE)[1:]:
        assert re.search(r"!\[[^\]]{20,}\]\(", section), section
        assert "```" in section or re.search(r"\]\(\w+\.md", section), section


def test_pictures_are_small():
    sizes = {name: (DOCS / name).stat().st_size for name in SHOWN}
    assert all(size <= gallery.MAX_BYTES for name, size in sizes.items() if name.endswith(".png")), sizes
    assert sum(sizes.values()) <= 1_000_000


def test_the_diagram_is_what_the_command_draws(tmp_path, capsys):
    words = gallery.DIAGRAM.replace("docs/gallery/", f"{tmp_path}/").split()[1:]
    assert transformer_jax(words) == 0
    assert (tmp_path / "diagram.svg").read_bytes() == (gallery.FOLDER / "diagram.svg").read_bytes(), "make gallery"


def test_a_checkpoint_takes_the_place_of_the_training():
    assert {gallery.TRAIN, gallery.TRAIN_LANGUAGE_MODEL} <= set(gallery.commands())
    lines = gallery.commands("runs/my first")
    assert [line for line in lines if " train " in line] == [gallery.TRAIN_LANGUAGE_MODEL]
    assert not any(gallery.MODEL in line for line in lines)
    assert sum("'--checkpoint=runs/my first'" in line for line in lines) == 2
    lines = gallery.commands("runs/first", "runs/language")
    assert not any(" train " in line or gallery.LANGUAGE_MODEL in line for line in lines)
    words = [shlex.split(line) for line in lines]
    assert ["transformer-jax", "explore", "--checkpoint=runs/language"] in words
    assert "--checkpoint=runs/language/checkpoints/150" in [word for line in words for word in line]
    (attention,) = (line for line in words if "attention" in line)
    assert "--text=Friday, March 7, 2031" in attention


def test_a_server_is_ended_and_one_that_does_not_start_is_an_error(monkeypatch, tmp_path):
    """Another package of the same name has the place of the real one, whose start takes long."""
    package = tmp_path / "transformer_jax"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys, time\nif 'bad' in sys.argv: sys.exit(2)\nprint(sys.argv[1:], flush=True)\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started, popen = [], gallery.subprocess.Popen
    monkeypatch.setattr(gallery.subprocess, "Popen", lambda *of, **by: started.append(popen(*of, **by)) or started[-1])
    with gallery.served("transformer-jax explore --checkpoint=runs/one") as said:
        assert re.fullmatch(r"\['explore', '--checkpoint=runs/one', '--port=\d+'\]", said)
        assert started[0].poll() is None
    assert started[0].returncode == -signal.SIGTERM
    message = "exit code 2 of: transformer-jax explore bad"
    with pytest.raises(gallery.GalleryError, match=message), gallery.served("transformer-jax explore bad"):
        pytest.fail("there is no address")


def test_without_a_browser_it_says_what_is_missing(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gallery, "run", pytest.fail)  # before any command
    assert gallery.main([]) == 2
    message = capsys.readouterr().err
    assert message.startswith("gallery: error: no browser found: PATH has none of chromium, chromium-browser")
    assert "apt-get install chromium" in message


def test_without_playwright_it_says_what_is_missing(monkeypatch, tmp_path, capsys):
    (tmp_path / "chromium").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    assert gallery.main([]) == 2
    assert "the Python package playwright is not installed" in capsys.readouterr().err


def test_a_command_that_fails_is_named():
    with pytest.raises(gallery.GalleryError, match=r"exit code 2 of: transformer-jax plot --no_such_flag"):
        gallery.run("transformer-jax plot --no_such_flag")


def test_fewer_colours_keep_a_picture():
    values = np.zeros((60, 90, 3), np.uint8)
    values[:, :, 0] = np.arange(90) * 2
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    image = Image.open(io.BytesIO(gallery.with_few_colours(file.getvalue())))
    assert image.size == (90, 60)
    assert len(image.getcolors()) <= gallery.COLOURS
    np.testing.assert_allclose(np.asarray(image.convert("RGB")).astype(int), values, atol=4)


def test_a_picture_that_is_too_large_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (400, 500, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    with pytest.raises(gallery.GalleryError, match=r"small.png has [\d,]+ bytes, more than 150,000"):
        gallery.make(None, gallery.Picture("small.png", (), "noise.png"))


@pytest.mark.slow
def test_a_screenshot_has_the_size_and_the_colours_of_the_window(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(
        "<style>:root {color-scheme: light dark} body {background: light-dark(#fff, #000)}</style><p id='p'>text</p>"
    )
    for scheme, ground in (("light", 255), ("dark", 0)):
        screen = gallery.Screen(390, 200, scheme, "document.getElementById('p').remove()")
        image = Image.open(io.BytesIO(gallery.screenshot(browser, file.as_uri(), screen))).convert("L")
        assert image.size == (390, 200)
        assert np.unique(np.asarray(image)).tolist() == [ground]
