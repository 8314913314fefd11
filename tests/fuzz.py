"""Wrong inputs and damaged files, from a seed: commands must end in a message, not in a traceback or in silence.

    python tests/fuzz.py inputs --cases=1000 --seed=1
    python tests/fuzz.py inputs --seed=1 --only=17
    python tests/fuzz.py damage --cases=400 --seed=1

`inputs`: flags, configs, studies, lines, files of data, images and Hugging Face folders that are wrong. A command must
end with exit code 0, 2 or 3, in bounded time and memory, and change nothing in the run. Its output must be whole. A
case depends on its number and the seed alone, so that --only repeats it. The makers of cases are in fuzz_commands.py,
fuzz_tasks.py and fuzz_folders.py.

`damage`: one file that a command reads back is changed at a bit or a digit, cut, deleted, or replaced by that of
another checkpoint or trial. The command must end like on the undamaged files, or say something (a warning, or an error
with exit code 2). The folders and commands are in fuzz_damage.py.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
if __name__ == "__main__":
    import conftest  # noqa: F401  # the environment of the tests

import fuzz_commands
import fuzz_folders
import fuzz_tasks
from fuzz_damage import fuzz_damage
from fuzz_support import Bench, Case, Outcome

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
            counts[what if inputs else what.partition(":")[0], "problem" if problem else str(outcome.code)] += 1
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
