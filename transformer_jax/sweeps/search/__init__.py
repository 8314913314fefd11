"""Searches by name: they choose which trials of a study run, all of its grid or some that are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import with_checksum, write_atomically
from transformer_jax.sweeps.results import STUDY, STUDY_FIELDS, TRIALS, read_object
from transformer_jax.sweeps.search.search import (
    NAMES,
    PRUNERS,
    Listed,
    Search,
    SearchOptions,
    Space,
    check_options,
)
from transformer_jax.sweeps.study import Study
from transformer_jax.sweeps.trials import grid

_FILE = "search.json"


def make_search(
    study: Study,
    overrides: Mapping[str, Any],
    options: SearchOptions,
    workdir: Path,
    num_workers: int,
) -> Search:
    """Return the search that the options name.

    Args:
      overrides: config fields by dotted name, as on the command line, for every trial.
      workdir: work directory of the study.
      num_workers: number of trials that run at once.
    Raises: ConfigError for options that the search does not have, a study that it cannot search, and a work directory
      of another search.
    """
    check_options(options)
    _check_claim(workdir, options)
    search = _made(Space(study, overrides), options, workdir, num_workers)
    _record(workdir, options)
    return search


def _made(space: Space, options: SearchOptions, workdir: Path, num_workers: int) -> Search:
    if options.name == "random":
        from transformer_jax.sweeps.search.random import random_search

        assert options.num_trials is not None
        return random_search(space, options.num_trials, options.seed)
    if options.name == "tpe":
        from transformer_jax.sweeps.search.tpe import Tpe

        return Tpe(space, options, workdir, num_workers, read_object(workdir / STUDY, STUDY_FIELDS)["study"])
    found = grid(space.study, space.overrides)
    notes = [f"{name} is the same experiment as {other} and is not trained again" for name, other in found.same.items()]
    return Listed(found.trials, notes)


def recorded(workdir: Path) -> SearchOptions:
    """Return the search that a work directory belongs to; the grid if there is no record.

    num_trials is the largest number that a sweep there has been started with; None if an older record lacks it.
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


def _record(workdir: Path, options: SearchOptions) -> None:
    counts = [count for count in (recorded(workdir).num_trials, options.num_trials) if count is not None]
    record = {
        "search": options.name,
        "seed": options.seed,
        "num_trials": max(counts, default=None),
        "pruner": options.pruner,
    }
    write_atomically(workdir / _FILE, (json.dumps(with_checksum(record)) + "\n").encode())


def _check_claim(workdir: Path, options: SearchOptions) -> None:
    """Raise ConfigError if a work directory belongs to another search."""
    if not (workdir / _FILE).exists() and not (workdir / TRIALS).exists():
        return
    theirs = recorded(workdir)
    if (theirs.name, theirs.seed) != (options.name, options.seed):
        raise ConfigError(
            f"--workdir={workdir}: belongs to --search={theirs.name} --search_seed={theirs.seed}; choose another "
            "work directory for another search"
        )
