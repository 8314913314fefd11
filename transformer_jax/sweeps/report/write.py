"""Write the report of a study. The same work directory always gives the same bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

from transformer_jax.errors import ConfigError
from transformer_jax.host.files import write_atomically
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.committed import results_files
from transformer_jax.sweeps.report.differences import DIFFERENCES, differences_csv
from transformer_jax.sweeps.report.drawing import draw_figures, draw_opening
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.latex import TABLES, tables_tex
from transformer_jax.sweeps.report.markdown import document
from transformer_jax.sweeps.report.measurements import measurements_csv
from transformer_jax.sweeps.report.noise_table import noise_csv
from transformer_jax.sweeps.report.page import page
from transformer_jax.sweeps.report.summary import (
    CONTRASTS,
    RESULTS,
    SUMMARY,
    Row,
    contrasts_csv,
    results_csv,
    summary_csv,
)
from transformer_jax.sweeps.report.tuning import TUNING_TABLE, tuning_csv
from transformer_jax.sweeps.results_folder import EXAMPLE_NOISE, FIGURES, MEASUREMENTS, PRETRAINING_FILE, TUNING_FILE

PAGE, MARKDOWN = "report.html", "report.md"


def write_report(results: StudyResults, rows: list[Row], effects: list[Effect], output: Path) -> list[Path]:
    """Write the page, the Markdown file, the tables and the figures into a new or existing folder; return the files.

    Outdated figures and contrasts of an earlier report are removed.

    Args:
      rows: the result of `summarise`.
      effects: the result of `effects`; if it is empty, there is neither a table nor a forest plot of contrasts.
    Raises: ConfigError for a figure that cannot be drawn, before anything is written; ConfigError for a folder that
      cannot be written.
    """
    figures = [*draw_opening(results, effects), *draw_figures(results)]
    tables = {
        RESULTS: results_csv(results).encode(),
        SUMMARY: summary_csv(rows).encode(),
        MEASUREMENTS: measurements_csv(results).encode(),
        **(
            {CONTRASTS: contrasts_csv(effects).encode(), DIFFERENCES: differences_csv(effects).encode()}
            if effects
            else {}
        ),
        **({TUNING_TABLE: tuning_csv(results).encode()} if results.tuning else {}),
        **({EXAMPLE_NOISE: noise_csv(effects).encode()} if any(effect.noise for effect in effects) else {}),
    }
    contents = {
        PAGE: page(results, rows, effects, figures).encode(),
        MARKDOWN: document(results, rows, effects, figures).encode(),
        **tables,
        TABLES: tables_tex(results, rows, effects).encode(),
        **{f"{FIGURES}/{figure.file}": figure.svg for figure in figures},
        **{f"{FIGURES}/{figure.pdf_file}": figure.pdf for figure in figures if figure.pdf},
        **results_files(results, figures, tables),
    }
    try:
        (output / FIGURES).mkdir(parents=True, exist_ok=True)
        for file in itertools.chain(*((output / FIGURES).glob(f"[0-9]*_*.{end}") for end in ("svg", "pdf"))):
            if f"{FIGURES}/{file.name}" not in contents:
                file.unlink()
        optional = {CONTRASTS, DIFFERENCES, PRETRAINING_FILE, TUNING_TABLE, TUNING_FILE, EXAMPLE_NOISE}
        for name in optional - contents.keys():
            (output / name).unlink(missing_ok=True)
        for name, content in contents.items():
            write_atomically(output / name, content)
    except OSError as error:
        raise ConfigError(f"--output={output}: cannot be written: {error.strerror}") from error
    return [output / name for name in contents]
