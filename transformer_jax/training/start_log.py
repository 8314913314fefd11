"""A line per start of a training in WORKDIR/starts.jsonl: command, version, and commits of package and current folder.

No command reads the file. The environment is not stored, and passwords in the command are masked.
"""

from __future__ import annotations

import datetime
import logging
from pathlib import Path

from transformer_jax.host.files import json_text, open_own_file
from transformer_jax.host.origin import origin

STARTS = "starts.jsonl"
logger = logging.getLogger(__name__)


def record_start(workdir: Path, step: int) -> None:
    """Append the line of a start at a step; a file that cannot be written is only named in a warning."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    line = json_text({"time": now, "step": step, **origin()})
    try:
        with open_own_file(workdir / STARTS) as file:
            file.write(f"{line}\n".encode(errors="replace"))
    except OSError as error:
        logger.warning("%s: cannot be written, and is not needed: %s", workdir / STARTS, error.strerror)
