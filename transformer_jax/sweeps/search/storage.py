"""Optuna's database of a search, and the identity and lock of a work directory that uses it."""

from __future__ import annotations

import contextlib
import re
import time
import uuid
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import crc32_text, open_own_file, try_lock, write_atomically
from transformer_jax.readers import read_text

HEARTBEAT_SECONDS = 60
GRACE_SECONDS = 600
"""A sweep without a heartbeat for this long counts as dead; another sweep then tries its variants again."""

# Sweeps that start at the same time create the same tables; neither Optuna nor PostgreSQL prevents the collision.
_RACES, _RACE_SECONDS = 10, 0.5


def default_url(workdir: Path) -> str:
    """Return the URL of an SQLite file in the work directory."""
    return f"sqlite:///{workdir.absolute() / 'search.db'}"


class OpenStudy(NamedTuple):
    """study: optuna.Study. database: its optuna.storages.RDBStorage. study_id: its number in the database."""

    study: Any
    database: Any
    study_id: int

    def trial_id(self, trial: Any) -> int:
        """Return the number of a trial in the database; Optuna's trials have only their number within the study."""
        return self.database.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)


def open_study(url: str, name: str, maximize: bool, pruner: Any) -> OpenStudy:
    """Return the study of a name in a database, newly made if it does not exist.

    Raises: ConfigError if Optuna is not installed or the database cannot be opened.
    """
    try:
        import optuna
        import sqlalchemy.exc
    except ImportError as error:
        raise ConfigError(
            f"--search=tpe needs Optuna ({error}); install the extra: pip install 'transformer-jax[sweep]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def opened() -> OpenStudy:
        storage = optuna.storages.RDBStorage(
            url,
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(),
        )
        direction = "maximize" if maximize else "minimize"
        study = optuna.create_study(
            storage=storage, study_name=name, direction=direction, pruner=pruner, load_if_exists=True
        )
        return OpenStudy(study, storage, storage.get_study_id_from_name(name))

    with quiet():
        try:
            for _ in range(_RACES):
                try:
                    return opened()
                except sqlalchemy.exc.DBAPIError as error:
                    if "already exists" not in str(error):
                        raise
                    time.sleep(_RACE_SECONDS)
            return opened()
        except (ImportError, ValueError, RuntimeError, sqlalchemy.exc.SQLAlchemyError) as error:
            cause = error.__cause__ if isinstance(error, ImportError) and error.__cause__ else error
            raise ConfigError(
                f"--storage={_without_password(url)}: cannot be opened: {str(cause).splitlines()[0]}; expected "
                "sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE, with its driver installed"
            ) from error


@contextlib.contextmanager
def storage_errors() -> Generator[None]:
    """Turn errors of the database into a DataError that says so."""
    import optuna
    import sqlalchemy.exc

    try:
        with quiet():
            yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        first = str(error.__cause__ or error).splitlines()[0]
        raise DataError(
            f"the search's database failed: {first}; run the same command again to resume once it works"
        ) from error


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Silence Optuna's warnings that heartbeats are experimental and meant for `optimize`."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Heartbeat of storage is supposed to be used with")
        yield


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    account, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{account.partition(':')[0]}{at}{host}"


def identity(workdir: Path) -> str:
    """Return a unique identifier of a work directory; it is made once and stored there, with a checksum.

    Files of earlier versions have no checksum.

    Raises: DataError if the file is damaged or cannot be read.
    """
    file = workdir / ".search_identity"
    if not file.exists():
        made = uuid.uuid4().hex
        write_atomically(file, f"{made} {crc32_text(made)}".encode())
    try:
        found, _, checksum = read_text(file).strip().partition(" ")
        if re.fullmatch(r"[0-9a-f]{32}", found) is None or checksum not in ("", crc32_text(found)):
            raise ValueError("it does not match its checksum")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file}: cannot be used: {getattr(error, 'strerror', None) or error}; delete it, and the variants that "
            f"this work directory was trying are tried again after {GRACE_SECONDS // 60} minutes"
        ) from error
    return found


def locked(workdir: Path) -> IO[bytes]:
    """Lock a work directory for this search; raise ConfigError if another process holds the lock.

    On a file system without locks this always succeeds.
    """
    file = open_own_file(workdir / ".search_lock")
    if try_lock(file) == "in use":
        file.close()
        raise ConfigError(
            f"--workdir={workdir}: another sweep is searching there; to run several at once, give each its own "
            "--workdir and all the same --storage"
        )
    return file
