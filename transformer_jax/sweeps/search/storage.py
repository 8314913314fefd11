"""Optuna's database of a search, and what tells whose its variants are."""

from __future__ import annotations

import contextlib
import time
import uuid
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.files import try_lock, write_atomically

HEARTBEAT_SECONDS = 60
GRACE_SECONDS = 600
"""A sweep that is silent for so long has died: its variants are another's, which tries them anew."""

# Sweeps that begin at the same time make the same tables, which neither Optuna nor PostgreSQL keeps apart.
_RACES, _RACE_SECONDS = 10, 0.5


def default_url(workdir: Path) -> str:
    """A file of SQLite, which the sweeps of one machine can share."""
    return f"sqlite:///{workdir.absolute() / 'search.db'}"


class OpenStudy(NamedTuple):
    """study: optuna.Study. database: the optuna.storages.RDBStorage that it is in. study_id: its number there."""

    study: Any
    database: Any
    study_id: int

    def trial_id(self, trial: Any) -> int:
        """Return the number of a trial in the database, of which Optuna's trials show only that in their study."""
        return self.database.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)


def open_study(url: str, name: str, maximize: bool, pruner: Any) -> OpenStudy:
    """Return the study of a name in a database; it is made if it is not there.

    Raises ConfigError if Optuna is not installed, or the database cannot be opened.
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
    """Names the database in what goes wrong with it; raises DataError."""
    import optuna
    import sqlalchemy.exc

    try:
        with quiet():
            yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        first = str(error.__cause__ or error).splitlines()[0]
        raise DataError(
            f"the search's database does not answer: {first}; the same command goes on once it does"
        ) from error


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Without Optuna's warnings that heartbeats are experimental, and are recorded for one by `optimize` alone."""
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
    """What tells a work directory from all others, of this machine and elsewhere; made once."""
    file = workdir / ".search_identity"
    if not file.exists():
        write_atomically(file, uuid.uuid4().hex.encode())
    return file.read_text(encoding="utf-8")


def locked(workdir: Path) -> IO[bytes]:
    """The lock of a search; raises ConfigError if another has it. A file system without locks gives it to everybody."""
    file = (workdir / ".search_lock").open("ab")
    if try_lock(file) == "in use":
        file.close()
        raise ConfigError(
            f"--workdir={workdir}: another sweep searches there; to have several, give each its own --workdir and all "
            "the same --storage"
        )
    return file
