"""Seconds of a training step and of a decoded token by length: a Transformer, and an LSTM with attention.

    python -m experiments.parallelism.cost --output=runs/parallelism

Both are encoder-decoders of equal numbers of layers and of parameters; source and target have equal lengths. Three
costs are measured: a training step (forward, backward, clipping, Adam) on a batch of a few rows; a training step on a
batch with a fixed number of tokens, so with fewer rows of longer texts; and a token of greedy decoding with a KV cache
or a recurrent state. Every turn measures all of them, the models by turns. The exponent b of seconds = a length^b is
the slope of a least-squares line through the logarithms, fitted in every turn; means over turns have 95 % intervals.

Writes seconds.csv, a row per turn, cost, model and length; report.md, with an answer and a table; and seconds.svg. Run
nothing else on the machine.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.parallelism.tables import (
    COLUMNS,
    COSTS,
    LAST,
    LSTM,
    MODELS,
    TOKEN,
    TRANSFORMER,
    Row,
    Setting,
    answer,
    draw,
    num_params,
    report,
)
from transformer_jax.config import DataConfig, DecodeConfig, ExperimentConfig, ModelConfig, TrainingConfig
from transformer_jax.host.huge_pages import restart_with_huge_pages

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
_EOS, _PAD = 1, 0
# With three, one disturbed run has no effect: the time of a token is a difference, and could be negative.
_LEAST_SAMPLES = 3


def transformer(emb_dim: int, num_layers: int, max_length: int, dtype: str = "float32") -> ModelConfig:
    """Return a Pre-LN encoder-decoder with heads of width 64, but at least four heads."""
    return ModelConfig(
        vocab_size=1000,
        emb_dim=emb_dim,
        num_heads=max(emb_dim // 64, 4),
        num_encoder_layers=num_layers,
        num_decoder_layers=num_layers,
        norm_position="pre",
        max_length=max_length,
        dropout_rate=0.0,
        dtype=dtype,
    ).resolved()


def equal_lstm(model: ModelConfig) -> ModelConfig:
    """Return the LSTM with as many layers as an encoder-decoder whose number of parameters is closest to its number.

    The encoder reads in both directions. Attention is Luong's, without input feeding: then everything but the products
    with states is computed for all tokens at once.
    """
    wanted = num_params(model)

    def of_width(width: int) -> ModelConfig:
        return ModelConfig(
            architecture="recurrent",
            cell="lstm",
            bidirectional=True,
            bridge="tanh",
            attention="general",
            vocab_size=model.vocab_size,
            emb_dim=width,
            num_encoder_layers=model.num_encoder_layers,
            num_decoder_layers=model.num_decoder_layers,
            dropout_rate=0.0,
            dtype=model.dtype,
        ).resolved()

    low, high = 1, 4 * model.emb_dim  # the number of parameters rises with the width
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if num_params(of_width(middle)) <= wanted else (low, middle)
    return min((of_width(low), of_width(high)), key=lambda one: abs(num_params(one) - wanted))


def training_step(model: ModelConfig, rows: int, length: int) -> Callable[[], float]:
    """Return a function that makes a training step on random ids without padding and returns the loss."""
    from transformer_jax.models.architecture import parameter_axes
    from transformer_jax.parallel.launchers import make_launcher
    from transformer_jax.tasks.task import TASKS
    from transformer_jax.training.hyper import split
    from transformer_jax.training.state import placed_state, state_shapes
    from transformer_jax.training.step import make_train_step

    data = DataConfig(row_multiple=rows, max_length=length, tokens_per_batch=max(rows * length, 16))
    config = ExperimentConfig(model=model, data=data, training=TrainingConfig(label_smoothing=0.0)).resolved()
    template = TASKS[config.task.name].batch_template(config, rows, {"inputs": length, "targets": length})
    assert template is not None
    batch = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in template.items()}
    rng = np.random.default_rng(0)
    for name in ("inputs", "targets"):
        batch[name] = rng.integers(4, model.vocab_size, (rows, length)).astype(np.int32)
    start_id = model.decoder_start_id
    batch["decoder_inputs"] = np.pad(batch["targets"][:, :-1], ((0, 0), (1, 0)), constant_values=start_id)
    batch["row_ids"] = np.arange(rows, dtype=np.int32)
    static, hyper = split(config)
    launcher = make_launcher(config, make_train_step(static), parameter_axes(model))
    state: list[Any] = [placed_state(static, hyper, launcher.shardings(state_shapes(static, hyper)))]

    def run() -> float:
        state[0], metrics = launcher.step(state[0], batch, hyper)
        return float(metrics["loss"])

    return run


def decoding(model: ModelConfig, rows: int, length: int, num_tokens: int) -> Callable[[], Any]:
    """Return a function that greedily decodes `num_tokens` tokens for random sources without padding."""
    from transformer_jax.decoding.settings import Ends
    from transformer_jax.inspection.decoding_speed import cached_decoder
    from transformer_jax.models.architecture import init_params

    sources = np.random.default_rng(0).integers(4, model.vocab_size, (rows, length)).astype(np.int32)
    decode = DecodeConfig(max_new_tokens=num_tokens, min_length=num_tokens)
    ends = Ends(_EOS, (_PAD,))
    return cached_decoder(model, init_params(model, 0), sources, np.full(rows, length), decode, ends)


def timed(run: Callable[[], Any]) -> float:
    """Return the seconds of a run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median(sample: Callable[[], float], least: float) -> float:
    """Return the median of a measurement that is made three times, or more often until `least` seconds are over."""
    start, found = time.perf_counter(), []
    while len(found) < _LEAST_SAMPLES or time.perf_counter() - start < least:
        found.append(sample())
    return float(np.median(found))


def sampler(setting: Setting, cost: str, name: str, length: int) -> Callable[[], float]:
    """Return a function that measures the seconds of a step or of a token once.

    The time of a token is that of all tokens but the first, whose time includes that of the encoder.
    """
    model, rows = setting.models[name], setting.rows_of(cost, length)
    if cost != TOKEN:
        step = training_step(model, rows, length)
        return lambda: timed(step)
    first, whole = (decoding(model, rows, length, count) for count in (1, length))
    return lambda: (timed(whole) - timed(first)) / (length - 1)


def measure(setting: Setting, turns: int, least: float, costs: Sequence[str] = COSTS) -> list[Row]:
    """Return the seconds of every turn, cost, length and model; a first run of each, which compiles, is not counted."""
    cells = [(cost, length, name) for cost in costs for length in setting.lengths for name in MODELS]
    samplers = {}
    for cost, length, name in cells:
        samplers[cost, length, name] = sampler(setting, cost, name, length)
        samplers[cost, length, name]()
        print(f"compiled: {cost}, {length} tokens, {name}", file=sys.stderr, flush=True)
    rows = []
    for turn in range(turns):
        taken = timed(lambda turn=turn: rows.extend(_turn(turn, samplers, least)))
        print(f"turn {turn + 1} of {turns}: {taken:.0f} s", file=sys.stderr, flush=True)
    return rows


def _turn(turn: int, samplers: Mapping[tuple[str, int, str], Callable[[], float]], least: float) -> Iterator[Row]:
    for (cost, length, name), sample in samplers.items():
        yield Row(turn, cost, name, length, median(sample, least))


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--output", type=Path, required=True, help="folder for the tables and the figure")
    result.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="three or more, from 2 tokens on")
    result.add_argument("--turns", type=int, default=5)
    result.add_argument("--rows", type=int, default=2, help="rows of a batch of a few rows, and of decoding")
    result.add_argument("--tokens", type=int, default=4096, help="of each side of a batch of a fixed number of tokens")
    result.add_argument("--emb_dim", type=int, default=128, help="width of the Transformer, a multiple of 4")
    result.add_argument("--num_layers", type=int, default=2, help="of each stack")
    result.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    result.add_argument("--least", type=float, default=0.3, help="seconds to repeat a short run for, in every turn")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    lengths = sorted(set(arguments.lengths))
    if len(lengths) < LAST or lengths[0] < 2:
        parser().error(f"--lengths={' '.join(map(str, lengths))}: expected three or more lengths, from 2 tokens on")
    if arguments.tokens < lengths[-1]:
        parser().error(f"--tokens={arguments.tokens}: expected at least the greatest length, {lengths[-1]}")
    first = transformer(arguments.emb_dim, arguments.num_layers, lengths[-1] + 1, arguments.dtype)
    models = {TRANSFORMER: first, LSTM: equal_lstm(first)}
    setting = Setting(models, lengths, arguments.rows, arguments.tokens)
    rows = measure(setting, arguments.turns, arguments.least)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "seconds.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows((*row[:-1], f"{row.seconds:.6g}") for row in rows)
    draw(rows, setting, arguments.output / "seconds.svg")
    (arguments.output / "report.md").write_text(report(rows, setting), encoding="utf-8")
    print(answer(rows, setting))
    return 0


if __name__ == "__main__":
    restart_with_huge_pages()
    sys.exit(main())
