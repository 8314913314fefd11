"""The scores of every kind of model by source length, as in Bahdanau et al. 2015, figure 2."""

from __future__ import annotations

import re
from typing import Any

from transformer_jax.sweeps.figures import FEW_EXAMPLES
from transformer_jax.sweeps.statistics import estimate

TITLE = "sacreBLEU by length of the source"
_BIN = re.compile(r"(test|test_longer)\[(\d+)-(\d+)\]/pairs")


def bins(metrics: Any) -> dict[str, tuple[str, float]]:
    """Return the name of the score and the middle of every bin with enough pairs, by the bin's name, in order.

    Args:
      metrics: numbers of `experiments.by_length`, by name.
    """
    found = [match for name, pairs in metrics.items() if (match := _BIN.fullmatch(name)) and pairs >= FEW_EXAMPLES]
    found.sort(key=lambda match: (match[1], int(match[2])))
    return {
        f"{match[1]}, {match[2]} to {match[3]}": (
            match[0].replace("/pairs", "/sacrebleu"),
            (int(match[2]) + int(match[3])) / 2,
        )
        for match in found
    }


def draw(axes: Any, results: Any) -> None:
    """Draw a line for every variant: means over the seeds with 95 % intervals.

    Sentences of `test_longer` have more words than any in training; in tokens the splits overlap. A dotted line joins
    the two splits. Bins with few pairs are left out.
    """
    for number, variant in enumerate(results.variants):
        places = _bins_of(variant)
        found = [estimate(list(variant.values(metric).values())) for metric, _ in places.values()]
        middles = [middle + 0.6 * (number - 1.5) for _, middle in places.values()]
        splits = [name.partition(",")[0] for name in places]
        colour = f"C{number}"
        axes.plot(middles, [e.mean for e in found], ":", lw=0.8, color=colour)
        for split in dict.fromkeys(splits):
            at = [index for index, name in enumerate(splits) if name == split]
            axes.errorbar(
                [middles[index] for index in at],
                [found[index].mean for index in at],
                yerr=[found[index].half_width for index in at],
                fmt="os^D"[number % 4] + "-",
                ms=4,
                lw=1.4,
                capsize=2,
                color=colour,
                label=variant.short_name if split == splits[0] else None,
            )
    axes.set_xlabel("tokens of the source")
    axes.set_ylabel("sacreBLEU")
    axes.set_ylim(bottom=0)
    if axes.containers:
        axes.legend(fontsize=8)


def described(results: Any) -> str:
    """Return a description of the figure of `draw`, with the numbers of its first and last bin."""
    texts = []
    for variant in results.variants:
        places = list(_bins_of(variant).items())
        for name, (metric, _) in [places[0], places[-1]] if places else []:
            mean = estimate(list(variant.values(metric).values())).mean
            texts.append(f"{variant.short_name}, {name} tokens: {mean:.1f}")
    numbers = "; ".join(texts) or "no bin has enough pairs"
    return f"sacreBLEU by the number of the source's tokens, in bins of at least {FEW_EXAMPLES} pairs: {numbers}."


def _bins_of(variant: Any) -> dict[str, tuple[str, float]]:
    return next((bins(trial.metrics) for trial in variant.trials if trial.status == "finished"), {})
