"""The experiment config: every field with its default, its meaning and its valid values.

A config is an `ml_collections.ConfigDict` while flags override it (`to_config_dict`). Before anything runs, it becomes
these frozen dataclasses again (`from_config_dict`). The conversion validates all fields at once, then resolves the
derived defaults: fields whose default is None, such as `head_dim`, that follow from other fields.

Fields marked `hyper` are scalars that enter the compiled training step as arguments: a new value never recompiles.
For fields that are marked `switch` too, zero, or the value `off`, turns the feature off. Turning a feature on or off
changes the program, so that it compiles again. Fields marked `host` only decide which data a step gets. Fields marked
`rounding` select how the same numbers are computed: results differ only by floating-point rounding. Fields marked
`bookkeeping` only select when something is logged, validated, saved or deleted; they change no parameter. A mapping in
place of True gives values of other fields with which this holds.

The names that a choice accepts are the keys of the table that implements them. A field with `read_by`, or of a section
with it, is read only with some values of a choice; setting it with another value of that choice is an error. An
architecture or a task from outside the package says in its attribute `reads` what it reads of these. It may add fields:
its `config_class` extends `ModelConfig` or `TaskConfig`, and is the class of the section wherever `model.architecture`
or `task.name` names it.
"""

from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import SAMPLES_TOGETHER, DecodeConfig, parse_ids
from transformer_jax.config.experiment import (
    EXTENSIBLE,
    ExperimentConfig,
    completed,
    flat,
    is_bookkeeping,
    is_rounding,
    leaf_fields,
    outside_parts,
    without_outside_trackers,
)
from transformer_jax.config.fields import changes_function
from transformer_jax.config.layers import (
    LAYERS,
    STACKS,
    layer_configs,
    layer_folder,
    layer_letters,
    layer_numbers,
    parse_kinds,
    per_layer_fields,
)
from transformer_jax.config.model import ATTENTION, DROPOUT_RATES, NORMS_OVER_BATCH, RECURRENT, ModelConfig
from transformer_jax.config.problems import config_error, problems_of, unread_by
from transformer_jax.config.sections import base_type, field_types, section_class, walk
from transformer_jax.config.similar_names import close_names, nearest
from transformer_jax.config.sources import (
    MovedDefault,
    ReadConfig,
    ValueSource,
    causes_of,
    derived_fields,
    is_derived,
    short,
    without_effect,
)
from transformer_jax.config.task import SOURCE_TO_TARGET, TaskConfig
from transformer_jax.config.training import (
    ENDING,
    MAX_STEPS,
    WEIGHTS,
    EvaluationConfig,
    FreezeRule,
    MultiplierRule,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
    parse_freeze,
    parse_multipliers,
    parse_trackers,
)

__all__ = [
    "ATTENTION",
    "DROPOUT_RATES",
    "ENDING",
    "EXTENSIBLE",
    "LAYERS",
    "MAX_STEPS",
    "NORMS_OVER_BATCH",
    "RECURRENT",
    "SAMPLES_TOGETHER",
    "SOURCE_TO_TARGET",
    "STACKS",
    "WEIGHTS",
    "DataConfig",
    "DecodeConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "FreezeRule",
    "ModelConfig",
    "MovedDefault",
    "MultiplierRule",
    "OptimizerConfig",
    "ParallelConfig",
    "ReadConfig",
    "TaskConfig",
    "TrainingConfig",
    "ValueSource",
    "base_type",
    "causes_of",
    "changes_function",
    "close_names",
    "completed",
    "config_error",
    "derived_fields",
    "field_types",
    "flat",
    "is_bookkeeping",
    "is_derived",
    "is_rounding",
    "layer_configs",
    "layer_folder",
    "layer_letters",
    "layer_numbers",
    "leaf_fields",
    "nearest",
    "outside_parts",
    "parse_freeze",
    "parse_ids",
    "parse_kinds",
    "parse_multipliers",
    "parse_trackers",
    "per_layer_fields",
    "problems_of",
    "section_class",
    "short",
    "unread_by",
    "walk",
    "without_effect",
    "without_outside_trackers",
]
