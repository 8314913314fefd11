"""Preparation of a run before its first step: launcher, checkpoints, data and state."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import WorkDirectory
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import TooLongError, TrainingBatches
from transformer_jax.data.datasets import Data, prepare_data
from transformer_jax.data.labels import LABELS_FILE
from transformer_jax.data.tokenizers import (
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    Tokenizer,
    tokenizer_by_file,
    write_tokenizer,
)
from transformer_jax.models.architecture import ARCHITECTURES, parameter_axes
from transformer_jax.nn.attention_kernels import choose
from transformer_jax.nn.recurrent_kernels import refusal, uses_cudnn
from transformer_jax.parallel.launchers import Launcher, make_launcher, mesh_sizes
from transformer_jax.parallel.processes import is_primary, primary_first
from transformer_jax.tasks.base import TASKS, best_metric
from transformer_jax.tasks.batches import training_batches
from transformer_jax.tasks.flops import step_flops
from transformer_jax.tasks.outside import errors_from_outside, objects_from_outside
from transformer_jax.terminal import doing
from transformer_jax.training.describe import describe, say_once
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.init_from import Pretrained, open_pretrained
from transformer_jax.training.long_texts import all_too_long, check_long_texts
from transformer_jax.training.nonfinite import keep_batch
from transformer_jax.training.resume import check_corpus, restore_newest, set_orphaned_log_aside, warn_of_lost_lines
from transformer_jax.training.session import RunParts
from transformer_jax.training.starts import record_start
from transformer_jax.training.state import TrainState, placed_state, state_shapes, state_template
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import TrialAxis
from transformer_jax.typing import Params
from transformer_jax.versions import library_versions

Validate = Callable[[Params], dict[str, Any]]
MakeValidate = Callable[[ExperimentConfig, Data], Validate]


class Prepared(NamedTuple):
    """A run before its first step; `record` is from the checkpoint that it resumes from, or empty."""

    parts: RunParts
    launcher: Launcher
    hyper: Hyper
    state: TrainState
    record: Mapping[str, Any]


def prepare(config: ExperimentConfig, directory: WorkDirectory, make_validate: MakeValidate) -> Prepared:
    """Prepare an ordinary run in one process or several; raises the errors of `training.run.train`."""
    with errors_from_outside(config):
        check_implementations(config)
        static, hyper = split(config)
        launcher = make_launcher(config, make_train_step(static), parameter_axes(config.model))
        shapes = state_shapes(static, hyper)
        shardings = launcher.shardings(shapes)
        with primary_first("opening the checkpoints"):
            store = open_store(config, directory)
        start = find_start(config, directory, store, shardings)
        with primary_first("preparing the data"):
            data = open_data(config, directory, start)
            if start.record:
                say_once(f"resuming {directory.path} after step {start.step}")
            parts = make_parts(config, directory, store, data, make_validate)
            if not start.record:
                check_long_texts(config, parts.plan)
        check_step(config, parts.plan)
    state = start.first_state(config, shardings)
    describe(config, parts.plan, state.params)
    return Prepared(parts, launcher, hyper, state, start.record)


class Start(NamedTuple):
    """The start of a run: its own checkpoint, the parameters of another run, or new parameters.

    state: of the checkpoint that the run resumes from, else None. record: of that checkpoint, else empty. tokenizer:
    the tokenizer of the parameters; None if there is none yet. labels: names of the labels of that checkpoint.
    """

    state: TrainState | None = None
    record: Mapping[str, Any] = {}
    tokenizer: Tokenizer | None = None
    pretrained: Pretrained | None = None
    labels: tuple[str, ...] | None = None

    @property
    def step(self) -> int:
        return 0 if self.state is None else int(self.state.step)

    def first_state(self, config: ExperimentConfig, shardings: Any) -> TrainState:
        """Return the state before the first step of this process.

        Args:
          shardings: a tree like the state, or one sharding for all arrays.
        """
        if self.state is not None:
            return self.state
        state = placed_state(*split(config), shardings)
        if self.pretrained is None:
            return state
        return self.pretrained.load(state)


def find_start(config: ExperimentConfig, directory: WorkDirectory, store: CheckpointStore, shardings: Any) -> Start:
    """Restore the newest good checkpoint; without one, open the checkpoint of `training.init_from`, if it is set.

    Args:
      shardings: a tree like the state, or one sharding for all arrays.
    Raises: CheckpointError and ConfigError, see `restore_newest` and `open_pretrained`.
    """
    template = state_template(*split(config), shardings)
    if resumed := restore_newest(config, directory, store, template):
        return Start(resumed.state, resumed.record, resumed.tokenizer, labels=resumed.labels)
    pretrained = open_pretrained(config, directory, template.evaluated)
    return Start(tokenizer=None if pretrained is None else pretrained.tokenizer, pretrained=pretrained)


def check_implementations(config: ExperimentConfig, axis: TrialAxis | None = None) -> None:
    """Raise ConfigError early if an implementation of attention or of recurrent layers cannot be used.

    Tracing would raise it later, or compile a step that every device computes as a whole.

    Args:
      axis: how one program runs several trials; None if it runs one.
    """
    packed = config.data.batching == "packed"
    kinds = ARCHITECTURES[config.model.architecture].attention_kinds(config.model).values()
    for kind in ("any",) if packed or config.task.prefix != "none" else kinds:
        choose(config.model, kind)
    trains_with_cudnn(config, axis)


def trains_with_cudnn(config: ExperimentConfig, axis: TrialAxis | None = None) -> bool:
    """Return whether cuDNN's LSTM computes recurrent layers in training.

    Args:
      axis: how one program runs several trials; None if it runs one.
    Raises: ConfigError if the config asks for cuDNN, which cannot be used here.
    """
    if not uses_cudnn(config.model, packed=config.data.batching == "packed"):
        return False
    if axis == "vmap":
        raise refusal("vmap cannot batch it over trials", "use --trial_axis=map or --executor=local")
    count = math.prod(mesh_sizes(config).values()) if axis is None else 1
    if config.parallel.launcher == "jit" and count > 1:
        raise refusal(
            f"parallel.launcher='jit' cannot divide it over {count} devices",
            "set parallel.launcher='pmap' or 'shard_map', or parallel.num_devices=1",
        )
    return True


def check_step(config: ExperimentConfig, plan: TrainingBatches) -> None:
    """Trace the training step of an architecture or a task from outside the package, before anything compiles.

    Raises: ConfigError, which names the architecture or the task, if tracing fails.
    """
    if not objects_from_outside(config):
        return
    with errors_from_outside(config):
        static, hyper = split(config)
        batch = plan.batch(0, slice(0, plan.shape(0).rows))
        jax.eval_shape(make_train_step(static), state_shapes(static, hyper), batch, hyper)


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
            label_order=None if start.pretrained is None else start.pretrained.head_labels,
        )
    if start.pretrained is not None:
        start.pretrained.check_labels(data.labels)
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
