"""Commands that are killed with SIGKILL, as by a crash of the machine, and repeated.

    python tests/test_kill.py train --runs=20 --seed=1
    python tests/test_kill.py generate --runs=20 --seed=1
    python tests/test_kill.py predict --runs=20 --seed=1

kills that many runs twice each, at random moments, and compares each with the uninterrupted one. The runs of `train`
take turns over the tasks of TRAINED.
"""

import argparse
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kinds_support import trained_kind, write_kind
from run_support import (
    ROOT,
    argv,
    assert_same_run,
    run_main,
    saved_steps,
    subprocess_main,
    train,
    trained_folder,
)

from transformer_jax.cli import predict
from transformer_jax.host import exit_codes, kill_points
from transformer_jax.tasks.trained.text_generator import CHUNK

# Where a process dies, a task, and the checkpoints that may be complete by then; they are written in the background.
PLACES = {
    "after_batch:7": ("recurrent", ([], [5])),
    "inside_save:8": ("masked_lm", ([5],)),
    "before_commit:5": ("images", ([],)),
    "inside_evaluation:4": ("packed", ([],)),
    "inside_token_cache:1": ("translation", ([],)),
}


# Files that a killed `predict` leaves, and lines that are done by their record.
OF_OUTPUT = {
    "inside_output:2000": ({"out.txt.partial", "out.txt.partial.json"}, 0),
    "inside_output:4000": ({"out.txt.partial", "out.txt.partial.json"}, 2000),
    "before_finish:4500": ({"out.txt.partial", "out.txt.partial.json"}, 4500),
    "inside_finish:4500": ({"out.txt", "out.txt.partial.json"}, 4500),
}


def test_every_place_is_tried():
    assert {place.partition(":")[0] for place in {*PLACES, *OF_OUTPUT}} == set(kill_points.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_killed_at(tmp_path, place):
    """The killed run has its own process; the resumed and the uninterrupted run share this one."""
    kind, possible = PLACES[place]
    folder = write_kind(tmp_path, kind)
    result = subprocess_main(argv("train", folder), env={kill_points.VARIABLE: place})
    assert result.returncode == -signal.SIGKILL, result.stderr
    complete = [int(path.name) for path in (folder / "run" / "checkpoints").iterdir() if path.name.isdigit()]
    assert complete in possible
    assert train(folder) == 0
    assert_same_run(folder, trained_kind(kind))
    assert_same_files(folder, trained_kind(kind))


def assert_same_files(actual: Path, expected: Path) -> None:
    """Check that two runs have the same tokenizer and labels."""
    for name in ("tokenizer.model", "labels.json"):
        ours, theirs = (folder / "run" / name for folder in (actual, expected))
        assert ours.exists() == theirs.exists()
        assert not ours.exists() or ours.read_bytes() == theirs.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("place", "left"), OF_OUTPUT.items(), ids=OF_OUTPUT)
def test_a_prediction_is_killed_at(tmp_path, capsys, place, left):
    files, lines = left
    short = dataclasses.replace(PREDICT, lines=4_500)
    expected = short.write_input(tmp_path / "expected")
    assert run_main(short.words(expected)) == short.code
    said = capsys.readouterr().err.splitlines()[-1]
    folder = short.write_input(tmp_path / "killed")
    result = subprocess_main(short.words(folder), env={kill_points.VARIABLE: place})
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert {path.name for path in folder.glob("out*")} == files
    assert json.loads((folder / "out.txt.partial.json").read_text())["lines"] == lines
    if "out.txt" in files:  # it is complete, and not made again
        assert run_main(short.words(folder)) == exit_codes.USER_ERROR
        assert "out.txt: exists already" in capsys.readouterr().err
    else:
        assert run_main(short.words(folder)) == short.code
        assert capsys.readouterr().err.splitlines()[-1] == said
        assert {path.name for path in folder.glob("out*")} == {"out.txt"}
    assert (folder / "out.txt").read_bytes() == (expected / "out.txt").read_bytes()


# At random moments.

TRAINED = ("translation", "recurrent", "masked_lm", "images", "classification")
STEPS, LOG_EVERY = 60, 3
_LONG = [f"--config.training.num_train_steps={STEPS}"]


def start(folder: Path, words: list[str]) -> subprocess.Popen[bytes]:
    with (folder / "stderr.txt").open("ab") as stderr:
        command = [sys.executable, "-m", "transformer_jax", *words]
        return subprocess.Popen(command, cwd=ROOT, stderr=stderr, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def start_training(folder: Path) -> subprocess.Popen[bytes]:
    return start(folder, argv("train", folder, *_LONG))


def uninterrupted(folder: Path, kind: str) -> Path:
    """Train to the end."""
    write_kind(folder, kind)
    assert start_training(folder).wait(timeout=600) == 0, (folder / "stderr.txt").read_text()
    return folder


def logged_step(folder: Path) -> int:
    """Return the step of the last whole line of the log, or 0."""
    log = folder / "run" / "metrics.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def killed(folder: Path, kind: str, seed: int) -> list[str]:
    """Train in a new folder, killed twice; return how far the run had come each time.

    A moment is a step that the log reaches, from before the first to the last but two, and some milliseconds more, so
    that it falls anywhere in the work of the following steps. The second is after the first.
    """
    write_kind(folder, kind)
    random_ = random.Random(seed)
    came_to = []
    for step in sorted(random_.sample(range(0, STEPS - 2 * LOG_EVERY, LOG_EVERY), 2)):
        process, delay = start_training(folder), random_.uniform(0.0, 0.05)
        while logged_step(folder) < step and process.poll() is None:
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "the run was over before it was killed"
        names = sorted(path.name for path in (folder / "run").glob("checkpoints/*"))
        came_to.append(f"step {logged_step(folder)} with checkpoints {', '.join(names) or 'none'}")
    assert start_training(folder).wait(timeout=600) == 0, (folder / "stderr.txt").read_text()
    return came_to


@pytest.mark.slow
def test_killed_twice_at_random_moments(tmp_path):
    expected = uninterrupted(tmp_path / "expected", "translation")
    print(killed(tmp_path / "killed", "translation", seed=0))
    assert_same_run(tmp_path / "killed", expected, STEPS)


@dataclasses.dataclass(frozen=True)
class Writing:
    """A command that writes an output file, `chunk` lines at a time. code: its exit code."""

    command: str
    lines: int
    chunk: int
    code: int
    trained: Callable[[], Path]
    line: Callable[[random.Random], bytes]

    def write_input(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        source = random.Random(0)
        (folder / "in.txt").write_bytes(b"".join(self.line(source) + b"\n" for _ in range(self.lines)))
        return folder

    def words(self, folder: Path) -> list[str]:
        files = [f"--input={folder / 'in.txt'}", f"--output_file={folder / 'out.txt'}"]
        return [self.command, f"--checkpoint={self.trained() / 'run'}", *files]

    def end(self, folder: Path) -> None:
        """Run the command to its end."""
        code = start(folder, self.words(folder)).wait(timeout=600)
        assert code == self.code, (folder / "stderr.txt").read_text()

    def whole(self, folder: Path) -> bytes:
        """Return the output of an uninterrupted command in a new folder."""
        self.end(self.write_input(folder))
        return (folder / "out.txt").read_bytes()

    def killed(self, folder: Path, seed: int) -> list[str]:
        """Run the command in a new folder, killed twice; return how many bytes there were each time.

        A moment is a size that the partial output reaches, from none to all chunks but one, and some milliseconds more.
        The second may find the whole output, which is not made again.
        """
        source, came_to = random.Random(seed), []
        partial = self.write_input(folder) / "out.txt.partial"
        first = source.randrange(self.lines // self.chunk // 2 + 1)
        for chunks in (first, source.randrange(first, self.lines // self.chunk)):
            process, delay = start(folder, self.words(folder)), source.uniform(0.0, 0.5 if chunks else 5.0)
            while process.poll() is None and _lines_of(partial) < chunks * self.chunk:
                time.sleep(0.005)
            time.sleep(delay)
            process.kill()
            status = process.wait()
            if came_to and (folder / "out.txt").exists():
                return [*came_to, "the end"]
            assert status == -signal.SIGKILL, "it was over before it was killed"
            came_to.append(f"{partial.stat().st_size if partial.exists() else 0} bytes")
        self.end(folder)
        return came_to


def _lines_of(partial: Path) -> int:
    return partial.read_bytes().count(b"\n") if partial.exists() else 0


def _numbers(source: random.Random) -> bytes:
    return " ".join(str(source.randrange(60)) for _ in range(source.randint(1, 12))).encode()


def _words(source: random.Random) -> bytes:
    """Return some words; one line in a thousand has no prediction."""
    if source.random() < 0.001:
        return b"\xff"
    return " ".join(source.choice(["the", "cat", "owl", "saw", "7"]) for _ in range(source.randint(1, 9))).encode()


GENERATE = Writing("generate", 6_000, CHUNK, exit_codes.OK, trained_folder, _numbers)
PREDICT = Writing(
    "predict", 60_000, predict._CHUNK, exit_codes.SOME_FAILED, lambda: trained_kind("classification"), _words
)


@pytest.mark.slow
def test_generate_is_killed_twice_at_random_moments(tmp_path):
    expected = GENERATE.whole(tmp_path / "expected")
    assert expected.count(b"\n") == GENERATE.lines
    GENERATE.killed(tmp_path / "killed", seed=0)
    assert (tmp_path / "killed" / "out.txt").read_bytes() == expected
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {"in.txt", "out.txt", "stderr.txt"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "generate", "predict"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next ones count on")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    with tempfile.TemporaryDirectory() as name:
        (train_runs if arguments.command == "train" else write_outputs)(Path(name), arguments.command, seeds)


def write_outputs(root: Path, command: str, seeds: range) -> None:
    writing = {"generate": GENERATE, "predict": PREDICT}[command]
    whole = writing.whole(root / "expected")
    print(f"the uninterrupted command: {len(whole)} bytes")
    for seed in seeds:
        came_to = writing.killed(root / str(seed), seed)
        assert (root / str(seed) / "out.txt").read_bytes() == whole
        print(f"seed {seed}: killed at {' and at '.join(came_to)}: the same in the end", flush=True)


def train_runs(root: Path, command: str, seeds: range) -> None:
    wholes: dict[str, Path] = {}
    for seed in seeds:
        kind, folder = TRAINED[seed % len(TRAINED)], root / str(seed)
        if kind not in wholes:
            wholes[kind] = uninterrupted(root / kind, kind)
            print(f"the uninterrupted run of {kind}: {STEPS} steps, checkpoints {saved_steps(wholes[kind])}")
        came_to = killed(folder, kind, seed)
        assert_same_run(folder, wholes[kind], STEPS)
        assert_same_files(folder, wholes[kind])
        print(f"seed {seed}, {kind}: killed at {' and at '.join(came_to)}: the same in the end", flush=True)


if __name__ == "__main__":
    main()
