"""Seconds of a training step of every rule of the study `optimizers`, measured by turns.

    python -m benchmarks.optimizers

Every turn runs some steps of each rule on the same random tokens. Prints, by rule, the median of its steps and the
smallest and largest median of a turn, in milliseconds. Run nothing else on the machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.train_step import Run
from experiments.optimizers.study import OPTIMIZERS, STUDY
from transformer_jax.config_file import read_config
from transformer_jax.host.huge_pages import restart_with_huge_pages

STEPS = 10
"""Steps of a rule in a turn; the first is not counted."""


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--seconds", type=float, default=120.0, help="time to run steps for, after compilation")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    """Measure for about --seconds and print a line per rule."""
    arguments = parser().parse_args(argv)
    runs, times = {}, {}
    for name, overrides in OPTIMIZERS.values.items():
        config = read_config(str(Path(STUDY.baseline)), overrides)
        rows = config.data.tokens_per_batch // config.data.packed_length
        runs[name], times[name] = Run(config, rows, {"targets": config.data.packed_length}), []
    start = time.perf_counter()
    while time.perf_counter() - start < arguments.seconds:
        for name, run in runs.items():
            times[name].append([run.step() for _ in range(STEPS)][1:])
    for name, turns in times.items():
        medians = np.median(turns, axis=1) * 1e3
        print(
            f"{name} {np.median(turns) * 1e3:.1f} ms ({medians.min():.1f} to {medians.max():.1f}, {len(turns)} turns)"
        )


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
