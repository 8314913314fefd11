"""An output file that appears once it is complete, and that an interrupted command can continue.

FILE.partial holds the lines that are done. Its companion FILE.partial.json holds the number of their bytes and input
lines, the digests of both, the checkpoint and settings that they were made with, and notes on them. A command with
another checkpoint, other settings or another input cannot continue the file, and a damaged one is not continued.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from absl import flags

from transformer_jax.cli.streams import LabelledFile
from transformer_jax.errors import ConfigError
from transformer_jax.host.files import (
    json_text,
    own_file_opener,
    refuse_to_replace_device,
    try_lock,
    with_checksum,
    without_checksum,
    write_atomically,
)
from transformer_jax.host.kill_points import kill_point
from transformer_jax.readers import open_file, read_json_object
from transformer_jax.readers.records import COUNT, OBJECT, TEXT, Kind, expect

logger = logging.getLogger(__name__)
T = TypeVar("T")


_FIELDS = {
    **{"bytes": COUNT, "lines": COUNT},
    **{"input_sha256": TEXT, "output_sha256": TEXT, "made_with": OBJECT, "notes": OBJECT},
}
"""Kinds of the fields of the companion."""


class ResumableFile:
    """An output file and its finished part. `lines`: number of input lines that are done; `notes`: notes on them.

    Args:
      flag: name of the file in errors, such as "--output_file=out.txt".
      force: replace FILE if it exists.
    Raises: ConfigError if it exists, cannot be written or is being written by another process.
    """

    def __init__(self, path: Path, flag: str, force: bool) -> None:
        self._path, self._flag, self._force = path, flag, force
        self._partial = path.with_name(f"{path.name}.partial")
        self._companion = path.with_name(f"{path.name}.partial.json")
        self._made_with: Mapping[str, Any] = {}
        self._digest, self._output_digest = hashlib.sha256(), hashlib.sha256()
        self._earlier: dict[str, Any] = {}
        self.lines = self._size = 0
        self.notes: dict[str, Any] = {}
        if path.is_dir():
            raise ConfigError(f"{flag}: is a folder")
        self._check_absence()
        self._file = io.BufferedWriter(self._opened())
        self._begun = os.fstat(self._file.fileno()).st_size > 0
        try:
            self._check_absence()  # once more: another process may have finished it since
            self._earlier = self._read_companion() if self._begun else {}
        except ConfigError:
            self.close()
            raise

    def begin(self, made_with: Callable[[], Mapping[str, Any]], notes: Mapping[str, Kind]) -> None:
        """Continue the partial file, or start a new one if there is none.

        Args:
          made_with: returns everything except the input that determines the output, as JSON. notes: the kinds of notes.
        Raises: ConfigError if the partial file was made with something else.
        """
        self._made_with, earlier = made_with(), self._earlier
        if earlier:
            before = earlier["made_with"]
            changed = [name for name, value in self._made_with.items() if value != before.get(name)]
            if changed:
                raise self._of_something_else(f"another {', '.join(changed)}")
            self.lines, self._size, self.notes = earlier["lines"], earlier["bytes"], earlier["notes"]
            try:
                expect(self.notes, {}, notes)
            except ValueError as error:
                raise self._damaged() from error
        else:
            # Before the first output: a process that dies between its output and its companion can then be continued.
            self._write_companion()
        self._file.truncate(self._size)

    def remaining(self, lines: Iterable[T], content: Callable[[Any], bytes] = bytes) -> Iterator[T]:
        """Yield the input lines that are not done, and add each to the digest.

        Args:
          content: the bytes of a line that is not bytes itself, such as an example of a file.
        Raises: ConfigError if the lines before them are not those that were done.
        """
        source = iter(lines)
        for _ in range(self.lines):
            line = next(source, None)
            if line is None:
                break
            self._digest.update(content(line))
        if self._earlier and self._digest.hexdigest() != self._earlier["input_sha256"]:
            raise self._of_something_else("another input")
        for line in source:
            self._digest.update(content(line))
            yield line

    def write(self, lines: Sequence[str], notes: Mapping[str, Any]) -> None:
        """Append the output of all input lines that were read but not yet written.

        Args:
          lines: one output per input line. notes: notes on all lines that are then done, as JSON.
        """
        data = _encoded(lines)
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._begun = True
        self.lines += len(lines)
        self._size += len(data)
        self._output_digest.update(data)
        self.notes = dict(notes)
        kill_point("inside_output", self.lines)
        self._write_companion()

    def _write_companion(self) -> None:
        progress = {
            "lines": self.lines,
            "bytes": self._size,
            "input_sha256": self._digest.hexdigest(),
            "output_sha256": self._output_digest.hexdigest(),
            "made_with": self._made_with,
            "notes": self.notes,
        }
        write_atomically(self._companion, json_text(with_checksum(progress)).encode())

    def finish(self) -> None:
        """Give the complete file its name, and then release the lock."""
        kill_point("before_finish", self.lines)
        self._partial.replace(self._path)
        kill_point("inside_finish", self.lines)
        self._begun = True
        self._companion.unlink(missing_ok=True)  # last: without it, a complete output would look like a part
        self._file.close()

    def close(self) -> None:
        """Close the partial file, and remove it if it is empty."""
        if self._file.closed:
            return
        if not self._begun:
            self._companion.unlink(missing_ok=True)
            self._partial.unlink(missing_ok=True)  # last: without it, another process may write a companion
        with contextlib.suppress(OSError):  # a full disk, which has been reported already
            self._file.close()

    def _check_absence(self) -> None:
        if self._path.exists() and not self._force:
            raise ConfigError(f"{self._flag}: exists already; --force replaces it")
        try:
            refuse_to_replace_device(self._path)
        except OSError as error:
            raise ConfigError(f"{self._flag}: cannot be replaced: {error.strerror}") from error

    def _opened(self) -> LabelledFile:
        """Return the partial file, opened and locked."""
        while True:
            try:
                raw = LabelledFile(self._partial, "ab", self._flag, opener=own_file_opener)
            except OSError as error:
                raise ConfigError(f"{self._flag}: cannot be written: {error.strerror}") from error
            try:
                state = try_lock(raw)
            except OSError as error:
                raw.close()
                raise ConfigError(f"{self._flag}: cannot be locked: {error.strerror}") from error
            if state == "in use":
                raw.close()
                raise ConfigError(f"{self._flag}: another process is writing {self._partial}")
            if state == "no locks":
                logger.warning(
                    "%s: its file system has no locks; make sure that only one process writes it", self._flag
                )
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(raw.fileno()), self._partial.stat()):
                    return raw
            raw.close()  # another process renamed or removed it before this one had the lock

    def _read_companion(self) -> dict[str, Any]:
        """Return the contents of the companion of a partial file that is not empty."""
        try:
            progress = without_checksum(read_json_object(self._companion))
            expect(progress, _FIELDS)
            valid = 0 <= progress["bytes"] <= self._partial.stat().st_size
            valid = valid and (progress["lines"] > 0) == (progress["bytes"] > 0)
            valid = valid and self._is_same_output(progress)
        except (OSError, ValueError):
            valid = False
        if not valid:
            raise self._damaged()
        return progress

    def _damaged(self) -> ConfigError:
        return ConfigError(
            f"{self._flag}: {self._partial} exists, but {self._companion.name} is missing, or one of them "
            "is damaged; delete the partial file"
        )

    def _is_same_output(self, progress: Mapping[str, Any]) -> bool:
        with open_file(self._partial) as file:
            left = progress["bytes"]
            while left and (data := file.read(min(left, 1 << 20))):
                self._output_digest.update(data)
                left -= len(data)
        return progress["output_sha256"] == self._output_digest.hexdigest()

    def _of_something_else(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._flag}: {self._partial} was made with {what}; delete it to start again, or repeat the command that "
            "made it"
        )


class StandardOutput:
    """Standard output, in place of a `ResumableFile`: no line is done before."""

    def __init__(self) -> None:
        self.lines, self.notes = 0, dict[str, Any]()

    def begin(self, made_with: Callable[[], Mapping[str, Any]], notes: Mapping[str, Kind]) -> None:
        pass

    def remaining(self, lines: Iterable[T], content: Callable[[Any], bytes] = bytes) -> Iterator[T]:
        return iter(lines)

    def write(self, lines: Sequence[str], notes: Mapping[str, Any]) -> None:
        sys.stdout.buffer.write(_encoded(lines))
        sys.stdout.buffer.flush()

    def finish(self) -> None:
        pass


def _encoded(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def open_output(values: flags.FlagValues, files: contextlib.ExitStack) -> ResumableFile | StandardOutput:
    """Return the file of the flag --output_file, or standard output if it is not given.

    Raises: ConfigError as `ResumableFile`.
    """
    if not values.output_file:
        return StandardOutput()
    file = ResumableFile(Path(values.output_file), f"--output_file={values.output_file}", values.force)
    files.callback(file.close)
    return file
