"""An output file that appears when it is whole, and goes on where an interrupted command has left it.

FILE.partial holds the lines that are done. Its companion FILE.partial.json says how many bytes and input lines these
are, the digest of these input lines, and what they were made with: a command with another checkpoint, other settings or
another input does not go on from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints.workdir import write_atomically
from transformer_jax.cli.streams import NamedFile
from transformer_jax.errors import ConfigError


class ResumableFile:
    """FILE and what is there of it. `lines`: input lines that are done; `size`: their bytes in the output.

    Args:
      flag: what errors call the file, as in "--output_file=out.txt".
      force: replace FILE if it exists, and begin anew.
    Raises: ConfigError if it exists, cannot be written or is being written by another process.
    """

    def __init__(self, path: Path, flag: str, force: bool) -> None:
        self._path, self._flag = path, flag
        self._partial = path.with_name(f"{path.name}.partial")
        self._progress = path.with_name(f"{path.name}.partial.json")
        self._made_with: dict[str, Any] = {}
        self._digest = hashlib.sha256()
        self.lines = self.size = 0
        if path.is_dir():
            raise ConfigError(f"{flag}: is a folder")
        if path.exists() and not force:
            raise ConfigError(f"{flag}: exists already; --force replaces it")
        try:
            raw = NamedFile(self._partial, "ab", flag)
        except OSError as error:
            raise ConfigError(f"{flag}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raw.close()
            raise ConfigError(f"{flag}: another process is writing {self._partial}") from None
        self._file = io.BufferedWriter(raw)
        self._earlier = {} if force else self._read_progress()

    def begin(self, made_with: dict[str, Any]) -> None:
        """Goes on from what is there, or begins anew if nothing is.

        Args:
          made_with: what the output follows from besides the input, as JSON.
        Raises: ConfigError if what is there was made with something else.
        """
        self._made_with, earlier = made_with, self._earlier
        if earlier and earlier["made_with"] != made_with:
            changed = sorted(
                name
                for name in {*made_with, *earlier["made_with"]}
                if made_with.get(name) != earlier["made_with"].get(name)
            )
            raise ConfigError(
                f"{self._flag}: {self._partial} was begun with another {', '.join(changed)}; --force begins anew"
            )
        self.lines, self.size = (earlier["lines"], earlier["bytes"]) if earlier else (0, 0)
        self._file.truncate(self.size)

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
            raise ConfigError(f"{self._flag}: {self._partial} was begun with another input; --force begins anew")
        for line in source:
            self._digest.update(line)
            yield line

    def write(self, data: bytes, num_lines: int) -> None:
        """Appends the output of all input lines read so far and not yet written."""
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.lines += num_lines
        self.size += len(data)
        progress = {
            "lines": self.lines,
            "bytes": self.size,
            "input_sha256": self._digest.hexdigest(),
            "made_with": self._made_with,
        }
        write_atomically(self._progress, json.dumps(progress).encode())

    def finish(self) -> None:
        """FILE is whole."""
        self._file.close()
        self._partial.replace(self._path)
        self._progress.unlink(missing_ok=True)

    def close(self) -> None:
        """What is there stays; nothing stays of an output that was not begun."""
        with contextlib.suppress(OSError):  # of a full disk, which has been told by then
            self._file.close()
        if not self.size and not self._earlier:
            self._partial.unlink(missing_ok=True)

    def _read_progress(self) -> dict[str, Any]:
        """What the companion says, or nothing if it is of no use."""
        try:
            progress = json.loads(self._progress.read_bytes())
            valid = progress["bytes"] <= self._partial.stat().st_size and {"lines", "input_sha256", "made_with"} <= {
                *progress
            }
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return progress if valid else {}
