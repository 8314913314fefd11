"""metrics.jsonl of the work directory; see `metrics_file`."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from transformer_jax.host.files import naming_errors, own_file_opener
from transformer_jax.metrics_file import NAME, cut_back, format_line
from transformer_jax.readers import read_bytes
from transformer_jax.trackers.tracker import Ending, TrackedRun

_log = logging.getLogger(__name__)


class JsonLines:
    """Writer of WORKDIR/metrics.jsonl. Every line is flushed."""

    essential = True
    _file: TextIO

    def __init__(self, run: TrackedRun) -> None:
        self.path = run.workdir / NAME
        self._sha256 = hashlib.sha256()

    def cut(self, step: int) -> int:
        """Open the file without the lines after a step; raises CheckpointError if it cannot be read or written."""
        with naming_errors(self.path):
            if damaged := cut_back(self.path, step):
                _log.warning(
                    "%s: damaged lines were removed: %s; the old file is %s.damaged",
                    *(self.path, ", ".join(map(str, damaged)), self.path.name),
                )
            self._sha256 = hashlib.sha256(read_bytes(self.path) if self.path.exists() else b"")
            self._file = open(self.path, "a", encoding="utf-8", opener=own_file_opener)  # noqa: SIM115
        return step

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Write one line {"step", "split", **metrics}; a number that is not finite is null.

        Raises: CheckpointError if the disk is full or the file cannot be written.
        """
        line = format_line(step, split, metrics)
        with naming_errors(self.path):
            self._file.write(line)
            self._file.flush()
        self._sha256.update(line.encode())

    def digest(self) -> str:
        """Return `metrics_file.digest` of the lines so far."""
        empty = hashlib.sha256().digest()
        return "" if self._sha256.digest() == empty else self._sha256.hexdigest()

    def attach(self, file: Path, name: str) -> None:
        """Do nothing: the file is in the work directory."""

    def finish(self, ending: Ending) -> None:
        # Every line has been flushed. Do not flush again: after ENOSPC it would fail again.
        with contextlib.suppress(OSError):
            self._file.close()
