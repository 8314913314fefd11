"""Helpers of all pictures: output folder, writing of files, colours and labels of heat maps."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.errors import ConfigError
from transformer_jax.host.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 100
WEIGHTS = "Blues"
"""Colours of weights from 0 to 1."""
SIGNED = "RdBu_r"
"""Colours of values around 0."""
MASKED = "#dddddd"
"""Colour of keys that a query may not attend to."""

COLUMN_CHARACTERS, ROW_CHARACTERS = 24, 40
"""Most characters of a label; a row of a decoder is labelled with two tokens."""

logger = logging.getLogger(__name__)


def output_folder(path: Path) -> Path:
    """Create a folder for output and return its path; raises ConfigError if it cannot be created or written to."""
    path = path.expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output={path}: cannot be made: {error.strerror}") from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"--output={path}: cannot be written to; choose another folder")
    return path


def new_figure(width: float | int, height: float | int, **options: Any) -> Figure:
    """Return a figure of this size in inches, independent of pyplot, so that it has no window and needs no closing."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, **options)


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG and return its path; equal figures give equal files. Raises CheckpointError if writing fails."""
    image = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(image, format="png", metadata={"Software": None})
    if any("missing from" in str(warning.message) for warning in caught):
        logger.warning("%s: no installed font has all of its characters; missing ones are drawn as boxes", path)
    write_atomically(path, image.getvalue())
    return path


def shortened(label: str, characters: int = COLUMN_CHARACTERS) -> str:
    """Return a label cut to this number of characters."""
    return label if len(label) <= characters else f"{label[: characters - 1]}…"


def label_ticks(axes: Axes, rows: Sequence[str] | None, columns: Sequence[str], size: int = 8) -> None:
    """Label every row and column of an image; pass rows=None if the image beside it has the row labels."""
    axes.set_xticks(range(len(columns)), [shortened(c) for c in columns], rotation=90, size=size, parse_math=False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    if rows is None:
        axes.set_yticks([])
    else:
        axes.set_yticks(range(len(rows)), [shortened(row, ROW_CHARACTERS) for row in rows], size=size, parse_math=False)
