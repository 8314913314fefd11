"""From a path to parameters, config and tokenizer: a checkpoint alone has all three."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax.checkpoints import folders, opening
from transformer_jax.checkpoints.averaging import average_params
from transformer_jax.checkpoints.checksums import by_path, checksums
from transformer_jax.checkpoints.manifest import DamagedCheckpointError
from transformer_jax.checkpoints.opening import CHECKPOINTS, open_checkpoint
from transformer_jax.checkpoints.store import CheckpointStore, again_if_vanished
from transformer_jax.config import (
    DecodeConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    field_types,
    nearest,
    with_moved_fields,
)
from transformer_jax.data.datasets import TOKENIZER_FILE
from transformer_jax.data.tokenizers import Tokenizer, check_decode_ids, load_tokenizer
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.tasks.base import higher_is_better, param_shapes
from transformer_jax.tasks.generation import Member, Translator
from transformer_jax.typing import Params

_OVERRIDABLE = {"evaluation": EvaluationConfig, "decode": DecodeConfig}
_AVERAGE = "evaluation.average_checkpoints"


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
      CheckpointError: there is no good checkpoint, or fewer than are to be averaged; or its arrays are not those of its
        config.
      ConfigError: an override that is no such field.
    """
    return again_if_vanished(lambda: _load(path, overrides or {}))


def load_translator(
    path: Path, overrides: Mapping[str, Any] | None = None, ensemble: Sequence[Path] = ()
) -> Translator:
    """Return the translator of a checkpoint; arguments and errors are those of `load`.

    Args:
      ensemble: checkpoints whose log probabilities are averaged with this one's.
    Raises: ConfigError if their tokenizers or start ids differ, or `decode.prefix_ids` has ids that no output
      can begin with.
    """
    loaded, others = load(path, overrides), []
    check_decode_ids(loaded.config.decode, loaded.tokenizer.special_ids)
    for other_path in ensemble:
        other = load(other_path, overrides)
        if other.tokenizer.sha256 != loaded.tokenizer.sha256:
            raise ConfigError(f"--ensemble: {other_path} has another tokenizer than {path}, so other tokens")
        starts = loaded.config.model.decoder_start_id, other.config.model.decoder_start_id
        if starts[0] != starts[1]:
            raise ConfigError(
                f"--ensemble: model.decoder_start_id is {starts[0]} of {path} and {starts[1]} of {other_path}"
            )
        others.append(Member(other.config.model, other.params))
    return Translator(loaded.config, loaded.params, loaded.tokenizer, tuple(others))


def fingerprint(tokenizer: Tokenizer, *models: tuple[ModelConfig, Params]) -> str:
    """Return the hex digest of a tokenizer, and of models and their parameters."""
    digest = hashlib.sha256(tokenizer.sha256.encode())
    for model, params in models:
        fields = dataclasses.asdict(model)
        if fields["architecture"] == ModelConfig.architecture:
            del fields["architecture"]  # files of versions that knew one architecture have no such field
        digest.update(json.dumps([fields, checksums(by_path(params))], sort_keys=True).encode())
    return digest.hexdigest()


def resolve(path: Path) -> Path:
    """Return WORKDIR/checkpoints/STEP for WORKDIR/checkpoints/best; see `checkpoints.opening.resolve`."""
    return opening.resolve(path, higher_is_better)


def _load(path: Path, overrides: Mapping[str, Any]) -> Loaded:
    path = resolve(path)
    store, step = open_checkpoint(path)
    if step is None:
        return store.first_good(lambda candidate: _load_step(store, candidate, overrides, path, None))
    name = f"step_{step}" if folders.is_step(path.name) else path.name
    return _load_step(store, step, {_AVERAGE: 1} | dict(overrides), path, name)


def _load_step(store: CheckpointStore, step: int, overrides: Mapping[str, Any], path: Path, name: str | None) -> Loaded:
    checkpoint = store.open(step)
    config = apply_overrides(checkpoint.record["config"], overrides)
    template = param_shapes(config)
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
    if TOKENIZER_FILE not in checkpoint.side_files:
        raise CheckpointError(f"{checkpoint.directory}: has no {TOKENIZER_FILE}")
    tokenizer = load_tokenizer(checkpoint.side_files[TOKENIZER_FILE])
    return Loaded(config, params, tokenizer, steps, checkpoint.record["corpus"], store.directory, name)


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
