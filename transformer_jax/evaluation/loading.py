"""From a path to parameters, config and tokenizer: a checkpoint alone tells all three."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.checkpoints.averaging import average_params
from transformer_jax.checkpoints.manifest import DamagedCheckpointError
from transformer_jax.checkpoints.opening import open_checkpoint
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import ExperimentConfig, nearest
from transformer_jax.data.datasets import TOKENIZER_FILE
from transformer_jax.data.tokenizers import Tokenizer, load_tokenizer
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.models.encoder_decoder import init_params
from transformer_jax.typing import Params

logger = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """A checkpoint ready for use; `steps` are those whose parameters were averaged."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    steps: tuple[int, ...]
    corpus: dict[str, Any]
    directory: Path


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Loaded:
    """Parameters, config and tokenizer of WORKDIR, its newest good checkpoint, or of WORKDIR/checkpoints/STEP.

    Args:
      overrides: config fields by dotted name that replace the checkpoint's; those of `evaluation` and `data.dir`.
    Raises:
      CheckpointError: there is no good checkpoint, or fewer than `evaluation.average_checkpoints`.
      ConfigError: an override that is no such field.
    """
    store, step = open_checkpoint(path)
    if step is not None:
        return _load(store, step, overrides or {}, path)
    problems = []
    for candidate in reversed(store.steps()):
        try:
            return _load(store, candidate, overrides or {}, path)
        except DamagedCheckpointError as error:
            logger.warning("DAMAGED CHECKPOINT %s\n  it is skipped, the next older one is tried", error)
            problems.append(f"  - {error}")
    raise CheckpointError("\n".join([f"{path}: no good checkpoint in it", *problems]))


def _load(store: CheckpointStore, step: int, overrides: Mapping[str, Any], path: Path) -> Loaded:
    record = store.read_record(step)
    config = apply_overrides(record["config"], overrides)
    template = jax.eval_shape(lambda: init_params(config.model, 0))
    count = config.evaluation.average_checkpoints
    if count == 1:
        steps, params = (step,), store.restore_params(template, step).state
    else:
        steps = tuple(s for s in store.steps() if s <= step)[-count:]
        if len(steps) < count:
            raise CheckpointError(
                f"{path}: evaluation.average_checkpoints={count}, but there are {len(steps)} checkpoints up to step "
                f"{step}; ask for fewer, or train with a larger training.keep_last"
            )
        try:
            params = average_params(store, template, steps)
        except DamagedCheckpointError as error:  # other checkpoints would be another average
            raise CheckpointError(str(error)) from error
    tokenizer = load_tokenizer(store.read_side_file(step, TOKENIZER_FILE))
    return Loaded(config, params, tokenizer, steps, record["corpus"], store.directory)


def apply_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> ExperimentConfig:
    """The config of a checkpoint with fields replaced that do not change what was trained.

    Raises: ConfigError for any other field.
    """
    sections = {name: dict(section) if isinstance(section, dict) else section for name, section in values.items()}
    for dotted, value in overrides.items():
        section, _, name = dotted.partition(".")
        known = [f"evaluation.{field}" for field in sections["evaluation"]] + ["data.dir", "data.cache_dir"]
        if dotted not in known:
            raise ConfigError(
                f"{dotted}: only evaluation.* and data.dir can differ from the checkpoint's{nearest(dotted, known)}"
            )
        sections[section][name] = value
    # How many checkpoints are averaged is bounded by what is there, not by what this training was told to keep.
    keep = sections["training"]["keep_last"]
    sections["training"]["keep_last"] = max(keep, sections["evaluation"]["average_checkpoints"])
    return ExperimentConfig.from_config_dict(sections)
