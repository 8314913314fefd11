"""Shared by the tests of whole runs: a tiny corpus and config, a run trained once, and comparisons of runs."""

import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.cli.main import main
from transformer_jax.config import ExperimentConfig
from transformer_jax.config_file import read_config
from transformer_jax.metrics_file import CLOCK_FIELDS
from transformer_jax.parallel import launchers
from transformer_jax.tasks.trained.lines import LineOutputs, Output
from transformer_jax.training import set_up
from transformer_jax.training.hyper import split
from transformer_jax.training.state import state_template

ROOT = Path(__file__).parent.parent

# Logging, evaluating and saving never fall on the same step, except at the end.
CONFIG = """
from transformer_jax.config import *


def get_config(arg=""):
    return ExperimentConfig(
        model=ModelConfig(
            vocab_size=290, emb_dim=16, num_heads=2, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1,
            max_length=48, norm_position="pre", dropout_rate=0.1,
        ),
        data=DataConfig(source="text", tokenizer="bpe", max_length=16, tokens_per_batch=512, num_buckets=1),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-2, warmup_steps=2),
        training=TrainingConfig(
            num_train_steps=8, log_every_steps=3, eval_every_steps=4, checkpoint_every_steps=5, keep_last=2
        ),
        decode=DecodeConfig(max_extra_length=8),
    ).to_config_dict()
"""
LOGGED, EVALUATED, SAVED, TOTAL = (3, 6, 8), (4, 8), (5, 8), 8


def write_corpus(folder: Path, seed: int = 0) -> Path:
    """Write parallel text files (numbers, and the same numbers in reverse order) and tiny.py, a config for them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny.py").write_text(CONFIG)
    words = random.Random(seed)
    for name, count in (("train", 150), ("valid", 13), ("test", 11)):
        lines = [[str(words.randrange(60)) for _ in range(words.randint(1, 3))] for _ in range(count)]
        (folder / f"{name}.en").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        (folder / f"{name}.de").write_text("".join(f"{' '.join(line[::-1])}\n" for line in lines))
    return folder


_MAIN = "import json, sys; from transformer_jax.cli.main import main; sys.exit(max(map(main, json.load(sys.stdin))))"


def run_main_on_devices(count: int, commands: Sequence[Sequence[str]]) -> str:
    """Run commands one after the other in a process with this number of CPU devices; return its stderr."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    process = subprocess.run(
        [sys.executable, "-c", _MAIN],
        input=json.dumps(commands),
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=600,  # bounds a hang
    )
    assert process.returncode == 0, process.stderr
    return process.stderr


def argv(command: str, folder: Path, *flags: str) -> list[str]:
    """Return a command line: `train` on the corpus in a folder into FOLDER/run; other commands read from there."""
    if command == "train":
        files = [f"--config={folder / 'tiny.py'}", f"--config.data.dir={folder}"]
        return [command, *files, f"--workdir={folder / 'run'}", *flags]
    return [command, f"--checkpoint={folder / 'run'}", *flags]


_LAUNCHERS: dict[Any, Any] = {}


def _make_launcher(config: ExperimentConfig, step: Any, parameter_axes: Any) -> Any:
    """`make_launcher`, which compiles every program only once per process."""
    [static], hyper = step.args, split(config).hyper
    key = static, jax.tree.structure(hyper), config.parallel, config.data.row_multiple
    if key not in _LAUNCHERS:
        _LAUNCHERS[key] = launchers.make_launcher(config, step, parameter_axes)
    return _LAUNCHERS[key]


def kept_programs() -> AbstractContextManager[Any]:
    """Let runs in this process share the compiled step of their program."""
    return mock.patch.object(set_up, "make_launcher", _make_launcher)


def run_main(words: list[str]) -> int:
    """Run the command line in this process."""
    with kept_programs():
        return main(words)


def train(folder: Path, *flags: str) -> int:
    return run_main(argv("train", folder, *flags))


def subprocess_main(words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in its own process."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-m", "transformer_jax", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        **options,
    )


@functools.cache
def _trained_once() -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    holder = tempfile.TemporaryDirectory()
    folder = write_corpus(Path(holder.name) / "corpus")
    assert train(folder) == 0
    return folder, holder  # keeps the folder alive


def trained_folder() -> Path:
    """Return a corpus with a trained run, made once per process; read or copy it, do not change it."""
    return _trained_once()[0]


def copy_of_trained(target: Path) -> Path:
    """Copy the corpus and its trained run; the run's config still names the original folder."""
    return Path(shutil.copytree(trained_folder(), target))


def trained_config() -> ExperimentConfig:
    folder = trained_folder()
    return read_config(str(folder / "tiny.py"), {"data.dir": str(folder)})


# Comparisons.


def metric_lines(workdir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without values that depend on the clock."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in (*CLOCK_FIELDS, "crc32")} for line in lines]


def final_state(folder: Path, step: int = TOTAL) -> list[tuple[str, bytes]]:
    """Return every array of a checkpoint, bit for bit."""
    config = read_config(str(folder / "run" / "config.json"))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    store = CheckpointStore(folder / "run" / "checkpoints", read_only=True)
    state = store.restore(state_template(*split(config), sharding), step).state
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return [(jax.tree_util.keystr(path), np.asarray(leaf).tobytes()) for path, leaf in leaves]


def assert_same_run(actual: Path, expected: Path, last: int = TOTAL) -> None:
    """Check that two runs have the same parameters, optimizer state, log and set of checkpoints, bit for bit."""
    ours, theirs = final_state(actual, last), final_state(expected, last)
    assert len(ours) > 10
    assert [path for path, _ in ours] == [path for path, _ in theirs]
    assert [path for (path, a), (_, b) in zip(ours, theirs, strict=True) if a != b] == []
    lines = metric_lines(actual / "run")
    assert lines[-1]["step"] == last
    assert lines == metric_lines(expected / "run")
    assert saved_steps(actual) == saved_steps(expected)


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of the checkpoints; the folder must hold nothing else but damaged ones."""
    names = {path.name for path in (folder / "run" / "checkpoints").iterdir() if path.suffix != ".damaged"}
    assert all(name.isdigit() for name in names)
    return sorted(map(int, names))


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return every file below a folder with its content, except the lock, which records its last owner."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.name != ".lock"}
    return {name: path.read_bytes() if path.is_file() else None for name, path in files.items()}


def at(name: str, step: int, action: Callable[[], Any]) -> Callable[[str, int], None]:
    """Return a replacement of `kill_point` that calls `action` the first time that a step reaches a place."""
    waiting = [(name, step)]

    def point(*place: Any) -> None:
        if place in waiting:
            waiting.remove(place)
            action()

    return point


def translated(lines: Sequence[str], unfinished: Sequence[int] = ()) -> list[LineOutputs]:
    """Return a translator's result with these translations, unfinished at these indices."""
    return [
        LineOutputs(number, [Output(line, [1], [0.0], 0.0, number not in unfinished)])
        for number, line in enumerate(lines, start=1)
    ]


def without_checksum(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file of scores without its checksum."""
    return {name: value for name, value in scores.items() if name != "checksum"}


def write_own_modules(page: Path, folder: Path) -> None:
    """Write the modules that a page shows, as Python blocks that begin with their file's name, into a folder."""
    for name, text in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", page.read_text(), re.M | re.S):
        (folder / name).write_text(text)


def tutorial_blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of every block of a page, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.M | re.S)


def written_files(page: Path) -> dict[str, str]:
    """Return the files that a page tells the reader to save, "as `NAME`:" and a block, by name."""
    return dict(re.findall(r"as\s`([\w/.]+)`:\n\n```\w+\n(.*?)^```$", page.read_text(), re.M | re.S))
