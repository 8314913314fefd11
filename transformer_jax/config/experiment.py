"""The whole config, and what must hold between its sections."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.config.conversion import config_error, from_mapping, problems_of, to_config_dict, walk
from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import DecodeConfig, parse_ids
from transformer_jax.config.fields import number, section
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.training import EvaluationConfig, OptimizerConfig, ParallelConfig, TrainingConfig

if typing.TYPE_CHECKING:
    import ml_collections

# Fields that were called otherwise in configs of earlier versions, which checkpoints still hold.
_MOVED = {
    ("evaluation", "max_extra_length"): ("decode", "max_extra_length"),
    **{("data", f"{name}_files"): ("data", f"{name}_split") for name in ("train", "valid", "test")},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Everything that makes a run."""

    seed: int = number(0, "parameters, data order and dropout follow from it", 0, 2**31 - 1, hyper=True)
    model: ModelConfig = section(ModelConfig)
    data: DataConfig = section(DataConfig)
    optimizer: OptimizerConfig = section(OptimizerConfig)
    training: TrainingConfig = section(TrainingConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    decode: DecodeConfig = section(DecodeConfig)
    parallel: ParallelConfig = section(ParallelConfig)

    def resolved(self) -> ExperimentConfig:
        """Replaces every None by what it is derived from; raises ConfigError with every problem of the config."""
        if problems := problems_of(self):
            raise config_error(problems)
        model, optimizer = self.model.resolved(), self.optimizer
        if optimizer.learning_rate is None:
            optimizer = dataclasses.replace(
                optimizer, learning_rate=(model.emb_dim * max(optimizer.warmup_steps, 1)) ** -0.5
            )
        if optimizer.decay_steps is None:
            optimizer = dataclasses.replace(optimizer, decay_steps=self.training.num_train_steps)
        return dataclasses.replace(self, model=model, optimizer=optimizer)

    def problems(self) -> Iterator[str]:
        """What is wrong between sections, as messages that name their fields in full."""
        optimizer, training, data = self.optimizer, self.training, self.data
        yield from self._decode_problems()
        if optimizer.schedule == "none" and optimizer.warmup_steps:
            yield (
                f"optimizer.warmup_steps={optimizer.warmup_steps} with schedule='none', which has no warm-up; "
                "set it to 0 or choose schedule='constant'"
            )
        if optimizer.learning_rate is None and optimizer.schedule != "inverse_sqrt":
            yield (
                f"optimizer.learning_rate is unset; only schedule='inverse_sqrt' has a default, "
                f"not '{optimizer.schedule}'"
            )
        if optimizer.learning_rate is None and not optimizer.warmup_steps:
            yield "optimizer.learning_rate is unset; its default needs warmup_steps > 0"
        decay_steps = training.num_train_steps if optimizer.decay_steps is None else optimizer.decay_steps
        if optimizer.schedule in ("cosine", "linear") and decay_steps <= optimizer.warmup_steps:
            yield (
                f"optimizer.decay_steps={decay_steps} counts from step 0 and must exceed "
                f"warmup_steps={optimizer.warmup_steps}"
            )
        if self.model.position_encoding == "learned" and data.max_length > self.model.max_length:
            yield (
                f"data.max_length={data.max_length} exceeds the learned position table, "
                f"model.max_length={self.model.max_length}"
            )
        if data.row_multiple % training.accumulation_steps:
            yield (
                f"training.accumulation_steps={training.accumulation_steps} does not divide "
                f"data.row_multiple={data.row_multiple}"
            )
        width = "packed_length" if data.batching == "packed" else "max_length"
        if data.row_multiple * getattr(data, width) > data.tokens_per_batch:
            yield (
                f"data.tokens_per_batch={data.tokens_per_batch} cannot hold row_multiple={data.row_multiple} "
                f"rows of {width}={getattr(data, width)}"
            )
        sides = (data.input_feature or data.source_locale, data.target_feature or data.target_locale)
        if sides[0] == sides[1] and not data.monolingual and data.format != "tsv":
            yield f"data.source_locale and data.target_locale are both '{data.source_locale}'"
        if self.evaluation.average_checkpoints > training.keep_last:
            yield (
                f"evaluation.average_checkpoints={self.evaluation.average_checkpoints} exceeds "
                f"training.keep_last={training.keep_last}"
            )

    def _decode_problems(self) -> Iterator[str]:
        vocab_size, decode = self.model.vocab_size, self.decode
        if decode.beam_size > vocab_size:
            yield f"decode.beam_size={decode.beam_size} exceeds model.vocab_size={vocab_size}"
        if decode.max_length is not None and decode.max_length > self.model.max_length:
            yield f"decode.max_length={decode.max_length} exceeds model.max_length={self.model.max_length}"
        with contextlib.suppress(ValueError):  # what are no ids has been told by then
            for name in ("forbidden_ids", "prefix_ids"):
                for outside in sorted({i for i in parse_ids(getattr(decode, name)) if i >= vocab_size}):
                    yield f"decode.{name}: {outside} is outside model.vocab_size={vocab_size}"

    def to_config_dict(self) -> ml_collections.ConfigDict:
        """The config as flags override it: unset derived fields are typed placeholders, so that a flag can set them."""
        return to_config_dict(self)

    @classmethod
    def from_config_dict(
        cls, values: Mapping[str, Any] | ml_collections.ConfigDict, known_problems: typing.Iterable[str] = ()
    ) -> ExperimentConfig:
        """Rebuilds, validates and resolves a config; raises ConfigError with all problems at once, the known first."""
        problems = list(known_problems)
        # A ConfigDict is no Mapping, and resolves its placeholders by to_dict.
        plain = with_moved_fields(values if isinstance(values, Mapping) else values.to_dict())
        config = from_mapping(cls, plain, "", problems)
        problems += problems_of(config)
        if problems:
            raise config_error(problems)
        return config.resolved()

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def with_moved_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """A config of an earlier version with the names of this one."""
    values = {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}
    for (old_section, name), (new_section, new_name) in _MOVED.items():
        if isinstance(values.get(old_section), dict) and name in values[old_section]:
            values.setdefault(new_section, {}).setdefault(new_name, values[old_section].pop(name))
    return values


def is_rounding(name: str) -> bool:
    """Whether a field, by its dotted name, is marked `rounding`."""
    return any(field.metadata.get("rounding") for other, field, _ in walk(ExperimentConfig()) if other == name)


def completed(stored: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config that an earlier version has stored with the names of this one, and with defaults for what it lacks.

    Args:
      config: what it is to be compared with, which has the fields of this version.
    """
    result, defaults = with_moved_fields(stored), ExperimentConfig().to_dict()
    for part, fields in config.items():
        before = result.get(part, {})
        if isinstance(fields, Mapping) and isinstance(before, Mapping):
            known = {name: value for name, value in defaults.get(part, {}).items() if name in fields}
            result[part] = known | dict(before)
    return result
