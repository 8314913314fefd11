"""From a path to parameters, config and tokenizer: a checkpoint alone tells all three."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.checkpoints import folders
from transformer_jax.checkpoints.averaging import average_params
from transformer_jax.checkpoints.manifest import DamagedCheckpointError, VanishedCheckpointError
from transformer_jax.checkpoints.opening import CHECKPOINTS, open_checkpoint
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import (
    DecodeConfig,
    EvaluationConfig,
    ExperimentConfig,
    TrainingConfig,
    field_types,
    nearest,
    with_moved_fields,
)
from transformer_jax.data.datasets import TOKENIZER_FILE
from transformer_jax.data.tokenizers import Tokenizer, load_tokenizer
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.models.encoder_decoder import init_params
from transformer_jax.typing import Params

BEST = "best"

_OVERRIDABLE = {"evaluation": EvaluationConfig, "decode": DecodeConfig}
_AVERAGE = "evaluation.average_checkpoints"
_ATTEMPTS = 5

logger = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A checkpoint ready for use.

    steps: those whose parameters were averaged. directory: holds the checkpoints. name: tells a checkpoint that was
    asked for by itself from its siblings, `step_5` or what its copy is called; None for the newest.
    """

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    steps: tuple[int, ...]
    corpus: dict[str, Any]
    directory: Path
    name: str | None

    @property
    def workdir(self) -> Path:
        """WORKDIR of WORKDIR/checkpoints; a folder of checkpoints elsewhere is its own."""
        return self.directory.parent if self.directory.name == CHECKPOINTS else self.directory

    def folder(self, kind: str) -> Path:
        """Where files of a kind go that are made of this checkpoint: WORKDIR/KIND, or WORKDIR/KIND/NAME."""
        return self.workdir / kind / (self.name or "")


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """Parameters, config and tokenizer of WORKDIR, its newest good checkpoint, or of WORKDIR/checkpoints/STEP.

    The newest is averaged with those before it as its config says, `evaluation.average_checkpoints`; a checkpoint that
    is named is taken by itself unless an override asks for an average.

    Args:
      path: also WORKDIR/checkpoints/best, or a copy of a checkpoint anywhere.
      overrides: config fields by dotted name that replace the checkpoint's: of `evaluation`, `decode`, and `data.dir`.
    Raises:
      CheckpointError: there is no good checkpoint, or fewer than are to be averaged; or it is of another model than an
        encoder-decoder.
      ConfigError: an override that is no such field.
    """
    # A training that goes on deletes its old checkpoints, perhaps while they are being read.
    for _ in range(_ATTEMPTS - 1):
        try:
            return _load(path, overrides or {})
        except VanishedCheckpointError as error:
            logger.info("%s; the checkpoints are listed again", error)
    return _load(path, overrides or {})


def resolve(path: Path) -> Path:
    """WORKDIR/checkpoints/STEP for WORKDIR/checkpoints/best: the step that `training.best_metric` ranks first.

    Raises: CheckpointError if no checkpoint there has been ranked. Any other path is only made absolute.
    """
    path = Path(os.path.abspath(os.path.expanduser(path)))
    if path.name != BEST or path.exists() or not folders.list_steps(path.parent):
        return path
    store, _ = open_checkpoint(path.parent)
    metric = _best_metric(store)
    higher_is_better = TrainingConfig(best_metric=metric).higher_is_better
    ranking = CheckpointStore(store.directory, best_metric=metric, higher_is_better=higher_is_better, read_only=True)
    step = ranking.best_step()
    if step is None:
        steps = ", ".join(map(str, store.steps()))
        raise CheckpointError(f"{path}: no checkpoint was saved with an evaluation that ranks it; there are {steps}")
    return path.with_name(str(step))


def _best_metric(store: CheckpointStore) -> str:
    """What ranks the checkpoints, as the newest good one says."""
    problems = []
    for step in reversed(store.steps()):
        try:
            return store.read_record(step)["config"]["training"]["best_metric"]
        except DamagedCheckpointError as error:
            problems.append(f"  - {error}")
    raise CheckpointError("\n".join([f"{store.directory}: no good checkpoint in it", *problems]))


def _load(path: Path, overrides: Mapping[str, Any]) -> Loaded:
    path = resolve(path)
    store, step = open_checkpoint(path)
    if step is not None:
        name = f"step_{step}" if folders.is_step(path.name) else path.name
        return _load_step(store, step, {_AVERAGE: 1} | dict(overrides), path, name)
    problems = []
    for candidate in reversed(store.steps()):
        try:
            return _load_step(store, candidate, overrides, path, None)
        except DamagedCheckpointError as error:
            logger.warning("DAMAGED CHECKPOINT %s\n  it is skipped, the next older one is tried", error)
            problems.append(f"  - {error}")
    raise CheckpointError("\n".join([f"{path}: no good checkpoint in it", *problems]))


def _load_step(store: CheckpointStore, step: int, overrides: Mapping[str, Any], path: Path, name: str | None) -> Loaded:
    record, parts = store.read_record(step), store.parts(step, "params")
    if not {"encoder", "decoder"} <= set(parts):
        raise CheckpointError(
            f"{path}: step {step} is of another model than an encoder-decoder; its parts are {', '.join(parts)}"
        )
    config = apply_overrides(record["config"], overrides)
    template = jax.eval_shape(lambda: init_params(config.model, 0))
    count = config.evaluation.average_checkpoints
    if count == 1:
        steps, params = (step,), store.restore_params(template, step).state
    else:
        steps = tuple(s for s in store.steps() if s <= step)[-count:]
        if len(steps) < count:
            raise CheckpointError(
                f"{path}: {_AVERAGE}={count}, but there are {len(steps)} checkpoints up to step {step}; "
                f"pass --{_AVERAGE}={len(steps)}, or name one checkpoint"
            )
        try:
            params = average_params(store, template, steps)
        except DamagedCheckpointError as error:  # other checkpoints would be another average
            raise CheckpointError(str(error)) from error
    tokenizer = load_tokenizer(store.read_side_file(step, TOKENIZER_FILE))
    return Loaded(config, params, tokenizer, steps, record["corpus"], store.directory, name)


def apply_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> ExperimentConfig:
    """The config of a checkpoint with fields replaced that do not change what was trained.

    Raises: ConfigError for any other field.
    """
    sections = with_moved_fields(values)
    known = [f"{section}.{field}" for section, cls in _OVERRIDABLE.items() for field in field_types(cls)]
    known += ["data.dir", "data.cache_dir"]
    for dotted, value in overrides.items():
        section, _, name = dotted.partition(".")
        if dotted not in known:
            raise ConfigError(
                f"{dotted}: only evaluation.*, decode.* and data.dir can differ from the checkpoint's"
                f"{nearest(dotted, known)}"
            )
        sections.setdefault(section, {})[name] = value
    # How attention is computed is no part of what was trained, and another machine may not have it.
    if sections["model"].get("attention_implementation") == "cudnn" and jax.default_backend() != "gpu":
        sections["model"]["attention_implementation"] = "auto"
    # How many checkpoints are averaged is bounded by what is there, not by what this training was told to keep.
    keep = sections["training"]["keep_last"]
    sections["training"]["keep_last"] = max(keep, sections["evaluation"]["average_checkpoints"])
    return ExperimentConfig.from_config_dict(sections)
