"""The gradient of the last output with respect to each embedded input, by their distance.

The last output is the vector x [U] from which the model predicts after the end of the source. J_d = dx / de is its
Jacobian with respect to the embedding e [D] of the token that was read d steps before. Reported is
log10(||J_d|| / ||J_0||) with Frobenius norms over the rows of a batch. A recurrent network's norm decays or grows
exponentially with d (Hochreiter 1991; Bengio et al. 1994; Pascanu et al. 2013); attention has a path of one step to
every token (Vaswani et al. 2017, section 4).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from experiments.long_range.copying import COPIED
from transformer_jax.config import ModelConfig
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.typing import Params

DISTANCES = (1, 2, 5, 10, 20, 50, 100, 200)
_ROWS, _PROBES = 16, 8


def gradient_norms(model: ModelConfig, params: Params, ids: np.ndarray, probes: int = _PROBES) -> np.ndarray:
    """Return the Frobenius norms of the Jacobians of the last output, by distance from the last input.

    E ||v J||^2 = ||J||^2 for v of independent standard normal numbers (Hutchinson 1990), so that a few backward passes
    estimate the norm.

    Args:
      model: resolved; a decoder alone. ids: what the decoder reads, [B, T]. probes: number of v for each row.
    Returns: [T], the root of the mean over rows; the first is of the last token.
    """
    # Squared here in float64: in float32, squares of gradients below 1e-19 would be 0.
    products = np.asarray(_products(model, *ids.shape, probes)(dict(params), ids), np.float64)
    return np.sqrt(np.square(products).sum(-1).mean((0, 1)))[::-1]


@functools.lru_cache(maxsize=4)
def _products(model: ModelConfig, rows: int, length: int, probes: int) -> Any:
    import jax
    import jax.numpy as jnp

    from transformer_jax.models.architecture import ARCHITECTURES

    # Every token of the batch gets an id and a row of the embedding table of its own; so the gradient of the table is
    # that of the embedded tokens.
    own = jnp.arange(rows * length).reshape(rows, length)
    separate = dataclasses.replace(model, vocab_size=rows * length, source_vocab_size=rows * length)
    module = ARCHITECTURES[model.architecture].module(separate)

    def last(table: Any, params: Any) -> Any:
        variables = {"params": {**params, "embedding": {**params["embedding"], "embedding": table}}}
        x: Any = module.apply(variables, {"decoder_inputs": own}, method="features")
        return x[:, -1]  # [B, U]

    @jax.jit
    def products(params: Any, ids: Any) -> Any:
        table = params["embedding"]["embedding"][ids].reshape(rows * length, -1)
        x, pull = jax.vjp(lambda table: last(table, params), table)
        directions = jax.random.normal(jax.random.key(0), (probes, *x.shape), x.dtype)
        return jax.vmap(lambda v: pull(v)[0])(directions).reshape(probes, rows, length, -1)  # v J

    return products


def by_distance(scorer: Scorer, params: Params, split: str = "test") -> dict[str, float]:
    """Return log10(||J_d|| / ||J_0||) after the end of a source of the split, by d.

    Returns: `[10]/log10_gradient` of every d of `DISTANCES` that the source has, and `/log10_gradient`, of the mean
      square over the symbols.
    """
    from transformer_jax.tasks.batches.of_split import evaluation_batches

    config = scorer.loaded.config
    batch, _ = next(iter(evaluation_batches(config, scorer.evaluator.data.splits[split])))
    end = int(np.flatnonzero(np.asarray(batch["weights"])[0])[0])  # where the end of the source is read
    ids = np.asarray(batch["decoder_inputs"])[:_ROWS, : end + 1]  # the start id, symbols, blanks and the end
    norms = gradient_norms(config.model, params, ids)
    symbols = norms[-1 - COPIED : -1]
    found = {f"[{d}]/log10_gradient": _log10(norms[d] / norms[0]) for d in DISTANCES if d < len(norms)}
    return found | {"/log10_gradient": _log10(np.sqrt(np.square(symbols).mean()) / norms[0])}


def _log10(ratio: Any) -> float:
    """Return log10 of a ratio of float32 numbers, which is at least their smallest one."""
    return float(np.log10(max(float(ratio), float(np.finfo(np.float32).tiny))))


def measure(scorer: Scorer) -> dict[str, float]:
    """Return `start` and `trained` with the names of `by_distance`: before and after the training."""
    from transformer_jax.models.architecture import init_params

    config = scorer.loaded.config
    of = {"start": init_params(config.model, config.seed), "trained": scorer.loaded.params}
    return {f"{name}{key}": value for name, params in of.items() for key, value in by_distance(scorer, params).items()}


def draw(axes: Any, results: Any, group: str) -> None:
    """Draw the gradient against the distance at the largest gap, a line per model with the 95 % interval of seeds.

    group: start or trained.
    """
    from transformer_jax.sweeps.statistics import estimate

    for label, values in _lines(results, group).items():
        found = {distance: estimate(list(of_seeds.values())) for distance, of_seeds in values.items()}
        means = [mean for mean, _, _ in found.values()]
        line = axes.plot(list(found), means, "o-", ms=3, label=label)[0]
        half = [width or 0.0 for _, width, _ in found.values()]
        low, high = np.subtract(means, half), np.add(means, half)
        axes.fill_between(list(found), low, high, color=line.get_color(), alpha=0.2, lw=0)
    axes.set(xscale="log", xlabel="distance in tokens", ylabel="log10 of the relative gradient")
    axes.set_xticks(DISTANCES, [str(distance) for distance in DISTANCES], minor=False)
    axes.set_xticks([], minor=True)
    axes.legend(frameon=False)


def described(results: Any, group: str) -> str:
    """Return a description of the figure of `draw`."""
    ends = [
        f"{label} {np.mean(list(last.values())):.1f} at distance {distance}"
        for label, values in _lines(results, group).items()
        for distance, last in [list(values.items())[-1]]
    ]
    return f"Log10 of the gradient relative to distance 0, by distance, {group}: {', '.join(ends)}"


def _lines(results: Any, group: str) -> dict[str, dict[int, dict[int, float]]]:
    """Return the values by model, distance and seed, of the variants with the largest gap that has been trained."""
    gap = max((variant.labels["gap"] for variant in results.variants), key=int)
    variants = [variant for variant in results.variants if variant.labels["gap"] == gap]
    found = {
        variant.labels["model"]: {d: variant.values(f"{group}[{d}]/log10_gradient") for d in DISTANCES}
        for variant in variants
    }
    return {model: {d: v for d, v in values.items() if v} for model, values in found.items() if any(values.values())}
