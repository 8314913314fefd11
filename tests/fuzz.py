"""Wrong inputs and damaged files, from a seed: commands must end in a message, not in a traceback or in silence.

    python tests/fuzz.py inputs --cases=1000 --seed=1
    python tests/fuzz.py inputs --seed=1 --only=17
    python tests/fuzz.py damage --cases=400 --seed=1

`inputs`: flags, configs, studies, lines, files of data, images and Hugging Face folders that are wrong. A command must
end with exit code 0, 2 or 3, in bounded time and memory, and change nothing in the run. Its output must be whole. A
case depends on its number and the seed alone, so that --only repeats it. The makers of cases are in fuzz_commands.py,
fuzz_tasks.py and fuzz_folders.py.

`damage`: one file that a command reads back is changed at a byte, cut or deleted. The command must end like on the
undamaged files, or say something (a warning, or an error with exit code 2).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
if __name__ == "__main__":
    import conftest  # noqa: F401  # the environment of the tests

import fuzz_commands
import fuzz_folders
import fuzz_tasks
from fuzz_support import Bench, Case, Outcome
from report_support import write_workdir
from run_support import argv, run_main, write_corpus

from transformer_jax.training import loop

# Wrong inputs.

MAKERS = (*fuzz_commands.MAKERS, *fuzz_tasks.MAKERS, *fuzz_folders.MAKERS)


def fuzz_inputs(folder: Path, cases: Iterable[int], seed: int) -> Iterator[tuple[str, Outcome, str]]:
    """Yield the kind, the outcome and the problem (empty if there is none) of the cases with these numbers.

    A case depends on its number and the seed only.
    """
    bench = Bench(folder / "shared")
    for number in cases:
        place = folder / f"case{number}"
        place.mkdir()
        with contextlib.chdir(place):
            maker = MAKERS[number % len(MAKERS)]
            outcome = maker(Case(bench, place, random.Random(f"{seed} {number}")))
        changed = bench.changed()
        shutil.rmtree(place)
        yield maker.__name__, outcome, outcome.problem or (f"changed {changed}\n{outcome.err}" if changed else "")


# Damaged files.


def damaged(file: Path, source: random.Random) -> str:
    """Change a byte, cut or delete a file; return what was done."""
    data = file.read_bytes()
    # Without the scores of an earlier evaluation there is nothing to reuse, so a deletion of them is no damage.
    kind = source.choice(["flip", "flip", "cut", *([] if file.parent.name == "evaluation" else ["delete"])])
    if kind == "delete":
        file.unlink()
        return "deleted"
    at = source.randrange(len(data))
    if kind == "cut":
        file.write_bytes(data[:at])
        return f"cut at {at}"
    file.write_bytes(data[:at] + bytes([data[at] ^ (1 << source.randrange(8))]) + data[at + 1 :])
    return f"changed at {at}"


class Damage:
    """A stopped run and finished trials, whose files are damaged one at a time."""

    def __init__(self, folder: Path, source: random.Random) -> None:
        self.source, self.folder = source, folder
        self.stopped = write_corpus(folder / "stopped")

        def stop(name: str, step: int) -> None:
            if (name, step) == ("after_batch", 5):
                os.kill(os.getpid(), signal.SIGTERM)

        shared = f"--config.data.cache_dir={self.stopped / 'shared'}"
        self.words = [*argv("train", self.stopped), shared]
        with mock.patch.object(loop, "kill_point", stop):
            assert run_main(self.words) == 143
        run = self.stopped / "run"
        assert run_main(["evaluate", f"--checkpoint={run}", "--splits=test"]) == 0
        write_workdir(folder / "study")
        self.expected = {kind: self._end(kind)[1] for kind in ("resume", "evaluate", "report")}

    def _end(self, kind: str, damage: Callable[[Path], str] | None = None) -> tuple[Outcome, object, str]:
        place = self.folder / "copy"
        shutil.rmtree(place, ignore_errors=True)
        done = ""
        if kind == "report":
            shutil.copytree(self.folder / "study" / "runs" / "heads", place)
            done = damage(place) if damage else ""
            outcome = Outcome(["report", f"--workdir={place}", f"--output={self.folder / 'report'}"])
            file = self.folder / "report" / "results.csv"
            return outcome, file.read_bytes() if outcome.code == 0 else None, done
        kept = self.folder / "kept"
        if not kept.exists():
            shutil.copytree(self.stopped, kept)
        shutil.rmtree(self.stopped)
        shutil.copytree(kept, self.stopped)
        done = damage(self.stopped) if damage else ""
        run = self.stopped / "run"
        if kind == "resume":
            outcome = Outcome(self.words)
            end = self._lines(run) if outcome.code == 0 else None
            return outcome, end, done
        outcome = Outcome(["evaluate", f"--checkpoint={run}", "--splits=test", "--nogenerate"])
        scores = run / "evaluation" / "test.json"
        return outcome, scores.read_bytes() if outcome.code == 0 else None, done

    def _lines(self, run: Path) -> list[str]:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        skipped = ("seconds", "tokens_per_s", "crc32")
        return [json.dumps({k: v for k, v in line.items() if k not in skipped}) for line in lines]

    def case(self, kind: str) -> tuple[str, Outcome, str]:
        """Damage a file, run the command, and return what was done, its outcome and the problem, if there is one."""
        chosen = []

        def damage(place: Path) -> str:
            patterns = {"resume": ("run", "shared"), "evaluate": ("run", "shared"), "report": (".",)}
            files = [
                path
                for name in patterns[kind]
                for path in sorted((place / name).rglob("*"))
                if path.is_file() and path.stat().st_size and path.name != ".lock" and "tfevents" not in path.name
            ]
            chosen.append(self.source.choice(files))
            return f"{chosen[0].relative_to(place)} {damaged(chosen[0], self.source)}"

        outcome, end, done = self._end(kind, damage)
        if outcome.problem:
            return done, outcome, outcome.problem
        said = "warning: " in outcome.err or "error: " in outcome.err or "tokenizing" in outcome.err
        if outcome.code == 0 and end != self.expected[kind] and not said:
            return done, outcome, "another result, without a word"
        return done, outcome, ""


def fuzz_damage(folder: Path, cases: int, seed: int) -> Iterator[tuple[str, Outcome, str]]:
    damage = Damage(folder, random.Random(seed))
    for number in range(cases):
        yield damage.case(("resume", "evaluate", "report")[number % 3])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("inputs", "damage"))
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of a single case of `inputs`")
    parser.add_argument("--verbose", action="store_true", help="show the end of every case")
    arguments = parser.parse_args()
    if arguments.only is not None and arguments.kind != "inputs":
        parser.error("--only: the cases of `damage` depend on those before them; repeat all")
    cases = range(arguments.cases) if arguments.only is None else [arguments.only]
    counts: Counter[tuple[str, str]] = Counter()
    found: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder, seed = Path(name), arguments.seed
        inputs = arguments.kind == "inputs"
        fuzzed = fuzz_inputs(folder, cases, seed) if inputs else fuzz_damage(folder, arguments.cases, seed)
        for number, (what, outcome, problem) in zip(cases, fuzzed, strict=True):
            counts[what if inputs else "damage", "problem" if problem else str(outcome.code)] += 1
            if arguments.verbose:
                print(f"{number}, {what}: {outcome.code}, {outcome.err.strip()[-200:]!r}", flush=True)
            if problem:
                repeat = f": python tests/fuzz.py inputs --seed={seed} --only={number}" if inputs else ""
                found.append(f"case {number}, {what}{repeat}")
                print(f"--- {found[-1]}\n{outcome.words!r}\n{problem}", flush=True)
    ends = sorted({end for _, end in counts})
    print(f"{'':20}" + "".join(f"{end:>9}" for end in ends))
    for kind in dict.fromkeys(kind for kind, _ in counts):
        print(f"{kind:20}" + "".join(f"{counts[kind, end] or '':>9}" for end in ends))
    print(f"{len(cases)} cases with seed {seed}; problems: {len(found)}", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
