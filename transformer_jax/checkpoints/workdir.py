"""The work directory of a run: its config.json, and a lock against a second process.

config.json has a checksum of its own. Once there are checkpoints, it must also be the config of the newest one, whose
record is covered by SHA256SUMS: so a file of another run, or one that was edited, is not believed.
"""

import json
import logging
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from transformer_jax.checkpoints import folders
from transformer_jax.checkpoints.manifest import read_manifest
from transformer_jax.config import completed, flat, is_bookkeeping, is_rounding
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.host.files import (
    CHECKSUM,
    own_file_opener,
    try_lock,
    with_checksum,
    without_checksum,
    write_atomically,
)
from transformer_jax.readers import read_json_object, through_json
from transformer_jax.trust import reading

logger = logging.getLogger(__name__)

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
STUDY, TRIALS = "study.json", "trials"
"""Of the work directory of a sweep: SWEEP/study.json, SWEEP/trials/TRIAL."""
LOCK = ".lock"
FLAG = "--allow_config_change"


class WorkDirectory:
    """An open and locked work directory; `close` it, or use it as a context manager."""

    def __init__(self, path: Path, config: Mapping[str, Any], allow_config_change: bool, lock: bool = True) -> None:
        """Lock an existing directory; raises CheckpointError if it cannot be written or is in use."""
        self.path = path
        self._config = _plain(config)
        self._allow_config_change = allow_config_change
        self._accepted: dict[str, Any] | None = None
        self._lock: int | None = _lock(path) if lock else None

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def check_config(self, stored: Mapping[str, Any], where: str) -> None:
        """Compare this run's config with the one that was in use here before.

        Args:
          stored: the earlier config, as nested dictionaries.
          where: the place where it was found, for the message.

        Fields may differ that change only how the same numbers are computed, or when something is logged, validated or
        saved; a warning lists them. For any other field that differs, this raises ConfigError, or only warns if
        `allow_config_change` is set. The message names all of them.
        """
        before = completed(stored, self._config)
        differences = config_differences(before, self._config, where)
        if not differences or _plain(stored) == self._accepted:
            return
        listing = "\n".join(f"  - {line}" for line in differences.values())
        others = _not_bookkeeping(differences, before, self._config)
        if all(map(is_rounding, others)):
            how = "with the same batches, but computed differently" if others else "the same training"
            logger.warning("%s: resuming %s\n%s", self.path, how, listing)
            self._accepted = _plain(stored)
            return
        if not self._allow_config_change:
            raise ConfigError(
                f"{self.path}: another config is in use here\n{listing}\n"
                f"Choose another --workdir, or resume here with the new values: transformer-jax train ... {FLAG}"
            )
        logger.warning("%s: config changed by %s\n%s", self.path, FLAG, listing)
        self._accepted = _plain(stored)

    def write_config(self) -> None:
        """Write this run's config to config.json, with a checksum, unless the file has both already.

        Raises: CheckpointError if it cannot be read or written.
        """
        stored = _read_object(self.path / CONFIG)
        if stored is None or CHECKSUM not in stored or config_differences(_config_of(stored), self._config, CONFIG):
            text = json.dumps(with_checksum(self._config), indent=2)
            write_atomically(self.path / CONFIG, f"{text}\n".encode())

    def close(self) -> None:
        """Release the lock; it is also released when the process dies, even by SIGKILL."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> "WorkDirectory":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def open_workdir(
    path: Path | str, config: Mapping[str, Any], allow_config_change: bool = False, lock: bool = True
) -> WorkDirectory:
    """Create or reopen a work directory for training, lock it, and compare its config, if any, with this run's.

    config.json is not written yet: `WorkDirectory.write_config` does that once training can start.

    Args:
      path: WORKDIR; created if it does not exist.
      config: the resolved config as nested dictionaries of JSON values.
      allow_config_change: continue if another config was in use, with a warning that lists the changes.
      lock: False for a process of a job in which another process holds the lock; it writes nothing.

    Raises:
      ConfigError: another config is in use and `allow_config_change` is not set; every differing field is named.
      CheckpointError: the path is not a directory, cannot be written, or is in use by another process.
    """
    path = Path(os.path.expanduser(path)).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise CheckpointError(f"{path}: cannot be a work directory, {_file_in(path)} is a file") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be made: {error.strerror}") from error
    workdir = WorkDirectory(path, config, allow_config_change, lock)
    try:
        stored = read_stored_config(path)
        if stored is not None:
            workdir.check_config(stored, path.name)
    except BaseException:
        workdir.close()
        raise
    return workdir


def sweep_of(workdir: Path) -> Path | None:
    """Return the work directory of the sweep, or of a stage of it, that has a run as a trial; None for other runs."""
    sweep = workdir.parent.parent
    return sweep if workdir.parent.name == TRIALS and (sweep / STUDY).is_file() else None


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return a line per differing field, such as `model.num_heads: 8 in WHERE, 4 now`, by name, ordered as `new`."""
    before, after = flat(_plain(old)), flat(_plain(new))
    names = [*after, *(name for name in before if name not in after)]
    return {
        name: f"{name}: {_shown(before, name)} in {where}, {_shown(after, name)} now"
        for name in names
        if name not in before or name not in after or not _same(before[name], after[name])
    }


def read_stored_config(workdir: Path) -> dict[str, Any] | None:
    """Return config.json of a work directory without its checksum; None if there is none.

    Raises: CheckpointError if the file cannot be read, has no checksum or does not match it. The message then names the
      fields that differ from the config of the newest checkpoint.
    """
    values = _read_object(workdir / CONFIG)
    if values is None:
        return None
    try:
        return without_checksum(values)
    except ValueError as error:
        raise _edited(workdir, _config_of(values), str(error)) from None


def config_of_run(workdir: Path, allow_config_change: bool = False) -> tuple[Path, dict[str, Any]] | None:
    """Return the config of the run in a work directory, and the file that has it; None if there is none.

    The file is config.json. Its config must equal that of the newest checkpoint, apart from fields that may change at a
    resume. If config.json is missing, the config comes from the newest checkpoint.

    Args:
      allow_config_change: take config.json even if the newest checkpoint has another config.
    Raises: CheckpointError if config.json cannot be read, was edited, or is of another run.
    """
    config, newest = read_stored_config(workdir), _newest_config(workdir)
    if newest is None:
        return None if config is None else (workdir / CONFIG, config)
    step, stored = newest
    if config is None:
        folder = workdir / CHECKPOINTS / str(step)
        logger.warning("%s: has no %s; using the config of checkpoint %d", workdir, CONFIG, step)
        return folder, stored
    with reading(workdir / CONFIG):
        lines = {} if allow_config_change else lasting_differences(stored, config, f"checkpoint {step}")
    if lines:
        raise CheckpointError(
            f"{workdir / CONFIG}: differs from the config of checkpoint {step}: it was edited, is of another run, or a "
            f"run with {FLAG} ended before its next checkpoint{_remedy(step, lines.values())}\nTo resume with the "
            f"values of {CONFIG}, give {FLAG}"
        )
    return workdir / CONFIG, config


def _newest_config(workdir: Path) -> tuple[int, dict[str, Any]] | None:
    """Return the step and the config of the newest checkpoint whose record can be read; None if there is none."""
    for step in reversed(folders.list_steps(workdir / CHECKPOINTS)):
        try:
            config = read_manifest(workdir / CHECKPOINTS / str(step)).record.get("config")
        except (CheckpointError, AttributeError):  # reading the checkpoint itself names what is wrong with it
            continue
        if isinstance(config, dict):
            return step, config
    return None


def lasting_differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return `config_differences` without those that may come at a resume; either config may lack later fields.

    Args:
      where: the place of the old config, for the lines.
    """
    found = _all_differences(old, new, where)
    return {name: found[name] for name in _not_bookkeeping(found, old, new) if not is_rounding(name)}


def _all_differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> dict[str, str]:
    new = completed(new, old)
    return config_differences(completed(old, new), new, where)


def _not_bookkeeping(names: Iterable[str], *configs: Mapping[str, Any]) -> list[str]:
    """Return the fields among `names` that are not bookkeeping with the values of one of the configs."""
    values = [flat(_plain(config)) for config in configs]
    return [name for name in names if not all(is_bookkeeping(name, of) for of in values)]


def _edited(workdir: Path, config: Mapping[str, Any], problem: str) -> CheckpointError:
    """Return the error for a config.json that has no checksum or does not match it."""
    text = f"{workdir / CONFIG}: {problem}, so it was edited or is damaged"
    newest = _newest_config(workdir)
    if newest is None:
        return CheckpointError(
            f"{text}; there is no checkpoint to compare it with. Delete it and name the config again: --config=..."
        )
    step, stored = newest
    with reading(workdir / CONFIG):
        lines = _all_differences(stored, config, f"checkpoint {step}").values()
    return CheckpointError(text + _remedy(step, lines))


def _remedy(step: int, lines: Iterable[str]) -> str:
    return (
        "".join(f"\n  - {line.removesuffix(' now')} in {CONFIG}" for line in lines)
        + f"\nDelete the file to resume with the config of checkpoint {step}. To change a field, give it as a flag, "
        f"--config.FIELD=VALUE: here with {FLAG}, or with --config=... and another --workdir"
    )


def _config_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != CHECKSUM}


def _read_object(file: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if there is no file. Raises CheckpointError if it cannot be read."""
    try:
        return read_json_object(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(
            f"{file}: is damaged ({error}); restore it, or delete it to have it written again"
        ) from error


def _lock(path: Path) -> int:
    """Lock the directory for this process, and return the descriptor; closing it unlocks the directory."""
    file = path / LOCK
    try:
        descriptor = own_file_opener(str(file), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        place = file if file.is_symlink() or file.exists() else path
        raise CheckpointError(f"{place}: cannot be written: {error.strerror}") from error
    try:
        state = try_lock(descriptor)
    except OSError as error:
        os.close(descriptor)
        raise CheckpointError(f"{path}: cannot be locked: {error.strerror}") from error
    if state == "in use":
        holder = os.read(descriptor, 200).decode("utf-8", "replace").strip()
        os.close(descriptor)
        raise CheckpointError(f"{path}: in use by {holder or 'another process'}")
    if state == "no locks":
        logger.warning("%s: its file system has no locks; make sure that only one process trains here", path)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as error:
        os.close(descriptor)
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from error
    return descriptor


def _file_in(path: Path) -> Path:
    """Return the part of a path that is a file where a directory is needed."""
    return next((p for p in (path, *path.parents) if p.exists() and not p.is_dir()), path)


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as it comes back from JSON, with lists in place of tuples."""
    return through_json(config)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def _shown(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "absent"
