"""The metrics of a run: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import socket
import struct
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from transformer_jax.errors import CheckpointError
from transformer_jax.host.files import own_file_opener
from transformer_jax.metrics_file import NAME, cut_back, format_line
from transformer_jax.readers import read_bytes

_log = logging.getLogger(__name__)


class NoLog:
    """Replacement of MetricLog in a process that writes nothing."""

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Do nothing."""

    def digest(self) -> str:
        return ""

    def __enter__(self) -> NoLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass


class MetricLog:
    """Writer of metrics: lines in WORKDIR/metrics.jsonl and scalars in WORKDIR/tensorboard."""

    def __init__(self, workdir: Path, step: int) -> None:
        """Open the log of a run that resumes after `step`: lines of later steps are cut off.

        Raises: CheckpointError if the files cannot be read or written.
        """
        self._path, events = workdir / NAME, workdir / "tensorboard"
        with contextlib.ExitStack() as opened:
            with _named_errors(self._path):
                if damaged := cut_back(self._path, step):
                    _log.warning(
                        "%s: damaged lines were removed: %s; the old file is %s.damaged",
                        *(self._path, ", ".join(map(str, damaged)), self._path.name),
                    )
                self._sha256 = hashlib.sha256(read_bytes(self._path) if self._path.exists() else b"")
                self._file = opened.enter_context(open(self._path, "a", encoding="utf-8", opener=own_file_opener))
            with _named_errors(events):
                self._events = opened.enter_context(contextlib.closing(_Events(events, step)))
            self._opened = opened.pop_all()

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Write one line {"step", "split", **metrics}, and each number as a TensorBoard scalar SPLIT/NAME.

        A number that is not finite is null in the line and has no scalar.

        Raises: CheckpointError if the disk is full or a file cannot be written.
        """
        line = format_line(step, split, metrics)
        with _named_errors(self._path):
            self._file.write(line)
            self._file.flush()
        self._sha256.update(line.encode())
        numbers = {
            f"{split}/{name}": value
            for name, value in metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        with _named_errors(self._events.path):
            self._events.write(step, numbers)

    def digest(self) -> str:
        """Return `metrics_file.digest` of the lines so far."""
        empty = hashlib.sha256().digest()
        return "" if self._sha256.digest() == empty else self._sha256.hexdigest()

    def __enter__(self) -> MetricLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # Every line has been flushed. Do not flush again: after ENOSPC it would fail again.
        with contextlib.suppress(OSError):
            self._opened.close()


class _Events:
    """Writer of a TensorBoard file of scalars.

    It does not use tensorboardX's writers. SummaryWriter writes in a thread; a full disk kills the thread, and the
    writer then waits for it forever. EventsWriter waits for the disk at every flush.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Open a new file; it makes TensorBoard hide values of other files in the folder for steps after `step`."""
        from tensorboardX.proto import event_pb2

        self._proto: Any = event_pb2
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. The time in the name has microseconds, since a run may be
        # resumed within a second.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        self.path = folder / name
        self._file = self.path.open("xb")
        self._add(file_version="brain.Event:2")
        self._add(step=step + 1, session_log=self._proto.SessionLog(status=self._proto.SessionLog.START))
        self._file.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, value in scalars.items():
            self._add(step=step, summary=scalar(name, value))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _add(self, **content: Any) -> None:
        """Append a TFRecord of an event: length, checksum of the length, bytes, checksum of the bytes."""
        from tensorboardX.record_writer import masked_crc32c

        data = self._proto.Event(wall_time=time.time(), **content).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(data))
        self._file.write(length + checksums[0] + data + checksums[1])


@contextlib.contextmanager
def _named_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written: {error.strerror}") from error
