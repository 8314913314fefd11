"""Make tables, figures and a page of what a study has found.

    transformer-jax report --workdir=runs/positions
    transformer-jax report --workdir=runs/positions --output=experiments/positions/results

Prints Markdown tables and writes, into WORKDIR/report unless --output says otherwise: report.html, one page that needs
nothing else; report.md; figures/; summary.csv, the mean of every metric of every variant with its 95 % interval and its
paired difference to the reference; contrasts.csv, paired differences of the axes that the study contrasts; results.csv,
every trial. Trials that diverged, failed or have not ended are counted and shown as such. A sweep that is still running
can be reported on at any time, and the same command brings it up to date.
"""

import sys
from pathlib import Path

from absl import flags

from transformer_jax import exit_codes
from transformer_jax.builtin import study_folder
from transformer_jax.cli.arguments import Arguments, path_flag, switch

OVERRIDES = ()


def define(values: flags.FlagValues) -> None:
    path_flag(values, "workdir", "work directory of a sweep")
    path_flag(values, "study", "folder of the study; default is where the sweep found it")
    path_flag(values, "output", "folder for what is written; default WORKDIR/report")
    switch(values, "json", "print the summary as JSON instead of the tables")


def run(arguments: Arguments) -> int:
    workdir, values = Path(arguments.required("workdir")), arguments.flags

    from transformer_jax.sweeps.report.collect import collect
    from transformer_jax.sweeps.report.markdown import tables
    from transformer_jax.sweeps.report.summary import contrasts, summarise, summary_json
    from transformer_jax.sweeps.report.write import write_report

    results = collect(workdir, study_folder(values.study) if values.study else None)
    rows, found = summarise(results), contrasts(results)
    written = write_report(results, rows, found, Path(values.output) if values.output else workdir / "report")
    print(summary_json(rows, found) if values.json else tables(results, rows, found))
    print("\n".join(map(str, written)), file=sys.stderr)
    return exit_codes.OK
