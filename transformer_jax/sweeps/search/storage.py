"""The files of a search in the work directory: its name and options, Optuna's database, and the lock of the sweep."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any, NamedTuple

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import open_own_file, try_lock, with_checksum, write_atomically
from transformer_jax.sweeps.results import TRIALS, read_object
from transformer_jax.sweeps.search.search import NAMES, PRUNERS, SearchOptions

DATABASE, _FILE = "search.db", "search.json"


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


def recorded(workdir: Path) -> SearchOptions:
    """Return the search that a work directory belongs to; the grid if there is no record.

    num_trials is the largest number that a sweep there has been started with.

    Raises: DataError if the record cannot be read.
    """
    file = workdir / _FILE
    if not file.exists():
        return SearchOptions()
    try:
        record = read_object(file, {"search": lambda name: name in NAMES, "seed": lambda seed: type(seed) is int})
        options = SearchOptions(
            record["search"], record.get("num_trials"), record["seed"], record.get("pruner", "none")
        )
        if options.pruner not in PRUNERS or type(options.num_trials) not in (int, type(None)):
            raise DataError(f"{file}: has an unknown pruner or number of trials")
        return options
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error}") from error


def record_search(workdir: Path, options: SearchOptions) -> None:
    """Write which search a work directory belongs to."""
    counts = [count for count in (recorded(workdir).num_trials, options.num_trials) if count is not None]
    values = {
        "search": options.name,
        "seed": options.seed,
        "num_trials": max(counts, default=None),
        "pruner": options.pruner,
    }
    write_atomically(workdir / _FILE, (json.dumps(with_checksum(values)) + "\n").encode())


def check_claim(workdir: Path, options: SearchOptions) -> None:
    """Raise ConfigError if a work directory belongs to another search."""
    if not (workdir / _FILE).exists() and not (workdir / TRIALS).exists():
        return
    theirs = recorded(workdir)
    if (theirs.name, theirs.seed) != (options.name, options.seed):
        raise ConfigError(
            f"--workdir={workdir}: belongs to --search={theirs.name} --search_seed={theirs.seed}; choose another "
            "work directory for another search"
        )
