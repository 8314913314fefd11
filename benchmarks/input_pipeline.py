"""Speed and memory of the input: preparation, batches from the cache, planning an epoch, padding, augmented images.

    python -m benchmarks.input_pipeline
    python -m benchmarks.input_pipeline --measure images --config cifar10
    python -m benchmarks.input_pipeline --measure planning --pairs 10000000
    python -m benchmarks.input_pipeline --measure preparation --pairs 10000000

Prints one line of JSON. `batches` and `padding` use the embedded corpus, or the text files train.LOCALE in --dir.
`lines_per_s_and_core` is lines per second of processor time of all threads. `images` has the model, the batches and the
augmentation of a config, and drawn images; `ratio` is batches to steps per second.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shapes import model_config
from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.config_file import read_config
from transformer_jax.data.batching import TrainingBatches
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.datasets import Data, prepare_data
from transformer_jax.data.sources.images.shapes import FIGURES
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS
from transformer_jax.host.huge_pages import restart_with_huge_pages
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.task import TASKS

Result = dict[str, float | int]
_WORDS = 20_000
_CHUNK = 100_000


def peak_mb() -> float:
    """Return the peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _resident_mb() -> float:
    """Return the memory that this process uses now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def corpus(directory: str | None, work: Path) -> Data:
    """Return the corpus on which speed is measured, with a vocabulary of 8,192."""
    source: dict[str, Any] = (
        {"source": "text", "dir": directory, "valid_split": "", "test_split": ""} if directory else {}
    )
    config = ExperimentConfig(model=model_config("tiny"), data=DataConfig(tokenizer="unigram", **source)).resolved()
    return prepare_data(config, TASKS[config.task.name].columns(config), work)


def plan_of(split: EncodedSplit, **fields: Any) -> TrainingBatches:
    """Return the training batches of the translation task. fields: of `DataConfig`."""
    data = DataConfig(tokens_per_batch=4096, max_length=128, row_multiple=8, **fields)
    return training_batches(ExperimentConfig(data=data), split)


def packed_plan_of(split: EncodedSplit) -> TrainingBatches:
    return plan_of(split, batching="packed", packed_length=256)


def batches(directory: str | None, seconds: float) -> Result:
    """Measure how many batches per second the cache yields, and how many the training step of `tiny` consumes."""
    with tempfile.TemporaryDirectory() as work:
        split = corpus(directory, Path(work)).splits["train"]
        plan = plan_of(split, num_buckets=6)
        result: Result = {
            "bucketed_batches_per_s": _batches_per_s(plan, seconds),
            "packed_batches_per_s": _batches_per_s(packed_plan_of(split), seconds),
            "steps_per_s": _steps_per_s(ExperimentConfig(model=model_config("tiny")).resolved(), plan, seconds),
        }
        result["ratio"] = result["bucketed_batches_per_s"] / result["steps_per_s"]
        return result


def _batches_per_s(plan: TrainingBatches, seconds: float) -> float:
    plan.batch(0)  # plans the epoch
    start, step = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        plan.batch(step % plan.batches_per_epoch)
        step += 1
    return step / (time.perf_counter() - start)


def _steps_per_s(config: ExperimentConfig, plan: TrainingBatches, seconds: float) -> float:
    """Return the steps per second of training on the batches of a plan, which are made in between."""
    import jax

    from transformer_jax.training.hyper import split as split_config
    from transformer_jax.training.state import init_state
    from transformer_jax.training.step import make_train_step

    static, hyper = split_config(config)
    train_step = jax.jit(make_train_step(static), donate_argnums=0)
    state = jax.jit(init_state, static_argnums=0)(static, hyper)
    seen: set[Any] = set()
    times: list[float] = []
    number = 0
    while sum(times) < seconds:
        shape = plan.shape(number)
        start = time.perf_counter()
        state, metrics = train_step(state, plan.batch(number), hyper)
        float(metrics["loss"])
        if shape in seen:  # the first batch of a shape includes compilation
            times.append(time.perf_counter() - start)
        seen.add(shape)
        number += 1
    return 1 / float(np.median(times))


def images(spec: str, seconds: float) -> Result:
    """Measure how many batches of augmented images per second are made, and how many the training step consumes.

    Args:
      spec: a config of images; only its corpus is replaced, by 2,048 drawn images in its size and channels.
    """
    config = read_config(spec, {"data.dir": "not-read"})
    model, data = config.model, config.data
    drawn = DataConfig(
        source="shapes",
        num_train_pairs=2_048,
        num_eval_pairs=10,
        batching="rows",
        rows_per_batch=data.rows_per_batch,
        row_multiple=data.row_multiple,
        colours="grey" if model.image_channels == 1 else "rgb",
        resize="squash",
    )
    task = dataclasses.replace(config.task, num_labels=len(FIGURES))
    config = dataclasses.replace(config, data=drawn, task=task).resolved()
    plain = dataclasses.replace(config, task=dataclasses.replace(task, crop_padding=0, flip=False, rand_augment=0))
    with tempfile.TemporaryDirectory() as work:
        data = prepare_data(config, TASKS[task.name].columns(config), Path(work))
        plans = {name: training_batches(of, data.splits["train"]) for name, of in (("", config), ("plain_", plain))}
        result: Result = {f"{name}batches_per_s": _batches_per_s(plan, seconds) for name, plan in plans.items()}
        result["steps_per_s"] = _steps_per_s(config, plans[""], seconds)
        result["ratio"] = result["batches_per_s"] / result["steps_per_s"]
        return result | {"images_per_batch": drawn.rows_per_batch}


def padding(directory: str | None) -> Result:
    """Return the share of slots that hold tokens, at 4,096 tokens per batch: in buckets, and packed in rows of 256."""
    with tempfile.TemporaryDirectory() as work:
        split = corpus(directory, Path(work)).splits["train"]
        efficiencies = {f"buckets_{n}": plan_of(split, num_buckets=n).padding_efficiency for n in (6, 12, 24, 32)}
        return efficiencies | {"packed": packed_plan_of(split).padding_efficiency}


def synthetic(num_pairs: int) -> EncodedSplit:
    """Return pairs with lengths like those of a large corpus; all ids are 5."""
    random = np.random.default_rng(0)
    sides = []
    lengths = np.ones(num_pairs, np.float32)
    for mean, spread in ((2.9, 0.6), (0.05, 0.2)):
        lengths = np.clip(lengths * np.exp(spread * random.standard_normal(num_pairs, np.float32) + mean), 2, 250)
        offsets = np.zeros(num_pairs + 1, np.int64)
        np.cumsum(lengths.astype(np.int32), out=offsets[1:])
        sides.append(RaggedIds(np.full(offsets[-1], 5, np.uint16), offsets))
    return EncodedSplit(dict(zip(("inputs", "targets"), sides, strict=True)), OWN_SPECIAL_IDS)


def planning(num_pairs: int, batching: str) -> Result:
    """Measure the time and memory to plan three epochs of synthetic pairs."""
    split = synthetic(num_pairs)
    result: Result = {"pairs": num_pairs, "mb_before": _resident_mb()}
    start = time.perf_counter()
    plan = plan_of(split, num_buckets=6) if batching == "buckets" else packed_plan_of(split)
    result["plan_s"] = time.perf_counter() - start
    for epoch in (0, 1, 2):
        start = time.perf_counter()
        plan.batch(epoch * plan.batches_per_epoch)
        result[f"epoch_{epoch}_s"] = time.perf_counter() - start
        result[f"epoch_{epoch}_mb"] = _resident_mb()
    return result | {"peak_mb": peak_mb(), "padding_efficiency": plan.padding_efficiency}


def preparation(num_pairs: int, kind: str) -> Result:
    """Measure training a tokenizer and building the token cache, on `num_pairs` pairs of random words."""
    random = np.random.default_rng(0)
    letters = np.array(list("eeeennnniiissssrrrtttaaadhulcgmobwfkzpv"))
    words = ["".join(random.choice(letters, n)) for n in random.integers(2, 11, _WORDS)]
    frequencies = 1 / np.arange(1, _WORDS + 1)
    with tempfile.TemporaryDirectory() as work:
        for locale in ("en", "de"):
            with (Path(work) / f"train.{locale}").open("w") as file:
                for start in range(0, num_pairs, _CHUNK):
                    count = min(_CHUNK, num_pairs - start)
                    lengths = np.clip(random.lognormal(2.5, 0.5, count), 1, 90).astype(int)
                    drawn = iter(random.choice(_WORDS, lengths.sum(), p=frequencies / frequencies.sum()).tolist())
                    file.writelines(" ".join(words[next(drawn)] for _ in range(n)) + "\n" for n in lengths)
        config = ExperimentConfig(
            model=model_config("tiny"),
            data=DataConfig(source="text", dir=work, valid_split="", test_split="", tokenizer=kind),
        ).resolved()
        result: Result = {"pairs": num_pairs}
        start = time.perf_counter()
        data = prepare_data(config, TASKS[config.task.name].columns(config), Path(work) / "prepared")
        result["tokenizer_s"] = time.perf_counter() - start
        start, processor = time.perf_counter(), time.process_time()
        split = data.splits["train"]
        result["cache_s"] = time.perf_counter() - start
        result["lines_per_s"] = 2 * num_pairs / result["cache_s"]
        result["lines_per_s_and_core"] = 2 * num_pairs / (time.process_time() - processor)
        result["tokens"] = int(sum(split.lengths(name).sum(dtype=np.int64) for name in ("inputs", "targets")))
        result["peak_mb"] = peak_mb()
        return result


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "--measure", choices=("batches", "padding", "planning", "preparation", "images"), default="batches"
    )
    result.add_argument("--dir", help="folder of train.en and train.de; default: the embedded corpus")
    result.add_argument("--seconds", type=float, default=10.0, help="`batches`, `images`: time for each of the three")
    result.add_argument("--config", default="mnist", help="`images`: a config of images")
    result.add_argument("--pairs", type=int, default=1_000_000, help="`planning`, `preparation`: synthetic pairs")
    result.add_argument(
        "--batching", choices=("buckets", "packed"), default="buckets", help="`planning`: of which plan"
    )
    result.add_argument("--tokenizer", choices=("unigram", "bpe", "byte_bpe", "words"), default="unigram")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    values = parser().parse_args(argv)
    measured = {
        "batches": lambda: batches(values.dir, values.seconds),
        "padding": lambda: padding(values.dir),
        "planning": lambda: planning(values.pairs, values.batching),
        "preparation": lambda: preparation(values.pairs, values.tokenizer),
        "images": lambda: images(values.config, values.seconds),
    }
    print(json.dumps(measured[values.measure]()))


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
