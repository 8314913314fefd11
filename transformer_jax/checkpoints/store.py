"""`CheckpointStore`: save, restore and keep the checkpoints of one run."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import jax

from transformer_jax.checkpoints import folders, orbax_io
from transformer_jax.checkpoints.checksums import as_arrays, by_path, checksums
from transformer_jax.checkpoints.manifest import (
    DamagedCheckpointError,
    Leaf,
    Manifest,
    VanishedCheckpointError,
    check_leaves,
    check_present,
    check_side_files,
    read_manifest,
    read_side_files,
    seal,
    verify,
)
from transformer_jax.checkpoints.retention import Metrics, Retention
from transformer_jax.config import nearest
from transformer_jax.errors import CheckpointError
from transformer_jax.host.files import check_path_is_text
from transformer_jax.host.kill_points import kill_point

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_ATTEMPTS = 5
PARAMS, EXTRA = "params", "extra"
"""The fields of a state that evaluation reads; `extra` has trees by name."""


class Restored(NamedTuple):
    """A restored checkpoint: its step, the state as the pytree of the template, and the record passed to `save`."""

    step: int
    state: Any
    record: dict[str, Any]


class Checkpoint(NamedTuple):
    """Everything in a checkpoint except the values of its arrays.

    directory: its folder. record, side_files: as passed to `save`. leaves: shape and type of every array by its path,
    such as `params/encoder/...`.
    """

    step: int
    directory: Path
    record: dict[str, Any]
    leaves: dict[str, Leaf]
    side_files: dict[str, bytes]

    def below(self, prefix: str) -> dict[str, Leaf]:
        """Return shapes and types of the arrays below a path such as "params", by the rest of their path."""
        return {path[len(prefix) + 1 :]: leaf for path, leaf in self.leaves.items() if path.startswith(f"{prefix}/")}


class CheckpointStore:
    """The checkpoints in one folder, `DIRECTORY/STEP/`.

    Only one process may write at a time: hold the lock of the work directory (`workdir.open_workdir`) while a store is
    open for writing. Opening for writing creates the folder and removes the remains of interrupted saves.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        keep_last: int | None = None,
        keep_best: int = 0,
        best_metric: str | None = None,
        higher_is_better: bool = False,
        every: int = 1,
        read_only: bool = False,
        alias: tuple[int, str] | None = None,
    ) -> None:
        """Open the checkpoints of a folder.

        Args:
          directory: the folder that holds, or will hold, one folder per step.
          keep_last, keep_best, best_metric, higher_is_better, every: see `retention.Retention`; default: keep all.
          read_only: nothing in the folder is created, renamed or deleted.
          alias: (step, name) of a single checkpoint whose folder is not named by its step; the store has only this one.

        Raises CheckpointError if the folder cannot be created or listed, or its path is not UTF-8.
        """
        self.directory = Path(directory).absolute()
        check_path_is_text(self.directory)
        self._retention = Retention(keep_last, keep_best, best_metric, higher_is_better, every)
        self._retention.check()
        self._read_only = read_only
        self._alias = alias
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: tuple[Path, Future[None]] | None = None
        self._metrics: dict[int, Metrics] = {}
        self.damaged: set[int] = set()
        """Steps that `best_step`, `best_good`, `check_best` or the retention have found damaged."""
        orbax_io.silence_orbax()
        if not read_only:
            folders.prepare_directory(self.directory, clean=jax.process_index() == 0)

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # With several processes, a save could wait forever for the process whose death caused the error.
        if error is None or jax.process_count() == 1:
            self.close()

    # Writing.

    def save(
        self,
        step: int,
        state: Any,
        record: Mapping[str, Any],
        side_files: Mapping[str, bytes],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Start saving a checkpoint, after the previous save is complete; afterwards `state` may be donated.

        Args:
          step: the name of the checkpoint; there must be none of this step yet.
          state: a pytree of arrays; `restore_params` needs a field or key `params`.
          record: JSON-able, otherwise this raises TypeError; tuples come back as lists.
          side_files: plain file names and their content, such as `tokenizer.model`.
          metrics: values that rank this checkpoint; without them it is never among the best.

        Raises:
          CheckpointError: the previous save failed, and this one was not started; or this one cannot start. Earlier
            checkpoints are intact, and a later save works after the cause is removed.
        """
        if self._read_only:
            raise ValueError(f"{self.directory} was opened read-only")
        self.wait()
        folder = self.folder(step)
        if folder.exists():
            raise CheckpointError(f"{folder}: there is a checkpoint of this step already")
        best = self._retention.best_metric
        if metrics is not None and best is not None and best not in metrics:
            raise CheckpointError(f"no metric '{best}' among {', '.join(metrics)}{nearest(best, metrics)}")
        check_side_files(side_files)
        with jax.transfer_guard("allow"):
            state = as_arrays(state)
            arrays = by_path(state)
            sums = checksums(arrays)
        leaves = {path: Leaf(tuple(x.shape), x.dtype.name, sums[path]) for path, x in arrays.items()}
        values = None if metrics is None else {name: float(value) for name, value in metrics.items()}
        data = Manifest(step, dict(record), values, leaves).to_bytes()
        try:
            writing = orbax_io.start_writing(folders.saving(folder), state)
        except Exception as error:
            raise self._failed(folder, error) from error
        primary = jax.process_index() == 0
        self._pending = folder, self._thread.submit(_finish, writing, folder, data, dict(side_files), primary)

    def wait(self) -> None:
        """Wait for the save in progress, if any, then delete the checkpoints that are not kept.

        Raises CheckpointError if the save has failed.
        """
        if self._pending is None:
            return
        folder, pending = self._pending
        try:
            pending.result()
        except Exception as error:
            self._pending = None
            raise self._failed(folder, error) from error
        self._pending = None  # an interrupt while waiting leaves it in place
        self._delete_old()

    def close(self) -> None:
        """Wait as `wait` does; the store can still be used afterwards."""
        self.wait()

    # Reading.

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, ascending; none while only the first is being written."""
        if self._alias is not None:
            return [self._alias[0]]
        return folders.list_steps(self.directory)

    def best_step(self) -> int | None:
        """Return the step of the complete checkpoint with the best `best_metric`; None if none has this metric.

        A checkpoint whose record is damaged has no rank; a warning names it, since it may be the best.
        """
        return next(iter(self._retention.ranked(self._all_metrics())), None)

    def best_good(self) -> int | None:
        """Return the step of the best checkpoint whose files are as they were written; None if there is none.

        A damaged checkpoint that is better, or may be, is named in a warning.

        Raises: CheckpointError if a file cannot be read now.
        """
        while (step := self.best_step()) is not None and not self._is_good(step):
            pass
        return step

    def check_best(self, verified: int) -> None:
        """Verify the best checkpoints, which a store open for writing keeps; name damaged ones in a warning.

        Damaged ones stay on the disk, and do not count: the next best ones are kept as well.

        Args:
          verified: a step that was verified already.
        """
        good: set[int] = set()
        while len(good) < self._retention.keep_best:
            step = next((step for step in self._retention.ranked(self._all_metrics()) if step not in good), None)
            if step is None:
                return
            try:
                if step == verified or self._is_good(step):
                    good.add(step)
            except CheckpointError as error:
                logger.warning("%s; it is not checked", error)
                good.add(step)

    def _is_good(self, step: int) -> bool:
        """Return whether the files of a checkpoint are as they were written; if not, name the damage in a warning."""
        try:
            verify(self.folder(step))
        except VanishedCheckpointError:
            self._metrics.pop(step, None)
            return False
        except DamagedCheckpointError as error:
            self._note_damage(step, error, "is")
            return False
        return True

    def _note_damage(self, step: int, error: DamagedCheckpointError, is_best: str = "may be") -> None:
        self._metrics.pop(step, None)
        self.damaged.add(step)
        metric = self._retention.best_metric
        rank = f"it {is_best} the best by {metric}; " if metric else ""
        logger.warning("DAMAGED CHECKPOINT %s\n  %sit is not used, and it is not deleted", error, rank)

    def folder(self, step: int) -> Path:
        """Return the folder of a checkpoint; there may be none."""
        if self._alias is not None and self._alias[0] == step:
            return self.directory / self._alias[1]
        return self.directory / str(step)

    def read_record(self, step: int) -> dict[str, Any]:
        """Return the record that was passed to `save`; raises as `restore` of this step does."""
        return read_manifest(self._existing(step)).record

    def open(self, step: int) -> Checkpoint:
        """Return everything in a checkpoint except its arrays; raises as `restore` of this step does."""
        folder = self._existing(step)
        manifest = read_manifest(folder)
        return Checkpoint(step, folder, manifest.record, manifest.leaves, read_side_files(folder))

    def restore(self, template: Any, step: int | None = None) -> Restored:
        """Load and verify a checkpoint.

        Args:
          template: the pytree that was saved, with jax.ShapeDtypeStructs as leaves. Arrays get the shardings of the
            template, whatever they were saved with; leaves without a sharding get this process's first device.
          step: the step; None takes the newest valid checkpoint. In that case a damaged one is named in a warning and
            skipped; a store open for writing renames it to STEP.damaged after an older one has been loaded.

        Raises:
          VanishedCheckpointError: there is no checkpoint of this step, or it was deleted meanwhile.
          DamagedCheckpointError: the checkpoint of this step is damaged.
          CheckpointError: there is no checkpoint, or no valid one; one cannot be read now; or its arrays differ from
            those of the template, and the message names all that differ.
        """
        return self._restore(template, step)

    def restore_params(self, template: Any, step: int | None = None) -> Restored:
        """Restore `state.params` alone, as `restore_parts` does; `state` of the result holds them."""
        restored = self.restore_parts({PARAMS: template}, step)
        return restored._replace(state=restored.state[PARAMS])

    def restore_parts(self, template: Mapping[str, Any], step: int | None = None, partial: bool = False) -> Restored:
        """Restore only some fields of a state; otherwise as `restore`. The other fields are not read.

        Args:
          template: the fields by name. If it has `params`, or a tree of `extra`, it must name all arrays of these,
            unless `partial` is set. Of every other field, it may name only some arrays.
        """
        whole = () if partial else (PARAMS, *(f"{EXTRA}/{name}" for name in template.get(EXTRA, {})))
        return self._restore(template, step, [tree for tree in whole if tree != PARAMS or PARAMS in template])

    def newest_good(self) -> int | None:
        """Return the newest step whose files are as they were written; None if there is no checkpoint at all.

        One of several processes uses this to choose the step that all `restore`. The arrays are not loaded. Damaged
        checkpoints are treated, and errors raised, as by `restore`.
        """
        if not self.steps():
            return None
        return again_if_vanished(lambda: self.first_good(lambda step: verify(self._existing(step)).step))

    def _restore(self, template: Any, step: int | None, whole: Sequence[str] | None = None) -> Restored:
        """Restore a whole state, or some fields, with all arrays below the paths in `whole`."""
        if step is not None:
            return self._load(step, template, whole)
        return again_if_vanished(lambda: self.first_good(lambda candidate: self._load(candidate, template, whole)))

    def first_good(self, use: Callable[[int], _Result]) -> _Result:
        """Return the result of `use` for the newest step in which it finds no damage.

        Damaged checkpoints are treated as by `restore`.

        Raises: CheckpointError if there is no step, or all are damaged; VanishedCheckpointError as `use` does.
        """
        damaged: list[tuple[int, DamagedCheckpointError]] = []
        steps = self.steps()
        for candidate in reversed(steps):
            try:
                result = use(candidate)
            except DamagedCheckpointError as error:
                logger.warning("DAMAGED CHECKPOINT %s\n  it is skipped, the next older one is tried", error)
                damaged.append((candidate, error))
                continue
            if damaged:
                self._set_aside([skipped for skipped, _ in damaged], candidate)
            return result
        if not steps:
            raise CheckpointError(f"{self.directory}: no checkpoint in it")
        raise CheckpointError(
            f"{self.directory}: no valid checkpoint in it\n" + "\n".join(f"  - {error}" for _, error in damaged)
        )

    def _load(self, step: int, template: Any, whole: Sequence[str] | None) -> Restored:
        folder = self._existing(step)
        try:
            return self._load_from(folder, step, template, whole)
        except CheckpointError:
            check_present(folder)  # if it was deleted while it was read, files are missing and numbers are wrong
            raise

    def _load_from(self, folder: Path, step: int, template: Any, whole: Sequence[str] | None) -> Restored:
        manifest = verify(folder)
        if manifest.step != step:
            raise CheckpointError(f"{folder}: holds step {manifest.step}; rename the folder to that step")
        template = orbax_io.with_shardings(template)
        expected = {path: Leaf(tuple(x.shape), x.dtype.name) for path, x in by_path(template).items()}
        stored = manifest.leaves
        if whole is not None:
            trees = tuple(f"{tree}/" for tree in whole)
            stored = {path: leaf for path, leaf in stored.items() if path in expected or path.startswith(trees)}
        check_leaves(folder, expected, stored)
        state = orbax_io.read(folder, template, partial=whole is not None)
        with jax.transfer_guard("allow"):
            sums = checksums(by_path(state))
        if wrong := [path for path in stored if sums[path] != stored[path].checksum]:
            raise DamagedCheckpointError(f"{folder}: wrong numbers in {', '.join(wrong)}")
        return Restored(step, state, manifest.record)

    def _existing(self, step: int) -> Path:
        folder = self.folder(step)
        if not folder.is_dir():
            steps = ", ".join(map(str, self.steps())) or "none"
            raise VanishedCheckpointError(f"{folder}: no such checkpoint; there are {steps}")
        return folder

    # Retention.

    def _failed(self, folder: Path, error: Exception) -> CheckpointError:
        folders.discard(folder)
        steps = ", ".join(map(str, self.steps()))
        intact = f"; earlier checkpoints are intact: {steps}" if steps else ""
        return CheckpointError(f"{folder}: could not be saved: {orbax_io.reason_of(error)}{intact}")

    def _delete_old(self) -> None:
        if jax.process_index() == 0:
            metrics = self._all_metrics()
            for step in sorted(metrics.keys() - self._retention.kept(metrics)):
                folders.delete(self.folder(step))

    def _all_metrics(self) -> dict[int, Metrics]:
        """Return the metrics of each complete checkpoint, read once.

        Those that cannot be read now, and damaged ones, are left out: they have no rank and are not deleted.
        """
        steps = self.steps()
        for step in steps:
            if step not in self._metrics and step not in self.damaged:
                try:
                    self._metrics[step] = read_manifest(self.folder(step)).metrics
                except DamagedCheckpointError as error:
                    self._note_damage(step, error)
                except CheckpointError as error:
                    logger.warning("%s; it is kept", error)
        return {step: self._metrics[step] for step in steps if step in self._metrics}

    def _set_aside(self, steps: list[int], used: int) -> None:
        """Rename damaged checkpoints, so that their steps can be saved again."""
        if self._read_only or jax.process_index() != 0:
            return
        for step in steps:
            target = folders.set_aside(self.folder(step))
            self._metrics.pop(step, None)
            self.damaged.discard(step)
            logger.warning("using step %d; damaged step %d is now %s", used, step, target)


def again_if_vanished(read: Callable[[], _Result]) -> _Result:
    """Return the result of `read`; call it again if a checkpoint vanishes, because a running training has newer ones.

    Raises: VanishedCheckpointError if this happens five times in a row.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return read()
        except VanishedCheckpointError as error:
            logger.info("%s; the checkpoints are listed again", error)
    return read()


def _finish(
    writing: orbax_io.Writing, folder: Path, record: bytes, side_files: Mapping[str, bytes], primary: bool
) -> None:
    """Finish a save, in the background."""
    kill_point("inside_save", int(folder.name))
    writing.result()
    if primary:
        seal(folders.saving(folder), record, side_files)
        kill_point("before_commit", int(folder.name))
        folders.commit(folder)
