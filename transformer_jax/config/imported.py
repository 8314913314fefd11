"""The config of a run around a model from elsewhere, which has sizes and a head but no corpus."""

import dataclasses

from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.experiment import ExperimentConfig
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.task import SOURCE_TO_TARGET, TaskConfig
from transformer_jax.config.training import TrainingConfig


def imported(model: ModelConfig, task: TaskConfig, resize: str, decode: DecodeConfig) -> ExperimentConfig:
    """Return a config with the embedded corpus, or drawn shapes for a model of images; not yet resolved.

    Args:
      model: resolved. resize: the value of `data.resize`, which only a model of images gets. decode: settings of a
        model that generates.
    """
    if model.inputs == "patches":
        colours = {1: "grey", 3: "rgb"}.get(model.image_channels, "as_stored")
        data = DataConfig(source="shapes", colours=colours, resize=resize, batching="rows")
    else:
        length = min(256 if task.name == "text_to_text" else 128, model.max_length)
        data = DataConfig(max_length=length, batching="buckets", tokens_per_batch=4096)
        if task.name == "text_to_text":
            data = dataclasses.replace(data, target_feature="headlines")
        if task.name == "language_model":
            data = dataclasses.replace(data, packed_length=length, batching="packed")
    smoothing = 0.1 if task.name in SOURCE_TO_TARGET else 0.0
    training = TrainingConfig(label_smoothing=smoothing)
    return ExperimentConfig(model=model, task=task, data=data, training=training, decode=decode)
