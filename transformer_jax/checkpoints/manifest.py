"""The files that this project adds to an Orbax checkpoint: plain files at the top of the folder.

    record.json       format, step, metrics, the caller's record, and shape, dtype and checksum of every array
    tokenizer.model   side files, each as it is
    SHA256SUMS        what `sha256sum -c` reads: one line for every other file in the folder, Orbax's too

They are plain files, and not Orbax's JSON or arrays of bytes, so that they can be read without Orbax and without JAX,
used in place by other tools, and checked by hand. `seal` writes them into the folder that Orbax has finished, before
the rename that makes it a checkpoint, so they are there if and only if the arrays are.

Two checks, for two dangers. `verify` reads every file before Orbax opens one: a flipped or missing byte is found by
itself, and the message names the file; Orbax would return wrong numbers for some and pages of tracebacks for others.
The checksums of the arrays were computed on the device, before anything was written, so they also find what went wrong
on the way to the disk.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config import nearest
from transformer_jax.errors import CheckpointError
from transformer_jax.files import sha256_of

RECORD = "record.json"
SUMS = "SHA256SUMS"
FORMAT = 1

_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_MAX_LINES = 40  # of a message
# Errors that say what is on the disk: a bad block, and names that a damaged SHA256SUMS makes up. All others (too many
# open files, a network disk that is away) pass, or are for the user to mend, and the checkpoint is good afterwards.
_OF_DAMAGE = (errno.EIO, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose content is not what was saved."""


class VanishedCheckpointError(CheckpointError):
    """A checkpoint whose folder is not there: deleted, it may be, by the training that one reads beside."""


class Leaf(NamedTuple):
    """Shape, dtype and checksum of an array when it was saved."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int | None = None  # None in a template

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Manifest(NamedTuple):
    """The content of record.json."""

    step: int
    record: dict[str, Any]
    metrics: dict[str, float] | None
    leaves: dict[str, Leaf]

    def to_bytes(self) -> bytes:
        """Raises TypeError if the caller's record is not JSON-able."""
        leaves = {path: leaf._asdict() for path, leaf in self.leaves.items()}
        return (json.dumps({"format": FORMAT, **self._asdict(), "leaves": leaves}, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Raises CheckpointError for a newer format, and whatever json and lookups do for something else."""
        values = json.loads(data)
        if values["format"] > FORMAT:
            raise CheckpointError(
                f"written by a newer version of this program (format {values['format']}, known up to {FORMAT})"
            )
        leaves = {
            path: Leaf(tuple(leaf["shape"]), leaf["dtype"], leaf["checksum"]) for path, leaf in values["leaves"].items()
        }
        return cls(values["step"], values["record"], values["metrics"], leaves)


def seal(folder: Path, record: bytes, side_files: Mapping[str, bytes]) -> None:
    """Adds record.json, the side files and the sums to a folder that holds the arrays; raises OSError."""
    for name, data in side_files.items():
        write_file(folder / name, data)
    # The record's line comes last, so that sums cut short at the end of a line lack it.
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    write_file(folder / RECORD, record)
    lines = [f"{sha256_of(folder / name)}  {name}\n" for name in [*names, RECORD]]
    write_file(folder / SUMS, "".join(lines).encode())


def write_file(path: Path, data: bytes) -> None:
    """Writes a new file through to the disk, so that a later rename never reveals an empty one."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def check_side_files(side_files: Mapping[str, bytes]) -> None:
    """Raises CheckpointError for a name that is no plain file name, or may be one of the checkpoint's own."""
    for name in side_files:
        if not _is_side_file(name):
            raise CheckpointError(f"side file {name!r}: expected a name like tokenizer.model")


def read_side_files(folder: Path) -> dict[str, bytes]:
    """Return all side files by name; raises as `verify` does."""
    return {name: read_checked(folder, name) for name in _read_sums(folder) if _is_side_file(name)}


def _is_side_file(name: str) -> bool:
    # The last two are Orbax's.
    own = name in (RECORD, SUMS, "state", "commit_success.txt", "orbax.checkpoint")
    return not own and re.fullmatch(r"[a-z][\w-]*\.\w+", name) is not None


def verify(folder: Path) -> Manifest:
    """The manifest of a checkpoint, every byte of every file in it checked.

    Raises:
      DamagedCheckpointError: a file is missing or is not what was written; the message names it.
      VanishedCheckpointError: the whole folder is missing.
      CheckpointError: a file cannot be read now, or the checkpoint is none of this program's.
    """
    for name, digest in _read_sums(folder).items():
        if name != RECORD:
            _check(folder, name, digest)
    return read_manifest(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, nothing else of it checked; raises as `verify` does."""
    data = read_checked(folder, RECORD)
    try:
        return Manifest.from_bytes(data)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / RECORD}: not a record of this program ({error!r})") from error


def read_checked(folder: Path, name: str) -> bytes:
    """A file at the top of a checkpoint; raises as `verify` does."""
    sums = _read_sums(folder)
    if name not in sums:
        raise CheckpointError(f"{folder}: no file '{name}' in it{nearest(name, sums)}")
    _check(folder, name, sums[name])
    return _read(folder, name)


def file_names(folder: Path) -> set[str]:
    """The paths of all files of a checkpoint, relative to its folder; raises as `verify` does."""
    return set(_read_sums(folder))


def _read_sums(folder: Path) -> dict[str, str]:
    matches = [_SUM_LINE.fullmatch(line) for line in _read(folder, SUMS).decode("utf-8", "replace").split("\n") if line]
    sums = {match[2]: match[1] for match in matches if match}
    if None in matches or RECORD not in sums:
        raise DamagedCheckpointError(f"{folder}: {SUMS} is damaged")
    return sums


def _read(folder: Path, name: str) -> bytes:
    with _named_errors(folder, name):
        return (folder / name).read_bytes()


def _check(folder: Path, name: str, digest: str) -> None:
    with _named_errors(folder, name):
        actual = sha256_of(folder / name)
    if actual != digest:
        raise DamagedCheckpointError(f"{folder}: {name} does not match its sha256")


@contextlib.contextmanager
def _named_errors(folder: Path, name: str) -> Generator[None, None, None]:
    """Turns the errors of reading one file of a checkpoint into errors that name it."""
    try:
        yield
    except FileNotFoundError:
        check_present(folder)
        raise DamagedCheckpointError(f"{folder}: {name} is missing") from None
    except ValueError as error:  # a name with a null byte
        raise DamagedCheckpointError(f"{folder}: {name} cannot be read: {error}") from error
    except OSError as error:
        check_present(folder)
        kind = DamagedCheckpointError if error.errno in _OF_DAMAGE else CheckpointError
        raise kind(f"{folder}: {name} cannot be read: {error.strerror}") from error


def check_present(folder: Path) -> None:
    """Raises VanishedCheckpointError if there is no such folder any more."""
    try:
        folder.stat()
    except FileNotFoundError:
        raise VanishedCheckpointError(f"{folder}: was deleted meanwhile") from None
    except OSError:  # says nothing
        return


def check_leaves(folder: Path, expected: Mapping[str, Leaf], stored: Mapping[str, Leaf]) -> None:
    """Raises CheckpointError naming every array, by path, that a template expects otherwise than it is stored."""
    lines = []
    for path in sorted(expected.keys() | stored.keys()):
        if path not in stored:
            lines.append(f"{path}: {expected[path]} expected, absent in the checkpoint")
        elif path not in expected:
            lines.append(f"{path}: {stored[path]} in the checkpoint, not expected")
        elif expected[path][:2] != stored[path][:2]:
            lines.append(f"{path}: {stored[path]} in the checkpoint, {expected[path]} expected")
    if lines:
        more = [f"... and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
        listing = "\n".join(f"  - {line}" for line in lines[:_MAX_LINES] + more)
        raise CheckpointError(f"{folder}: {len(lines)} arrays differ from what this config makes\n{listing}")
