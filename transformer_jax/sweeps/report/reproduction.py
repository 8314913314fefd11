"""Origin of a study's numbers: the command, the configs, the machine and the versions."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.host.files import json_text
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.grid_from_results import config_of_variant, overrides_of, values_by_name
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.search.random import random_search
from transformer_jax.sweeps.search.search import Space
from transformer_jax.sweeps.study import Study
from transformer_jax.sweeps.trials import PRETRAINING


def differing_fields(results: StudyResults) -> list[str]:
    """Return the fields in which variants differ, in the config's order."""
    configs = [values_by_name(config_of_variant(variant)) for variant in results.variants]
    return [name for name in configs[0] if len({config[name] for config in configs}) > 1]


def sweep_command(results: StudyResults) -> str | None:
    """Return the command that trains these configs, run in the folder where `sweep` was run; None if there is none.

    Paths in it are as they were given to `sweep`. If the sweep was not started by the command, they are relative to the
    folder that holds `experiments`. For --search=tpe, the command repeats the search, not necessarily its draws.
    """
    if results.recorded is not None:
        return results.recorded.command
    overrides = _override_flags(results)
    if overrides is None:
        return None
    study, workdir = f"{results.folder.absolute().parent.name}/{results.name}", f"runs/{results.name}"
    other = []
    if results.given is not None:
        study, workdir = results.given.study, results.given.workdir
        other = [f"--config={results.given.config}"] if results.given.config else []
    flags = [f"--study={study}", f"--workdir={workdir}", *other, *_search_flags(results), *_until(results.study)]
    flags += overrides
    return shlex.join(["transformer-jax", "sweep", *flags])


def _until(study: Study) -> list[str]:
    """Return the flags of the widths that the study wants."""
    if not study.precision:
        return []
    widths = ", ".join(f"{name}: {width!r}" for name, width in study.precision.items())
    return [f"--until={widths}", f"--max_seeds={study.max_seeds}"]


def _override_flags(results: StudyResults) -> list[str] | None:
    """Return the flags of the config's fields; None if none make these configs.

    If the baseline is code that a report does not run, they are those of the sweep.
    """
    if results.given is not None and not _finds_baseline(results.study):
        return results.given.overrides
    overrides = overrides_of(results.study, results.variants)
    if overrides is None or not _draws_these(results, overrides):
        return None
    prefix = PRETRAINING if results.is_pretraining else "config"
    flags = [f"--{prefix}.{name}={value}" for name, value in overrides.items()]
    if results.study.tuned is not None and results.given is not None:  # the chosen values hide it
        own = f"--config.{results.study.tuned.field}="
        flags += [flag for flag in results.given.overrides if flag.startswith(own)]
    if results.study.pretraining is not None:
        first = results.first
        if first is None:
            return None
        overrides = overrides_of(first.study, first.variants)
        if overrides is None:
            return None
        flags += [f"--{PRETRAINING}.{name}={value}" for name, value in overrides.items()]
    return flags


def _finds_baseline(study: Study) -> bool:
    try:
        study.find_baseline()
    except ConfigError:
        return False
    return True


def command_note(results: StudyResults) -> str:
    """Return a sentence on where to run the command, and its effect."""
    place = "In the folder to which the path in --study is relative"
    if results.given is not None:
        place = "In the folder where sweep was run"
    if results.search.name != "tpe":
        return f"{place}, this command trains the same configs:"
    return (
        f"{place}, this command searches in the same way. TPE draws depend on the order in which trials ended; if "
        "several workers ran, the command does not repeat them:"
    )


def _search_flags(results: StudyResults) -> list[str]:
    search = results.search
    if search.name == "grid":
        return []
    pruner = [f"--pruner={search.pruner}"] if search.pruner != "none" else []
    return [f"--search={search.name}", f"--search_seed={search.seed}", f"--num_trials={_num_trials(results)}", *pruner]


def _num_trials(results: StudyResults) -> int:
    """Return the recorded number of trials; without a record, the number of variants."""
    return results.search.num_trials or len(results.variants)


def _draws_these(results: StudyResults, overrides: Mapping[str, Any]) -> bool:
    """Return whether a random search, if run now, draws all variants of the results; True for other searches."""
    if results.search.name != "random":
        return True
    space = Space(results.study, overrides)
    try:
        drawn = random_search(space, _num_trials(results), results.search.seed).next([])
    except ConfigError:
        return False
    return {trial.variant for trial in drawn}.issuperset(trial.trial.variant for trial in results.trials)


def machines(results: StudyResults) -> Counter[str]:
    """Return the number of trials by machine."""
    return Counter(trial.ran.machine for trial in results.trials if trial.ran is not None)


def versions(results: StudyResults) -> Counter[str]:
    """Return the number of trials by versions of the libraries."""
    found = [trial.ran.versions for trial in results.trials if trial.ran is not None]
    return Counter(", ".join(f"{name} {version}" for name, version in sorted(of.items())) for of in found)


def exact_config(variant: Variant) -> str:
    """Return a variant's config as JSON, without the seed and the folder of the token cache."""
    sections: dict[str, Any] = {}
    for name, value in values_by_name(config_of_variant(variant)).items():
        section, _, leaf = name.rpartition(".")
        (sections.setdefault(section, {}) if section else sections)[leaf] = value
    return json_text(sections, indent=2)
