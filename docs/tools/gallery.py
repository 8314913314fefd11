"""Make the pictures of docs/gallery.md: `make gallery`, or python docs/tools/gallery.py.

Runs the commands of the page, most of which write into runs/gallery, and takes from there what docs/gallery keeps:
screenshots of HTML pages, and PNG files with fewer colours. The first run trains the model of the attention page, in
six and a half minutes on two shared CPU cores. Later runs find it in runs/gallery/model. --checkpoint takes another.

Needs Chromium. Exit codes: 0; 1 if a command fails or a picture is too large; 2 if the browser or a flag is wrong.
"""

from __future__ import annotations

import argparse
import io
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a script has the folder of its own file there
from docs.tools.browser import MissingToolError, browser  # noqa: E402

FOLDER = ROOT / "docs" / "gallery"
MODEL = "runs/gallery/model"
MAX_BYTES = 150_000
"""The largest size of a PNG file in docs/gallery."""
COLOURS = 128

TRAIN = (
    f"transformer-jax train --config=quickstart --workdir={MODEL} --config.data.num_train_pairs=20000 "
    "--config.data.num_eval_pairs=200 --config.model.emb_dim=64 --config.data.max_length=32 "
    "--config.data.num_buckets=2 --config.training.num_train_steps=900"
)
REPORT = "transformer-jax report --results=experiments/norm_placement/results --output=runs/gallery/report"
ATTENTION = (
    f'transformer-jax attention --checkpoint={MODEL} --text="Friday, March 7, 2031" --output=runs/gallery/attention'
)
PLOT = "transformer-jax plot --config=wmt14:base --output=runs/gallery/plots"
DIAGRAM = "transformer-jax plot --diagram --config=wmt14:base --output=docs/gallery/diagram.svg"


class Screen(NamedTuple):
    """A window of the browser: width and height in pixels, colours of the system, and JavaScript to run first."""

    width: int
    height: int
    scheme: Literal["light", "dark"] = "light"
    script: str | None = None


class Picture(NamedTuple):
    """A file of docs/gallery: the commands that lead to it, and the file that the last one writes.

    `screen` shows this file in the browser; without, it is a PNG, or the file of docs/gallery itself.
    """

    file: str
    commands: tuple[str, ...]
    source: str
    screen: Screen | None = None


LAST_LAYER = """() => {
  const layer = document.getElementById("layer");
  layer.selectedIndex = layer.length - 1;
  layer.dispatchEvent(new Event("change"));
}"""
PICTURES = (
    Picture("report_page.png", (REPORT,), "runs/gallery/report/report.html", Screen(1200, 980)),
    Picture("report_page_phone.png", (REPORT,), "runs/gallery/report/report.html", Screen(390, 700, "dark")),
    Picture(
        "attention_page.png",
        (TRAIN, ATTENTION),
        "runs/gallery/attention/attention.html",
        Screen(900, 690, script=LAST_LAYER),
    ),
    Picture("diagram.svg", (DIAGRAM,), "docs/gallery/diagram.svg"),
    Picture("positions.png", (PLOT,), "runs/gallery/plots/positions_sinusoidal.png"),
    Picture("learning_rate.png", (PLOT,), "runs/gallery/plots/learning_rate.png"),
)


class GalleryError(Exception):
    """A command has failed, or a picture is too large."""


def commands(checkpoint: str | None = None) -> list[str]:
    """Return the command lines, each once, in their order; with the model of `checkpoint` if it is given."""
    lines = list(dict.fromkeys(line for picture in PICTURES for line in picture.commands))
    if checkpoint is None:
        return lines
    given = f"--checkpoint={shlex.quote(checkpoint)}"
    return [line.replace(f"--checkpoint={MODEL}", given) for line in lines if line != TRAIN]


def run(line: str) -> None:
    """Run a command line of transformer-jax in the root of the repository.

    Raises: GalleryError if it does not finish. With exit code 3 it has, and has named what its input lacks, such as the
      log of an old trial.
    """
    program, *words = shlex.split(line)
    assert program == "transformer-jax"
    print(line, flush=True)
    code = subprocess.run([sys.executable, "-m", "transformer_jax", *words], cwd=ROOT, check=False).returncode
    if code not in (0, 3):
        raise GalleryError(f"exit code {code} of: {line}")


def screenshot(context: Any, file: Path, screen: Screen) -> bytes:
    """Return the first screen of an HTML file, as PNG."""
    page = context.new_page()
    page.set_viewport_size({"width": screen.width, "height": screen.height})
    page.emulate_media(color_scheme=screen.scheme)
    page.goto(file.resolve().as_uri())
    if screen.script is not None:
        page.evaluate(screen.script)
    png = page.screenshot()
    page.close()
    return png


def with_few_colours(png: bytes) -> bytes:
    """Return a PNG of the same size in pixels with at most COLOURS colours, which has a fraction of the bytes."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    file = io.BytesIO()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return file.getvalue()


def make(context: Any, picture: Picture) -> None:
    """Write a picture from the file that its commands have written.

    Raises: GalleryError if it has more than MAX_BYTES.
    """
    source, target = ROOT / picture.source, FOLDER / picture.file
    if source != target:
        png = source.read_bytes() if picture.screen is None else screenshot(context, source, picture.screen)
        target.write_bytes(with_few_colours(png))
    if target.stat().st_size > MAX_BYTES:
        raise GalleryError(f"{target.relative_to(ROOT)} has {target.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
    print(target.relative_to(ROOT))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", metavar="WORKDIR", help="model of the attention page; default: train one")
    checkpoint = parser.parse_args(words).checkpoint
    try:
        with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as context:
            FOLDER.mkdir(exist_ok=True)
            for line in commands(checkpoint):
                run(line)
            for picture in PICTURES:
                make(context, picture)
    except (MissingToolError, GalleryError) as error:
        print(f"gallery: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, MissingToolError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
