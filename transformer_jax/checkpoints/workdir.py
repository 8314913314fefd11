"""The work directory of a run: its config.json, and a lock against a second process."""

import json
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from transformer_jax.config import completed, is_bookkeeping, is_rounding
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.files import own_file_opener, try_lock, write_atomically
from transformer_jax.readers import parse_json, read_bytes, through_json

logger = logging.getLogger(__name__)

CONFIG = "config.json"
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
        return self.path / "checkpoints"

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
        configs = dict(_flat(_plain(before))), dict(_flat(self._config))
        others = [name for name in differences if not all(is_bookkeeping(name, config) for config in configs)]
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

    def has_config(self) -> bool:
        """Return whether config.json exists; `open_workdir` has then compared it with this run's config."""
        return (self.path / CONFIG).is_file()

    def write_config(self) -> None:
        """Write this run's config to config.json if it differs; raises CheckpointError if it cannot be written."""
        stored = read_config(self.path)
        if stored is None or config_differences(stored, self._config, CONFIG):
            write_atomically(self.path / CONFIG, (json.dumps(self._config, indent=2) + "\n").encode())

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
        stored = read_config(path)
        if stored is not None:
            workdir.check_config(stored, path.name)
    except BaseException:
        workdir.close()
        raise
    return workdir


def config_differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return a line per differing field, such as `model.num_heads: 8 in WHERE, 4 now`, by name, ordered as `new`."""
    before, after = dict(_flat(_plain(old))), dict(_flat(_plain(new)))
    names = [*after, *(name for name in before if name not in after)]
    return {
        name: f"{name}: {_shown(before, name)} in {where}, {_shown(after, name)} now"
        for name in names
        if name not in before or name not in after or not _same(before[name], after[name])
    }


def read_config(workdir: Path) -> dict[str, Any] | None:
    """Return config.json of a work directory; None if there is none. Raises CheckpointError if it cannot be read."""
    file = workdir / CONFIG
    try:
        config = parse_json(read_bytes(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(
            f"{file}: is damaged ({error}); restore it, or delete it to have it written again"
        ) from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file}: is damaged (no object); restore it, or delete it to have it written again")
    return config


def _lock(path: Path) -> int:
    """Lock the directory for this process, and return the descriptor; closing it unlocks the directory."""
    file = path / LOCK
    try:
        descriptor = own_file_opener(str(file), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from error
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


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def _shown(flat: Mapping[str, Any], name: str) -> str:
    return json.dumps(flat[name]) if name in flat else "absent"
