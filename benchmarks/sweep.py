"""Time of a sweep with one process per trial (`local`) and with all trials in one program (`vmap`).

    python -m benchmarks.sweep --shape tiny --trials 12 --steps 100
    python -m benchmarks.sweep --executors vmap --trials 16 --steps 1000

Trials differ in seed and learning rate. Each executor runs `sweep` and `report` with an empty work directory and an
empty compilation cache; executors alternate for `--rounds` rounds. Prints one JSON object. `seconds`: from the command
to the report, per executor and round. `tokens_per_s`: target tokens of all trials per second of training in the last
logged windows, when everything is compiled (trials of one program each log their share of the time). If both executors
run, two ratios compare `local` and `vmap`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shapes import SHAPES
from transformer_jax import metrics_file

ROOT = Path(__file__).resolve().parent.parent
EXECUTORS = ("local", "vmap")
_RATES = (1e-3, 2e-3)

_STUDY = """
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study(
    question="How long does it take?",
    baseline={baseline!r},
    axes=(over("optimizer.learning_rate", {rates}),),
    seeds=tuple(range({seeds})),
    settings={settings!r},
    metrics=(Metric("test/loss", "min"),),
)
"""


def write_study(folder: Path, shape: str, trials: int, steps: int) -> Path:
    """Write a study with so many trials to `folder`/experiments/speed and return its folder."""
    settings: dict[str, Any] = {f"model.{name}": value for name, value in SHAPES[shape].items()} | {
        "data.num_eval_pairs": 100,
        "data.num_train_pairs": 20_000,
        "training.num_train_steps": steps,
        "optimizer.warmup_steps": steps // 5,
        "training.log_every_steps": max(steps // 4, 1),
        "training.eval_every_steps": steps,
        "training.checkpoint_every_steps": steps,
    }
    study = folder / "experiments" / "speed"
    study.mkdir(parents=True)
    rates = ", ".join(map(str, _RATES))
    baseline = str(ROOT / "configs" / "quickstart.py")
    text = _STUDY.format(baseline=baseline, rates=rates, seeds=trials // len(_RATES), settings=settings)
    (study / "study.py").write_text(text)
    return study


def run(study: Path, trials: int, executor: str, num_workers: int) -> tuple[float, float]:
    """Return seconds from the command to the report, and tokens per second once everything is compiled."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(Path(folder) / "compiled")}
        command = [sys.executable, "-m", "transformer_jax"]
        workdir = Path(folder) / "study"
        workers = [f"--num_workers={num_workers}"]
        together = [f"--max_together={trials}"] if executor == "vmap" else []
        start = time.perf_counter()
        for words in (
            ["sweep", f"--study={study}", f"--workdir={workdir}", f"--executor={executor}", *workers, *together],
            ["report", f"--workdir={workdir}"],
        ):
            subprocess.run([*command, *words], cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        speeds = [_last_speed(log) for log in workdir.glob(f"trials/*/{metrics_file.NAME}")]
    return seconds, statistics.mean(speeds) * num_workers


def _last_speed(log: Path) -> float:
    return [line["tokens_per_s"] for line in metrics_file.read_lines(log) if line["split"] == "train"][-1]


def measure(
    shape: str, trials: int, steps: int, rounds: int, num_workers: int, executors: Sequence[str] = EXECUTORS
) -> dict[str, Any]:
    found: dict[str, list[tuple[float, float]]] = {executor: [] for executor in executors}
    with tempfile.TemporaryDirectory() as folder:
        study = write_study(Path(folder), shape, trials, steps)
        for _ in range(rounds):
            for executor in executors:
                found[executor].append(run(study, trials, executor, num_workers if executor == "local" else 1))
    seconds = {executor: [round(taken, 1) for taken, _ in runs] for executor, runs in found.items()}
    speeds = {executor: statistics.median(speed for _, speed in runs) for executor, runs in found.items()}
    result = {
        "shape": shape,
        "trials": trials,
        "steps": steps,
        "num_workers": num_workers,
        "seconds": seconds,
        "tokens_per_s": {executor: round(speed) for executor, speed in speeds.items()},
    }
    if set(executors) < set(EXECUTORS):
        return result
    return result | {
        "local_to_vmap_seconds": round(statistics.median(seconds["local"]) / statistics.median(seconds["vmap"]), 2),
        "vmap_to_local_tokens_per_s": round(speeds["vmap"] / speeds["local"], 2),
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--shape", choices=tuple(SHAPES), default="tiny")
    result.add_argument("--trials", type=int, default=12, help=f"a multiple of {len(_RATES)}, the learning rates")
    result.add_argument("--steps", type=int, default=100)
    result.add_argument("--rounds", type=int, default=2)
    result.add_argument("--executors", nargs="+", choices=EXECUTORS, default=EXECUTORS, help="default: both, by turns")
    result.add_argument("--num_workers", type=int, default=1, help="processes that `local` runs at once")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    if arguments.trials < 1 or arguments.trials % len(_RATES):
        parser().error(f"--trials={arguments.trials}: expected a multiple of {len(_RATES)}")
    print(json.dumps(measure(**vars(arguments)), indent=2))


if __name__ == "__main__":
    main()
