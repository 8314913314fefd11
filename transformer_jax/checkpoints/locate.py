"""Find the store and the step that the value of `--checkpoint=` names."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.checkpoints import folders
from transformer_jax.checkpoints.manifest import RECORD, SUMS, DamagedCheckpointError, read_manifest
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import CHECKPOINTS
from transformer_jax.config import nearest
from transformer_jax.errors import CheckpointError
from transformer_jax.trust import reading

BEST = "best"
logger = logging.getLogger(__name__)


class Opened(NamedTuple):
    """A store of checkpoints. step: of the checkpoint that the path names; None for the newest valid one."""

    store: CheckpointStore
    step: int | None


def open_checkpoint(path: Path | str, higher_is_better: Callable[[Mapping[str, Any]], bool]) -> Opened:
    """Return the store of the checkpoints at a path, opened for reading, and the step that the path names.

    Args:
      path: WORKDIR, WORKDIR/checkpoints or WORKDIR/checkpoints/STEP; WORKDIR/checkpoints/best for the best step by
        `training.best_metric`; or a copy of a checkpoint anywhere, with any name.
      higher_is_better: returns the direction of `training.best_metric` for the config in a checkpoint's record.

    With `best`, a warning names every damaged checkpoint that is, or may be, better than the one that is chosen.

    Raises: CheckpointError if there is no checkpoint; the message says what was found instead.
    """
    path = Path(os.path.abspath(os.path.expanduser(path)))
    try:
        if path.name == BEST and not path.exists() and folders.list_steps(path.parent):
            return _open_best(path, higher_is_better)
        return _open(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened: {error.strerror}") from error


def _open_best(path: Path, higher_is_better: Callable[[Mapping[str, Any]], bool]) -> Opened:
    store, _ = _open(path.parent)
    config = _newest_config(store)
    with reading(path):
        direction = higher_is_better(config)
    ranking = CheckpointStore(
        store.directory,
        best_metric=config["training"]["best_metric"],
        higher_is_better=direction,
        read_only=True,
    )
    step = ranking.best_good()
    if step is None:
        steps = ", ".join(map(str, store.steps()))
        which = "undamaged checkpoint" if ranking.damaged else "checkpoint"
        raise CheckpointError(
            f"{path}: no {which} was saved with a value of training.best_metric; name one by its step: {steps}"
        )
    if ranking.damaged:
        logger.warning("%s: step %d is the best of the undamaged checkpoints, and is used", path, step)
    return Opened(store, step)


def _newest_config(store: CheckpointStore) -> Mapping[str, Any]:
    """Return the config of the newest valid checkpoint, which defines how checkpoints are ranked."""
    problems = []
    for step in reversed(store.steps()):
        try:
            return store.read_record(step)["config"]
        except DamagedCheckpointError as error:
            problems.append(f"  - {error}")
    raise CheckpointError("\n".join([f"{store.directory}: no valid checkpoint in it", *problems]))


def _open(path: Path) -> Opened:
    if not path.exists():
        raise CheckpointError(_missing(path))
    if not path.is_dir():
        raise CheckpointError(f"{path}: is a file; expected a work directory or a checkpoint folder")
    if folders.is_unfinished(path.name):
        raise CheckpointError(f"{path}: not a checkpoint, but the remains of an interrupted save")
    if _looks_like_checkpoint(path):
        if folders.is_step(path.name):
            return Opened(CheckpointStore(path.parent, read_only=True), int(path.name))
        step = read_manifest(path).step
        return Opened(CheckpointStore(path.parent, read_only=True, alias=(step, path.name)), step)
    directory = path / CHECKPOINTS if (path / CHECKPOINTS).is_dir() else path
    store = CheckpointStore(directory, read_only=True)
    if not any(_looks_like_checkpoint(directory / str(step)) for step in store.steps()):
        raise CheckpointError(_none_inside(path, directory))
    return Opened(store, None)


def _looks_like_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, possibly a damaged one, so that the message can name the damage."""
    return any((folder / name).exists() for name in (RECORD, SUMS, "_CHECKPOINT_METADATA"))


def _missing(path: Path) -> str:
    parent = path.parent
    while not parent.is_dir():
        parent = parent.parent
    name = path.relative_to(parent).parts[0]
    if steps := [step for step in folders.list_steps(parent) if _looks_like_checkpoint(parent / str(step))]:
        return f"{path}: no such folder; {parent} has the checkpoints {', '.join(map(str, steps))}"
    return f"{path}: no such folder; {parent} has no '{name}'{nearest(name, [p.name for p in parent.iterdir()])}"


def _none_inside(path: Path, directory: Path) -> str:
    names = [entry.name for entry in directory.iterdir()]
    unfinished = [name for name in names if folders.is_unfinished(name)]
    if unfinished:
        return f"{path}: no complete checkpoint, only an unfinished save: {', '.join(sorted(unfinished))}"
    if directory != path or path.name == CHECKPOINTS or (path / "config.json").exists():
        return f"{path}: no checkpoint in it yet"
    return f"{path}: neither a work directory nor a checkpoint folder"
