"""Damaged files that commands read back, for fuzz.py: each scene is a folder and a command that reads its files.

A file is changed at a bit or a digit, cut, deleted, or replaced by the file of the same name of another checkpoint or
trial. The command must end like on the whole files, or say something. Files that the user brings (`is_own=False`: a
Hugging Face folder) have no checksum of ours: their other numbers are another model. They must only be read or refused
with a message.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import fuzz_folders
from fuzz_support import Bench, Case, Outcome
from kinds_support import write_kind
from report_support import write_workdir
from run_support import argv, run_main, write_corpus

from transformer_jax.cli import predict as predict_command
from transformer_jax.cli import sweep_stages
from transformer_jax.cli.resumable import ResumableFile
from transformer_jax.host import exit_codes
from transformer_jax.training import loop

_LOCKS = (".lock", ".worker_lock", ".search_lock")
_SAYS = ("warning: ", "error: ", "tokenizing ", "storing ", "training the tokenizer")


@dataclasses.dataclass
class Scene:
    """A folder, the files in it that are damaged, and a command.

    damaged: folders and files within `root`, or patterns of them. end: returns what the command has made. kept: a copy
    of the folder as it was, which every case starts from.
    """

    name: str
    root: Path
    damaged: Sequence[str]
    run: Callable[[], Outcome]
    end: Callable[[], Any]
    kept: Path
    is_own: bool = True
    expected: Any = None

    def start(self) -> None:
        """Run the command on the whole files."""
        self.restore()
        outcome = self.run()
        assert outcome.code == 0, f"{self.name}: {outcome.trace or outcome.err}"
        assert not _said(outcome), f"{self.name}: {outcome.err}"
        self.expected = self.end()

    def restore(self) -> None:
        shutil.rmtree(self.root)
        shutil.copytree(self.kept, self.root)

    def files(self) -> list[Path]:
        found = {
            path
            for pattern in self.damaged
            for place in self.root.glob(pattern)
            for path in (place.rglob("*") if place.is_dir() else [place])
        }
        return sorted(
            path
            for path in found
            if path.is_file() and path.stat().st_size and path.name not in _LOCKS and "tfevents" not in path.name
        )

    def case(self, source: random.Random) -> tuple[str, Outcome, str]:
        """Damage a file, run the command, and return what was done, its outcome and the problem, if there is one."""
        self.restore()
        kinds = sorted({path.name if path.suffix else path.parent.name for path in self.files()})
        kind = source.choice(kinds)  # not of all files: most are those of checkpoints
        file = source.choice([p for p in self.files() if kind == (p.name if p.suffix else p.parent.name)])
        what = f"{self.name}: {file.relative_to(self.root)} {damage(file, self.files(), source)}"
        outcome = self.run()
        problem = outcome.problem
        has_listed = outcome.code == exit_codes.SOME_FAILED  # it has listed what is lost
        if not problem and self.is_own and not has_listed and not _said(outcome) and self.end() != self.expected:
            problem = f"another result, without a word\n{outcome.err}"
        return what, outcome, problem


def _said(outcome: Outcome) -> bool:
    return any(text in outcome.err for text in _SAYS)


def damage(file: Path, files: Sequence[Path], source: random.Random) -> str:
    """Damage a file; return what was done. files: those of the scene."""
    data = file.read_bytes()
    others = [path for path in files if path.name == file.name and path != file and path.read_bytes() != data]
    digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
    # Without the scores of an earlier evaluation there is nothing to reuse, so a deletion of them is no damage, and
    # neither are the scores of another checkpoint: they are there after an ordinary evaluation of that checkpoint.
    are_scores = "evaluation" in file.parts and file.parent.name != "baselines"
    kinds = ["bit", "cut", *(["digit"] if digits else []), *(["other"] if others and not are_scores else [])]
    kind = source.choice([*kinds, *([] if are_scores else ["delete"])])
    if kind == "delete":
        file.unlink()
        return "deleted"
    if kind == "other":
        other = source.choice(others)
        shutil.copyfile(other, file)
        return f"replaced by {other.parent.name}/{other.name}"
    if kind == "cut":
        at = source.randrange(len(data))
        file.write_bytes(data[:at])
        return f"cut at {at}"
    if kind == "digit":
        at = source.choice(digits)
        new = source.choice([digit for digit in b"0123456789" if digit != data[at]])
    else:
        at = source.randrange(len(data))
        new = data[at] ^ (1 << source.randrange(8))
    file.write_bytes(data[:at] + bytes([new]) + data[at + 1 :])
    return f"changed at {at}: {data[at : at + 1]!r} to {bytes([new])!r}"


# Scenes.


def _stopped(folder: Path, *flags: str) -> list[str]:
    """Train until a signal after step 5, and return the command that resumes."""

    def stop(name: str, step: int) -> None:
        if (name, step) == ("after_batch", 5):
            os.kill(os.getpid(), signal.SIGTERM)

    words = [*argv("train", folder), f"--config.data.cache_dir={folder / 'shared'}", *flags]
    with mock.patch.object(loop, "kill_point", stop):
        assert run_main(words) == 143
    return words


def _log(run: Path) -> Callable[[], list[str]]:
    """Return a function that returns the log of a run without times, and its number of files of labels."""

    def end() -> list[str]:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        skipped = ("seconds", "tokens_per_s", "crc32")
        texts = [json.dumps({k: v for k, v in line.items() if k not in skipped}) for line in lines]
        return [*texts, *((run / "labels.json").read_text() for _ in run.glob("labels.json"))]

    return end


def _scores(run: Path, folder: str = "evaluation") -> Callable[[], dict[str, bytes]]:
    return lambda: {path.name: path.read_bytes() for path in sorted((run / folder).glob("test.*"))}


def _command(words: list[str]) -> Callable[[], Outcome]:
    return lambda: Outcome(words)


def _translation(folder: Path) -> Iterator[Scene]:
    """A stopped run with ranked checkpoints and scores: resumed with and without its config, scored, its best too."""
    root = write_corpus(folder / "translation")
    steps = {"checkpoint_every_steps": 2, "eval_every_steps": 2, "keep_best": 1, "keep_last": 3}
    words = _stopped(root, *(f"--config.training.{name}={value}" for name, value in steps.items()))
    run = root / "run"
    best = run / "checkpoints" / "best"
    for name in (run, best):
        assert run_main(["evaluate", f"--checkpoint={name}", "--splits=test"]) == 0
    kept = shutil.copytree(root, folder / "kept_translation")
    scored = _scores(run, "evaluation/step_4")
    assert scored()
    files = ("run", "shared", "*.en", "*.de")
    no_text = ["--splits=test", "--nogenerate"]
    yield Scene("resume", root, files, _command(words), _log(run), kept)
    yield Scene("resume alone", root, files, _command(["train", f"--workdir={run}"]), _log(run), kept)
    yield Scene("evaluate", root, files, _command(["evaluate", f"--checkpoint={run}", *no_text]), _scores(run), kept)
    yield Scene("best", root, files, _command(["evaluate", f"--checkpoint={best}", *no_text]), scored, kept)


def _classification(folder: Path) -> Iterator[Scene]:
    """A stopped run with labels, an interrupted output of predictions, and the scores of baselines."""
    root = write_kind(folder / "classification", "classification")
    words, run = _stopped(root), root / "run"
    (root / "in").write_bytes(b"the cat saw\nthe dog saw\nowl\nthe cat saw a horse\nthe\n")
    predict = ["predict", f"--checkpoint={run}", f"--input={root / 'in'}", f"--output_file={root / 'out'}"]

    def stop(file: ResumableFile, *arguments: Any) -> None:
        whole(file, *arguments)
        raise KeyboardInterrupt

    whole = ResumableFile.write
    with mock.patch.object(predict_command, "_CHUNK", 2), mock.patch.object(ResumableFile, "write", stop):
        assert run_main(predict) == 130
    assert (root / "out.partial.json").exists()
    kept = shutil.copytree(root, folder / "kept_classification")
    yield Scene("resume labels", root, ("run", "shared", "*.tsv"), _command(words), _log(run), kept)
    partial = ("out.partial", "out.partial.json", "run/checkpoints")  # other lines to come are the user's to choose
    yield Scene("predict", root, partial, _command(predict), (root / "out").read_bytes, kept)
    yield _baselines(root, folder / "kept_baselines")


def _baselines(root: Path, kept: Path) -> Scene:
    """The stopped run of labels with its scores and those of its baselines: scored again."""
    run = root / "run"
    words = ["evaluate", f"--checkpoint={run}", "--splits=test", "--nogenerate", "--baselines"]
    assert run_main(words) == 0
    files = [run / "evaluation" / "test.json", run / "evaluation" / "baselines" / "test.json"]
    shutil.copytree(root, kept)
    return Scene(
        "baselines",
        root,
        ("run/evaluation",),
        _command(words),
        lambda: [json.loads(file.read_bytes()) for file in files],
        kept,
    )


def _images(folder: Path) -> Iterator[Scene]:
    root = write_kind(folder / "images", "images")
    words = _stopped(root)
    kept = shutil.copytree(root, folder / "kept_images")
    files = ("run", "shared", "train", "valid")
    yield Scene("resume images", root, files, _command(words), _log(root / "run"), kept)


class _NoExecutor:
    """An executor whose workers refuse every trial, since training takes too long here."""

    num_workers = 1

    def jobs(self, trials: Any) -> list[list[Path]]:
        return [[place] for _, place in trials]

    def start(self, folders: Any, slot: int) -> _NoExecutor:
        return self

    def poll(self) -> int:
        return exit_codes.USER_ERROR

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def _study(folder: Path) -> Iterator[Scene]:
    """A study with results: reported, reported from its results folder, and run again."""
    root = folder / "study"
    workdir, study = write_workdir(root)
    again = ["sweep", f"--study={study}", f"--workdir={workdir}", "--config.model.mlp_dim=40"]

    def sweep() -> Outcome:
        with mock.patch.object(sweep_stages, "_executor", return_value=_NoExecutor()):
            return Outcome(again)

    assert sweep().code == 0
    results = root / "results"
    assert _command(["report", f"--workdir={workdir}", f"--output={results}"])().code == 0
    kept = shutil.copytree(root, folder / "kept_study")
    report = ["report", f"--workdir={workdir}", f"--output={root / 'report'}"]
    tables = [root / "report" / name for name in ("results.csv", "measurements.csv", "summary.csv")]
    trials = (workdir / "trials").glob
    yield Scene("report", root, ("runs",), _command(report), lambda: [path.read_bytes() for path in tables], kept)
    again_from = ["report", f"--results={results}", f"--output={root / 'report'}"]
    yield Scene(
        "report of results",
        root,
        ("results/*.json", "results/*.csv"),
        _command(again_from),
        lambda: [path.read_bytes() for path in tables],
        kept,
    )
    yield Scene(
        "sweep", root, ("runs",), sweep, lambda: sorted(path.read_bytes() for path in trials("*/result.json")), kept
    )


def _folders(folder: Path) -> Iterator[Scene]:
    """Hugging Face folders with every kind of tokenizer file."""
    for name in ("gpt2", "llama", "marian", "classification", "vit"):
        root = folder / f"hf_{name}"
        root.mkdir()
        fuzz_folders._folder(Case(Bench(folder / f"bench_{name}"), root, random.Random(0)), name)
        kept = shutil.copytree(root, folder / f"kept_hf_{name}")
        words = ["convert", f"--from={root / 'theirs'}", f"--workdir={root / 'ours'}"]
        yield Scene(f"convert {name}", root, ("theirs",), _command(words), lambda: None, kept, is_own=False)


SCENES = (_translation, _classification, _images, _study, _folders)
_WEIGHTS = {"report": 2, "resume alone": 2, "resume": 2}


def fuzz_damage(
    folder: Path, cases: int, seed: int, makers: Sequence[Callable[[Path], Iterator[Scene]]] = SCENES
) -> Iterator[tuple[str, Outcome, str]]:
    """Yield what was damaged, the outcome and the problem (empty if there is none) of every case."""
    source = random.Random(seed)
    scenes = [scene for make in makers for scene in make(folder)]
    for scene in scenes:
        scene.start()
    turns = [scene for scene in scenes for _ in range(_WEIGHTS.get(scene.name, 1))]
    for number in range(cases):
        yield turns[number % len(turns)].case(source)
