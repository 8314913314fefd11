"""The experiment config: the one home of every field, its default, its meaning and its valid values.

A config travels as an `ml_collections.ConfigDict` while flags override it (`to_config_dict`) and becomes these frozen
dataclasses again before anything runs (`from_config_dict`), which validates all of it at once and then resolves the
derived defaults: fields whose default is None, such as `head_dim`, that follow from other fields.

Fields marked `hyper` are scalars that enter the compiled training step as arguments: a new value never recompiles.
For those marked `switch` as well, zero turns the feature off, and off is another program than on. Those marked
`rounding` say how the same numbers are computed: another value changes no more than their last bits.
"""

from transformer_jax.config.conversion import base_type, config_error, field_types, nearest, problems_of, walk
from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import SAMPLES_TOGETHER, DecodeConfig, parse_ids
from transformer_jax.config.experiment import ExperimentConfig, completed, is_rounding, with_moved_fields
from transformer_jax.config.ids import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.training import (
    MAX_STEPS,
    EvaluationConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
)

__all__ = [
    "BOS_ID",
    "EOS_ID",
    "MAX_STEPS",
    "PAD_ID",
    "SAMPLES_TOGETHER",
    "UNK_ID",
    "DataConfig",
    "DecodeConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "ModelConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "TrainingConfig",
    "base_type",
    "completed",
    "config_error",
    "field_types",
    "is_rounding",
    "nearest",
    "parse_ids",
    "problems_of",
    "walk",
    "with_moved_fields",
]
