"""The cost of a study before it runs: trials, programs, parameters, operations and time, from a few measured steps."""

from __future__ import annotations

import collections
import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import BatchShape, TrainingBatches
from transformer_jax.host.terminal import doing, render_table, say
from transformer_jax.sweeps.trials import Trial, groups
from transformer_jax.tasks.flops import step_operations
from transformer_jax.tasks.task import param_shapes
from transformer_jax.training.optimizer_flops import optimizer_flops
from transformer_jax.training.set_up import set_up

_MEASURED_STEPS = 5


class Cost(NamedTuple):
    """The cost of training one trial.

    parameters: their number. operations: of an average step, see `tasks.flops.step_operations`; None if they are not
    counted. of_optimizer: those of an update of the parameters. num_shapes: batch shapes, each of which is compiled.
    compile_seconds: of one shape. step_seconds: of one step.
    """

    parameters: int
    operations: float | None
    of_optimizer: int
    num_shapes: int
    compile_seconds: float
    step_seconds: float

    def minutes(self, num_steps: int) -> float:
        """Return the minutes of a training of `num_steps` steps, without validation and checkpoints."""
        return (self.num_shapes * self.compile_seconds + num_steps * self.step_seconds) / 60


@dataclasses.dataclass(frozen=True)
class Program:
    """Trials whose training is one compiled program, up to seeds, rates and other scalars; and the cost of each."""

    trials: tuple[Trial, ...]
    cost: Cost

    @property
    def minutes(self) -> float:
        """Minutes of all trials, one after the other."""
        return sum(self.cost.minutes(trial.config.training.num_train_steps) for trial in self.trials)


def programs_of(trials: Sequence[Trial]) -> list[Program]:
    """Measure a trial of every program; trials that another one trains cost nothing and are left out.

    The corpus is tokenized, in a temporary folder. Trials of a study with a pretraining are measured with new
    parameters and a tokenizer of their own, since there is no checkpoint yet.

    Raises: the errors of `training.set_up.set_up`.
    """
    trained = [trial for trial in trials if trial.trained_by is None]
    result = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "token_cache"
        together = list(groups(trained))
        for number, group in enumerate(together, 1):
            say(f"measuring program {number} of {len(together)}: {group[0].variant}")
            config = group[0].config if group[0].starts_from is None else _without_start(group[0].config)
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, cache_dir=str(cache)))
            with doing(f"measuring program {number} of {len(together)}"):
                result.append(Program(tuple(group), measure(config, Path(folder) / str(number))))
    return result


def _without_start(config: ExperimentConfig) -> ExperimentConfig:
    training = dataclasses.replace(config.training, init_from="", new_head=False, new_parameters=False)
    return dataclasses.replace(config, training=training)


def measure(config: ExperimentConfig, folder: Path) -> Cost:
    """Compile the step for the most frequent batch shape, and time it.

    Batches of all shapes have about equally many tokens, so one shape is enough for an estimate.

    Args:
      folder: a work directory, which is written.
    """
    with open_workdir(folder, config.to_dict()) as directory:
        prepared = set_up(config, directory, lambda config, data: lambda params: {})
        with prepared.parts.store:
            plan, launcher = prepared.parts.plan, prepared.launcher
            counts = _shapes(plan, config.training.num_train_steps)
            shape = counts.most_common(1)[0][0]
            step = next(step for step in range(plan.batches_per_epoch) if plan.shape(step) == shape)
            batch = plan.batch(step, launcher.local_rows(shape.rows))
            state, seconds = prepared.state, []
            for _ in range(1 + _MEASURED_STEPS):
                start = time.monotonic()
                state, metrics = launcher.step(state, batch, prepared.hyper)
                jax.block_until_ready((state, metrics))
                seconds.append(time.monotonic() - start)
    first, *others = seconds
    step_seconds = sorted(others)[len(others) // 2]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config)))
    operations, of_optimizer = _operations(config, counts), optimizer_flops(config)
    return Cost(parameters, operations, of_optimizer, len(counts), max(first - step_seconds, 0.0), step_seconds)


def _shapes(plan: TrainingBatches, num_steps: int) -> collections.Counter[BatchShape]:
    """Return how many of the first steps have a batch of each shape."""
    return collections.Counter(plan.shape(step) for step in range(min(num_steps, plan.batches_per_epoch)))


def _operations(config: ExperimentConfig, counts: collections.Counter[BatchShape]) -> float | None:
    """Return the average operations of a step; None if the architecture does not count them."""
    total = 0
    for shape, count in counts.items():
        operations = step_operations(config, shape.rows, dict(shape.widths))
        if operations is None:
            return None
        total += count * operations
    return total / counts.total()


def print_plan(trials: Sequence[Trial], programs: Sequence[Program], notes: Sequence[str]) -> None:
    """Print a row per variant, and the totals."""
    from rich.table import Table

    of_trial = {trial.name: (number, p) for number, p in enumerate(programs, 1) for trial in p.trials}
    table = Table("variant", title=None)
    per_step = "FLOPs per step", "of the optimizer"
    for heading in ("trials", "program", "parameters", *per_step, "steps", "FLOPs", "minutes per trial"):
        table.add_column(heading, justify="right")
    variants: dict[str, list[Trial]] = {}
    for trial in trials:
        variants.setdefault(trial.variant, []).append(trial)
    for variant, of_variant in variants.items():
        first, count = of_variant[0], str(len(of_variant))
        if first.trained_by is not None:
            table.add_row(variant, count, *[""] * 6, "0")
            notes = [*notes, f"{variant} is trained by {first.trained_by.rpartition(',')[0]}"]
            continue
        number, program = of_trial[first.name]
        cost, steps = program.cost, first.config.training.num_train_steps
        of_step, of_all = "not counted", "not counted"
        if cost.operations is not None:
            of_step, of_all = f"{cost.operations:.3g}", f"{cost.operations * steps:.3g}"
        table.add_row(
            *(variant, count, str(number), f"{cost.parameters:,}", of_step, f"{cost.of_optimizer:.3g}", f"{steps:,}"),
            *(of_all, f"{cost.minutes(steps):.1f}"),
        )
    print(render_table(table))
    for note in notes:
        print(note)
    minutes = sum(program.minutes for program in programs)
    trained = sum(len(program.trials) for program in programs)
    print(
        f"{len(trials)} trials of {len(variants)} variants, {trained} of them trained, in {len(programs)} programs; "
        f"about {minutes:.0f} minutes of training one after the other on {jax.device_count()} {jax.default_backend()} "
        f"device(s), from {_MEASURED_STEPS} steps per program, without validation and scoring"
    )
