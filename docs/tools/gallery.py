"""Make the pictures of docs/gallery.md: `make gallery`, or python docs/tools/gallery.py.

Runs the commands of the page, most of which write into runs/gallery, and takes from there what docs/gallery keeps:
screenshots of HTML pages and of the explorer, and PNG files with fewer colours. The first run trains a translation
model and a language model, in six and a half and two minutes on two shared CPU cores. Later runs find them in
runs/gallery. --checkpoint and --language_model take others; the second needs the same steps, 150 and 300.

Needs Chromium, and the extra `explore`. Exit codes: 0; 1 if a command fails or a picture is too large; 2 if the browser
or a flag is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # a script has the folder of its own file there
from docs.tools.browser import MissingToolError, browser  # noqa: E402

FOLDER = ROOT / "docs" / "gallery"
MODEL, LANGUAGE_MODEL = "runs/gallery/model", "runs/gallery/language_model"
MAX_BYTES = 150_000
"""The largest size of a PNG file in docs/gallery."""
COLOURS, FEW_BYTES = 128, 25_000
"""A PNG file above FEW_BYTES is kept with COLOURS colours."""

TRAIN = (
    f"transformer-jax train --config=quickstart --workdir={MODEL} --config.data.num_train_pairs=20000 "
    "--config.data.num_eval_pairs=200 --config.model.emb_dim=64 --config.data.max_length=32 "
    "--config.data.num_buckets=2 --config.training.num_train_steps=900"
)
REPORT = "transformer-jax report --results=experiments/norm_placement/results --output=runs/gallery/report"
ATTENTION = (
    f'transformer-jax attention --checkpoint={MODEL} --text="Friday, March 7, 2031" --output=runs/gallery/attention'
)
TRAIN_LANGUAGE_MODEL = f"transformer-jax train --config=language_model --workdir={LANGUAGE_MODEL}"
LENS = f'transformer-jax lens --checkpoint={LANGUAGE_MODEL} --text="Friday, March 7, 2031" --output=runs/gallery/lens'
ABLATE = (
    f'transformer-jax ablate --checkpoint={LANGUAGE_MODEL} --text="Friday, March 7, 2031" --output=runs/gallery/ablate'
)
PATCH = (
    f'transformer-jax patch --checkpoint={LANGUAGE_MODEL} --text="Friday and" --other="March and" '
    "--output=runs/gallery/patch"
)
EXPLORE = f"transformer-jax explore --checkpoint={LANGUAGE_MODEL}"
EXPLORE_TWO = f"transformer-jax explore --checkpoint={LANGUAGE_MODEL} --checkpoint={LANGUAGE_MODEL}/checkpoints/150"
EXPLORE_TRANSLATION = f"transformer-jax explore --checkpoint={MODEL}"
PLOT = "transformer-jax plot --config=wmt14:base --output=runs/gallery/plots"
DIAGRAM = "transformer-jax plot --diagram --config=wmt14:base --output=docs/gallery/diagram.svg"


class Screen(NamedTuple):
    """A window of the browser.

    Attributes: width, height: in pixels. scheme: colours of the system. ready: CSS selectors of what a page must have
      before anything else is done, in their order. script: JavaScript to run then.
    """

    width: int
    height: int
    scheme: Literal["light", "dark"] = "light"
    script: str | None = None
    ready: tuple[str, ...] = ()


class Picture(NamedTuple):
    """A file of docs/gallery: the commands that lead to it, and the file that the last one writes.

    `screen` shows this file in the browser; without, it is a PNG, or the file of docs/gallery itself. If the last
    command is a server, `source` is what follows "#" in its address.
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
TREE = """() => document.querySelector(".tree").scrollIntoView({ block: "center" })"""
ANSWERED = (".model", "#status:empty")
"""Selectors that match once the explorer has answered all its questions."""
MOST_SECONDS = 600  # to the first answer, on a machine with other work
PICTURES = (
    Picture("report_page.png", (REPORT,), "runs/gallery/report/report.html", Screen(1200, 980)),
    Picture("report_page_phone.png", (REPORT,), "runs/gallery/report/report.html", Screen(390, 700, "dark")),
    Picture(
        "attention_page.png",
        (TRAIN, ATTENTION),
        "runs/gallery/attention/attention.html",
        Screen(900, 690, script=LAST_LAYER),
    ),
    Picture(
        "explorer.png",
        (TRAIN_LANGUAGE_MODEL, EXPLORE),
        "text=Friday, March 7, 2031&place=5&layer=1&head=2&ablated=decoder/self_attention.1.2",
        Screen(800, 1180, ready=ANSWERED),
    ),
    Picture(
        "explorer_two.png",
        (TRAIN_LANGUAGE_MODEL, EXPLORE_TWO),
        "text=Friday, March 7, 2031&place=5&layer=1&head=1",
        Screen(1100, 990, ready=ANSWERED),
    ),
    Picture(
        "explorer_phone.png",
        (TRAIN, EXPLORE_TRANSLATION),
        "text=Friday, March 7, 2031&generate=3.12",
        Screen(390, 700, "dark", TREE, ANSWERED),
    ),
    Picture("lens.png", (TRAIN_LANGUAGE_MODEL, LENS), "runs/gallery/lens/lens.png"),
    Picture("ablation.png", (TRAIN_LANGUAGE_MODEL, ABLATE), "runs/gallery/ablate/ablation.png"),
    Picture("patching.png", (TRAIN_LANGUAGE_MODEL, PATCH), "runs/gallery/patch/patching.png"),
    Picture("diagram.svg", (DIAGRAM,), "docs/gallery/diagram.svg"),
    Picture("positions.png", (PLOT,), "runs/gallery/plots/positions_sinusoidal.png"),
    Picture("learning_rate.png", (PLOT,), "runs/gallery/plots/learning_rate.png"),
)


class GalleryError(Exception):
    """A command has failed, or a picture is too large."""


def commands(checkpoint: str | None = None, language_model: str | None = None) -> list[str]:
    """Return the command lines, each once, in their order; with the models of these work directories if given."""
    lines = list(dict.fromkeys(line for picture in PICTURES for line in picture.commands))
    return [own for line in lines if (own := with_models(line, checkpoint, language_model))]


def with_models(line: str, checkpoint: str | None = None, language_model: str | None = None) -> str:
    """Return a command line with the models of these work directories; empty if it trains what one of them is for."""
    for given, model, training in (
        (checkpoint, MODEL, TRAIN),
        (language_model, LANGUAGE_MODEL, TRAIN_LANGUAGE_MODEL),
    ):
        if given is None:
            continue
        if line == training:
            return ""
        words = [word.replace(f"--checkpoint={model}", f"--checkpoint={given}") for word in shlex.split(line)]
        line = shlex.join(words) if f"--checkpoint={model}" in line else line
    return line


def is_server(line: str) -> bool:
    return line.startswith("transformer-jax explore ")


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


@contextlib.contextmanager
def served(line: str) -> Generator[str]:
    """Run a server until the end of the context; yield its address.

    Raises: GalleryError if it ends before it says where it listens.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    print(line, flush=True)
    words = [sys.executable, "-m", "transformer_jax", *shlex.split(line)[1:], f"--port={port}"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            if not address:
                raise GalleryError(f"exit code {server.wait()} of: {line}")
            yield address
        finally:
            server.terminate()


def screenshot(context: Any, address: str, screen: Screen) -> bytes:
    """Return the first screen of the page at an address, as PNG."""
    page = context.new_page()
    page.set_viewport_size({"width": screen.width, "height": screen.height})
    page.emulate_media(color_scheme=screen.scheme)
    page.goto(address)
    for selector in screen.ready:
        page.locator(selector).first.wait_for(state="attached", timeout=1000 * MOST_SECONDS)
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


def make(context: Any, picture: Picture, address: str = "") -> None:
    """Write a picture from the file that its commands have written, or from the server at an address.

    Raises: GalleryError if it has more than MAX_BYTES.
    """
    source, target = ROOT / picture.source, FOLDER / picture.file
    if source != target:
        if picture.screen is None:
            png = source.read_bytes()
        else:
            page = f"{address}#{picture.source}" if address else source.resolve().as_uri()
            png = screenshot(context, page, picture.screen)
        target.write_bytes(with_few_colours(png) if len(png) > FEW_BYTES else png)
    if target.stat().st_size > MAX_BYTES:
        raise GalleryError(f"{target.relative_to(ROOT)} has {target.stat().st_size:,} bytes, more than {MAX_BYTES:,}")
    print(target.relative_to(ROOT))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", metavar="WORKDIR", help="translation model; default: train one")
    parser.add_argument("--language_model", metavar="WORKDIR", help="language model; default: train one")
    given = parser.parse_args(words)
    try:
        with tempfile.TemporaryDirectory() as profile, browser(Path(profile)) as context:
            FOLDER.mkdir(exist_ok=True)
            for line in commands(given.checkpoint, given.language_model):
                if not is_server(line):
                    run(line)
            for picture in PICTURES:
                last = picture.commands[-1]
                if is_server(last):
                    with served(with_models(last, given.checkpoint, given.language_model)) as address:
                        make(context, picture, address)
                else:
                    make(context, picture)
    except (MissingToolError, GalleryError) as error:
        print(f"gallery: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, MissingToolError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
