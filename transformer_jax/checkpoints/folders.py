"""Names of the folders in a checkpoint directory, and functions that rename and delete them.

300            a complete checkpoint
300.saving     a save in progress, or the remains of an interrupted one; while Orbax is writing,
               300.saving.orbax-checkpoint-tmp
300.deleted    a deletion in progress, or the remains of an interrupted one
300.damaged    a damaged checkpoint, set aside for the user to inspect
"""

import logging
import os
import re
import shutil
from pathlib import Path

from transformer_jax.errors import CheckpointError

logger = logging.getLogger(__name__)

_STEP = r"(0|[1-9][0-9]*)"
_ORBAX = ".orbax-checkpoint-tmp"


def is_step(name: str) -> bool:
    """Return whether a folder's name is that of a complete checkpoint: a step in plain decimal."""
    return re.fullmatch(_STEP, name) is not None


def is_unfinished(name: str) -> bool:
    """Return whether a folder's name is that of a save in progress or of an interrupted save."""
    return re.fullmatch(rf"{_STEP}(\.saving)?({re.escape(_ORBAX)})?", name) is not None and not is_step(name)


def list_steps(directory: Path) -> list[int]:
    """Return the steps of the complete checkpoints, ascending; empty if there is no such directory."""
    try:
        return sorted(int(entry.name) for entry in directory.iterdir() if is_step(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be listed: {error.strerror}") from error


def prepare_directory(directory: Path, clean: bool) -> None:
    """Create the directory and, with `clean`, remove the remains of interrupted saves and deletions.

    Raises CheckpointError if it cannot be created or listed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be used for checkpoints: {error.strerror}") from error
    for entry in entries if clean else ():
        if is_unfinished(entry.name):
            logger.warning("removing %s, left over from an interrupted save", entry)
            shutil.rmtree(entry, ignore_errors=True)
        elif re.fullmatch(rf"{_STEP}\.deleted", entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def saving(folder: Path) -> Path:
    """Return the folder in which a checkpoint is written before it gets its final name."""
    return folder.with_name(folder.name + ".saving")


def commit(folder: Path) -> None:
    """Rename a written checkpoint to its final name; raises OSError."""
    saving(folder).rename(folder)
    # Flush the directory too: otherwise a power failure could undo the rename after older steps were deleted.
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(folder: Path) -> None:
    """Remove the remains of a failed save, to free its disk space."""
    for rest in (saving(folder), saving(folder).with_name(saving(folder).name + _ORBAX)):
        shutil.rmtree(rest, ignore_errors=True)


def delete(folder: Path) -> None:
    """Delete a checkpoint; it is renamed first, so that a crash in between leaves nothing that looks complete."""
    trash = folder.with_name(folder.name + ".deleted")
    try:
        folder.rename(trash)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", folder, error.strerror)
    shutil.rmtree(trash, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint and return its new path; raises CheckpointError if that is impossible."""
    target = folder.with_name(folder.name + ".damaged")
    count = 1
    while target.exists():
        count += 1
        target = folder.with_name(f"{folder.name}.damaged-{count}")
    try:
        folder.rename(target)
    except OSError as error:
        raise CheckpointError(f"{folder}: is damaged and cannot be renamed: {error.strerror}") from error
    return target
