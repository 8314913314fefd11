"""Resume a run from the newest good checkpoint, after checks that the checkpoint belongs to the run."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from transformer_jax import metrics_file
from transformer_jax.checkpoints.locate import CHECKPOINTS
from transformer_jax.checkpoints.manifest import resumable_record
from transformer_jax.checkpoints.store import EXTRA, CheckpointStore
from transformer_jax.checkpoints.workdir import CONFIG, WorkDirectory
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.labels import LABELS_FILE, labels_bytes, read_labels
from transformer_jax.data.side_files import stored_labels, stored_tokenizer
from transformer_jax.data.tokenizers import (
    SOURCE_TOKENIZER_FILE,
    VOCABULARIES,
    Tokenizer,
    plain,
    read_tokenizer,
    tokenizer_by_file,
)
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.host.files import write_atomically
from transformer_jax.parallel.processes import from_primary, is_primary
from transformer_jax.training.extras import EXTRAS
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.optimizers import updates_made
from transformer_jax.training.start import Start
from transformer_jax.training.state import TrainState

_DECAY = ("schedule", "decay_steps", "decay_fraction", "decay_power", "end_fraction")
_NO_LIMIT = 1 << 31  # ids of a vocabulary that is only compared
logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resumed(Start):
    """A start from a checkpoint of the same run, whose state is on the devices already."""

    state: TrainState

    @property
    def step(self) -> int:
        return int(self.state.step)

    def first_state(self, static: StaticConfig, hyper: Hyper, shardings: Any) -> TrainState:
        return self.state


def restore_newest(
    config: ExperimentConfig, directory: WorkDirectory, store: CheckpointStore, template: TrainState
) -> Resumed | None:
    """Restore the newest good checkpoint; return None if there is no checkpoint.

    Args:
      template: shapes, types and shardings of the state.
    Raises:
      CheckpointError: no checkpoint is good, or the checkpoint does not belong to the work directory.
      ConfigError: the checkpoint was made with another config.
    """
    # With several processes, process 0 chooses, since all must read the same checkpoint.
    several = jax.process_count() > 1
    chosen = from_primary(store.newest_good, "choosing a checkpoint") if several else None
    if chosen is None and (several or not store.steps()):
        return None
    try:
        step, state, stored = store.restore(template, chosen)
    except CheckpointError:
        _check_trees(store, chosen, template.extra)
        raise
    record = resumable_record(stored)
    directory.check_config(record["config"], f"checkpoint {step}")
    check_decay(config, record["config"], int(updates_made(state.opt_state)))
    if is_primary():
        store.check_best(step)
    side_files = store.open(step).side_files
    tokenizer, labels = stored_tokenizer(side_files), stored_labels(side_files)
    if tokenizer is not None:
        remedy = "restore the old file, or choose another --workdir"
        check_tokenizer(config, directory.path, tokenizer, f"checkpoint {step}", remedy)
    if labels is not None and is_primary():
        restore_labels(directory.path / LABELS_FILE, labels, step)
    return Resumed(state=state, record=record, tokenizer=tokenizer, labels=labels)


def _check_trees(store: CheckpointStore, step: int | None, extra: Mapping[str, Any]) -> None:
    """Raise ConfigError if a checkpoint has other trees of EXTRAS than `extra`; name the fields that turn these on.

    Args:
      step: None for the newest one.
    """
    try:
        checkpoint = store.open(store.steps()[-1] if step is None else step)
    except CheckpointError:
        return
    stored = {path.split("/")[1] for path in checkpoint.leaves if path.startswith(f"{EXTRA}/")}
    for name, kind in EXTRAS.items():
        if (name in stored) != (name in extra):
            was, has = ("with", "has") if name in stored else ("without", "lacks")
            raise ConfigError(
                f"{checkpoint.directory}: was trained {was} {kind.field}, so it {has} the arrays of `{EXTRA}/{name}`; "
                f"{kind.field} cannot be turned on or off at a resume. Resume with its value in {CONFIG}, or start a "
                "new run in another --workdir from these weights, with --config.training.init_from="
                f"{checkpoint.directory}"
            )


def check_decay(config: ExperimentConfig, stored: Mapping[str, Any], updates: int) -> None:
    """Check that a changed decay of `optimizer.schedule=wsd` changes no update that was made.

    Args:
      stored: config of the checkpoint, as nested dictionaries. updates: those before the checkpoint.
    Raises: ConfigError if the decay would have begun before the checkpoint, or had begun with other values.
    """
    now = config.optimizer
    if now.schedule != "wsd":
        return
    before = dataclasses.replace(now, **{name: stored["optimizer"].get(name, getattr(now, name)) for name in _DECAY})
    if all(getattr(before, name) == getattr(now, name) for name in _DECAY):
        return
    if before.schedule == "wsd" and before.decay_start < updates:
        raise ConfigError(
            f"the decay of optimizer.schedule='wsd' has begun, after update {before.decay_start} of {updates}, and "
            "cannot be changed any more; resume from a checkpoint before it, in a copy of the work directory"
        )
    if now.decay_start < updates:
        raise ConfigError(
            f"the decay of optimizer.schedule='wsd' would have begun after update {now.decay_start}, before the "
            f"{updates} that the checkpoint has; choose a later optimizer.decay_steps={now.decay_steps} or a smaller "
            f"optimizer.decay_fraction={now.decay_fraction}, or start another --workdir with "
            "training.init_from=CHECKPOINT"
        )


def restore_labels(file: Path, labels: tuple[str, ...], step: int) -> None:
    """Write the names of labels of a checkpoint to the file of the work directory unless it has them.

    Raises: CheckpointError if it cannot be written.
    """
    if file.exists():
        try:
            if read_labels(file) == labels:
                return
            problem = "other labels"
        except DataError as error:
            problem = str(error)
        logger.warning("%s: is not that of checkpoint %d (%s); it is written again", file, step, problem)
    write_atomically(file, labels_bytes(labels))


def check_not_converted(workdir: Path) -> None:
    """Raise CheckpointError for a work directory of `convert`, which has parameters but no state of an optimizer."""
    workdir = Path(os.path.expanduser(workdir))
    if not (workdir / CHECKPOINTS).is_dir():
        return
    store = CheckpointStore(workdir / CHECKPOINTS, read_only=True)
    if store.steps() == [0] and "converted" in store.read_record(0):
        raise CheckpointError(
            f"{workdir}: has converted parameters, and no training to resume; start one in another --workdir with "
            f"--config.training.init_from={workdir}"
        )


def check_tokenizer(
    config: ExperimentConfig, directory: Path, tokenizer: Tokenizer, checkpoint: str, vocabulary_remedy: str
) -> None:
    """Raise CheckpointError if the tokenizer of the work directory or of the config is not that of a checkpoint.

    Args:
      directory: the work directory; it may have no tokenizer.
      checkpoint: name of the checkpoint in messages.
      vocabulary_remedy: advice to the user if `data.vocabulary_file` or `source_vocabulary_file` differs.
    """
    check_sides(config, tokenizer, checkpoint)
    for name, part in tokenizer_by_file(tokenizer).items():
        field = "source_vocabulary_file" if name == SOURCE_TOKENIZER_FILE else "vocabulary_file"
        _check_one_tokenizer(config, directory / name, part, checkpoint, (field, vocabulary_remedy))


def check_sides(config: ExperimentConfig, tokenizer: Tokenizer, checkpoint: str) -> None:
    """Raise CheckpointError if a checkpoint has one tokenizer and the config wants two, or the other way around."""
    has_two = SOURCE_TOKENIZER_FILE in tokenizer_by_file(tokenizer)
    if has_two and not config.data.separate_tokenizers:
        raise CheckpointError(
            f"{checkpoint}: has separate tokenizers of source and target; set data.separate_tokenizers=true"
        )
    if config.data.separate_tokenizers and not has_two:
        raise CheckpointError(
            f"{checkpoint}: {SOURCE_TOKENIZER_FILE} is missing, which data.separate_tokenizers=true needs"
        )


def _check_one_tokenizer(
    config: ExperimentConfig, file: Path, tokenizer: Tokenizer, checkpoint: str, vocabulary: tuple[str, str]
) -> None:
    """Compare one tokenizer with a file of the work directory, and with the vocabulary of a field with its remedy."""
    if file.exists():
        file_remedy = "delete the file: the checkpoint contains its tokenizer"
        try:
            other = read_tokenizer(file)
        except DataError as error:
            raise CheckpointError(f"{error}; {file_remedy}") from error
        if other.sha256 != tokenizer.sha256:
            raise CheckpointError(f"{file} is not the tokenizer of {checkpoint}; {file_remedy}")
    field, remedy = vocabulary
    value = getattr(config.data, field)
    path, read = Path(os.path.expanduser(value)), VOCABULARIES.get(config.data.tokenizer)
    own = plain(tokenizer)
    if value and read is not None and path.exists() and read(path, _NO_LIMIT).sha256 != own.sha256:
        raise CheckpointError(f"data.{field}={value!r} is not the vocabulary of {checkpoint}; {remedy}")


def check_corpus(record: Mapping[str, Any], corpus: Mapping[str, Any], workdir: Path) -> None:
    """Raise CheckpointError if the corpus differs from that in a checkpoint's record."""
    before = record["corpus"]
    if before["sha256"] != corpus["sha256"]:
        then, now = (f"{of['sha256'][:12]} {of['versions'] or ''}".rstrip() for of in (before, corpus))
        raise CheckpointError(
            f"{workdir}: the corpus has changed since its last checkpoint (sha256 {then} then, {now} now), or this "
            "version reads some of its files in another way (CHANGELOG.md); restore the old corpus, or choose another "
            "--workdir"
        )


def set_orphaned_log_aside(directory: WorkDirectory) -> None:
    """Rename a log that has no checkpoint, so that it is not cut back to nothing; raises CheckpointError.

    Such a log is from a run that died before its first checkpoint, or whose checkpoints were moved or lost.
    """
    log = directory.path / metrics_file.NAME
    try:
        last = metrics_file.last_step(log)
        if not last:
            return
        names = (log.with_name(f"{log.name}.{number}") for number in itertools.count(1))
        aside = next(name for name in names if not name.exists())
        log.rename(aside)
    except OSError as error:
        raise CheckpointError(f"{log}: cannot be renamed: {error.strerror}") from error
    logger.warning(
        "%s has no checkpoints, but %s has lines up to step %d; the run starts from step 0, the old log is now %s",
        directory.checkpoints,
        log.name,
        last,
        aside,
    )


def warn_of_lost_lines(workdir: Path, record: Mapping[str, Any], step: int) -> None:
    """Warn if the log up to a checkpoint is not as it was then: lines were deleted or changed, or it is another log.

    Args:
      record, step: of the checkpoint.
    Raises: CheckpointError if the log cannot be read.
    """
    log = workdir / metrics_file.NAME
    try:
        digest = metrics_file.digest(log, step)
    except OSError as error:
        raise CheckpointError(f"{log}: cannot be read: {error.strerror}") from error
    if digest != record["log_sha256"]:
        logger.warning(
            "%s: lines up to step %d are missing or were changed since its checkpoint; training is not affected",
            *(log, step),
        )
