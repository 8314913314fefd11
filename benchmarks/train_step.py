"""Speed of the training step: forward, backward, clipping and Adam, with dropout everywhere and label smoothing.

    python -m benchmarks.train_step --shape small

prints one line of JSON: target tokens per second, GFLOP/s of the model's own arithmetic, seconds to compile, peak
memory of the process. The loss is fetched after every step, as a loop that logs every step would.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence

import jax
import numpy as np

from benchmarks.shapes import SHAPES, model_config
from transformer_jax.config import ExperimentConfig
from transformer_jax.huge_pages import restart_with_huge_pages
from transformer_jax.models.flops import train_flops
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

_BATCHES = {"tiny": (128, 32), "small": (64, 32), "base": (16, 64)}
"""Sentences, and tokens of source and target."""
RATE = 0.1


def measure(shape: str, seconds: float, dtype: str, scan_layers: bool) -> dict[str, float | int | str]:
    """Compiles the step for a shape and runs it for about `seconds`."""
    batch_size, length = _BATCHES[shape]
    model = model_config(
        shape,
        dropout_rate=RATE,
        attention_dropout_rate=RATE,
        activation_dropout_rate=RATE,
        dtype=dtype,
        scan_layers=scan_layers,
    )
    config = ExperimentConfig(model=model).resolved()
    static, hyper = split(config)
    state = jax.jit(init_state, static_argnums=0)(static, hyper)
    random = np.random.default_rng(0)
    ids = random.integers(4, model.vocab_size, (2, batch_size, length)).astype(np.int32)
    batch = {"inputs": ids[0], "targets": ids[1], "row_ids": np.arange(batch_size, dtype=np.int32)}
    train_step = make_train_step(static)
    start = time.perf_counter()
    compiled = jax.jit(lambda s, b, h: train_step(s, b, h), donate_argnums=0).lower(state, batch, hyper).compile()
    compile_s = time.perf_counter() - start
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 8 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        state, metrics = compiled(state, batch, hyper)
        float(metrics["loss"])
        times.append(time.perf_counter() - begin)
    step_s = float(np.median(times[3:]))
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")
    peak = memory / 2**20 if memory else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {
        "shape": shape,
        "device": device.device_kind,
        "dtype": dtype,
        "scan_layers": scan_layers,
        "ms": step_s * 1e3,
        "steps": len(times) - 3,
        "target_tokens_per_s": batch_size * length / step_s,
        "gflops": train_flops(config.model, batch_size, length, length) / step_s / 1e9,
        "compile_s": compile_s,
        "peak_memory_mb": peak,
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--shape", choices=SHAPES, default="small")
    result.add_argument("--seconds", type=float, default=20.0, help="time to run steps for, after compilation")
    result.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    result.add_argument("--scan_layers", action="store_true", help="loop over layers instead of unrolling them")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    print(json.dumps(measure(**vars(parser().parse_args(argv)))))


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
