"""An output file that appears when it is complete, and that a command can continue after an interruption.

FILE.partial holds the lines that are done. Its companion FILE.partial.json says how many bytes and input lines these
are, the digest of these input lines, what they were made with, and what has been noted of them. A command with another
checkpoint, other settings or another input does not go on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.cli.streams import NamedFile
from transformer_jax.errors import ConfigError
from transformer_jax.files import try_lock, write_atomically

logger = logging.getLogger(__name__)


class ResumableFile:
    """FILE and what is there of it. `lines`: input lines that are done; `notes`: what was noted of them.

    Args:
      flag: what errors call the file, as in "--output_file=out.txt".
      force: replace FILE if it exists.
    Raises: ConfigError if it exists, cannot be written or is being written by another process.
    """

    def __init__(self, path: Path, flag: str, force: bool) -> None:
        self._path, self._flag, self._force = path, flag, force
        self._partial = path.with_name(f"{path.name}.partial")
        self._companion = path.with_name(f"{path.name}.partial.json")
        self._made_with: Mapping[str, Any] = {}
        self._digest = hashlib.sha256()
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

    def begin(self, made_with: Mapping[str, Any]) -> None:
        """Goes on from what is there, or begins anew if nothing is.

        Args:
          made_with: what the output depends on, apart from the input, as JSON.
        Raises: ConfigError if an existing partial file was made with something else.
        """
        self._made_with, earlier = made_with, self._earlier
        if earlier:
            before = earlier["made_with"]
            changed = [name for name in made_with if made_with[name] != before.get(name)]
            if changed:
                raise self._of_something_else(f"another {', '.join(changed)}")
            self.lines, self._size, self.notes = earlier["lines"], earlier["bytes"], earlier["notes"]
        else:
            self._companion.unlink(missing_ok=True)  # of another partial file, which is no longer there
        self._file.truncate(self._size)

    def remaining(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The input lines that are not done, which are remembered as they are read.

        Raises: ConfigError if the others are not the ones that were done.
        """
        source = iter(lines)
        for _ in range(self.lines):
            line = next(source, None)
            if line is None:
                break
            self._digest.update(line)
        if self._earlier and self._digest.hexdigest() != self._earlier["input_sha256"]:
            raise self._of_something_else("another input")
        for line in source:
            self._digest.update(line)
            yield line

    def write(self, data: bytes, num_lines: int, notes: Mapping[str, Any]) -> None:
        """Appends the output of all input lines read so far and not yet written.

        Args:
          notes: of all lines that are done then, as JSON.
        """
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._begun = True
        self.lines += num_lines
        self._size += len(data)
        self.notes = dict(notes)
        progress = {
            "lines": self.lines,
            "bytes": self._size,
            "input_sha256": self._digest.hexdigest(),
            "made_with": self._made_with,
            "notes": self.notes,
        }
        write_atomically(self._companion, json.dumps(progress).encode())

    def finish(self) -> None:
        """FILE is whole. The lock is held until it has its name."""
        self._partial.replace(self._path)
        self._begun = True
        self._companion.unlink(missing_ok=True)  # last: a whole output without it could not be told from a part
        self._file.close()

    def close(self) -> None:
        """Close the file. A partial output stays; the files of an empty one are removed."""
        if self._file.closed:
            return
        if not self._begun:
            self._partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # of a full disk, which has been told by then
            self._file.close()

    def _check_absence(self) -> None:
        if self._path.exists() and not self._force:
            raise ConfigError(f"{self._flag}: exists already; --force replaces it")

    def _opened(self) -> NamedFile:
        """The partial file, locked."""
        while True:
            try:
                raw = NamedFile(self._partial, "ab", self._flag)
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
            raw.close()  # another process has renamed or removed it before we had the lock

    def _read_companion(self) -> dict[str, Any]:
        """Return the content of the companion of a partial file that is not empty."""
        try:
            progress = json.loads(self._companion.read_bytes())
            fields = {"lines", "input_sha256", "made_with", "notes"}
            valid = fields <= {*progress} and 0 < progress["bytes"] <= self._partial.stat().st_size
        except (OSError, ValueError, KeyError, TypeError):
            valid = False
        if not valid:
            raise ConfigError(
                f"{self._flag}: {self._partial} is there, and {self._companion.name} does not say of what; delete it"
            )
        return progress

    def _of_something_else(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._flag}: {self._partial} was begun with {what}; delete it to begin anew, or repeat the command that "
            "has begun it"
        )
