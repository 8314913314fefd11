"""Which trials of a study are run, by name: all of its grid, or some that are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.files import write_atomically
from transformer_jax.sweeps.results import STUDY, TRIALS
from transformer_jax.sweeps.search.base import Listed, Search, SearchOptions, Space, check_options
from transformer_jax.sweeps.study import Study
from transformer_jax.sweeps.trials import grid

_FILE = "search.json"


def make_search(
    study: Study,
    root: Path,
    overrides: Mapping[str, Any],
    options: SearchOptions,
    workdir: Path,
    num_workers: int,
) -> Search:
    """The search of a name.

    Args:
      root: the folder that holds `experiments` and the baseline.
      overrides: config fields by dotted name, as on the command line, for every trial.
      workdir: of the study.
      num_workers: trials that run at once.
    Raises: ConfigError for options that it has not, a study that it cannot search, and a work directory in which
      another search has been begun.
    """
    check_options(options)
    _check_claim(workdir, options)
    search = _made(Space(study, root, overrides), options, workdir, num_workers)
    _record(workdir, options)
    return search


def _made(space: Space, options: SearchOptions, workdir: Path, num_workers: int) -> Search:
    if options.name == "random":
        from transformer_jax.sweeps.search.random import random_search

        assert options.num_trials is not None
        return random_search(space, options.num_trials, options.seed)
    if options.name == "tpe":
        from transformer_jax.sweeps.search.tpe import Tpe

        return Tpe(space, options, workdir, num_workers, json.loads((workdir / STUDY).read_text())["study"])
    found = grid(space.study, space.root, space.overrides)
    notes = [f"{name} is the same experiment as {other}, and is trained once" for name, other in found.same.items()]
    return Listed(found.trials, notes)


def recorded(workdir: Path) -> SearchOptions:
    """The search that a work directory is of, but for `storage`; the grid where nothing says so.

    num_trials: the most that a sweep there has asked for; None of an older record, which does not say.
    Raises: DataError if the record cannot be read.
    """
    file = workdir / _FILE
    if not file.exists():
        return SearchOptions()
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return SearchOptions(record["search"], record.get("num_trials"), record["seed"], record.get("pruner", "none"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file}: cannot be read or is cut short: {error}") from error


def _record(workdir: Path, options: SearchOptions) -> None:
    counts = [count for count in (recorded(workdir).num_trials, options.num_trials) if count is not None]
    record = {
        "search": options.name,
        "seed": options.seed,
        "num_trials": max(counts, default=None),
        "pruner": options.pruner,
    }
    write_atomically(workdir / _FILE, (json.dumps(record) + "\n").encode())


def _check_claim(workdir: Path, options: SearchOptions) -> None:
    """Raises ConfigError if a work directory is that of another search."""
    if not (workdir / _FILE).exists() and not (workdir / TRIALS).exists():
        return
    theirs = recorded(workdir)
    if (theirs.name, theirs.seed) != (options.name, options.seed):
        raise ConfigError(
            f"--workdir={workdir}: is that of --search={theirs.name} --search_seed={theirs.seed}; choose "
            "another for another search"
        )
