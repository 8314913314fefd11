"""Checks, before anything compiles, that a step can be computed as the config asks."""

from __future__ import annotations

import math

import jax

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import TrainingBatches
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.attention_kernels import choose
from transformer_jax.nn.recurrent_kernels import cudnn_refusal, uses_cudnn
from transformer_jax.parallel.launchers import mesh_sizes
from transformer_jax.tasks.outside_errors import errors_from_outside, objects_from_outside
from transformer_jax.trackers.tracker import check_trackers
from transformer_jax.training.hyper import SplitConfig
from transformer_jax.training.state import state_shapes
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import TrialAxis


def check_implementations(config: ExperimentConfig, axis: TrialAxis | None = None) -> None:
    """Raise ConfigError early if an implementation of attention or of recurrent layers, or a tracker, cannot be used.

    Tracing would raise it later, or compile a step that every device computes as a whole.

    Args:
      axis: how one program runs several trials; None if it runs one.
    """
    packed = config.data.batching == "packed"
    kinds = ARCHITECTURES[config.model.architecture].attention_kinds(config.model).values()
    for kind in ("any",) if packed or config.task.prefix != "none" else kinds:
        choose(config.model, kind)
    trains_with_cudnn(config, axis)
    check_trackers(config)


def trains_with_cudnn(config: ExperimentConfig, axis: TrialAxis | None = None) -> bool:
    """Return whether cuDNN's LSTM computes recurrent layers in training.

    Args:
      axis: how one program runs several trials; None if it runs one.
    Raises: ConfigError if the config asks for cuDNN, which cannot be used here.
    """
    if not uses_cudnn(config.model, packed=config.data.batching == "packed"):
        return False
    if axis == "vmap":
        raise cudnn_refusal("vmap cannot batch it over trials", "use --trial_axis=map or --executor=local")
    count = math.prod(mesh_sizes(config).values()) if axis is None else 1
    if config.parallel.launcher == "jit" and count > 1:
        raise cudnn_refusal(
            f"parallel.launcher='jit' cannot divide it over {count} devices",
            "set parallel.launcher='pmap' or 'shard_map', or parallel.num_devices=1",
        )
    return True


def check_step(config: ExperimentConfig, parts: SplitConfig, plan: TrainingBatches) -> None:
    """Trace the training step of an architecture or a task from outside the package, before anything compiles.

    Raises: ConfigError, which names the architecture or the task, if tracing fails.
    """
    if not objects_from_outside(config):
        return
    with errors_from_outside(config):
        static, hyper = parts
        batch = plan.batch(0, slice(0, plan.shape(0).rows))
        jax.eval_shape(make_train_step(static), state_shapes(static, hyper), batch, hyper)
