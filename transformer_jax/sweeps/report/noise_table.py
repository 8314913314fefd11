"""example_noise.csv: the noise of the test set in every contrast, with which the report is drawn again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformer_jax.errors import DataError
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.summary import csv_text
from transformer_jax.sweeps.results_folder import csv_rows
from transformer_jax.sweeps.statistics import ExampleNoise

_COLUMNS = ("contrast", "metric", *ExampleNoise._fields)


def noise_csv(effects: Sequence[Effect]) -> str:
    """Return one CSV line per contrast and metric with a known noise."""
    return csv_text(_COLUMNS, [[of.name, of.metric, *of.noise] for of in effects if of.noise is not None])


def read_noise(file: Path) -> dict[tuple[str, str], ExampleNoise]:
    """Return the noise by name of a contrast and metric; raise DataError for a file that cannot be read."""
    found = {}
    for row in csv_rows(file):
        try:
            counts, variances = (row["examples"], row["seeds"]), (row["of_examples"], row["residual"])
            found[row["contrast"], row["metric"]] = ExampleNoise(*map(int, counts), *map(float, variances))
        except (KeyError, ValueError) as error:
            raise DataError(f"{file}: is not a table of noise: {error}") from error
    return found
