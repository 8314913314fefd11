"""Gradients at initialisation by depth, in the setting of Xiong et al. 2020, figure 3; no training.

    python -m experiments.norm_placement.gradient_norms --output=experiments/norm_placement/results

Measures the Frobenius norm of the gradient of the loss with respect to the second matrix of every feed-forward network.
Models have width 512, feed-forward width 1,024, 4 heads and 6, 8, 10, 12 or 14 layers per side; batches have 4,096
tokens of the embedded corpus, padding included. Theorem 1 of the paper bounds the norm in the last layer by
O(d sqrt(ln d)) for Post-LN, whatever the depth L, and by O(d sqrt(ln d / L)) for Pre-LN: on logarithmic axes its slope
against L is 0 and -1/2. Writes gradient_norms.csv, a row per norm, depth, seed, side and layer, and gradient_norms.png.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig, TrainingConfig
from transformer_jax.sweeps.statistics import estimate

DEPTHS = (6, 8, 10, 12, 14)
NORMS = ("post", "pre")
SIDES = ("encoder", "decoder")
COLUMNS = ("norm", "depth", "seed", "side", "layer", "gradient_norm")


class Row(NamedTuple):
    """The gradient of one feed-forward network; `layer` counts from 1."""

    norm: str
    depth: int
    seed: int
    side: str
    layer: int
    gradient_norm: float


def gradient_norms(
    model: ModelConfig,
    batch: Mapping[str, np.ndarray],
    seed: int,
    label_smoothing: float = 0.1,
    task: TaskConfig | None = None,
) -> dict[str, np.ndarray]:
    """Return ||d loss / dW|| of the second feed-forward matrix W [F, D] of every layer of a freshly initialised model.

    The loss is the mean over the targets, without dropout.

    Args:
      model: resolved.
      batch: a training batch of the task.
      seed: of the parameters.
      task: of built-in tasks; by default translation.
    Returns: norms [L] of the L layers by side, encoder and decoder, as far as the model has them.
    """
    norms = _norms(model, task or TaskConfig(), label_smoothing)(dict(batch), np.int32(seed))
    return {side: np.asarray(values) for side, values in norms.items()}


@functools.lru_cache(maxsize=4)
def _norms(model: ModelConfig, task: TaskConfig, label_smoothing: float) -> Any:
    import jax
    import jax.numpy as jnp

    from transformer_jax.models.architecture import ARCHITECTURES, init_params, training_pass
    from transformer_jax.tasks.task import TASKS

    head = TASKS[task.name].head(task, model)
    module = ARCHITECTURES[model.architecture].module(model, head)
    hyper = SimpleNamespace(model={}, task={}, label_smoothing=label_smoothing or None)

    def norms(batch: Any, seed: Any) -> dict[str, Any]:
        params = init_params(model, seed, head)
        sides = [side for side in SIDES if side in params]
        kernels = {side: params[side]["layers"]["feed_forward"]["out"]["kernel"] for side in sides}

        def loss(kernels: Mapping[str, Any]) -> Any:
            replaced: dict[str, Any] = {side: _with_kernel(params[side], kernels[side]) for side in sides}
            sums, _, _ = training_pass(
                module, {**params, **replaced}, lambda model: TASKS[task.name].loss(task, model, batch, None, hyper)
            )
            return sums["loss"] / sums["weight"]

        gradients = jax.grad(loss)(kernels)
        return {side: jnp.sqrt(jnp.sum(g**2, axis=(1, 2))) for side, g in gradients.items()}

    return jax.jit(norms)


def _with_kernel(side: Mapping[str, Any], kernel: Any) -> dict[str, Any]:
    layers = side["layers"]
    out = layers["feed_forward"]["out"] | {"kernel": kernel}
    return {**side, "layers": {**layers, "feed_forward": {**layers["feed_forward"], "out": out}}}


def slope(rows: Iterable[Row], norm: str) -> tuple[float, float]:
    """Return the slope of log gradient norm against log depth in the decoder's last layer, and its 95 % half-width.

    A line is fitted by least squares for each seed, whose batch is the same at all depths; the slope is their mean.
    """
    from scipy.stats import linregress

    last: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row.norm == norm and row.side == "decoder" and row.layer == row.depth:
            last.setdefault(row.seed, []).append((math.log(row.depth), math.log(row.gradient_norm)))
    slopes = [float(linregress(*zip(*points, strict=True)).slope) for points in last.values()]
    mean, half_width, _ = estimate(slopes)
    return mean, half_width


def measure(depths: Sequence[int], seeds: int, model: ModelConfig, tokens: int) -> list[Row]:
    """Return rows for all norms, depths and seeds. Each seed has one batch, the same for every model."""
    rows = []
    batches = _batches(model, tokens, seeds)
    for norm in NORMS:
        for depth in depths:
            layers = {"num_encoder_layers": depth, "num_decoder_layers": depth}
            deep = dataclasses.replace(model, norm_position=norm, **layers).resolved()
            last = []
            for seed, batch in enumerate(batches):
                found = gradient_norms(deep, batch, seed)
                last.append(found["decoder"][-1])
                rows += [
                    Row(norm, depth, seed, side, layer, float(value))
                    for side in SIDES
                    for layer, value in enumerate(found[side], start=1)
                ]
            print(f"{norm}, {depth} layers: {np.mean(last):.3f} in the last", file=sys.stderr, flush=True)
    return rows


def _batches(model: ModelConfig, tokens: int, count: int) -> list[dict[str, np.ndarray]]:
    """Return the first training batches of the embedded corpus."""
    from transformer_jax.data.datasets import prepare_data
    from transformer_jax.tasks.batches.of_split import training_batches
    from transformer_jax.tasks.task import TASKS

    data = DataConfig(num_train_pairs=20_000, num_eval_pairs=10, max_length=64, tokens_per_batch=tokens, num_buckets=1)
    config = ExperimentConfig(model=model, data=data, training=TrainingConfig(num_train_steps=1)).resolved()
    with tempfile.TemporaryDirectory() as folder:
        data = prepare_data(config, TASKS[config.task.name].columns(config), Path(folder), needed=("train",))
        plan = training_batches(config, data.splits["train"])
        batches = [plan.batch(step, slice(0, plan.shape(step).rows)) for step in range(count)]
        return [{name: np.array(array) for name, array in batch.items()} for batch in batches]


def draw(rows: Sequence[Row], file: Path) -> None:
    """Draw the last layer's norm against depth with the theory's slopes, and all layers of the deepest model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_depth, by_layer) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    depths = sorted({row.depth for row in rows})
    for norm, theory, color in (("post", 0.0, "#0072B2"), ("pre", -0.5, "#D55E00")):
        last = [_values(rows, norm, depth, depth) for depth in depths]
        means = [float(np.mean(values)) for values in last]
        spread = [float(np.std(values)) for values in last]
        by_depth.errorbar(depths, means, yerr=spread, fmt="o", color=color, capsize=3, label=f"{norm.title()}-LN")
        level = np.exp(np.mean([math.log(m) - theory * math.log(d) for m, d in zip(means, depths, strict=True)]))
        bound = "constant" if theory == 0 else r"$\propto L^{-1/2}$"
        by_depth.plot(depths, [level * d**theory for d in depths], "--", color=color, lw=1, label=bound)
        layers = range(1, depths[-1] + 1)
        per_layer = [float(np.mean(_values(rows, norm, depths[-1], layer))) for layer in layers]
        by_layer.plot(layers, per_layer, "o-", color=color, ms=4, label=f"{norm.title()}-LN")
    by_depth.set(xscale="log", yscale="log", xlabel="layers L of each side", ylabel="gradient norm, last layer")
    by_depth.set_xticks(depths, [str(depth) for depth in depths], minor=False)
    by_depth.set_xticks([], minor=True)
    by_layer.set(xlabel=f"decoder layer of {depths[-1]}", ylabel="gradient norm", ylim=(0, None))
    for axes in (by_depth, by_layer):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150, metadata={"Software": None})
    plt.close(figure)


def _values(rows: Iterable[Row], norm: str, depth: int, layer: int) -> list[float]:
    return [r.gradient_norm for r in rows if (r.norm, r.depth, r.side, r.layer) == (norm, depth, "decoder", layer)]


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--output", type=Path, required=True, help="folder for the table and the figure")
    result.add_argument("--seeds", type=int, default=5)
    result.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    result.add_argument("--emb_dim", type=int, default=512)
    result.add_argument("--tokens", type=int, default=4096, help="of a batch, with its padding")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    width = arguments.emb_dim
    model = ModelConfig(vocab_size=8000, emb_dim=width, mlp_dim=2 * width, num_heads=4, dropout_rate=0.0)
    rows = measure(sorted(arguments.depths), arguments.seeds, model, arguments.tokens)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "gradient_norms.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((*row[:-1], f"{row.gradient_norm:.6g}") for row in rows)
    draw(rows, arguments.output / "gradient_norms.png")
    for norm in NORMS:
        value, error = slope(rows, norm)
        print(f"{norm}: slope of the last layer's gradient norm against depth {value:.3f} +- {error:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
