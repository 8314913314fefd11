"""Wrong inputs and damaged files, from a seed: commands must end in a message, not in a traceback or in silence.

    python tests/fuzz.py inputs --cases=500 --seed=1
    python tests/fuzz.py damage --cases=400 --seed=1

`inputs`: flags, configs, studies, test files, stdin and prompts that are wrong. A command must end with exit code 0, 2
or 3, and change nothing in the run. `damage`: one file that a command reads back is changed at a byte, cut or deleted.
The command must end like on the undamaged files, or say something (a warning, or an error with exit code 2).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
if __name__ == "__main__":
    import conftest  # noqa: F401  # the environment of the tests

from report_support import write_workdir
from run_support import argv, run_main, snapshot, trained_folder, write_corpus

from transformer_jax.config import ExperimentConfig, walk
from transformer_jax.training import loop

SECONDS = 120
"""Longest time of a command; more counts as hanging."""
NASTY = [
    *("", " ", "0", "-1", "1e308", "-1e308", "nan", "inf", "1.5", "99999999999999999999", "true", "None", "[]", "{}"),
    *("\x00", "\x1b[2J", "ü", "\ud800", "x" * 300, "a,b,,c", "../..", "/proc/nope", "/dev/null", "~nobody", "=", "--"),
    *("%s", "*", "a=b", "1,2,3", "tfds:x:y", "😀" * 20),
]


class Outcome:
    """The end of a command: exit code, and everything printed on stderr."""

    def __init__(self, words: list[str], stdin: bytes = b"") -> None:
        self.words, self.code, self.trace = words, None, ""
        out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()

        def hang(number: int, frame: object) -> None:
            raise TimeoutError(f"more than {SECONDS} s")

        before = signal.signal(signal.SIGALRM, hang)
        signal.alarm(SECONDS)
        given = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                mock.patch.object(sys, "stdin", given),
            ):
                self.code = run_main(words)
        except BaseException:
            self.trace = traceback.format_exc()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        self.err = err.getvalue()

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
        return "" if "\x1b" not in self.err else f"control characters on stderr: {self.err!r}"


# Wrong inputs.


def _spoiled(words: list[str], source: random.Random) -> list[str]:
    """Drop, repeat, cut, swap or replace a word or its value."""
    words = list(words)
    at = source.randrange(1, len(words)) if len(words) > 1 else 0
    flag, equals, value = words[at].partition("=")
    kind = source.randrange(6)
    if kind == 0:
        del words[at]
    elif kind == 1:
        words.insert(at, words[at])
    elif kind == 2:
        words[at] = words[at][: source.randrange(len(words[at]) + 1)]
    elif kind == 3:
        words[at] = f"{flag}={source.choice(NASTY)}"
    elif kind == 4:
        words.insert(at, source.choice(NASTY))
    else:
        words[at] = f"{flag}x{equals}{value}"
    return words


def _bytes(text: bytes, source: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(data) + 1)
        kind = source.randrange(4)
        if kind == 0 and data:
            data[at % len(data)] = source.randrange(256)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = bytes(source.randrange(256) for _ in range(source.randint(1, 9)))
        else:
            data[at:at] = source.choice([b"\n\n", b"\t", b"\x00", b"\xff\xfe", b"\r", b"{", b"\xe2\x80\xa8"])
    return bytes(data)


class Inputs:
    """Makers of command lines with something wrong in them."""

    def __init__(self, folder: Path, source: random.Random) -> None:
        self.source, self.folder = source, folder
        self.run = shutil.copytree(trained_folder(), folder / "trained") / "run"
        self.corpus = self.run.parent
        self.study = folder / "study"
        write_workdir(self.study)
        self.fields = [name for name, _, _ in walk(ExperimentConfig())]

    def flags(self) -> Outcome:
        run, study = self.run, self.study / "runs" / "heads"
        lines = [
            ["list", "--json"],
            ["doctor"],
            ["inspect", f"--config={self.corpus / 'tiny.py'}", "--json", "--config.model.emb_dim=32"],
            ["inspect", f"--checkpoint={run}", "--nojson"],
            ["evaluate", f"--checkpoint={run}", "--splits=test", "--nogenerate", "--evaluation.tokens_per_batch=512"],
            ["evaluate", f"--checkpoint={run}", "--nogenerate", f"--input={self.corpus / 'test.en'}", "--name=x"],
            ["generate", f"--checkpoint={run}", "--decode.beam_size=2", "--decode.forbidden_ids=5"],
            ["report", f"--workdir={study}", "--json"],
            ["plot", "--config=quickstart", f"--output={self.folder / 'plots'}"],
            ["train", f"--config={self.corpus / 'tiny.py'}", f"--workdir={self.folder / 'new'}"],
            ["train", f"--workdir={run}", "--config.training.log_every_steps=4"],
            ["sweep", f"--study={self.study / 'experiments' / 'heads'}", "--num_workers=0", "--workdir=/proc/x"],
            ["prepare", "--dataset=no_such_dataset", "--data_dir=/proc/x"],
            ["embeddings", f"--checkpoint={run}", "--neighbours=1"],
            ["attention", f"--checkpoint={run}", "--text=1 2", f"--output={self.folder / 'pictures'}"],
            ["compare", str(run), str(run), "--splits=test", "--samples=3"],
        ]
        return Outcome(_spoiled(self.source.choice(lines), self.source), b"1 2\n")

    def overrides(self) -> Outcome:
        name = self.source.choice(self.fields)
        value = self.source.choice(NASTY)
        return Outcome(["inspect", "--config=quickstart", "--json", f"--config.{name}={value}"])

    def config(self) -> Outcome:
        file = self.folder / "c.py"
        text = (self.corpus / "tiny.py").read_bytes()
        if self.source.random() < 0.5:
            text = _bytes(text, self.source)
        else:
            values = ["5", "None", "[]", "'x'", "{'a': 1}", "print", "exit()", "1/0", "__import__('sys').exit(0)"]
            text += f"\nget_config = {self.source.choice(values)}\n".encode()
        file.write_bytes(text)
        return Outcome(["inspect", f"--config={file}", "--json"])

    def json_config(self) -> Outcome:
        file = self.folder / "config.json"
        values = json.loads((self.run / "config.json").read_text())
        section = self.source.choice([name for name in values if isinstance(values[name], dict)])
        wrong = self.source.choice([None, -1, 1e308, "x", [], {}, [[[]]], True, 2**70])
        if self.source.random() < 0.3:
            values[section] = wrong
        else:
            values[section][self.source.choice([*values[section], "nothing"])] = wrong
        file.write_text(json.dumps(values))
        if self.source.random() < 0.3:
            file.write_bytes(_bytes(file.read_bytes(), self.source))
        return Outcome(["inspect", f"--config={file}", "--json"])

    def study_file(self) -> Outcome:
        folder = self.folder / "own"
        folder.mkdir(exist_ok=True)
        text = (self.study / "experiments" / "heads" / "study.py").read_bytes()
        (folder / "study.py").write_bytes(_bytes(text, self.source))
        shutil.copy(self.study / "tiny.py", folder)
        return Outcome(["sweep", f"--study={folder}", "--workdir=/proc/nope"])

    def test_files(self) -> Outcome:
        pairs = b"".join(f"{n} {n}\t{n}\n".encode() for n in range(9))
        lines = b"".join(json.dumps({"en": str(n), "de": str(n)}).encode() + b"\n" for n in range(9))
        name, text = self.source.choice([("x.tsv", pairs), ("x.jsonl", lines), ("x.tsv.gz", pairs)])
        file = self.folder / name
        file.write_bytes(_bytes(text, self.source))
        return Outcome(["evaluate", f"--checkpoint={self.run}", f"--input={file}", "--name=fuzz", "--nogenerate"])

    def stdin(self) -> Outcome:
        return Outcome(["generate", f"--checkpoint={self.run}"], _bytes(b"1 2 3\n4 5\n\n6\n", self.source))

    def decode(self) -> Outcome:
        name = self.source.choice([field for field in self.fields if field.startswith("decode.")])
        value = self.source.choice([*NASTY, "2", "3", "0.5", ",".join(map(str, range(4, 290)))])
        return Outcome(["generate", f"--checkpoint={self.run}", f"--{name}={value}"], b"1 2\n")

    def results(self) -> Outcome:
        copy = self.folder / "results"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.study / "runs" / "heads", copy)
        file = self.source.choice([path for path in sorted(copy.rglob("*.json*")) if path.is_file()])
        wrong = [b"[]", b"3", b"null", b"[" * 100_000, b'{"a": 1}', b"\xff\xfe"]
        if self.source.random() < 0.5 and file.suffix == ".json":
            values = json.loads(file.read_text())
            values[self.source.choice(list(values))] = self.source.choice([None, 3, "x", [], {"a": []}, [1], -1])
            file.write_text(json.dumps(values))
        else:
            file.write_bytes(self.source.choice(wrong))
        return Outcome(["report", f"--workdir={copy}"])

    @property
    def makers(self) -> list[Callable[[], Outcome]]:
        return [
            *(self.flags, self.flags, self.flags, self.overrides, self.overrides, self.config, self.json_config),
            *(self.study_file, self.test_files, self.stdin, self.decode, self.results),
        ]


def fuzz_inputs(folder: Path, cases: int, seed: int) -> Iterator[tuple[str, Outcome, str]]:
    """Yield the kind, the outcome and the problem (empty if there is none) of every case."""
    source = random.Random(seed)
    inputs = Inputs(folder, source)
    before = _kept(inputs.run)
    os.chdir(folder)
    for number in range(cases):
        maker = inputs.makers[number % len(inputs.makers)]
        outcome = maker()
        changed = "" if _kept(inputs.run) == before else f"the run has changed\n{outcome.err}"
        yield maker.__name__, outcome, outcome.problem or changed


def _kept(run: Path) -> dict[str, bytes | None]:
    """Return the files of a run that no command of this kind may change."""
    names = ("checkpoints/", "tokenizer.model")
    return {name: data for name, data in snapshot(run).items() if name.startswith(names)}


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
    arguments = parser.parse_args()
    counts: Counter[object] = Counter()
    with tempfile.TemporaryDirectory() as name:
        fuzz = {"inputs": fuzz_inputs, "damage": fuzz_damage}[arguments.kind]
        for number, (what, outcome, problem) in enumerate(fuzz(Path(name), arguments.cases, arguments.seed)):
            counts[outcome.code] += 1
            if problem:
                counts["problems"] += 1
                print(f"--- case {number}, {what}: {outcome.words!r}\n{problem}", flush=True)
    print(f"{arguments.cases} cases: {dict(counts)}")
    return 1 if counts["problems"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
