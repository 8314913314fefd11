"""Commands that are killed with SIGKILL, as by a crash of the machine, and repeated.

    python tests/test_kill.py train --runs=20 --seed=1
    python tests/test_kill.py generate --runs=20 --seed=1

kills that many runs twice each, at random moments, and compares each with the uninterrupted one.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from run_support import (
    ROOT,
    argv,
    assert_same_run,
    saved_steps,
    subprocess_main,
    train,
    trained_folder,
    write_corpus,
)

from transformer_jax import kill_points
from transformer_jax.tasks.text_generator import CHUNK

# Places where a process dies, and the checkpoints that may be complete by then; they are written in the background.
PLACES = {
    "after_batch:7": ([], [5]),
    "inside_save:8": ([5],),
    "before_commit:5": ([],),
    "inside_evaluation:4": ([],),
    "inside_token_cache:1": ([],),
}


def test_every_place_is_tried():
    assert {place.partition(":")[0] for place in PLACES} == set(kill_points.NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(("place", "saved"), PLACES.items(), ids=PLACES)
def test_killed_at(tmp_path, place, saved):
    """The killed run has its own process; the resumed and the uninterrupted run share this one."""
    folder = write_corpus(tmp_path)
    result = subprocess_main(argv("train", folder), env={kill_points.VARIABLE: place})
    assert result.returncode == -signal.SIGKILL, result.stderr
    complete = [int(path.name) for path in (folder / "run" / "checkpoints").iterdir() if path.name.isdigit()]
    assert complete in saved
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


# At random moments.

STEPS, LOG_EVERY = 60, 3
_LONG = [f"--config.training.num_train_steps={STEPS}"]


def start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "stderr.txt").open("ab") as stderr:
        command = [sys.executable, "-m", "transformer_jax", *argv("train", folder, *_LONG)]
        return subprocess.Popen(command, cwd=ROOT, stderr=stderr, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def uninterrupted(folder: Path) -> None:
    """Train to the end."""
    write_corpus(folder)
    assert start(folder).wait(timeout=600) == 0, (folder / "stderr.txt").read_text()


def logged_step(folder: Path) -> int:
    """Return the step of the last whole line of the log, or 0."""
    log = folder / "run" / "metrics.jsonl"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def killed(folder: Path, seed: int) -> list[str]:
    """Train in a new folder, killed twice; return how far the run had come each time.

    A moment is a step that the log reaches, from before the first to the last but two, and some milliseconds more, so
    that it falls anywhere in the work of the following steps. The second is after the first.
    """
    write_corpus(folder)
    random_ = random.Random(seed)
    came_to = []
    for step in sorted(random_.sample(range(0, STEPS - 2 * LOG_EVERY, LOG_EVERY), 2)):
        process, delay = start(folder), random_.uniform(0.0, 0.05)
        while logged_step(folder) < step and process.poll() is None:
            time.sleep(0.002)
        time.sleep(delay)
        process.kill()
        assert process.wait() == -signal.SIGKILL, "the run was over before it was killed"
        names = sorted(path.name for path in (folder / "run").glob("checkpoints/*"))
        came_to.append(f"step {logged_step(folder)} with checkpoints {', '.join(names) or 'none'}")
    assert start(folder).wait(timeout=600) == 0, (folder / "stderr.txt").read_text()
    return came_to


@pytest.mark.slow
def test_killed_twice_at_random_moments(tmp_path):
    uninterrupted(tmp_path / "expected")
    print(killed(tmp_path / "killed", seed=0))
    assert_same_run(tmp_path / "killed", tmp_path / "expected", STEPS)


LINES = 6_000


def start_generating(folder: Path) -> subprocess.Popen[bytes]:
    words = [f"--input={folder / 'in.txt'}", f"--output_file={folder / 'out.txt'}"]
    with (folder / "stderr.txt").open("ab") as stderr:
        command = [sys.executable, "-m", "transformer_jax", "generate", f"--checkpoint={trained_folder() / 'run'}"]
        return subprocess.Popen([*command, *words], cwd=ROOT, stderr=stderr, env={**os.environ, "JAX_PLATFORMS": "cpu"})


def write_lines(folder: Path) -> Path:
    """Write the input of `generate`, lines of 1 to 12 numbers."""
    folder.mkdir(parents=True)
    source = random.Random(0)
    lines = (" ".join(str(source.randrange(60)) for _ in range(source.randint(1, 12))) for _ in range(LINES))
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def generated_whole(folder: Path) -> bytes:
    """Return the output of an uninterrupted command."""
    assert start_generating(write_lines(folder)).wait(timeout=600) == 0, (folder / "stderr.txt").read_text()
    return (folder / "out.txt").read_bytes()


def lines_of(partial: Path) -> int:
    return partial.read_bytes().count(b"\n") if partial.exists() else 0


def killed_generating(folder: Path, seed: int) -> list[str]:
    """Generate in a new folder, killed twice; return how many bytes there were each time.

    A moment is a size that the partial output reaches, from none to all chunks but one, and some milliseconds more. The
    second may find the whole output, which is not made again.
    """
    source, came_to = random.Random(seed), []
    partial = write_lines(folder) / "out.txt.partial"
    sizes = sorted(source.sample(range(LINES // CHUNK), 2))
    for chunks in sizes:
        process, delay = start_generating(folder), source.uniform(0.0, 0.5)
        while process.poll() is None and lines_of(partial) < chunks * CHUNK:
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        status = process.wait()
        if came_to and (folder / "out.txt").exists():
            return [*came_to, "the end"]
        assert status == -signal.SIGKILL, "it was over before it was killed"
        came_to.append(f"{partial.stat().st_size if partial.exists() else 0} bytes")
    assert start_generating(folder).wait(timeout=600) == 0, (folder / "stderr.txt").read_text()
    return came_to


@pytest.mark.slow
def test_generate_is_killed_twice_at_random_moments(tmp_path):
    expected = generated_whole(tmp_path / "expected")
    assert expected.count(b"\n") == LINES
    killed_generating(tmp_path / "killed", seed=0)
    assert (tmp_path / "killed" / "out.txt").read_bytes() == expected
    assert {path.name for path in (tmp_path / "killed").iterdir()} == {"in.txt", "out.txt", "stderr.txt"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "generate"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next ones count on")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if arguments.command == "generate":
            whole = generated_whole(Path(name) / "expected")
            print(f"the uninterrupted command: {len(whole)} bytes")
            for seed in range(arguments.seed, arguments.seed + arguments.runs):
                came_to = killed_generating(Path(name) / str(seed), seed)
                assert (Path(name) / str(seed) / "out.txt").read_bytes() == whole
                print(f"seed {seed}: killed at {' and at '.join(came_to)}: the same in the end", flush=True)
            return
        expected = Path(name) / "expected"
        uninterrupted(expected)
        print(f"the uninterrupted run: {STEPS} steps, checkpoints {saved_steps(expected)}")
        for seed in range(arguments.seed, arguments.seed + arguments.runs):
            folder = Path(name) / str(seed)
            came_to = killed(folder, seed)
            assert_same_run(folder, expected, STEPS)
            print(f"seed {seed}: killed at {' and at '.join(came_to)}: the same in the end", flush=True)


if __name__ == "__main__":
    main()
