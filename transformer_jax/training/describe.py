"""Messages of a run before its first step."""

from __future__ import annotations

import math

import jax

from transformer_jax.config import ENDING, ExperimentConfig, MultiplierRule, layer_numbers
from transformer_jax.data.batching import TrainingBatches
from transformer_jax.host.terminal import say
from transformer_jax.nn.batch_norm import num_parameters
from transformer_jax.parallel.processes import is_primary
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.freezing import multiplied, trained_part
from transformer_jax.training.muon import MUON
from transformer_jax.typing import Params


def describe(config: ExperimentConfig, plan: TrainingBatches, params: Params) -> None:
    """Print the size of model and corpus, and warn of settings that may have unexpected effects."""
    training, freeze = config.training, config.optimizer.freeze
    size = f"{num_parameters(params):,} parameters"
    if freeze:
        trained = jax.eval_shape(lambda params: trained_part(freeze, params, layer_numbers(config.model)), params)
        size += f", {num_parameters(trained):,} of them trained"
    batches = f"{plan.num_examples:,} training examples in {plan.batches_per_epoch:,} batches"
    if config.data.batching == "rows":
        unit = TASKS[config.task.name].unit
        batches += f" of {config.data.rows_per_batch:,} {'rows' if unit == 'tokens' else unit}"
    else:
        batches += f" of {len(plan.shapes)} shapes, {100 * plan.padding_efficiency:.0f} % of them tokens"
    say_once(
        f"{size}; {batches}; "
        f"{training.num_train_steps:,} steps are {training.num_train_steps / plan.batches_per_epoch:.1f} "
        f"epochs; {config.parallel.launcher} on {jax.device_count()} {jax.default_backend()} device(s)"
    )
    for note in (*rate_notes(config), *rule_notes(config), *multiplier_notes(config, params)):
        say_once(note)
    evaluations, checkpoints = training.eval_every_steps, training.checkpoint_every_steps
    if training.keep_best and evaluations % checkpoints and checkpoints % evaluations:
        say_once(
            f"checkpoints are saved every {checkpoints:,} steps and validations run every {evaluations:,} steps; the "
            f"training.keep_best={training.keep_best} best checkpoints come only from steps with both: every "
            f"{math.lcm(evaluations, checkpoints):,} steps, and the last"
        )
    if plan.left_out.count:
        say_once(
            f"{plan.left_out.count:,} training examples have a sequence of more than "
            f"data.max_length={config.data.max_length} tokens and are left out"
        )


def say_once(message: str) -> None:
    """Print a message on stderr, in process 0 only.

    `terminal.say` does not check the process number. The check would make JAX take the devices, which a sweep leaves to
    its workers.
    """
    if is_primary():
        say(message)


def rate_notes(config: ExperimentConfig) -> list[str]:
    """Return what a user may not expect of the learning rate: a peak that is not reached, or 0 at every step."""
    optimizer, steps = config.optimizer, config.training.num_train_steps
    if optimizer.schedule != "none" and optimizer.warmup_steps > steps:
        share = 100 * steps / optimizer.warmup_steps
        return [
            f"optimizer.warmup_steps={optimizer.warmup_steps:,} is more than the {steps:,} steps of the run: the "
            f"learning rate reaches {share:.2g} % of its peak"
        ]
    decays, ends = optimizer.schedule in ENDING, optimizer.decay_steps == 1
    if decays and ends and not optimizer.warmup_steps and not optimizer.end_fraction:
        return [
            f"optimizer.schedule='{optimizer.schedule}' ends at step 1 and has no warm-up: the learning rate is 0 at "
            "every step, so nothing is learned"
        ]
    return []


def rule_notes(config: ExperimentConfig) -> list[str]:
    """Return a warning of an update rule that relies on norms, for a Transformer without them."""
    model, optimizer = config.model, config.optimizer
    if optimizer.name != MUON or model.norm != "none" or not model.is_transformer:
        return []
    return [
        f"warning: optimizer.name='{MUON}' with model.norm='none': the update of a matrix is as large for a small "
        "gradient as for a large one, and no norm bounds what a layer adds; at "
        f"optimizer.learning_rate={optimizer.learning_rate:g} the training may diverge"
    ]


def multiplier_notes(config: ExperimentConfig, params: Params) -> list[str]:
    """Return a line for every pattern of `optimizer.lr_multipliers`, with the number of parameters that it matches.

    Raises: ConfigError, see `freezing.multiplied`.
    """
    sizes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x.size
        for path, x in jax.tree_util.tree_leaves_with_path(params)
    }
    counts: dict[MultiplierRule, int] = {}
    for path, rule in multiplied(config.optimizer, params, layer_numbers(config.model)).items():
        counts[rule] = counts.get(rule, 0) + sizes[path]
    return [
        f"optimizer.lr_multipliers: {rule.factor:g} times the learning rate for the {count:,} parameters of "
        f"'{rule.pattern}'"
        for rule, count in counts.items()
    ]
