"""Work directories of studies with made-up files: no trial is trained."""

import dataclasses
import itertools
import math
from pathlib import Path

from log_support import log_of

from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.metrics_file import digest
from transformer_jax.sweeps.contrasts import Term, difference_by_seed
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.results import TRIALS, Result, claim_sweep, write_spec
from transformer_jax.sweeps.statistics import mean_difference
from transformer_jax.sweeps.study import Axis, load_study
from transformer_jax.sweeps.study_json import declaration_of
from transformer_jax.sweeps.trials import Trial, grid

BASELINE = """
from transformer_jax.config import *


def get_config(arg=""):
    sizes = dict(vocab_size=290, emb_dim=16, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1, max_length=48)
    return ExperimentConfig(model=ModelConfig(num_heads=2, **sizes)).to_config_dict()
"""
STUDY = """
from transformer_jax.sweeps.figures import *
from transformer_jax.sweeps.study import *

STUDY = Study(
    question="Is it <b>heads</b> & *what* else? <script>alert(1)</script>",
    baseline="tiny.py",
    axes=(over("model.num_heads", 1, 2, 4, 8, 16),),
    metrics=(Metric("test/exact_match", "max"), Metric("test/loss", "min")),
    FIELDS
)
"""
CROSSED = STUDY.replace(
    'axes=(over("model.num_heads", 1, 2, 4, 8, 16),),',
    """axes=(over("model.num_heads", 1, 2, 4), over("model.norm_position", "pre", "post", name="norm")),
    contrasts=("num_heads", "norm"), reference={"norm": "post"},""",
)
NAMES = [f"num_heads={heads}" for heads in (1, 2, 4, 8, 16)]
DIVERGED = "num_heads=4,seed=1"


def write_study(root: Path, fields: str = "", text: str = STUDY) -> Path:
    """Write ROOT/tiny.py and ROOT/experiments/heads/study.py, and return the study's folder."""
    folder = root / "experiments" / "heads"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "tiny.py").write_text(BASELINE)
    (folder / "study.py").write_text(text.replace("FIELDS", fields))
    return folder


def metrics_of(index: int, seed: int) -> dict[str, float]:
    """Return the metrics of the index-th variant; they include a seed effect and bins whose names sort at both ends."""
    loss = 0.1 + 0.15 * index + 0.031 * seed + 0.01 * math.sin(7 * index + 3 * seed)
    bins = {f"test[{name}]/exact_match": 90 - 9.7 * at - index for at, name in enumerate(("1-5", "6-10", "11+"))}
    return {"test/exact_match": 100 * math.exp(-loss), "test/loss": loss, **dict(reversed(bins.items()))}


def write_trial(trial: Trial, metrics, folder: Path, index: int, status: str | None = "finished", why="") -> None:
    """Write the files of a trial; without a status it has no result."""
    write_spec(folder, trial, metrics)
    with open_workdir(folder, trial.config.to_dict()) as opened:
        opened.write_config()
    steps = range(10, 60 if status == "finished" else 40, 10)
    with log_of(folder, 0) as log:
        for step in steps:
            loss = 3 / step + metrics_of(index, trial.seed)["test/loss"]
            log.write(step, "train", {"loss": loss, "gradient_norm": 1 + index / step, "seconds": 1.5})
            log.write(step, "valid", {"loss": loss + 0.1, "by_length": {"1-5": 1.0}})
    numbers = metrics_of(index, trial.seed) if status == "finished" else {}
    machine, versions = "1 x <cpu>", {"jax": "0.10.2", "python": "3.11.9"}
    if status is not None:
        of = trial.labels, trial.seed, status, why, numbers, max(steps), 7.5, 1000 + index, machine, versions
        Result(*of, digest(folder / "metrics.jsonl")).write(folder)


def write_workdir(root: Path, fields: str = "", text: str = STUDY) -> tuple[Path, Path]:
    """Write a study of 5 variants with 3 seeds, one trial diverged; return its work directory and its folder."""
    folder, workdir = write_study(root, fields, text), root / "runs" / "heads"
    study = load_study(folder)
    claim_sweep(workdir, folder, declaration_of(study))
    trials = grid(study, {"data.cache_dir": str(workdir / "token_cache"), "model.mlp_dim": "40"}).trials
    order = list(dict.fromkeys(trial.variant for trial in trials))
    for trial in trials:
        place = workdir / TRIALS / trial.name
        lost = trial.name == DIVERGED
        why = f"loss is nan; its batch is in {place}/<batch>" if lost else ""
        write_trial(trial, study.metrics, place, order.index(trial.variant), "diverged" if lost else "finished", why)
    return workdir, folder


def crossed(made, axes, level=lambda number: 0.0):
    """Return results of all combinations of values; the loss of the n-th variant is raised by level(n)."""
    variants = []
    for number, values in enumerate(itertools.product(*axes.values())):
        trials = []
        for trial in made.variants[0].trials:
            raised = {name: value + level(number) for name, value in trial.metrics.items()}
            lines = [{**line, "loss": line["loss"] + level(number)} for line in trial.log_lines]
            result = dataclasses.replace(trial.result, metrics=raised)
            folder = trial.folder / str(number)
            trials.append(dataclasses.replace(trial, folder=folder, recorded_lines=lines, result=result))
        variants.append(Variant(dict(zip(axes, values, strict=True)), tuple(trials), made.study.seeds))
    study = dataclasses.replace(made.study, figures=())
    named = []
    for name, values in axes.items():
        axis = Axis(name, {"a": {}, "b": {}})
        object.__setattr__(axis, "values", {value: {} for value in values})
        named.append(axis)
    object.__setattr__(study, "axes", tuple(named))
    return dataclasses.replace(made, study=study, variants=tuple(variants))


def paired_difference(values, reference):
    """Return the difference of values by seed to those of a reference, over the seeds of both."""
    by_seed = difference_by_seed((Term(1, {}), Term(-1, {})), (values, reference))
    magnitude = max((abs(values[seed]) + abs(reference[seed]) for seed in by_seed), default=0.0)
    return mean_difference([*by_seed.values()], magnitude)
