"""List the work directories and sweeps below a folder: state, step, best score, hours, and how their configs differ.

    transformer-jax runs runs
    transformer-jax runs runs --sort=best --state=finished --against=first
    transformer-jax runs runs --json

`running?` is a run whose process lives on this machine, or that has logged on another one within the last hour.
`best` is the best validation by training.best_metric up to the newest checkpoint; of a trial that has ended, the first
metric of its study. Hours are those of training steps. A folder that cannot be read is listed with the reason.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, Positionals, choice_flag, comma_separated, switch, text
from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import json_text

if TYPE_CHECKING:
    from transformer_jax.sweeps.run_list import Run

OVERRIDES = ()
READS_NO_FILES = True  # it reads files, but imports nothing that they name
POSITIONALS = Positionals(("FOLDER",), help="folder with work directories or sweeps, at any depth")

_KEYS: dict[str, Callable[[Run], Any]] = {
    "name": lambda run: run.name,
    "state": lambda run: run.state,
    "step": lambda run: run.step,
    "best": lambda run: None if run.best is None else (run.metric, run.best),
    "hours": lambda run: run.seconds,
}


def define(values: flags.FlagValues) -> None:
    text(
        values, "against", "name of the run whose config the others are compared with; default: the most common values"
    )
    choice_flag(values, "sort", "column by which rows are sorted, ascending", "name", list(_KEYS))
    switch(values, "reverse", "sort descending")
    text(values, "state", "only runs in these states, separated by commas, such as interrupted,failed")
    text(values, "match", "only runs whose names match this pattern of a shell, such as 'norm*'")
    switch(values, "trials", "show the trials of sweeps", default=True)
    switch(values, "json", "print JSON instead of a table")


def run(arguments: Arguments) -> int:
    from transformer_jax.sweeps.run_list import differences, runs_below

    values, folder = arguments.flags, Path(os.path.expanduser(arguments.positionals[0]))
    runs = runs_below(folder)
    differ = differences(runs, values.against or "")
    shown = _sorted(_selected(runs, values), values.sort, values.reverse)
    if values.json:
        rows = [_as_json(run, differ.get(run.name, {})) for run in shown]
        print(json_text({"folder": str(folder), "against": values.against or None, "runs": rows}, indent=2, ascii=True))
    else:
        _print_table(shown, differ, values.against or "the most common value of every field")
    return exit_codes.OK


def _selected(runs: Sequence[Run], values: flags.FlagValues) -> list[Run]:
    """Return the runs that the flags select; raises ConfigError if there are none."""
    from transformer_jax.sweeps.run_list import STATES

    states = comma_separated("state", values.state) if values.state is not None else list(STATES)
    if unknown := [state for state in states if state not in STATES]:
        raise ConfigError(f"--state={values.state}: expected {', '.join(STATES)}{nearest(unknown[0], STATES)}")
    selected = [
        run
        for run in runs
        if run.state in states
        and (values.trials or run.kind != "trial")
        and (values.match is None or fnmatch.fnmatchcase(run.name, values.match))
    ]
    if not selected:
        raise ConfigError(f"none of the {len(runs)} runs is selected by --state, --match and --notrials")
    return selected


def _sorted(runs: Sequence[Run], key: str, reverse: bool) -> list[Run]:
    """Return the runs by a column; those without a value come last."""
    with_value = [run for run in runs if _KEYS[key](run) is not None]
    without = [run for run in runs if _KEYS[key](run) is None]
    return sorted(with_value, key=_KEYS[key], reverse=reverse) + without


def _as_json(run: Run, differences: Mapping[str, Any]) -> dict[str, Any]:
    hours = None if run.seconds is None else run.seconds / 3600
    values = {name: getattr(run, name) for name in ("name", "kind", "state", "why", "step", "total", "metric", "best")}
    return {**values, "hours": hours, "differences": dict(differences)}


def _print_table(runs: Sequence[Run], differ: Mapping[str, Mapping[str, Any]], against: str) -> None:
    from rich.table import Table
    from rich.text import Text

    from transformer_jax.config import short
    from transformer_jax.host.terminal import printable, render_table

    table = Table("run", "state", box=None, pad_edge=False)
    table.add_column("step", justify="right")
    table.add_column("best")
    table.add_column("hours", justify="right")
    table.add_column("differs in")
    for run in runs:
        unit = " trials" if run.kind == "sweep" else ""
        step = (
            "" if run.step is None else f"{run.step:,}" if run.total is None else f"{run.step:,} of {run.total:,}{unit}"
        )
        fields = [f"{name}={short(value)}" for name, value in differ.get(run.name, {}).items()]
        cells = (
            run.name,
            "running?" if run.state == "running" else run.state,
            step,
            "" if run.best is None else f"{run.metric} {run.best:.4g}",
            "" if run.seconds is None else f"{run.seconds / 3600:.2f}",
            ", ".join([*([f"({run.why})"] if run.why else []), *fields]),
        )
        table.add_row(*(Text(printable(cell)) for cell in cells))
    print("\n".join(line.rstrip() for line in render_table(table).splitlines()))
    rows = "1 row" if len(runs) == 1 else f"{len(runs):,} rows"
    print(f"{rows}; configs are compared with {against}")
