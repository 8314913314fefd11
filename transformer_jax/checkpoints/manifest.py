"""The plain files that this project adds to the folder of an Orbax checkpoint.

    record.json       format, step, metrics, the caller's record, and shape, dtype and checksum of every array
    tokenizer.model   side files, each as it is
    SHA256SUMS        input of `sha256sum -c`: one line for every other file in the folder, including Orbax's

They are plain files, not Orbax's JSON or arrays of bytes, so that they can be read without Orbax and JAX, used in place
by other tools, and checked by hand. `seal` writes them into the folder after Orbax has finished it and before the
rename that makes it a checkpoint, so they exist if and only if the arrays do.

There are two checks. `verify` reads every file before Orbax opens one. It finds any changed or missing byte, and the
message names the file; Orbax would return wrong numbers for some of these errors and pages of tracebacks for others.
The checksums of the arrays are computed on the device before anything is written, so they also find errors on the way
to the disk.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import CheckpointError
from transformer_jax.host.files import sha256_of
from transformer_jax.readers import parse_json, read_bytes
from transformer_jax.readers.records import (
    COUNT,
    INTEGER,
    NUMBER,
    OBJECT,
    TEXT,
    TRUTH,
    Kind,
    either,
    expect,
    fields_of,
    list_of,
    object_of,
    or_null,
)

RECORD = "record.json"
SUMS = "SHA256SUMS"
FORMAT = 1

_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_MAX_LINES = 40  # most arrays that a message lists
# Errors that mean damage on the disk: a bad block, and wrong names from a damaged SHA256SUMS. All others (too many open
# files, a network disk that is not mounted) are temporary or for the user to fix; the checkpoint itself is valid.
_OF_DAMAGE = (errno.EIO, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class DamagedCheckpointError(CheckpointError):
    """Error: the content of a checkpoint is not what was saved."""


class VanishedCheckpointError(CheckpointError):
    """Error: the folder of a checkpoint is missing, for example because a training that is running has deleted it."""


class Leaf(NamedTuple):
    """Shape, dtype and checksum of an array when it was saved."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int | None = None  # None in a template

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


_FIELDS = {
    "step": COUNT,
    "record": OBJECT,
    "metrics": or_null(object_of(NUMBER)),
    "leaves": object_of(fields_of({"shape": list_of(COUNT), "dtype": TEXT, "checksum": COUNT})),
}
_CORPUS = or_null(fields_of({"sha256": TEXT, "versions": object_of(TEXT)}))
_RUN_FIELDS = {
    "window": list_of(object_of(NUMBER)),
    "window_seconds": NUMBER,
    "metrics": object_of(either(either(NUMBER, TRUTH), OBJECT)),
    "validations": fields_of({"metric": TEXT, "best": or_null(NUMBER), "stale": COUNT}),
    "skipped_updates": COUNT,
    "versions": OBJECT,
}
"""Kinds of the fields of record.json, and of those that training adds."""
_COUNTED = dict.fromkeys(("learning_rate", "filled", "slots"), NUMBER)
_AVERAGED = dict.fromkeys(("loss", "gradient_norm", "tokens", "weight"), NUMBER)
_STEP = Kind(
    "the metrics of a step",
    lambda value: fields_of(_COUNTED | (_AVERAGED if "loss" in value else {})).accepts(value),
)
_RESUME_FIELDS = {"window": list_of(_STEP), "window_seconds": NUMBER, "log_sha256": TEXT}
"""Kinds of the fields that a resume needs. A step whose loss was not finite has no averages."""


class Manifest(NamedTuple):
    """The content of record.json."""

    step: int
    record: dict[str, Any]
    metrics: dict[str, float] | None
    leaves: dict[str, Leaf]

    def to_bytes(self) -> bytes:
        """Return the content of record.json; raises TypeError if the caller's record is not JSON-able."""
        leaves = {path: leaf._asdict() for path, leaf in self.leaves.items()}
        return (json.dumps({"format": FORMAT, **self._asdict(), "leaves": leaves}, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Parse record.json; raises CheckpointError for a newer format, and ValueError for other content."""
        values = expect(parse_json(data), {"format": INTEGER})
        if values["format"] > FORMAT:
            raise CheckpointError(
                f"written by a newer version of this program (format {values['format']}, known up to {FORMAT}); "
                "upgrade transformer-jax"
            )
        expect(values, _FIELDS)
        leaves = {
            path: Leaf(tuple(leaf["shape"]), leaf["dtype"], leaf["checksum"]) for path, leaf in values["leaves"].items()
        }
        return cls(values["step"], values["record"], values["metrics"], leaves)


def run_record(record: Any) -> dict[str, Any]:
    """Return the record of a training run's checkpoint; raises CheckpointError if a part has another type."""
    try:
        return expect(record, {"config": OBJECT, "corpus": _CORPUS}, _RUN_FIELDS)
    except ValueError as error:
        raise CheckpointError(f"{RECORD}: is not the record of a training run: {error}") from error


def resumable_record(record: Any) -> dict[str, Any]:
    """Return the record of a checkpoint from which a run resumes; raises CheckpointError as `run_record`."""
    try:
        return expect(run_record(record), _RESUME_FIELDS)
    except ValueError as error:
        raise CheckpointError(f"{RECORD}: lacks what a resume needs: {error}") from error


def seal(folder: Path, record: bytes, side_files: Mapping[str, bytes]) -> None:
    """Write record.json, the side files and SHA256SUMS into a folder that holds the arrays; raises OSError."""
    for name, data in side_files.items():
        write_file(folder / name, data)
    # The line of the record comes last, so that a truncated SHA256SUMS lacks it even if it ends at the end of a line.
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    write_file(folder / RECORD, record)
    lines = [f"{sha256_of(folder / name)}  {name}\n" for name in [*names, RECORD]]
    write_file(folder / SUMS, "".join(lines).encode())


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk, so that it cannot be empty after a later rename of its folder."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def check_side_files(side_files: Mapping[str, bytes]) -> None:
    """Check names of side files; raises CheckpointError for a name that is not a plain file name, or is reserved."""
    for name in side_files:
        if not _is_side_file(name):
            raise CheckpointError(f"side file {name!r}: expected a name like tokenizer.model")


def read_side_files(folder: Path) -> dict[str, bytes]:
    """Return all side files by name; raises as `verify` does."""
    return {name: _read_checked(folder, name) for name in _read_sums(folder) if _is_side_file(name)}


def _is_side_file(name: str) -> bool:
    # The last two names are those of Orbax.
    own = name in (RECORD, SUMS, "state", "commit_success.txt", "orbax.checkpoint")
    return not own and re.fullmatch(r"[a-z][\w-]*\.\w+", name) is not None


def verify(folder: Path) -> Manifest:
    """Check every byte of every file of a checkpoint, and return its manifest.

    Raises:
      DamagedCheckpointError: a file is missing or is not what was written; the message names it.
      VanishedCheckpointError: the whole folder is missing.
      CheckpointError: a file cannot be read now, or this program did not write the checkpoint.
    """
    for name, digest in _read_sums(folder).items():
        if name != RECORD:
            _check(folder, name, digest)
    return read_manifest(folder)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint without checking other files; raises as `verify` does."""
    data = _read_checked(folder, RECORD)
    try:
        return Manifest.from_bytes(data)
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    except ValueError as error:
        raise CheckpointError(f"{folder / RECORD}: not written by this program: {error}") from error


def _read_checked(folder: Path, name: str) -> bytes:
    """Return the content of a file at the top of a checkpoint that SHA256SUMS names; raises as `verify` does."""
    _check(folder, name, _read_sums(folder)[name])
    return _read(folder, name)


def _read_sums(folder: Path) -> dict[str, str]:
    matches = [_SUM_LINE.fullmatch(line) for line in _read(folder, SUMS).decode("utf-8", "replace").split("\n") if line]
    sums = {match[2]: match[1] for match in matches if match}
    if None in matches or RECORD not in sums:
        raise DamagedCheckpointError(f"{folder}: {SUMS} is damaged")
    return sums


def _read(folder: Path, name: str) -> bytes:
    with _named_errors(folder, name):
        return read_bytes(_inside(folder, name))


def _check(folder: Path, name: str, digest: str) -> None:
    with _named_errors(folder, name):
        actual = sha256_of(_inside(folder, name))
    if actual != digest:
        raise DamagedCheckpointError(f"{folder}: {name} does not match its sha256")


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file of a checkpoint, which may be a link to another file of it.

    Raises: DamagedCheckpointError if it is not a regular file, which could be endless, or lies outside of the folder.
    """
    path = folder / name
    if not stat.S_ISREG(path.stat().st_mode):
        raise DamagedCheckpointError(f"{folder}: {name} is not a regular file")
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DamagedCheckpointError(f"{folder}: {name} leads out of the checkpoint; put the file itself there")
    return path


@contextlib.contextmanager
def _named_errors(folder: Path, name: str) -> Generator[None, None, None]:
    """Convert the errors of reading one file of a checkpoint into errors that name it."""
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
    """Check that a folder exists; raises VanishedCheckpointError if it does not."""
    try:
        folder.stat()
    except FileNotFoundError:
        raise VanishedCheckpointError(f"{folder}: was deleted meanwhile") from None
    except OSError:  # the folder may still exist
        return


def check_leaves(folder: Path, expected: Mapping[str, Leaf], stored: Mapping[str, Leaf]) -> None:
    """Compare the arrays of a template with the stored ones; raises CheckpointError naming all that differ."""
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
        raise CheckpointError(f"{folder}: {len(lines)} arrays differ from those of this config\n{listing}")
