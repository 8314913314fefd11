"""The difference between the passes of training and evaluation of a model with BatchNorm, and losses by length.

Training normalises a batch with its own statistics, evaluation with running averages. Shen et al. 2020 (section 3.1)
find that statistics of texts vary much from batch to batch, so that the averages fit no single batch well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.by_length import bins
from transformer_jax.evaluation.scoring import Scorer


def losses_by_length(scorer: Scorer, splits: Sequence[str], width: int) -> dict[str, float]:
    """Return the loss of splits in bins of the sentences' lengths, in nats per word.

    Args:
      width: of a bin, in tokens with start and end: 16 gives 1-16, 17-32, ...
    Returns: losses by name, such as `test[17-32]/loss`, and the number of words, `test[17-32]/words`. Bins without any
      are left out.
    """
    evaluator, params, found = scorer.evaluator, scorer.loaded.params, {}
    for split in splits:
        sums = evaluator.sums_by_example(params, split)
        lengths = evaluator.task.lengths(evaluator.config, evaluator.data.splits[split])["inputs"]
        for label, rows in bins(lengths, width):
            if weight := float(sums["weight"][rows].sum()):
                name = f"{split}{label}"
                found |= {f"{name}/loss": float(sums["nll"][rows].sum()) / weight, f"{name}/words": weight}
    return found


def statistics_mismatch(scorer: Scorer, split: str, num_batches: int = 32) -> dict[str, float]:
    """Return the effect of running averages on batches of a split that have the size of those in training.

    Returns:
      `mismatch/loss`: the loss with running averages less that with the statistics of the batch itself, in nats per
        word; without such a norm both passes are the same, and it is 0.
      With BatchNorm, `mismatch/mean`, |batch mean - running mean| / running standard deviation, and
        `mismatch/variance`, |ln(batch variance / running variance)|: means over features and layers of every norm, and
        then over norms and batches.
    """
    import jax

    from transformer_jax.models.architecture import ARCHITECTURES, Model, training_pass
    from transformer_jax.nn.batch_norm import statistics_of
    from transformer_jax.tasks.batches.of_split import training_batches
    from transformer_jax.tasks.trained.loss_sums import split_for_evaluation

    config, params = scorer.loaded.config, scorer.loaded.params
    static, hyper = split_for_evaluation(config)
    task = scorer.evaluator.task
    module = ARCHITECTURES[config.model.architecture].module(static.model, task.head(static.task, static.model))

    @jax.jit
    def both(batch: Any) -> Any:
        """Return the sums with the statistics of the batch, those with running averages, and the statistics."""
        own, collected, _ = training_pass(
            module, params, lambda model: task.loss(static.task, model, batch, None, hyper)
        )
        running = task.loss(static.task, Model(module, params), batch, None, hyper)
        return own, running, statistics_of(collected)

    plan = training_batches(config, scorer.evaluator.data.splits[split])
    difference, weight, distances = [], [], []
    for step in range(num_batches):
        batch = plan.batch(step, slice(0, plan.shape(step).rows))
        own, running, statistics = jax.device_get(both(batch))
        difference.append(float(running["nll"]) - float(own["nll"]))
        weight.append(float(own["weight"]))
        distances += _distances(statistics, params, config.model.norm_epsilon)
    found = {"mismatch/loss": math.fsum(difference) / math.fsum(weight)}
    if distances:
        mean, variance = np.mean(distances, axis=0)
        found |= {"mismatch/mean": float(mean), "mismatch/variance": float(variance)}
    return found


def _distances(statistics: Any, params: Any, epsilon: float) -> list[tuple[float, float]]:
    """Return `mismatch/mean` and `mismatch/variance` of every norm in a tree of sums, averaged over its layers."""
    if "weight" not in statistics:
        return [pair for name, part in statistics.items() for pair in _distances(part, params[name], epsilon)]
    count = np.asarray(statistics["weight"])[..., None]
    if not count.all():
        return []
    mean, variance = statistics["mean"] / count, statistics["variance"] / count
    old_mean, old_variance = (np.asarray(params[f"running_{name}"]) for name in ("mean", "variance"))
    seen = variance > 0
    return [
        (
            float(np.mean(np.abs(mean - old_mean) / np.sqrt(old_variance + epsilon))),
            float(np.mean(np.abs(np.log(variance[seen] / old_variance[seen])))),
        )
    ]
