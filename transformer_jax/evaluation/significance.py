"""Significance of the differences of systems, in every metric that follows from statistics of examples.

tasks/metrics/bootstrap.py defines the p-values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.errors import DataError
from transformer_jax.tasks.metrics.bootstrap import paired_bootstrap_of_sums
from transformer_jax.tasks.task import SAMPLES, SEED, PairedBootstrap, Task
from transformer_jax.tasks.trained.lines import NOT_FINITE


def compare_statistics(
    task: Task,
    systems: Sequence[Mapping[str, Float[np.ndarray, " examples"]]],
    samples: int = SAMPLES,
    seed: int = SEED,
) -> PairedBootstrap:
    """Compare systems in every metric of a task that follows from the statistics and has a direction.

    Args:
      systems: the result of `Task.statistics` for each system.
    Raises: DataError, which names system and example, for a number that is not finite.
    """
    names = list(systems[0])
    for number, system in enumerate(systems, start=1):
        for name, values in system.items():
            if (bad := np.flatnonzero(~np.isfinite(values))).size:
                raise DataError(
                    f"checkpoint {number}: '{name}' of example {bad[0] + 1:,} is {values[bad[0]]}; {NOT_FINITE}"
                )
    stacked = [np.stack([system[name] for name in names], axis=-1) for system in systems]
    there = task.from_sums(dict(zip(names, stacked[0].sum(0), strict=True)))

    def metric(name: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda sums: np.asarray(task.from_sums(dict(zip(names, np.moveaxis(sums, -1, 0), strict=True)))[name])

    specs = [spec for spec in task.metrics if spec.direction and spec.name in there]
    scores = {spec.name: paired_bootstrap_of_sums(stacked, metric(spec.name), samples, seed) for spec in specs}
    return PairedBootstrap(scores, {spec.name: f"bs:{samples}|seed:{seed}" for spec in specs})
