"""TensorBoard events in the work directory.

tensorboardX's writers are not used. SummaryWriter writes in a thread; a full disk kills the thread, and the writer then
waits for it forever. EventsWriter waits for the disk at every flush.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from transformer_jax.host.files import naming_errors
from transformer_jax.trackers.tracker import Ending, TrackedRun, scalars


class TensorBoard:
    """Writer of a file of scalars SPLIT/NAME in WORKDIR/tensorboard, a new one for every start."""

    essential = True
    _file: BinaryIO

    def __init__(self, run: TrackedRun) -> None:
        from tensorboardX.proto import event_pb2

        self._proto: Any = event_pb2
        self._folder = run.workdir / "tensorboard"
        # TensorBoard reads files in the order of their names. The time in the name has microseconds, since a run may be
        # resumed within a second.
        self.path = self._folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"

    def cut(self, step: int) -> int:
        """Open a new file; it makes TensorBoard hide values of other files in the folder for steps after `step`.

        Raises: CheckpointError if it cannot be written.
        """
        with naming_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
            self._add(file_version="brain.Event:2")
            self._add(step=step + 1, session_log=self._proto.SessionLog(status=self._proto.SessionLog.START))
            self._file.flush()
        return step

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Write every finite number as a scalar; raises CheckpointError if the file cannot be written."""
        from tensorboardX.summary import scalar

        with naming_errors(self.path):
            for name, value in scalars(split, metrics).items():
                self._add(step=step, summary=scalar(name, value))
            self._file.flush()

    def attach(self, file: Path, name: str) -> None:
        """Do nothing: TensorBoard shows numbers only."""

    def finish(self, ending: Ending) -> None:
        with contextlib.suppress(OSError):
            self._file.close()

    def _add(self, **content: Any) -> None:
        """Append a TFRecord of an event: length, checksum of the length, bytes, checksum of the bytes."""
        from tensorboardX.record_writer import masked_crc32c

        data = self._proto.Event(wall_time=time.time(), **content).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(data))
        self._file.write(length + checksums[0] + data + checksums[1])
