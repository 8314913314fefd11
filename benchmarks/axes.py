"""Cost of a design choice: time of a training step, compilation and memory, compared with the model without it.

    python -m benchmarks.axes --shape gpt_small
    python -m benchmarks.axes --only qk_norm,z_loss --seconds 20

Prints a table in Markdown. The two programs of a row run their steps by turns in one process. The time of a step is the
lower quartile, since some steps of both programs are disturbed: on a CPU with huge pages, one of four may take 1.6
times as long. Compilation is the time of the first step less that of the others. Memory is the compiler's figure
for the step besides the state and the batch (its temporary arrays).
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.devices import use_device
from benchmarks.train_step import Run, experiment, sizes
from benchmarks.train_step import parser as train_step_parser
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import UserError
from transformer_jax.host.huge_pages import restart_with_huge_pages

_ROTARY = {"position_encoding": "rotary"}
_SILU = {"activation": "silu"}
AXES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    **{f"norm_position={name}": ({}, {"norm_position": name}) for name in ("post", "sandwich", "output", "peri")},
    "norm_position=deepnorm": ({}, {"norm_position": "deepnorm"}),
    "norm=rmsnorm": ({}, {"norm": "rmsnorm"}),
    "norm=dyt": ({}, {"norm": "dyt", "norm_epsilon": 1e-6}),  # it has none, and this is the default
    **{f"norm_scale={name}": ({}, {"norm_scale": name}) for name in ("none", "offset")},
    **{f"residual_scale={name}": ({}, {"residual_scale": name}) for name in ("scalar", "vector")},
    "residual_multiplier=0.5": ({}, {"residual_multiplier": 0.5}),
    "residual_lambdas": ({}, {"residual_lambdas": True}),
    **{f"parallel={name}": ({}, {"parallel": name}) for name in ("one_norm", "two_norms")},
    **{f"activation={name}": (_SILU, {"activation": name}) for name in ("gelu", "relu2", "swiglu", "swiglu_clamped")},
    **{f"qk_norm={name}": ({}, {"qk_norm": name}) for name in ("rms", "rms_full", "layernorm", "l2")},
    "position_encoding=rotary": ({}, _ROTARY),
    "position_encoding=alibi": ({}, {"position_encoding": "alibi"}),
    "rotary_fraction=0.25": (_ROTARY, {**_ROTARY, "rotary_fraction": 0.25}),
    "attention_multiplier=0.1": ({}, {"attention_multiplier": 0.1}),
    "attention_logit_cap=50": ({}, {"attention_logit_cap": 50.0}),
    **{f"attention_sink={name}": ({}, {"attention_sink": name}) for name in ("zero", "learned")},
    "logits_multiplier=0.5": ({}, {"logits_multiplier": 0.5}),
    "output_logit_cap=30": ({}, {"output_logit_cap": 30.0}),
    "training.z_loss=1e-4": ({}, {"training.z_loss": 1e-4}),
}
"""By name: fields of the model that it is compared with, and its own; `training.NAME` for one of the training."""


def changed(config: ExperimentConfig, fields: Mapping[str, Any]) -> ExperimentConfig:
    """Return the config with other values of some fields, named as in `AXES`."""
    of_training = {name.partition(".")[2]: value for name, value in fields.items() if "." in name}
    of_model = {name: value for name, value in fields.items() if "." not in name}
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **of_model),
        training=dataclasses.replace(config.training, **of_training),
    ).resolved()


def cost(arguments: argparse.Namespace, name: str) -> dict[str, float]:
    """Return what a choice costs, a key of `AXES`; times in seconds, memory in bytes."""
    without, fields = AXES[name]
    config, (rows, widths) = experiment(arguments), sizes(arguments)
    runs = [Run(changed(config, of), rows, widths) for of in (without, fields)]
    times: list[list[float]] = [[], []]
    start = time.perf_counter()
    while len(times[0]) < 8 or time.perf_counter() - start < arguments.seconds:
        for run, of_it in zip(runs, times, strict=True):
            of_it.append(run.step())
    before, after = (float(np.quantile(of_it[3:], 0.25)) for of_it in times)
    memory = [run.temporary_bytes() or math.nan for run in runs]
    return {
        "step": after,
        "step_ratio": after / before,
        "compile": runs[1].first_s - after,
        "compile_ratio": (runs[1].first_s - after) / (runs[0].first_s - before),
        "memory": memory[1],
        "memory_ratio": memory[1] / memory[0],
    }


def parser() -> argparse.ArgumentParser:
    result = train_step_parser()
    result.description = __doc__
    result.set_defaults(shape="gpt_small", seconds=8.0)
    result.add_argument("--only", default="", help="beginnings of the names of rows, separated by commas")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    use_device(arguments.device)
    chosen = tuple(arguments.only.split(","))
    names = [name for name in AXES if name.startswith(chosen)]
    if not names:
        raise SystemExit(f"axes: error: --only={arguments.only}: expected beginnings of {', '.join(AXES)}")
    print("| choice | ms per step | ratio | compilation, s | ratio | temporary memory, MB | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        try:
            of = cost(arguments, name)
        except UserError as error:
            raise SystemExit(f"axes: error: {name}: {error}") from error
        print(
            f"| `{name}` | {of['step'] * 1e3:.1f} | {of['step_ratio']:.3f} | {of['compile']:.1f} "
            f"| {of['compile_ratio']:.2f} | {of['memory'] / 1e6:.1f} | {of['memory_ratio']:.3f} |",
            flush=True,
        )
        jax.clear_caches()


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
