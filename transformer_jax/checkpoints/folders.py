"""Names and moves of the folders in a checkpoint directory.

300            a complete checkpoint
300.saving     one that is being written, or what an interrupted save has left; while Orbax is at work,
               300.saving.orbax-checkpoint-tmp
300.deleted    a deletion in progress, or what an interrupted one has left
300.damaged    was found damaged and is out of the way, for the user to look at
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
    """Whether a folder's name is that of a complete checkpoint: a step in plain decimal."""
    return re.fullmatch(_STEP, name) is not None


def is_unfinished(name: str) -> bool:
    """Whether a folder's name is that of a save in progress, or of one that was interrupted."""
    return re.fullmatch(rf"{_STEP}(\.saving)?({re.escape(_ORBAX)})?", name) is not None and not is_step(name)


def list_steps(directory: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending; empty if there is no such directory."""
    try:
        return sorted(int(entry.name) for entry in directory.iterdir() if is_step(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be listed: {error.strerror}") from error


def prepare(directory: Path, clean: bool) -> None:
    """Makes the directory and, with `clean`, removes what interrupted saves and deletions have left in it.

    Raises CheckpointError if it cannot be made or listed.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        entries = sorted(directory.iterdir())
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be used for checkpoints: {error.strerror}") from error
    for entry in entries if clean else ():
        if is_unfinished(entry.name):
            logger.warning("removing %s, the rest of a save that was interrupted", entry)
            shutil.rmtree(entry, ignore_errors=True)
        elif re.fullmatch(rf"{_STEP}\.deleted", entry.name):
            shutil.rmtree(entry, ignore_errors=True)


def saving(folder: Path) -> Path:
    """Where a checkpoint is written before it gets its name."""
    return folder.with_name(folder.name + ".saving")


def commit(folder: Path) -> None:
    """Gives a written checkpoint its name; raises OSError."""
    saving(folder).rename(folder)
    # Until the directory is on the disk too, a power failure could undo the rename after older steps were deleted.
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard(folder: Path) -> None:
    """Removes what a failed save of a checkpoint has left, so that its space is free again."""
    for rest in (saving(folder), saving(folder).with_name(saving(folder).name + _ORBAX)):
        shutil.rmtree(rest, ignore_errors=True)


def delete(folder: Path) -> None:
    """Deletes a checkpoint; renamed first, so that a crash meanwhile leaves nothing that looks like one."""
    trash = folder.with_name(folder.name + ".deleted")
    try:
        folder.rename(trash)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", folder, error.strerror)
    shutil.rmtree(trash, ignore_errors=True)


def set_aside(folder: Path) -> Path:
    """Renames a damaged checkpoint and returns its new path; raises CheckpointError if that is impossible."""
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
