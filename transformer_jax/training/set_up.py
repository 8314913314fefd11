"""Preparation of a run before its first step: launcher, checkpoints, data and state."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import WorkDirectory
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import TooLongError
from transformer_jax.data.datasets import Data, prepare_data
from transformer_jax.data.labels import LABELS_FILE
from transformer_jax.data.tokenizers import (
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    tokenizer_by_file,
    write_tokenizer,
)
from transformer_jax.host.terminal import doing
from transformer_jax.host.versions import library_versions
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.parallel.launchers import Launcher, make_launcher
from transformer_jax.parallel.processes import is_primary, primary_first
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.flops import step_flops
from transformer_jax.tasks.outside_errors import errors_from_outside
from transformer_jax.tasks.task import TASKS, best_metric
from transformer_jax.training.bad_batches import keep_batch
from transformer_jax.training.describe import describe, say_once
from transformer_jax.training.hyper import Hyper, SplitConfig, split
from transformer_jax.training.implementations import check_implementations, check_step
from transformer_jax.training.init_from import open_other_run
from transformer_jax.training.long_texts import all_too_long, check_long_texts
from transformer_jax.training.resume import check_corpus, restore_newest, set_orphaned_log_aside, warn_of_lost_lines
from transformer_jax.training.session import RunParts
from transformer_jax.training.start import Start
from transformer_jax.training.start_log import record_start
from transformer_jax.training.state import TrainState, state_shapes, state_template
from transformer_jax.training.step import make_train_step, monitored
from transformer_jax.typing import Params

Validate = Callable[[Params], dict[str, Any]]
MakeValidate = Callable[[ExperimentConfig, Data], Validate]


class SetUp(NamedTuple):
    """A run before its first step; `record` is from the checkpoint that it resumes from, or empty.

    monitoring: runs the monitored steps; None if there are none.
    """

    parts: RunParts
    launcher: Launcher
    monitoring: Launcher | None
    hyper: Hyper
    state: TrainState
    record: Mapping[str, Any]


def set_up(config: ExperimentConfig, directory: WorkDirectory, make_validate: MakeValidate) -> SetUp:
    """Prepare an ordinary run in one process or several; raises the errors of `training.run.train`."""
    with errors_from_outside(config):
        check_implementations(config)
        static, hyper = split(config)
        axes = parameter_axes(config.model)
        launcher, monitoring = make_launcher(config, make_train_step(static), axes), None
        if config.training.monitor_every_steps:
            monitoring = make_launcher(config, make_train_step(monitored(static)), axes)
        shardings = launcher.shardings(state_shapes(static, hyper))
        with primary_first("opening the checkpoints"):
            store = open_store(config, directory)
        start = find_start(config, directory, store, state_template(static, hyper, shardings))
        with primary_first("preparing the data"):
            data = open_data(config, directory, start)
            if start.record:
                say_once(f"resuming {directory.path} after step {start.step}")
            parts = make_parts(config, directory, store, data, make_validate)
            if not start.record:
                check_long_texts(config, parts.plan)
        check_step(config, SplitConfig(static, hyper), parts.plan)
    state = start.first_state(static, hyper, shardings)
    describe(config, parts.plan, state.params)
    return SetUp(parts, launcher, monitoring, hyper, state, start.record)


def find_start(
    config: ExperimentConfig, directory: WorkDirectory, store: CheckpointStore, template: TrainState
) -> Start:
    """Restore the newest good checkpoint; without one, open the checkpoint of `training.init_from`, if it is set.

    Args:
      template: shapes, types and shardings of the state.
    Raises: CheckpointError and ConfigError, see `restore_newest` and `open_other_run`.
    """
    resumed = restore_newest(config, directory, store, template)
    return resumed or open_other_run(config, directory, template.evaluated) or Start()


def open_store(config: ExperimentConfig, directory: WorkDirectory) -> CheckpointStore:
    """Return the checkpoint store of a run, for writing; raises CheckpointError if it cannot be listed."""
    training, best = config.training, best_metric(config)
    return CheckpointStore(
        directory.checkpoints,
        keep_last=training.keep_last,
        keep_best=training.keep_best,
        best_metric=best.name,
        higher_is_better=best.direction == "max",
        every=training.checkpoint_every_steps,
    )


def open_data(config: ExperimentConfig, directory: WorkDirectory, start: Start) -> Data:
    """Return the tokenized corpus of a run.

    Raises: DataError; ConfigError if the corpus does not fit the config; CheckpointError if it is not the corpus of the
      checkpoint, or the head of `training.init_from` is for other labels.
    """
    if not start.record and is_primary():
        # From a run that died before its first checkpoint, perhaps with another config or another corpus.
        for name in (TOKENIZER_FILE, SOURCE_TOKENIZER_FILE, LABELS_FILE):
            (directory.path / name).unlink(missing_ok=True)
        if start.tokenizer is not None:
            for name, part in tokenizer_by_file(start.tokenizer).items():
                write_tokenizer(directory.path / name, part)
    task = TASKS[config.task.name]
    with doing("preparing the corpus"):
        data = prepare_data(
            config,
            task.columns(config),
            directory.path,
            start.tokenizer,
            say_once,
            needed=("train", "valid"),
            labels=start.labels,
            added_tokens=task.added_tokens(config),
            label_order=start.head_labels,
        )
    start.check_labels(data.labels)
    if start.record:
        check_corpus(start.record, data.source.fingerprint(), directory.path)
    return data


def make_parts(
    config: ExperimentConfig, directory: WorkDirectory, store: CheckpointStore, data: Data, make_validate: MakeValidate
) -> RunParts:
    """Return the parts of a run that trains on the training split of `data`; raises DataError, ConfigError."""
    try:
        plan = training_batches(config, data.splits["train"])
    except TooLongError as error:
        raise all_too_long(config, error) from error
    return RunParts(
        config=config.training,
        data=data,
        higher_is_better=best_metric(config).direction == "max",
        plan=plan,
        store=store,
        evaluate=make_validate(config, data),
        record={
            "config": config.to_dict(),
            "corpus": data.source.fingerprint(),
            "data": {"train_pairs": plan.num_examples, "left_out": plan.left_out.count},
            "versions": library_versions(),
        },
        side_files=TASKS[config.task.name].side_files(data),
        keep_batch=functools.partial(keep_batch, directory.path / "nonfinite"),
        step_flops=functools.cache(lambda shape: step_flops(config, shape.rows, dict(shape.widths))),
    )


def claim(directory: WorkDirectory, record: Mapping[str, Any], step: int) -> None:
    """Write config.json and the line of this start; rename a log of no checkpoint, and warn of lines that it has lost.

    Call it only when the first step is ready to run, so that a run that failed during preparation does not block
    another config in this work directory.

    Args:
      record, step: of the checkpoint that the run resumes from; empty and 0 for a new run.
    """
    if is_primary():
        directory.write_config()
        record_start(directory.path, step)
        if record:
            warn_of_lost_lines(directory.path, record, step)
        else:
            set_orphaned_log_aside(directory)
