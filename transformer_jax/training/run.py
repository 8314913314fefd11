"""One run from a config to a trained checkpoint, started or resumed."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import itertools
import json
import logging
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax import __version__
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import WorkDirectory, open_workdir, write_atomically
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch, TrainingBatches
from transformer_jax.data.datasets import TOKENIZER_FILE, Data, plan_batches, prepare_data
from transformer_jax.data.tokenizers import Tokenizer, load_tokenizer, read_tokenizer
from transformer_jax.data.tokenizers.words import read_vocabulary
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.nn.attention_kernels import choose
from transformer_jax.parallel.launchers import Launcher, make_launcher
from transformer_jax.parallel.processes import from_primary, is_primary, primary_first
from transformer_jax.training.course import Run, Standing
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.loop import TrainResult, run_loop
from transformer_jax.training.metric_log import MetricLog, NoLog
from transformer_jax.training.state import TrainState, placed_state, state_shapes, state_template
from transformer_jax.training.step import make_train_step
from transformer_jax.typing import Params

logger = logging.getLogger(__name__)


Validate = Callable[[Params], dict[str, Any]]
MakeValidate = Callable[[ExperimentConfig, Data], Validate]


def train(
    config: ExperimentConfig,
    workdir: Path,
    make_validate: MakeValidate,
    *,
    allow_config_change: bool = False,
) -> TrainResult:
    """Trains in a work directory, from its newest good checkpoint if there is one.

    Args:
      config: resolved.
      workdir: made if it does not exist; holds config.json, tokenizer.model, metrics.jsonl, tensorboard/, checkpoints/.
      make_validate: returns the function that scores parameters on the validation split; raises what will fail then.
      allow_config_change: go on in a work directory where another config was in use.
    Raises:
      ConfigError: another config was in use in the work directory; more devices are asked for than there are; a
        vocabulary that the corpus cannot fill.
      DataError: the corpus cannot be read.
      CheckpointError: checkpoints cannot be read or written; the corpus has changed since the last one.
      TrainingError: the loss is no longer finite; WORKDIR/nonfinite/step_STEP.npz is the batch.
    """
    with primary_first("opening the work directory"):
        opened = open_workdir(workdir, config.to_dict(), allow_config_change, lock=is_primary())
    with opened as directory:
        start = _prepare(config, directory, make_validate)
        run, step, total = start.run, int(start.state.step), config.training.num_train_steps
        if step >= total:
            _say(f"{directory.path}: nothing to do, {step} of {total} steps are made")
            return TrainResult(step, "finished", start.record["metrics"])
        if why := Standing.of(start.record, config.training).out_of_patience:
            _say(f"{directory.path}: nothing to do, {why} up to step {step}")
            return TrainResult(step, "finished", start.record["metrics"])
        open_files(directory, start.record)
        with MetricLog(directory.path, step) if is_primary() else NoLog() as log, run.store:
            return run_loop(run, start.launcher, start.hyper, log, start.state, start.record)


class _Start(NamedTuple):
    """Everything before the first step; the record is that of the checkpoint the state comes from, or empty."""

    run: Run
    launcher: Launcher
    hyper: Hyper
    state: TrainState
    record: dict[str, Any]


def _prepare(config: ExperimentConfig, directory: WorkDirectory, make_validate: MakeValidate) -> _Start:
    check_attention(config)
    static, hyper = split(config)
    launcher = make_launcher(config, make_train_step(static))
    places = launcher.shardings(state_shapes(static, hyper))
    with primary_first("opening the checkpoints"):
        store = open_store(config, directory)
    # Of several processes one chooses, since all have to read the same.
    chosen = from_primary(store.newest_good, "choosing a checkpoint") if jax.process_count() > 1 else None
    record, tokenizer = {}, None
    if chosen is not None or (jax.process_count() == 1 and store.steps()):
        state, record, tokenizer = restore(config, directory, store, state_template(static, hyper, places), chosen)
    with primary_first("preparing the data"):
        data = open_data(config, directory, record, tokenizer)
        if record:
            _say(f"resuming {directory.path} after step {int(state.step)}")
        run = make_run(config, directory, store, data, make_validate)
    if not record:
        state = placed_state(static, hyper, places)
    _describe(config, run.plan, sum(x.size for x in jax.tree.leaves(state.params)))
    return _Start(run, launcher, hyper, state, record)


def check_attention(config: ExperimentConfig) -> None:
    """Raises the ConfigError now that would be raised when the first step is traced."""
    for kind in ("any",) if config.data.batching == "packed" else ("causal", "lengths"):
        choose(config.model, kind)


def open_store(config: ExperimentConfig, directory: WorkDirectory) -> CheckpointStore:
    """The checkpoints of a run, for writing; raises CheckpointError if they cannot be listed."""
    training = config.training
    return CheckpointStore(
        directory.checkpoints,
        keep_last=training.keep_last,
        keep_best=training.keep_best,
        best_metric=training.best_metric,
        higher_is_better=training.higher_is_better,
        every=training.checkpoint_every_steps,
    )


def restore(
    config: ExperimentConfig, directory: WorkDirectory, store: CheckpointStore, template: TrainState, step: int | None
) -> tuple[TrainState, dict[str, Any], Tokenizer]:
    """State, record and tokenizer of a checkpoint, the newest good one if `step` is None.

    Raises: CheckpointError if there is none, or it does not belong to the work directory; ConfigError if another config
      was in use.
    """
    step, state, record = store.restore(template, step)
    if not directory.has_config():
        directory.check_config(record["config"], f"checkpoint {step}")
    tokenizer = load_tokenizer(store.read_side_file(step, TOKENIZER_FILE))
    _check_tokenizer(config, directory.path / TOKENIZER_FILE, tokenizer, step)
    return state, record, tokenizer


def open_data(
    config: ExperimentConfig, directory: WorkDirectory, record: Mapping[str, Any], tokenizer: Tokenizer | None
) -> Data:
    """The corpus of a run, in pieces.

    Args:
      record, tokenizer: of the checkpoint that it goes on from; empty and None at the start.
    Raises: DataError; ConfigError for a corpus that the config cannot have; CheckpointError if it is not the one of the
      checkpoint.
    """
    if config.data.monolingual:
        raise ConfigError("config: data.monolingual=true: the encoder-decoder is trained on pairs")
    if not record and is_primary():
        # What a run has left that died before its first checkpoint may be of another config, or another corpus.
        (directory.path / TOKENIZER_FILE).unlink(missing_ok=True)
    data = prepare_data(config, directory.path, tokenizer, _say, needed=("train", "valid"))
    if record:
        _check_corpus(record, data.source.fingerprint(), directory.path)
    return data


def make_run(
    config: ExperimentConfig, directory: WorkDirectory, store: CheckpointStore, data: Data, make_validate: MakeValidate
) -> Run:
    """A run that trains on the training split of `data`; cuts what it needs of the corpus into pieces."""
    plan = plan_batches(config, data.splits["train"])
    return Run(
        config=config.training,
        plan=plan,
        store=store,
        evaluate=make_validate(config, data),
        record={
            "config": config.to_dict(),
            "corpus": data.source.fingerprint(),
            "data": {"train_pairs": plan.num_pairs, "left_out": plan.num_dropped},
            "versions": library_versions(),
        },
        side_files={TOKENIZER_FILE: data.tokenizer.model_bytes},
        keep_batch=functools.partial(_keep_batch, directory.path / "nonfinite"),
    )


def open_files(directory: WorkDirectory, record: Mapping[str, Any]) -> None:
    """Writes config.json, not earlier: what has done nothing shall not be in the way of another config."""
    if is_primary():
        directory.write_config()
        if not record:
            _keep_log_without_checkpoints(directory)


def _keep_batch(folder: Path, step: int, batch: Batch) -> Path:
    """Writes the batch of a step into a folder, for replay, and returns the file."""
    part = "" if jax.process_count() == 1 else f"_rows_of_process_{jax.process_index()}"
    file, data = folder / f"step_{step}{part}.npz", io.BytesIO()
    arrays: dict[str, Any] = dict(batch)
    np.savez(data, **arrays)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be made: {error.strerror}") from error
    write_atomically(file, data.getvalue())
    return file


def _keep_log_without_checkpoints(directory: WorkDirectory) -> None:
    """Moves a log aside that has no checkpoint, instead of having it cut back to nothing.

    It is of a run that died before its first checkpoint, or of one whose checkpoints have been moved or lost.
    """
    log = directory.path / "metrics.jsonl"
    try:
        last = _last_step(log)
        if not last:
            return
        names = (log.with_name(f"{log.name}.{number}") for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        log.rename(aside)
    except OSError as error:
        raise CheckpointError(f"{log}: cannot be moved aside: {error.strerror}") from error
    logger.warning(
        "there are no checkpoints in %s, but %s goes to step %d; the run begins anew, the old log is now %s",
        directory.checkpoints,
        log.name,
        last,
        aside,
    )


def _last_step(log: Path) -> int:
    """The highest step in a log, 0 if it has none; lines that were cut short do not count."""
    steps = [0]
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else ():
        try:
            steps.append(int(json.loads(line)["step"]))
        except (ValueError, KeyError, TypeError):
            continue
    return max(steps)


def library_versions() -> dict[str, str]:
    """Versions of what a result depends on, by package name."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece", "tokenizers")
    versions = {name: importlib.metadata.version(name) for name in (*names, "sacrebleu", "sacremoses")}
    return {"transformer_jax": __version__, "python": platform.python_version(), **versions}


def _check_tokenizer(config: ExperimentConfig, file: Path, tokenizer: Tokenizer, step: int) -> None:
    """Raises CheckpointError if the work directory or the config names another tokenizer than the checkpoint's."""
    if file.exists():
        remedy = "delete it: the checkpoint has its own"
        try:
            other = read_tokenizer(file)
        except DataError as error:
            raise CheckpointError(f"{error}; {remedy}") from error
        if other.sha256 != tokenizer.sha256:
            raise CheckpointError(f"{file} is not the tokenizer of checkpoint {step}; {remedy}")
    vocabulary = Path(os.path.expanduser(config.data.vocabulary_file))
    if vocabulary.is_file() and read_vocabulary(vocabulary, config.model.vocab_size).sha256 != tokenizer.sha256:
        raise CheckpointError(
            f"data.vocabulary_file={config.data.vocabulary_file!r} is not the vocabulary of checkpoint {step}; bring "
            "the old one back, or choose another --workdir"
        )


def _check_corpus(record: Mapping[str, Any], corpus: Mapping[str, Any], workdir: Path) -> None:
    before = record["corpus"]
    if before["sha256"] != corpus["sha256"]:
        raise CheckpointError(
            f"{workdir}: the corpus has changed since its last checkpoint: sha256 {before['sha256'][:12]} then "
            f"({before['versions']}), {corpus['sha256'][:12]} now ({corpus['versions']}); bring the old corpus back, "
            "or choose another --workdir"
        )


def _describe(config: ExperimentConfig, plan: TrainingBatches, num_params: int) -> None:
    _say(
        f"{num_params:,} parameters; {plan.num_pairs:,} training pairs in {plan.batches_per_epoch:,} batches of "
        f"{len(plan.shapes)} shapes, {100 * plan.padding_efficiency:.0f} % of them tokens; "
        f"{config.training.num_train_steps:,} steps are {config.training.num_train_steps / plan.batches_per_epoch:.1f} "
        f"epochs; {config.parallel.launcher} on {jax.device_count()} {jax.default_backend()} device(s)"
    )
    evaluations, checkpoints = config.training.eval_every_steps, config.training.checkpoint_every_steps
    if config.training.keep_best and evaluations % checkpoints and checkpoints % evaluations:
        _say(
            f"of the checkpoints, made every {checkpoints:,} steps, only those that fall on a validation, every "
            f"{evaluations:,} steps, can be among the training.keep_best={config.training.keep_best} best: every "
            f"{math.lcm(evaluations, checkpoints):,} steps, and the last"
        )
    if plan.num_dropped:
        _say(
            f"{plan.num_dropped:,} training pairs have a side of more than data.max_length={config.data.max_length} "
            "pieces and are left out"
        )


def _say(message: str) -> None:
    if is_primary():
        print(message, file=sys.stderr, flush=True)
