"""Exponents of costs by length, and the page, the table and the figure of their measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import experiments.parallelism
from transformer_jax.config import ModelConfig
from transformer_jax.sweeps.report.number_text import interval
from transformer_jax.sweeps.statistics import Estimate, estimate

COLUMNS = ("turn", "cost", "model", "length", "seconds")
TRANSFORMER, LSTM = MODELS = ("transformer", "lstm")
NAMES = {TRANSFORMER: "Transformer", LSTM: "LSTM"}
STEP_OF_ROWS, STEP_OF_TOKENS, TOKEN = COSTS = ("step_of_rows", "step_of_tokens", "token")
LAST = 3
"""Lengths of the second fit, which shows the growth beyond fixed overheads."""


class Row(NamedTuple):
    """One measurement; the length is that of source and of target, in tokens."""

    turn: int
    cost: str
    model: str
    length: int
    seconds: float


class Setting(NamedTuple):
    """The sizes of the measurement. rows: of `STEP_OF_ROWS` and of decoding. tokens: of a batch of `STEP_OF_TOKENS`."""

    models: Mapping[str, ModelConfig]
    lengths: Sequence[int]
    rows: int
    tokens: int

    def rows_of(self, cost: str, length: int) -> int:
        """Return the number of rows of a batch."""
        return max(self.tokens // length, 1) if cost == STEP_OF_TOKENS else self.rows


def num_params(model: ModelConfig) -> int:
    """Return the number of parameters of a resolved config."""
    import jax

    from transformer_jax.models.architecture import init_params

    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(lambda: init_params(model, 0))))


def exponent(rows: Iterable[Row], cost: str, model: str, shortest: int = 0) -> Estimate:
    """Return the slope of log seconds against log length from a length on, as the mean of the slopes of the turns.

    It is NaN if a time is not positive: a difference of two times can be negative on a busy machine.
    """
    from scipy.stats import linregress

    points: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if (row.cost, row.model) == (cost, model) and row.length >= shortest:
            points.setdefault(row.turn, []).append((math.log(row.length), _log(row.seconds)))
    return estimate([float(linregress(*zip(*of_turn, strict=True)).slope) for of_turn in points.values()])


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.nan


def seconds(rows: Iterable[Row], cost: str, model: str, length: int) -> list[float]:
    """Return the seconds of a cost by turn."""
    return [row.seconds for row in rows if row[1:4] == (cost, model, length)]


def ratio(rows: Sequence[Row], cost: str, length: int) -> Estimate:
    """Return the seconds of the LSTM divided by those of the Transformer, over the turns."""
    both = (seconds(rows, cost, name, length) for name in (LSTM, TRANSFORMER))
    return estimate([lstm / other for lstm, other in zip(*both, strict=True)])


def draw(rows: Sequence[Row], setting: Setting, file: Path) -> None:
    """Draw seconds against length on logarithmic axes, a panel for each cost, with 95 % intervals over turns."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "parallelism"  # equal results give an identical file
    from matplotlib import pyplot as plt

    costs = [cost for cost in COSTS if any(row.cost == cost for row in rows)]
    figure, panels = plt.subplots(1, len(costs), figsize=(3.6 * len(costs), 3.4), layout="constrained", squeeze=False)
    lengths = list(setting.lengths)
    for axes, cost in zip(panels[0], costs, strict=True):
        for name, colour, marker in ((TRANSFORMER, "#0072B2", "o"), (LSTM, "#D55E00", "s")):
            found = [estimate(seconds(rows, cost, name, length)) for length in lengths]
            label = f"{NAMES[name]}, exponent {exponent(rows, cost, name, lengths[-LAST]).mean:.2f}"
            bars = [e.half_width if math.isfinite(e.half_width) else 0.0 for e in found]
            axes.errorbar(lengths, [e.mean for e in found], yerr=bars, color=colour, marker=marker, ms=4, label=label)
        axes.set(xscale="log", yscale="log", xlabel="tokens of source and of target", title=_title(cost, setting))
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths], fontsize=7)
        axes.set_xticks([], minor=True)
        axes.legend(frameon=False, fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("seconds")
    figure.savefig(file, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _title(cost: str, setting: Setting) -> str:
    return {
        STEP_OF_ROWS: f"training step, {setting.rows} rows",
        STEP_OF_TOKENS: f"training step, {setting.tokens:,} tokens",
        TOKEN: f"decoded token, {setting.rows} rows",
    }[cost]


def answer(rows: Sequence[Row], setting: Setting) -> str:
    """Return the result in a few sentences."""
    first, last, longest = setting.lengths[0], setting.lengths[-LAST], setting.lengths[-1]
    parts = [f"From {last:,} to {longest:,} tokens of length L, the times grow as follows."]
    for cost in COSTS:
        growth = " and ".join(
            f"as L^({_text(exponent(rows, cost, name, last))}) with the {NAMES[name]}" for name in MODELS
        )
        at_first, at_longest = (_text(ratio(rows, cost, length)) for length in (first, longest))
        title = _title(cost, setting)
        parts.append(
            f"{title[0].upper()}{title[1:]}: {growth}; the LSTM takes {at_first} times as long as the Transformer at "
            f"{first:,} tokens, and {at_longest} times at {longest:,}."
        )
    return " ".join(parts)


def _text(value: Estimate) -> str:
    return interval(value.mean, value.half_width)


def report(rows: Sequence[Row], setting: Setting) -> str:
    """Return a Markdown page with the answer, the setting, a table and the figure."""
    import jax

    from transformer_jax.host.machine import processor

    lengths, last = setting.lengths, setting.lengths[-LAST]
    head = [
        "",
        *(f"{length:,}" for length in lengths),
        f"exponent, {lengths[0]:,} to {lengths[-1]:,}",
        f"exponent, {last:,} to {lengths[-1]:,}",
    ]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for cost in COSTS:
        for name in MODELS:
            of_lengths = [estimate([1e3 * s for s in seconds(rows, cost, name, length)]) for length in lengths]
            fits = [exponent(rows, cost, name, shortest) for shortest in (0, last)]
            label = f"{_title(cost, setting)}: {NAMES[name]}, ms"
            lines.append([label, *(_text(value) for value in (*of_lengths, *fits))])
        ratios = [_text(ratio(rows, cost, length)) for length in lengths]
        lines.append([f"{_title(cost, setting)}: LSTM / Transformer", *ratios, "", ""])
    sizes = ". ".join(
        f"{NAMES[name]}: width {model.emb_dim}, {num_params(model):,} parameters"
        for name, model in setting.models.items()
    )
    turns, device = len({row.turn for row in rows}), jax.devices()[0].device_kind
    dtype = setting.models[TRANSFORMER].dtype
    return "\n\n".join(
        [
            f"# {experiments.parallelism.__doc__}",
            answer(rows, setting),
            "\n".join(f"| {' | '.join(cells)} |" for cells in lines),
            f"Means of {turns} turns with 95 % intervals. {sizes}. Layers of each stack: "
            f"{setting.models[TRANSFORMER].num_encoder_layers}; {dtype}. Device: {device}; host: {processor()}; JAX "
            f"{jax.__version__}.",
            "![Seconds of a training step and of a decoded token by length, on logarithmic axes](seconds.svg)",
            "All numbers: [seconds.csv](seconds.csv).\n",
        ]
    )
