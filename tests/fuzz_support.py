"""Shared by the programs of fuzz.py: commands with their limits, the runs they read, and ways to spoil an input."""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from kinds_support import trained_kind
from report_support import write_workdir
from run_support import run_main, snapshot

SECONDS = 120
"""Longest time of a command; more counts as hanging."""
ADDRESSES = 6 << 30
"""Bytes of address space that a command may take beyond what the process has already."""
GROWTH = 1 << 30
"""Bytes by which a command may raise the peak of resident memory."""
NASTY = [
    *("", " ", "0", "-1", "1e308", "-1e308", "nan", "inf", "1.5", "99999999999999999999", "true", "None", "[]", "{}"),
    *("\x00", "\x1b[2J", "ü", "\ud800", "x" * 300, "a,b,,c", "../..", "/proc/nope", "/dev/null", "~nobody", "=", "--"),
    *("%s", "*", "a=b", "1,2,3", "tfds:x:y", "😀" * 20),
]
WRONG: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 2**31, -(2**63), 2**70, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "gelu", "1", "\x00", "\ud800", "x" * 300, [], [1], ["x"], [[[]]], [None], {}, {"a": 1}, {"0": []}),
]
"""Values of JSON, as Python's writer spells them (it writes NaN and Infinity)."""


class Outcome:
    """The end of a command: exit code, what it printed, and `faults`, to which a maker of cases adds its own."""

    def __init__(self, words: list[str], stdin: bytes = b"") -> None:
        self.words, self.code, self.trace, self.faults = words, None, "", []
        written, err = io.BytesIO(), io.StringIO()
        out, given = io.TextIOWrapper(written, "utf-8"), io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                mock.patch.object(sys, "stdin", given),
                _limited(words),
            ):
                self.code = run_main(words)
        except BaseException:
            self.trace = traceback.format_exc()
        with contextlib.suppress(ValueError):
            out.flush()
        self.err, self.out = err.getvalue(), b"" if written.closed else written.getvalue()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
        if grown > GROWTH:
            self.faults.append(f"took {grown >> 20} MB of memory more than any command before")

    @property
    def problem(self) -> str:
        """What is wrong with this end; empty if nothing is."""
        if self.trace:
            return f"raised\n{self.trace}"
        if "Traceback" in self.err:
            return f"printed a traceback\n{self.err}"
        if self.code not in (0, 2, 3):
            return f"exit code {self.code}\n{self.err}"
        if self.code == 2 and "error: " not in self.err and not self.err.startswith("usage: "):
            return f"exit code 2 without a message\n{self.err}"
        if "\x1b" in self.err:
            return f"control characters on stderr: {self.err!r}"
        return "\n".join([*self.faults, self.err]) if self.faults else ""


@contextlib.contextmanager
def _limited(words: Sequence[str]) -> Iterator[None]:
    """Bound the time and the address space of a command in this process.

    Python raises TimeoutError where it runs. A call that does not return to Python ends the process, after a message.
    """

    def hang(number: int, frame: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    def end() -> None:
        print(f"--- hangs outside of Python: {words!r}", file=sys.__stderr__, flush=True)
        faulthandler.dump_traceback(sys.__stderr__)
        os._exit(1)

    watchdog = threading.Timer(3 * SECONDS, end)
    watchdog.daemon = True
    before = signal.signal(signal.SIGALRM, hang)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    watchdog.start()
    signal.alarm(SECONDS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ADDRESSES, hard))
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)
        watchdog.cancel()


class Bench:
    """The files that all cases read: trained runs by kind, and a study with results; each is made when first asked."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._before: dict[Path, dict[str, bytes | None]] = {}
        self._shared: dict[str, Any] = {}
        self._used: set[str] = set()

    def corpus(self, kind: str = "translation") -> Path:
        """Return a copy of the corpus, tiny.py and run of a kind; what a command changes in it is undone after it."""
        place = self._root / kind
        if not place.exists():
            shutil.copytree(trained_kind(kind), place)
            self._before[place] = snapshot(place)
        self._used.add(kind)
        return place

    def run(self, kind: str = "translation") -> Path:
        return self.corpus(kind) / "run"

    def shared(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Return what `make` returns for a new folder, made once."""
        if name not in self._shared:
            self._shared[name] = make(self._root / "shared" / name)
        return self._shared[name]

    def study(self) -> Path:
        """Return the folder that holds experiments/heads and runs/heads; cases copy what they change."""

        def make(folder: Path) -> Path:
            write_workdir(folder)
            return folder

        return self.shared("study", make)

    def changed(self) -> list[str]:
        """Undo what was changed in the runs that were used; return the files that no command may change."""
        found = []
        for place in (self._root / kind for kind in self._used):
            now, before = snapshot(place), self._before[place]
            if now != before:
                found += [n for n in before if n.startswith(_KEPT) and now.get(n, "") != before[n]]
                shutil.rmtree(place)
                shutil.copytree(trained_kind(place.name), place)
        self._used.clear()
        return found


_KEPT = ("run/checkpoints/", "run/tokenizer.model", "run/labels.json")


class Case:
    """One case: `source` of chance, an empty `folder` of its own, and the files of all cases."""

    def __init__(self, bench: Bench, folder: Path, source: random.Random) -> None:
        self.bench, self.folder, self.source = bench, folder, source

    def chance(self, probability: float) -> bool:
        return self.source.random() < probability

    def choice(self, values: Sequence[Any]) -> Any:
        return self.source.choice(values)

    def copy(self, of: Path, name: str = "copy") -> Path:
        return Path(shutil.copytree(of, self.folder / name))

    def words(self, words: list[str]) -> list[str]:
        """Drop, repeat, cut, swap or replace a word or its value."""
        words = list(words)
        at = self.source.randrange(1, len(words)) if len(words) > 1 else 0
        flag, equals, value = words[at].partition("=")
        kind = self.source.randrange(6)
        if kind == 0:
            del words[at]
        elif kind == 1:
            words.insert(at, words[at])
        elif kind == 2:
            words[at] = words[at][: self.source.randrange(len(words[at]) + 1)]
        elif kind == 3:
            words[at] = f"{flag}={self.choice(NASTY)}"
        elif kind == 4:
            words.insert(at, self.choice(NASTY))
        else:
            words[at] = f"{flag}x{equals}{value}"
        return words

    def bytes(self, text: bytes, most: int = 3) -> bytes:
        """Change, cut and insert bytes at some places."""
        data = bytearray(text)
        for _ in range(self.source.randint(1, most)):
            at = self.source.randrange(len(data) + 1)
            kind = self.source.randrange(4)
            if kind == 0 and data:
                data[at % len(data)] = self.source.randrange(256)
            elif kind == 1:
                del data[at:]
            elif kind == 2:
                data[at:at] = bytes(self.source.randrange(256) for _ in range(self.source.randint(1, 9)))
            else:
                data[at:at] = self.choice([b"\n\n", b"\t", b"\x00", b"\xff\xfe", b"\r", b"{", b"\xe2\x80\xa8"])
        return bytes(data)

    def json(self, values: Any, most: int = 2) -> Any:
        """Replace, remove or add values anywhere in an object of JSON."""
        values = copy.deepcopy(values)
        for _ in range(self.source.randint(1, most)):
            place, key = self._place(values)
            kind = self.source.randrange(8)
            if kind == 0 and isinstance(place, dict):
                place[self.choice(["nothing", "", "\x00", *place])] = self.choice(WRONG)
            elif kind == 1 and len(place) > 1:
                del place[key]
            elif kind == 2 and isinstance(place[key], int | float) and not isinstance(place[key], bool):
                place[key] = self.choice([place[key] + 1, -place[key], place[key] * 1000, place[key] + 0.5])
            else:
                place[key] = self.choice(WRONG)
        return values

    def _place(self, values: Any) -> tuple[Any, Any]:
        """Return an object or list that is not empty, and a key of it; the outer ones are the likelier."""
        while True:
            key = self.choice(list(values) if isinstance(values, dict) else range(len(values)))
            inner = values[key]
            if isinstance(inner, dict | list) and inner and self.chance(0.7):
                values = inner
                continue
            return values, key

    def json_file(self, file: Path) -> None:
        """Spoil the values of a file of JSON, or its bytes."""
        if self.chance(0.15):
            deep = b"[" * 100_000
            file.write_bytes(self.choice([b"[]", b"3", b"null", deep, b'{"a": 1}', b"\xff\xfe", b"", b'{"a":' * 9_000]))
        elif self.chance(0.75):
            file.write_text(json.dumps(self.json(json.loads(file.read_text()))))
        else:
            file.write_bytes(self.bytes(file.read_bytes()))

    def corrupted(self, file: Path) -> None:
        """Spoil a file of any kind."""
        if self.chance(0.1):
            file.unlink()
        elif self.chance(0.05):
            file.unlink()
            file.mkdir()
        elif file.suffix == ".json":
            self.json_file(file)
        else:
            file.write_bytes(self.bytes(file.read_bytes()))


Maker = Callable[[Case], Outcome]
