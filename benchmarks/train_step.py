"""Speed of the training step: forward, backward, clipping and Adam, with dropout and label smoothing.

    python -m benchmarks.train_step --shape small
    python -m benchmarks.train_step --shape transformer_big --device gpu --dtype bfloat16

Prints one line of JSON: target tokens per second; GFLOP/s of the model's own arithmetic and, on a device whose peak is
known, its share of the peak (MFU, Chowdhery et al. 2022, appendix B: recomputation does not count); seconds to compile;
peak memory of the device, or on a CPU of the process. The loss is fetched after every step, as in a loop that logs
every step. Published models have dropout only on embeddings and sub-layers. Language models have it on attention
weights too (`gpt_char` has none), and no label smoothing. BERT has the same, T5 drops feed-forward activations and the
output of each stack too, the GRU drops embeddings alone and ViT nothing; these have no label smoothing. The other
shapes drop feed-forward activations.

With --against_monitored, `monitor_cost_every_50` is the share of time that a monitored step every 50 steps adds.

The target tokens of `bert_small` are all tokens of its rows, of which 15 % are predicted. `vit_tiny` has images
of 32 x 32 pixels, and prints images per second.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.devices import device_flag, peak_flops, use_device
from benchmarks.shapes import FAMILIES, LANGUAGE_MODELS, PUBLISHED, model_config, names, task
from transformer_jax.config import (
    DROPOUT_RATES,
    DataConfig,
    ExperimentConfig,
    ParallelConfig,
    TaskConfig,
    TrainingConfig,
)
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.host.huge_pages import restart_with_huge_pages
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.tasks.flops import step_flops
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.hyper import split
from transformer_jax.training.state import placed_state, state_shapes
from transformer_jax.training.step import make_train_step, monitored

_BATCHES = {
    **{"tiny": (128, 32), "small": (64, 32), "base": (16, 64)},
    **{"gpt_char": (12, 64), "gpt_small": (8, 256), "gpt_124m": (1, 256)},
    **{"bert_small": (32, 128), "t5_small": (32, 32), "vit_tiny": (64, 65), "gru_attention": (64, 32)},
    **{"transformer_base": (256, 256), "transformer_big": (128, 256)},
}
"""Rows, and tokens of each side (of images: patches and class token), by shape."""
_SOURCE_LENGTHS = {"t5_small": 128}
"""Tokens of the source, where they are not as many as those of the target."""


def experiment(arguments: argparse.Namespace) -> ExperimentConfig:
    """Return the resolved config of the run to measure."""
    chosen = ("dtype", "scan_layers", "remat", "attention_implementation", "layer_pattern", "layer_kinds")
    fields = {name: getattr(arguments, name) for name in chosen}
    rate = arguments.dropout_rate
    if arguments.shape in FAMILIES and rate is not None:
        rates = {name: rate for name in DROPOUT_RATES if getattr(model_config(arguments.shape), name)}
    elif arguments.shape in FAMILIES:
        rates = {}
    elif arguments.shape in LANGUAGE_MODELS:
        rates = {} if rate is None else {"dropout_rate": rate, "attention_dropout_rate": rate}
    elif arguments.shape in PUBLISHED:
        rates = {"attention_dropout_rate": 0.0} | ({} if rate is None else {"dropout_rate": rate})
    else:
        places = ("dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
        rates = dict.fromkeys(places, 0.1 if rate is None else rate)
    if arguments.num_layers is not None:
        stacks = model_config(arguments.shape).stacks
        fields |= {f"num_{stack}_layers": arguments.num_layers for stack in stacks}
    model = model_config(arguments.shape, **rates, **fields)
    batch, widths = sizes(arguments)
    length = max(widths.values())
    if task(arguments.shape) == "images":
        of_task = TaskConfig(name="images", num_labels=10)
        data = DataConfig(source="shapes", batching="rows", rows_per_batch=batch)
    else:
        of_task = TaskConfig(name=task(arguments.shape))
        data = DataConfig(row_multiple=batch, max_length=length, tokens_per_batch=max(batch * length, 16))
        model = dataclasses.replace(model, max_length=max(model.max_length, length))
    return ExperimentConfig(
        task=of_task,
        model=model,
        data=data,
        training=TrainingConfig(
            loss_chunks=arguments.loss_chunks,
            accumulation_steps=arguments.accumulation_steps,
            label_smoothing=0.0 if arguments.shape in (*LANGUAGE_MODELS, *FAMILIES) else 0.1,
        ),
        parallel=ParallelConfig(launcher=arguments.launcher, fsdp=arguments.fsdp, tensor=arguments.tensor),
    ).resolved()


def sizes(arguments: argparse.Namespace) -> tuple[int, dict[str, int]]:
    """Return the rows of a batch, and the tokens of each side by the name of its array."""
    batch, length = _BATCHES[arguments.shape]
    if task(arguments.shape) == "images":
        if arguments.length is not None:
            raise ConfigError(f"--length={arguments.length}: the length of {arguments.shape} follows from its images")
        return arguments.batch or batch, {"inputs": length}
    widths = {"targets": arguments.length or length}
    if task(arguments.shape) != "language_model":
        widths["inputs"] = arguments.length or _SOURCE_LENGTHS.get(arguments.shape, length)
    return arguments.batch or batch, widths


class Run:
    """A compiled training step on one batch; `first_s`: seconds of the first step, compilation included.

    rows, widths: as `sizes` returns them. monitors: whether it is a monitored step, all of whose metrics are fetched.
    """

    def __init__(self, config: ExperimentConfig, rows: int, widths: Mapping[str, int], monitors: bool = False) -> None:
        self.config = config
        static, self._hyper = split(self.config)
        static, self._monitors = monitored(static) if monitors else static, monitors
        model = self.config.model
        architecture = ARCHITECTURES[model.architecture]
        axes = architecture.parameter_axes(model)
        self._launcher = make_launcher(self.config, make_train_step(static), axes)
        places = self._launcher.shardings(state_shapes(static, self._hyper))
        self._state = placed_state(static, self._hyper, places)
        self.num_params = sum(leaf.size for leaf in jax.tree.leaves(self._state.params))
        self._batch = _batch(self.config, rows, widths)
        flops = step_flops(self.config, rows, widths)
        assert flops is not None
        self.flops = flops
        self.first_s = self.step()

    def step(self) -> float:
        """Run one step and return its seconds, including the transfer of its loss."""
        start = time.perf_counter()
        self._state, metrics = self._launcher.step(self._state, self._batch, self._hyper)
        jax.device_get(metrics) if self._monitors else float(metrics["loss"])
        return time.perf_counter() - start

    def temporary_bytes(self) -> int | None:
        """Return the bytes of the step's temporary arrays by the compiler's account, which compiles it once more."""
        memory = self._launcher.lower(self._state, self._batch, self._hyper).compile().memory_analysis()
        return None if memory is None else memory.temp_size_in_bytes


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Compile the step for a shape, run it for about `seconds` and return its figures."""
    batch_size, widths = sizes(arguments)
    run = Run(experiment(arguments), batch_size, widths)
    runs = [run]
    if arguments.against_no_dropout:
        without = experiment(argparse.Namespace(**{**vars(arguments), "dropout_rate": 0.0}))
        runs.append(Run(without, batch_size, widths))
    if arguments.against_monitored:
        runs.append(Run(run.config, batch_size, widths, monitors=True))
    times: list[list[float]] = [[] for _ in runs]
    start = time.perf_counter()
    while len(times[0]) < 8 or time.perf_counter() - start < arguments.seconds:
        for each, of_it in zip(runs, times, strict=True):
            of_it.append(each.step())
    step_s, *others = (float(np.median(of_it[3:])) for of_it in times)
    compared: dict[str, float] = {}
    if arguments.against_monitored:
        monitored_s = others.pop()
        compared |= {"ms_monitored": monitored_s * 1e3, "monitor_cost_every_50": (monitored_s / step_s - 1) / 50}
    if arguments.against_no_dropout:
        [other_s] = others
        compared |= {"ms_without_dropout": other_s * 1e3, "dropout_cost": step_s / other_s - 1}
    device, count = jax.devices()[0], jax.device_count()
    model = run.config.model
    images = task(arguments.shape) == "images"
    length = widths["inputs" if images else "targets"]
    rate = {"images_per_s": batch_size / step_s} if images else {"target_tokens_per_s": batch_size * length / step_s}
    peak, memory = peak_flops(device.device_kind), (device.memory_stats() or {}).get("peak_bytes_in_use")
    return {
        "shape": arguments.shape,
        "parameters": run.num_params,
        "device": device.device_kind,
        "devices": count,
        "launcher": arguments.launcher,
        "batch": batch_size,
        "length": length,
        "num_layers": model.num_encoder_layers if model.architecture == "encoder_only" else model.num_decoder_layers,
        "dtype": arguments.dtype,
        "dropout_rate": run.config.model.dropout_rate,
        "scan_layers": arguments.scan_layers,
        "layer_pattern": arguments.layer_pattern,
        "remat": arguments.remat,
        "loss_chunks": arguments.loss_chunks,
        "attention_implementation": arguments.attention_implementation,
        "ms": step_s * 1e3,
        "steps": len(times[0]) - 3,
        **compared,
        **rate,
        "gflops": run.flops / step_s / 1e9,
        "mfu": run.flops / step_s / (peak * count) if peak is not None else None,
        "compile_s": run.first_s - step_s,
        "peak_memory_mb": memory / 2**20 if memory else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }


def _batch(config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return a batch of random ids without padding; a masked language model predicts 15 % of the tokens of a row."""
    rng, by_task = np.random.default_rng(0), TASKS[config.task.name]
    if config.task.name == "masked_lm":
        allowed = by_task.widths(config, widths["inputs"])
        assert allowed is not None
        widths = allowed
    template = by_task.batch_template(config, rows, widths)
    assert template is not None
    batch = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in template.items()}
    batch["row_ids"] = np.arange(rows, dtype=np.int32)
    if config.task.name == "images":
        images = rng.integers(256, size=batch["inputs"].shape, dtype=np.uint8)
        return batch | {"inputs": images, "targets": rng.integers(config.task.num_labels, size=rows, dtype=np.int32)}
    for name in ("inputs", "targets"):
        if name in batch:
            batch[name] = rng.integers(4, config.model.vocab_size, batch[name].shape).astype(np.int32)
    if "decoder_inputs" in batch:
        start = config.model.decoder_start_id
        batch["decoder_inputs"] = np.pad(batch["targets"][:, :-1], ((0, 0), (1, 0)), constant_values=start)
    if "places" in batch:
        count = round(config.task.mask_rate * widths["inputs"])
        chosen = rng.permuted(np.tile(np.arange(widths["inputs"]), (rows, 1)), axis=1)[:, : widths["targets"]]
        batch["places"] = np.sort(chosen, axis=1).astype(np.int32)
        batch["weights"] *= np.arange(widths["targets"]) < count
    return batch


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--shape", choices=names(), default="small")
    device_flag(result)
    result.add_argument("--batch", type=int, help="rows; default depends on the shape")
    result.add_argument("--length", type=int, help="tokens of each side; default depends on the shape")
    result.add_argument("--num_layers", type=int, help="of each stack; default depends on the shape")
    result.add_argument("--seconds", type=float, default=20.0, help="time to run steps for, after compilation")
    result.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    result.add_argument("--dropout_rate", type=float, help="default: 0.1, or that of the published model")
    result.add_argument("--against_no_dropout", action="store_true", help="time steps without dropout by turns")
    result.add_argument(
        "--against_monitored", action="store_true", help="time monitored steps by turns, docs/training.md"
    )
    result.add_argument("--scan_layers", action="store_true", help="loop over layers instead of unrolling them")
    result.add_argument("--layer_pattern", default="", help="layers that differ, as model.layer_pattern")
    result.add_argument("--layer_kinds", default="", help="what its letters change, as model.layer_kinds")
    result.add_argument("--remat", choices=("none", "dots", "full"), default="none")
    result.add_argument("--loss_chunks", type=int, default=1)
    result.add_argument("--accumulation_steps", type=int, default=1)
    result.add_argument("--attention_implementation", choices=("auto", "reference", "xla", "cudnn"), default="auto")
    result.add_argument("--launcher", choices=("jit", "shard_map", "pmap"), default="jit")
    result.add_argument("--fsdp", type=int, default=1)
    result.add_argument("--tensor", type=int, default=1)
    return result


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    use_device(arguments.device)
    try:
        print(json.dumps(measure(arguments)))
    except UserError as error:
        raise SystemExit(f"train_step: error: {error}") from error


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
