"""A study whose workers, and the sweep itself, are killed with SIGKILL has the results of an undisturbed one.

    python tests/sweeps/test_killed_workers.py --trials=12 --steps=3000 --every=30 --executor=local

kills a worker at random moments, `--every` seconds apart on average, and compares every trial with an undisturbed
study.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # also when run as a program

from run_support import ROOT, write_corpus

from transformer_jax.cli.main import main as main_command
from transformer_jax.sweeps.report.answer import answer
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.summary import summarise

STUDY = """
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study(
    question="Does it come through?",
    baseline={baseline!r},
    axes=(over("model.dropout_rate", 0.1, 0.2),),
    contrasts=("dropout_rate",),
    seeds=tuple(range({seeds})),
    settings={settings!r},
    metrics=(Metric("test/loss", "min"), Metric("test/exact_match", "max"), Metric("train/loss", "min")),
)
"""


def write_study(folder: Path, trials: int, steps: int) -> Path:
    corpus = write_corpus(folder / "corpus")
    study = folder / "experiments" / "killed"
    study.mkdir(parents=True)
    settings = {
        "data.dir": str(corpus),
        "training.num_train_steps": steps,
        "training.checkpoint_every_steps": max(steps // 20, 1),
        "training.eval_every_steps": max(steps // 4, 1),
    }
    text = STUDY.format(baseline=str(corpus / "tiny.py"), seeds=trials // 2, settings=settings)
    (study / "study.py").write_text(text)
    return study


def start(study: Path, workdir: Path, *flags: str) -> subprocess.Popen[bytes]:
    words = ["sweep", f"--study={study}", f"--workdir={workdir}", *flags]
    with workdir.with_suffix(".log").open("ab") as log:
        command = [sys.executable, "-m", "transformer_jax", *words]
        return subprocess.Popen(command, cwd=ROOT, stderr=log, stdout=log, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def workers(workdir: Path) -> list[int]:
    """Return the processes that train in the trials of a study."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "transformer_jax.sweeps.worker" in words and any(w.startswith(str(workdir)) for w in words):
                found.append(int(folder.name))
    return found


def results(workdir: Path) -> dict[str, object]:
    """Return the results of every trial without values that depend on the clock."""
    found = {}
    for file in sorted(workdir.glob("trials/*/result.json")):
        values = json.loads(file.read_text())
        del values["seconds"], values["log_sha256"], values["checksum"]
        found[file.parent.name] = values
    return found


def run_killed(study: Path, workdir: Path, every: float, random_: random.Random, *flags: str) -> int:
    """Run a study to its end and kill its workers now and then; return how often."""
    process, count = start(study, workdir, *flags), 0
    due = time.monotonic() + random_.uniform(0, 2 * every)
    while process.poll() is None:
        time.sleep(0.05)
        if time.monotonic() >= due and (alive := workers(workdir)):
            os.kill(random_.choice(alive), signal.SIGKILL)
            count += 1
            due = time.monotonic() + random_.uniform(0, 2 * every)
    assert process.returncode == 0, workdir.with_suffix(".log").read_text()
    return count


@pytest.mark.slow
def test_a_worker_and_then_the_sweep_are_killed(tmp_path):
    """Each while a trial trains: the next sweep waits for processes of the killed one, and nothing is trained twice."""
    study = write_study(tmp_path, 2, 60)
    assert start(study, tmp_path / "expected").wait(timeout=300) == 0

    def checkpoints():
        return len(list((tmp_path / "run").glob("trials/*/checkpoints/[0-9]*")))

    process = start(study, tmp_path / "run")
    victims = iter(["worker", "sweep"])
    victim = next(victims)
    while process.poll() is None:
        time.sleep(0.01)
        if victim == "worker" and checkpoints() >= 1:
            os.kill(workers(tmp_path / "run")[0], signal.SIGKILL)
            victim = next(victims)
        elif victim == "sweep" and checkpoints() >= 3:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert start(study, tmp_path / "run").wait(timeout=300) == 0
    assert results(tmp_path / "run") == results(tmp_path / "expected")
    assert len(results(tmp_path / "run")) == 2
    log = (tmp_path / "run.log").read_text()
    assert "its process exited with code -9 and is started again" in log


@pytest.mark.slow
def test_a_worker_and_then_the_sweep_are_killed_while_added_seeds_train(tmp_path):
    """The width needs more than the one seed that --max_seeds allows beside the pilot; the reports are the same."""
    study, flags = write_study(tmp_path, 10, 20), ("--until=test/loss: 1e-6", "--max_seeds=6")
    assert start(study, tmp_path / "expected", "--executor=vmap").wait(timeout=600) == 0
    shutil.copytree(tmp_path / "expected", tmp_path / "run")
    assert start(study, tmp_path / "expected", *flags).wait(timeout=300) == 0

    def checkpoints():
        return len(list((tmp_path / "run").glob("trials/*seed=5/checkpoints/[0-9]*")))

    process = start(study, tmp_path / "run", *flags)
    victims = iter(["worker", "sweep"])
    victim = next(victims)
    while process.poll() is None:
        time.sleep(0.01)
        if victim == "worker" and checkpoints() >= 1:
            os.kill(workers(tmp_path / "run")[0], signal.SIGKILL)
            victim = next(victims)
        elif victim == "sweep" and checkpoints() >= 3:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert start(study, tmp_path / "run", *flags).wait(timeout=300) == 0
    assert results(tmp_path / "run") == results(tmp_path / "expected")
    assert len(results(tmp_path / "run")) == 12
    reports = []
    for name in ("run", "expected"):
        assert main_command(["report", f"--workdir={tmp_path / name}"]) == 0
        files = ("summary.csv", "contrasts.csv", "example_noise.csv", "tables.tex")
        found = collect(tmp_path / name)
        said = answer(found, summarise(found), effects(found))
        reports.append((said, *((tmp_path / name / "report" / file).read_bytes() for file in files)))
    assert reports[0] == reports[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two kills in the mean")
    parser.add_argument("--executor", default="local")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study, flag = write_study(folder, arguments.trials, arguments.steps), f"--executor={arguments.executor}"
        begin = time.monotonic()
        assert start(study, folder / "expected", flag).wait() == 0, (folder / "expected.log").read_text()
        print(f"undisturbed: {time.monotonic() - begin:.0f} s", flush=True)
        begin = time.monotonic()
        count = run_killed(study, folder / "killed", arguments.every, random.Random(arguments.seed), flag)
        taken = time.monotonic() - begin
        expected = results(folder / "expected")
        assert len(expected) == arguments.trials
        assert results(folder / "killed") == expected
        print(f"{count} workers killed in {taken:.0f} s: {len(expected)} trials, all the same in the end")


if __name__ == "__main__":
    main()
