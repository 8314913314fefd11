"""Notes of a tracker about a run, which its next start reads, such as an ID: WORKDIR/trackers/TRACKER.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.host.files import json_text, write_atomically
from transformer_jax.readers import read_json_object

FOLDER = "trackers"
COMPLETE = "complete"
"""The note that a tracker has all of a finished run, and needs no other start; true or missing."""


def recall(workdir: Path, tracker: str) -> dict[str, Any]:
    """Return what a tracker has noted; nothing if there is no file, or if it is damaged."""
    try:
        return read_json_object(workdir / FOLDER / f"{tracker}.json")
    except (OSError, ValueError):
        return {}


def remember(workdir: Path, tracker: str, values: Mapping[str, Any]) -> None:
    """Replace what a tracker has noted; raises OSError or CheckpointError if it cannot be written."""
    (workdir / FOLDER).mkdir(exist_ok=True)
    write_atomically(workdir / FOLDER / f"{tracker}.json", f"{json_text(values)}\n".encode())
