"""Make tables, figures and a page from the results of a study.

    transformer-jax report --workdir=runs/positions
    transformer-jax report --workdir=runs/positions --output=experiments/positions/results
    transformer-jax report --results=experiments/positions/results

Prints the answer and its tables in Markdown, and writes these files to WORKDIR/report, or to --output: report.html, a
self-contained page; report.md; figures/; summary.csv, the mean of every metric of every variant with its 95 %
interval and its paired difference from the reference; contrasts.csv, the paired differences that the study contrasts,
with their verdicts; differences.csv, these differences by seed; results.csv, every trial; measurements.csv, every
number; tuning.csv, the values that were tuned; and the rest of what --results needs, such as declaration.json and
trials.json. Trials that diverged, failed or are still running are counted and marked as such. The command works at any
time during a sweep; run it again to update the report. If a trial has lost its log, or the result of its ended
training, or has the log of another run, a warning names it, and the exit code is 3.

--results draws the report again from the files of an earlier one, in the same folder or in --output. No work directory
is needed. A file that does not match its checksum is refused. If the folder lacks the numbers of a figure, a warning
names it, it stays as it was, and the exit code is 3.

--style=FILE.json sets size, font, colours and words of all figures that are drawn; docs/studies.md has its keys.

The code of a study is run only if it is built in, or with --study. Without, figures that a study draws itself are left
out, and the report does not check that the command that it prints makes the configs of the trials.
"""

import dataclasses
import sys
from pathlib import Path

from absl import flags

from transformer_jax.builtin import study_folder
from transformer_jax.cli.arguments import Arguments, path_flag, switch
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes

OVERRIDES = ()


def define(values: flags.FlagValues) -> None:
    path_flag(values, "workdir", "work directory of a sweep")
    path_flag(values, "results", "results folder: the --output of an earlier report, in place of --workdir")
    path_flag(values, "study", "folder or name of the study, whose code is then run; default the recorded study")
    path_flag(values, "output", "folder for the report; default WORKDIR/report, or the folder of --results")
    path_flag(values, "style", "JSON file with size, font, colours and labels of the figures")
    switch(values, "json", "print the summary as JSON instead of the tables")


def run(arguments: Arguments) -> int:
    values = arguments.flags
    if bool(values.workdir) == bool(values.results):
        raise ConfigError("give one of --workdir=WORKDIR and --results=FOLDER")

    from transformer_jax.sweeps.report.collect import collect
    from transformer_jax.sweeps.report.committed import collect_results
    from transformer_jax.sweeps.report.drawing import undrawable
    from transformer_jax.sweeps.report.effects import effects
    from transformer_jax.sweeps.report.markdown import answered, tables
    from transformer_jax.sweeps.report.style_file import read_style
    from transformer_jax.sweeps.report.summary import summarise, summary_json
    from transformer_jax.sweeps.report.write import write_report
    from transformer_jax.trackers.results import track_report

    study = study_folder(values.study) if values.study else None
    if values.results:
        results, output = collect_results(Path(values.results), study), Path(values.results)
    else:
        results, output = collect(Path(values.workdir), study), Path(values.workdir) / "report"
    if values.style:
        results = dataclasses.replace(results, style=read_style(Path(values.style), results))
    rows, found = summarise(results), effects(results)
    output = Path(values.output) if values.output else output
    written = write_report(results, rows, found, output)
    if values.workdir:
        config = results.trials[0].trial.config
        track_report(config, Path(values.workdir), {path.relative_to(output).as_posix(): path for path in written})
    text = f"{answered(results, rows, found)}\n\n{tables(results, rows, found)}"
    print(summary_json(rows, found, ascii=True) if values.json else text)
    print("\n".join(map(str, written)), file=sys.stderr)
    return exit_codes.SOME_FAILED if results.lost or undrawable(results) else exit_codes.OK
