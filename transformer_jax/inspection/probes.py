"""Linear probes: whether a label can be read off the hidden states of a layer by a linear function.

A probe is a logistic regression of labels on features, which are first standardised to mean 0 and deviation 1 over the
training part. It minimises the sum of the negative log probabilities plus l2 |W|^2 / 2, with L-BFGS, so equal inputs
give equal probes. Its accuracy counts on examples that it was not fitted to, beside two comparisons on the same ones:

* the majority label of the training part;
* a control task (Hewitt and Liang 2019, "Designing and Interpreting Probes with Control Tasks"): the same probe for
  random labels. Every type, such as a word, has one random label, drawn from those of all examples. Without types, the
  labels are shuffled. The accuracy less that of the control task is their selectivity.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.label_baselines import logistic_regression
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import stream_places
from transformer_jax.models.architecture import counted_targets
from transformer_jax.nn.heads import POOLINGS
from transformer_jax.typing import Batch, Params

_Z = 1.959963984540054
"""The 0.975 quantile of the normal distribution."""


class Accuracy(NamedTuple):
    """The share of held-out examples that are right, and its 95 % interval."""

    value: float
    low: float
    high: float


class Probed(NamedTuple):
    """Accuracies of probes on held-out examples, by the name of their features, and those of comparisons.

    control: of the same probes for random labels. majority: of the most frequent label. held_out: number of examples
    that count. labels: the names, sorted.
    """

    accuracies: dict[str, Accuracy]
    control: dict[str, Accuracy]
    majority: Accuracy
    held_out: int
    labels: tuple[str, ...]

    @property
    def selectivity(self) -> dict[str, float]:
        """Return by how much the accuracies exceed those of the control task."""
        return {name: found.value - self.control[name].value for name, found in self.accuracies.items()}


def probe(
    features: Mapping[str, np.ndarray],
    labels: Sequence[str],
    groups: Sequence[Hashable] | None = None,
    types: Sequence[str] | None = None,
    held_out: float | Bool[np.ndarray, " N"] = 0.25,
    l2: float = 1.0,
    seed: int = 0,
) -> Probed:
    """Fit a linear probe to each array of features [N, D], such as those of `text_states`, and score it.

    Args:
      labels: of the N examples.
      groups: examples of one group, such as the words of a sentence, are on the same side of the split, and intervals
        take them as dependent; default: every example is a group.
      types: of the N examples, such as words, for the control task; default: every example has its own.
      held_out: share of the groups that count, or whether each example counts, such as `held_out_of_labels`.
      l2: the penalty; seed: of the split and of the control task.
    Raises: DataError for lengths that differ, features that are not finite, a training part with one label alone, or
      examples of which all or none count; ConfigError for numbers out of range.
    """
    if isinstance(held_out, float | int):
        _check_share(held_out)
    if not l2 > 0:
        raise ConfigError(f"l2={l2}: expected more than 0")
    count = len(labels)
    given = {
        **features,
        "groups": groups,
        "types": types,
        "held_out": None if isinstance(held_out, float | int) else held_out,
    }
    for name, values in given.items():
        if values is not None and len(values) != count:
            raise DataError(f"'{name}' has {len(values)} examples, but there are {count} labels")
    for name, values in features.items():
        if not np.isfinite(values).all():
            raise DataError(f"'{name}' has features that are not finite")
    names, truth = np.unique(np.asarray(labels, str), return_inverse=True)
    numbers = _numbered(range(count) if groups is None else groups)
    rng = np.random.default_rng(seed)
    is_held_out = _held_out(numbers, held_out, rng) if isinstance(held_out, float | int) else held_out
    if not 0 < is_held_out.sum() < count:
        raise DataError(
            f"{is_held_out.sum()} of {count} examples count; expected some to fit a probe, and some to score it"
        )
    if len(np.unique(truth[~is_held_out])) < 2:
        raise DataError("the training part has one label alone; give more examples")
    control = rng.permutation(truth) if types is None else _of_types(types, truth, rng)
    most = int(np.bincount(truth[~is_held_out], minlength=len(names)).argmax())
    of_groups = numbers[is_held_out]

    def scored(values: np.ndarray, of_task: np.ndarray) -> Accuracy:
        right = _predicted(values, of_task, len(names), is_held_out, l2) == of_task[is_held_out]
        return accuracy(right, of_groups)

    arrays = {name: np.asarray(values, np.float64) for name, values in features.items()}
    return Probed(
        {name: scored(values, truth) for name, values in arrays.items()},
        {name: scored(values, control) for name, values in arrays.items()},
        accuracy(truth[is_held_out] == most, of_groups),
        int(is_held_out.sum()),
        tuple(names.tolist()),
    )


def held_out_of_labels(
    labels: Sequence[str], groups: Sequence[Hashable], share: float = 0.25, seed: int = 0
) -> Bool[np.ndarray, " N"]:
    """Return a mask of the examples to hold out: this share of the groups of every label, at least one and not all.

    Args: groups: of the N examples; one is on one side of the split, with the label of its first example.
    Raises: DataError for a label with fewer than two groups; ConfigError for a share out of range.
    """
    _check_share(share)
    numbers = _numbered(groups)
    firsts = np.unique(numbers, return_index=True)[1]  # the first example of every group
    of_groups, rng, chosen = np.asarray(labels, str)[firsts], np.random.default_rng(seed), []
    for label in sorted({*labels}):
        own = rng.permutation(np.flatnonzero(of_groups == label))
        if len(own) < 2:
            raise DataError(
                f"label '{label}' has too few examples: {len(own)} that differ; expected at least 2, one to fit a "
                "probe and one to score it"
            )
        chosen += own[: min(max(round(share * len(own)), 1), len(own) - 1)].tolist()
    return np.isin(numbers, chosen)


def text_states(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    pooling: str = "mean",
    head: nn.Module | None = None,
    skip: int = 0,
) -> dict[str, Float[np.ndarray, "B D"]]:
    """Return one vector of each text from every residual stream of the first stack, by place, in the order of layers.

    Args:
      model, params, batch, head: as of `run_with`. Tokens outside of the batch's `inputs_mask` do not count; for a
        decoder alone, nor those outside of `targets_mask`, or without `weights`.
      pooling: `mean` of the tokens, or `first`, `last` or `max`.
      skip: number of tokens at the beginning of every row that do not count, such as the start.
    Raises: ConfigError for another pooling, and for a model without a residual stream.
    """
    if pooling not in POOLINGS:
        raise ConfigError(f"pooling={pooling}: expected one of {', '.join(POOLINGS)}")
    streams = stream_places(model, batch, head)[model.stacks[0]]
    read = run_with(model, params, batch, streams, None, head).places
    mask = counted_targets(batch) if model.stacks[0] == "decoder" else batch.get("inputs_mask")
    is_token = jnp.ones(read[streams[0]].shape[:2], bool) if mask is None else jnp.asarray(mask)
    pool, counted = POOLINGS[pooling], is_token[:, skip:]
    return {name: np.asarray(pool(read[name][:, skip:], counted), np.float32) for name in streams}


def accuracy(right: Bool[np.ndarray, " n"], groups: Int[np.ndarray, " n"]) -> Accuracy:
    """Return the share of examples that are right with Wilson's interval (Wilson 1927).

    n in it is the number of independent examples that have the variance of the share, p (1 - p) / variance, as for
    surveys of clusters (Korn and Graubard 1998); the variance is that of a ratio over groups. It is at most the number
    of examples; if all groups have the same share, it is the number of groups.
    """
    share, number = float(right.mean()), _numbered(groups.tolist())
    count = number.max() + 1
    residuals = np.bincount(number, right - share)
    variance = float((residuals**2).sum()) / len(right) ** 2 * count / max(count - 1, 1)
    size = float(count)
    if variance > 1e-12:
        size = min(share * (1 - share) / variance, float(len(right)))
    centre = (share + _Z**2 / (2 * size)) / (1 + _Z**2 / size)
    half = _Z / (1 + _Z**2 / size) * np.sqrt(share * (1 - share) / size + _Z**2 / (4 * size**2))
    return Accuracy(share, max(float(centre - half), 0.0), min(float(centre + half), 1.0))


def _check_share(held_out: float) -> None:
    if not 0 < held_out < 1:
        raise ConfigError(f"held_out={held_out}: expected a share between 0 and 1")


def _numbered(values: Sequence[Hashable]) -> Int[np.ndarray, " N"]:
    """Return the number of every value among the different ones, in the order of their first occurrence."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int64)


def _held_out(numbers: Int[np.ndarray, " N"], share: float, rng: np.random.Generator) -> Bool[np.ndarray, " N"]:
    """Return a mask of the examples of some random groups, at least one, which are held out."""
    count = int(numbers.max(initial=-1)) + 1
    if count < 2:
        raise DataError(f"{count} groups of examples; a probe needs at least two, since one is held out")
    chosen = rng.permutation(count)[: min(max(round(share * count), 1), count - 1)]
    return np.isin(numbers, chosen)


def _of_types(types: Sequence[str], truth: Int[np.ndarray, " N"], rng: np.random.Generator) -> Int[np.ndarray, " N"]:
    """Return a random label for every example, the same one for examples of a type."""
    different, number = np.unique(np.asarray(types, str), return_inverse=True)
    return rng.choice(truth, len(different))[number]


def _predicted(
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, " N"],
    num_labels: int,
    is_held_out: Bool[np.ndarray, " N"],
    l2: float,
) -> Int[np.ndarray, " n"]:
    """Return the predicted labels of the held-out examples."""
    import scipy.sparse

    train = features[~is_held_out]
    mean, deviation = train.mean(0), train.std(0)
    # A penalty of l2 is that of 1 on features that are smaller by its root.
    scaled = (features - mean) / np.where(deviation > 0, deviation, 1.0) / np.sqrt(l2)
    rows = scipy.sparse.csr_array(scaled)
    fitted = logistic_regression(rows[~is_held_out], labels[~is_held_out], num_labels)
    return np.asarray(fitted.log_probs(rows[is_held_out]).argmax(-1))
