"""Deliberate errors in the package, and the tests that find them: shows what a change of the tests has lost.

    python tests/mutants.py --results=mutants.jsonl                 # all of them, on the working tree
    python tests/mutants.py --results=old.jsonl --commit=REV        # on a commit
    python tests/mutants.py --results=mutants.jsonl --only='nn/.*'  # some; finished ones are kept
    python tests/mutants.py --compare old.jsonl mutants.jsonl       # the errors that only the first tests find

Every mutation of `tests/mutants.txt` replaces one place of one file by a plausible error. The tests that could find it
run in a copy of the tree until one fails: likely files first, then the folders of its area; default tests before slow
ones. It takes about two hours on two cores, so it is a command and not a test. Before a test is moved, merged or
deleted, record the results; a new suite that finds fewer has lost something. Without an error all tests must pass, so
run `make test-all` first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

AREAS = {
    "nn": ("tests/nn", "tests/models"),
    "models": ("tests/models",),
    "decoding": ("tests/decoding", "tests/models/test_cached_decoding.py"),
    "data": ("tests/data",),
    "tasks": ("tests/tasks",),
    "training": ("tests/training", "tests/test_resume.py"),
    "checkpoints": ("tests/checkpoints",),
    "convert": ("tests/convert",),
    "evaluation": ("tests/evaluation",),
    "sweeps": ("tests/sweeps",),
    "parallel": ("tests/parallel",),
    "config": (
        "tests/test_config.py",
        "tests/test_config_file.py",
        "tests/test_own_fields.py",
        "tests/test_every_field.py",
    ),
    "cli": ("tests/cli", "tests/inspection"),
}
"""Folders and files whose tests could find an error of an area, after the likely files of the mutation."""


class Mutation(NamedTuple):
    """One error.

    file: below `transformer_jax/`. old: occurs there exactly once. likely: test files to run first, below `tests/`.
    """

    file: str
    old: str
    new: str
    likely: tuple[str, ...] = ()


_ENTRY = re.compile(r"^(\S+): (\S+) \((.*)\)\n- (.*)\n\+ (.*)$", re.MULTILINE)


def _read_table(text: str) -> dict[str, Mutation]:
    entries = (match.groups() for match in _ENTRY.finditer(text))
    return {
        name: Mutation(file, old, new, tuple(filter(None, likely.split(", "))))
        for name, file, likely, old, new in entries
    }


MUTATIONS = _read_table((ROOT / "tests" / "mutants.txt").read_text())


class Result(NamedTuple):
    """killed_by: the id of the first test that failed; empty if all passed. seconds: time of its tests."""

    name: str
    outcome: str
    killed_by: str
    seconds: float


def area_of(name: str) -> str:
    """Return the area of a mutation, the first part of its name."""
    return name.split("/")[0]


def problems() -> list[str]:
    """Return what is wrong with the table: places that do not occur exactly once, test files that do not exist."""
    found = []
    for name, mutation in MUTATIONS.items():
        file = ROOT / "transformer_jax" / mutation.file
        count = file.read_text().count(mutation.old) if file.exists() else 0
        if count != 1:
            found.append(f"{name}: {mutation.old!r} occurs {count} times in {mutation.file}")
        if mutation.old == mutation.new:
            found.append(f"{name}: changes nothing")
        found += [f"{name}: no file {path}" for path in candidates(name) if not (ROOT / path).exists()]
    return found


def candidates(name: str) -> list[str]:
    """Return the test files and folders that could find an error, likely ones first."""
    likely = [f"tests/{path}" for path in MUTATIONS[name].likely]
    return [*likely, *(path for path in AREAS[area_of(name)] if path not in likely)]


class Copy:
    """A copy of the tracked files, in which one mutation at a time is made."""

    def __init__(self, folder: Path, commit: str | None) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        if commit is None:
            names = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
            for name in filter(None, names):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                if (ROOT / name).exists():
                    shutil.copy2(ROOT / name, folder / name)
        else:
            archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)

    def killer(self, name: str, limit: float, default_only: bool, stop: threading.Event) -> tuple[str, str]:
        """Return how the tests of a mutation end (killed, survived, limit) and the test that found it."""
        mutation = MUTATIONS[name]
        file = self.folder / "transformer_jax" / mutation.file
        text = file.read_text()
        if text.count(mutation.old) != 1:
            return "absent", ""
        file.write_text(text.replace(mutation.old, mutation.new))
        try:
            end = time.monotonic() + limit
            for marker in ("not slow",) if default_only else ("not slow", "slow"):
                for path in candidates(name):
                    if not (self.folder / path).exists():
                        return "no such test file", path
                    status, test = self._run(path, marker, end - time.monotonic(), stop)
                    if status != "survived":
                        return status, test
            return "survived", ""
        finally:
            file.write_text(text)

    def _run(self, path: str, marker: str, seconds: float, stop: threading.Event) -> tuple[str, str]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marker, path]
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        timer = threading.Timer(max(seconds, 0.0), _kill, [process])
        timer.start()
        try:
            output = process.communicate()[0]
        finally:
            has_time = timer.is_alive()
            timer.cancel()
            _kill(process)
        if stop.is_set():
            return "stopped", ""
        if not has_time:
            return "limit", ""
        if process.returncode in (0, 5):  # 5: no test has this marker
            return "survived", ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", output, re.MULTILINE)
        if process.returncode != 1 or failed is None:
            return "broken", f"{path}: exit status {process.returncode}"
        return "killed", failed[1]


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children; nothing if it has ended."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout


def run(
    names: Sequence[str], results: Path, commit: str | None, workers: int, limit: float, default_only: bool
) -> None:
    """Try the mutations that have no result yet, and append a line for each."""
    done = {result.name for result in read(results)}
    waiting = iter([name for name in names if name not in done])
    lock, stop = threading.Lock(), threading.Event()

    def work(number: int, folder: Path) -> None:
        copy = Copy(folder / str(number), commit)
        while not stop.is_set():
            with lock:
                name = next(waiting, None)
            if name is None:
                return
            begin = time.monotonic()
            outcome, test = copy.killer(name, limit, default_only, stop)
            if stop.is_set():
                return
            result = Result(name, outcome, test, round(time.monotonic() - begin, 1))
            with lock, results.open("a") as file:
                file.write(json.dumps(result._asdict()) + "\n")
            print(f"{result.name}: {result.outcome} {result.killed_by} ({result.seconds:.0f} s)", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutants_") as folder, ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, number, Path(folder)) for number in range(workers)]
        try:
            for future in futures:
                future.result()
        except KeyboardInterrupt:
            stop.set()
            raise


def read(results: Path) -> list[Result]:
    """Return the results of a file; none if it does not exist."""
    return [Result(**json.loads(line)) for line in results.read_text().splitlines()] if results.exists() else []


def summary(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line per area, and one per mutation that was not killed."""
    for area in AREAS:
        of_area = [result for result in results if area_of(result.name) == area]
        killed = sum(result.outcome == "killed" for result in of_area)
        yield f"{area:12} {killed:3} of {len(of_area):3} killed"
    yield from (f"{result.outcome}: {result.name}" for result in results if result.outcome != "killed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="file of one line per finished mutation; continued if it exists")
    parser.add_argument("--only", default="", help="regular expression: mutations whose name begins with it")
    parser.add_argument("--commit", help="test this commit in place of the working tree")
    parser.add_argument("--workers", type=int, default=2, help="mutations at a time")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for the tests of one mutation")
    parser.add_argument("--default_only", action="store_true", help="leave slow tests out")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="print what only OLD killed")
    arguments = parser.parse_args()
    if arguments.compare:
        killed = [{r.name for r in read(file) if r.outcome == "killed"} for file in arguments.compare]
        print("\n".join(sorted(killed[0] - killed[1])) or "nothing is lost")
        return 1 if killed[0] - killed[1] else 0
    if arguments.results is None:
        parser.error("--results=FILE or --compare OLD NEW")
    if arguments.commit is None and (found := problems()):
        raise SystemExit("\n".join(found))
    names = [name for name in MUTATIONS if re.match(arguments.only, name)]
    run(names, arguments.results, arguments.commit, arguments.workers, arguments.limit, arguments.default_only)
    print("\n".join(summary(read(arguments.results))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
