"""Searches by name: they choose which trials of a study run, all of its grid or some that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.results import STUDY, STUDY_FIELDS, read_object
from transformer_jax.sweeps.search.search import Listed, Search, SearchOptions, Space, check_options
from transformer_jax.sweeps.search.storage import check_claim, record_search
from transformer_jax.sweeps.search.two_stage import TwoStage
from transformer_jax.sweeps.study import Study
from transformer_jax.sweeps.trials import grid


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
    if study.precision and options.name != "grid":
        raise ConfigError(f"--search={options.name}: a study with a precision needs --search=grid")
    check_claim(workdir, options)
    search = _made(Space(study, overrides), options, workdir, num_workers)
    record_search(workdir, options)
    return search


def _made(space: Space, options: SearchOptions, workdir: Path, num_workers: int) -> Search:
    if options.name == "random":
        from transformer_jax.sweeps.search.random import random_search

        assert options.num_trials is not None
        return random_search(space, options.num_trials, options.seed)
    if options.name == "tpe":
        from transformer_jax.sweeps.search.tpe import Tpe

        return Tpe(space, options, workdir, num_workers, read_object(workdir / STUDY, STUDY_FIELDS)["study"])
    if space.study.precision:
        return TwoStage(space)
    found = grid(space.study, space.overrides)
    notes = [f"{name} is the same experiment as {other} and is not trained again" for name, other in found.same.items()]
    return Listed(found.trials, notes)
