"""Optuna's database of a search, an SQLite file in the work directory, and the lock of the sweep that uses it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import open_own_file, try_lock

DATABASE = "search.db"


class OpenStudy(NamedTuple):
    """study: optuna.Study. database: its optuna.storages.RDBStorage. study_id: its number in the database."""

    study: Any
    database: Any
    study_id: int

    def trial_id(self, trial: Any) -> int:
        """Return the number of a trial in the database; Optuna's trials have only their number within the study."""
        return self.database.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)


def open_study(workdir: Path, name: str, maximize: bool, pruner: Any) -> OpenStudy:
    """Return the study of a name in the database of a work directory, newly made if it does not exist.

    Raises: ConfigError if Optuna is not installed; DataError if the database cannot be opened.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError(
            f"--search=tpe needs Optuna ({error}); install the extra: pip install 'transformer-jax[sweep]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = workdir.absolute() / DATABASE
    with storage_errors(file):
        storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
        direction = "maximize" if maximize else "minimize"
        study = optuna.create_study(
            storage=storage, study_name=name, direction=direction, pruner=pruner, load_if_exists=True
        )
        return OpenStudy(study, storage, storage.get_study_id_from_name(name))


@contextlib.contextmanager
def storage_errors(file: Path) -> Generator[None]:
    """Turn errors of the database in a file into a DataError, and silence Optuna's warnings of experimental parts."""
    import optuna
    import sqlalchemy.exc

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError, RuntimeError) as error:
        first = str(error.__cause__ or error).splitlines()[0]
        raise DataError(
            f"{file}: the search's database failed: {first}; run the same command again to resume once it works. If "
            "the file is damaged, move it away: the results in the folders of the trials are used again"
        ) from error


def locked(workdir: Path) -> IO[bytes]:
    """Lock a work directory for this search; raise ConfigError if another process holds the lock.

    On a file system without locks this always succeeds.
    """
    file = open_own_file(workdir / ".search_lock")
    if try_lock(file) == "in use":
        file.close()
        raise ConfigError(f"--workdir={workdir}: another sweep is searching there; wait for it, or choose another one")
    return file
