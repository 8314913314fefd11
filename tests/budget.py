"""Counts the programs that tests compile, and compares them with `tests/budget.json`.

Tracing and compiling a small training program costs seconds of processor time, and hundreds of them are the time of the
tests. Seconds differ between machines by a factor of two; the number of programs does not. `.ci/run` fails above the
budget:

    python -m pytest -m "not slow" -n 2 --dist loadfile --budget=default
    python -m pytest -m slow -n 2 --dist loadfile --budget=slow

With `--renew-budget` the numbers are written instead of compared. Operations that run outside `jax.jit` are compiled
too, about 0.01 s each, but once per process; they are not counted, since their number depends on which files share a
worker. Programs of other processes, which tests start, are not counted either.

The file has seconds of processor time too. They decide only the order in which workers get the files: long ones first,
so that no worker waits at the end.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import pytest

FILE = Path(__file__).parent / "budget.json"
SUITES = {"default": "not slow", "slow": "slow"}
"""Names of the two suites, and their marker expressions."""
SLACK = 0.03
"""Share above the budget that is not an error: each worker that needs a shared program compiles it."""
_EVENT = "/jax/core/compile/backend_compile_duration"
_OUR_OWN = frozenset({"_stage"})  # names that an operation of JAX has too
_PARTS_OF_JAX = ("threefry_", "random_", "reduce_")
_CONTROL_FLOW = frozenset({"scan", "while", "cond", "map"})


def is_program(name: str) -> bool:
    """Return whether a compiled function is more than one operation of JAX by itself.

    name: as JAX reports it, `jit(NAME)`.
    """
    plain = name.removeprefix("jit(").removesuffix(")").replace("-", "_")
    if plain in _OUR_OWN or plain in _CONTROL_FLOW:
        return True
    public = plain.removeprefix("_")  # `_where` is what `jax.numpy.where` compiles
    modules = (jax.numpy, jax.lax, jax.random, jax.nn, jax.numpy.linalg)
    return not public.startswith(_PARTS_OF_JAX) and not any(
        hasattr(m, n) for m in modules for n in (public, f"{public}_p")
    )


def by_folder(files: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of the files of each folder; files of `tests/` itself count for "tests"."""
    sums: Counter[str] = Counter()
    for file, number in files.items():
        parts = Path(file).parts
        sums["/".join(parts[:2]) if len(parts) > 2 else parts[0]] += number
    return dict(sums)


def excess(programs: Mapping[str, int], budget: Mapping[str, int]) -> list[str]:
    """Return a line for the sum of programs if it is above the budget and its slack, and for each folder that grew.

    A folder alone is not an error: the first file of a worker that needs a shared program compiles it.
    programs, budget: numbers per file.
    """
    total, limit = sum(programs.values()), sum(budget.values())
    if total <= limit * (1 + SLACK):
        return []
    now, allowed = by_folder(programs), by_folder(budget)
    return [f"all folders: {total} compiled programs, {limit} in the budget"] + [
        f"{folder}: {now[folder]} compiled programs, {allowed.get(folder, 0)} in the budget"
        for folder in sorted(now)
        if now[folder] > allowed.get(folder, 0)
    ]


def file_of(item: pytest.Item) -> str:
    """Return the path of the item's file, relative to the repository."""
    return item.nodeid.split("::")[0]


class Budget:
    """A plugin of pytest: counts per file in each process, and adds the workers' counts in the first one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._programs: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._file = ""
        self._lines: list[str] = []

    def programs(self, file: str) -> int:
        """Return how many programs the tests of a file have compiled in this process so far."""
        return self._programs[file]

    def count(self, event: str, duration: float, **details: Any) -> None:
        """Count a program; called by `jax.monitoring` after every compilation."""
        if event == _EVENT and is_program(str(details.get("fun_name"))):
            self._programs[self._file] += 1

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort files by their recorded seconds, the longest first."""
        markers = self._config.option.markexpr
        suites = [suite for suite in SUITES if markers in ("", SUITES[suite])] or list(SUITES)
        recorded = [_read().get(suite, {}) for suite in suites]
        items.sort(key=lambda item: -sum(files.get(file_of(item), _NOTHING)["seconds"] for files in recorded))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._file = file_of(item)
        begin = _processor_seconds()
        try:
            return (yield)
        finally:
            self._seconds[self._file] += _processor_seconds() - begin

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Add the counts of a worker, which has ended."""
        counts = getattr(node, "workeroutput", {})
        self._programs.update(counts.get("programs", {}))
        self._seconds.update(counts.get("seconds", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput |= {"programs": dict(self._programs), "seconds": dict(self._seconds)}
            return
        suite = self._config.option.budget
        if suite is None or session.exitstatus != pytest.ExitCode.OK:
            return
        if self._config.option.renew_budget:
            _write(suite, self._programs, self._seconds)
            return
        if suite not in (recorded := _read()):
            self._lines = [f"{FILE.name} has no numbers of the {suite} tests; nothing is compared"]
            return
        above = excess(self._programs, {file: values["programs"] for file, values in recorded[suite].items()})
        self._lines = [f"above {FILE.name}: {line}" for line in above]
        if above:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._config.option.budget is None:
            return
        count, seconds = sum(self._programs.values()), sum(self._seconds.values())
        terminalreporter.section(f"{count:,} compiled programs, {seconds:,.0f} seconds of processor time")
        for line in self._lines:
            terminalreporter.line(line, red=True)


_NOTHING = {"programs": 0, "seconds": 0}


def _processor_seconds() -> float:
    """Return seconds of processor time of this process and of the processes that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _read() -> dict[str, dict[str, dict[str, int]]]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def _write(suite: str, programs: Mapping[str, int], seconds: Mapping[str, float]) -> None:
    """Write the numbers of a suite; the file keeps those of the other one."""
    files = {
        file: {"programs": programs.get(file, 0), "seconds": round(seconds[file])}
        for file in sorted(seconds)
        if programs.get(file, 0) or round(seconds[file])
    }
    content = _read() | {suite: files}
    suites = (
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(file)}: {json.dumps(values)}" for file, values in content[name].items())
        + "\n}"
        for name in sorted(content)
    )
    FILE.write_text("{\n" + ",\n".join(suites) + "\n}\n")
