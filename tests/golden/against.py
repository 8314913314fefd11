"""Compare the working tree with a commit, bit for bit, on this machine: `python tests/golden/against.py COMMIT`.

Both sides run the configs of this folder in processes of their own: what they log, the scores of a checkpoint, and the
programs that JAX lowers (StableHLO without locations): the training step of every config of `configs/`, and decoding.
Equal programs compute equal numbers with equal speed.

The programs are named by the side's own modules, so a commit that moves `make_train_step` or the search must be named
in `_HOMES` below.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
ROWS, LENGTH = 8, 16

_HOMES = {
    "read_config": ["transformer_jax.config_file"],
    "split": ["transformer_jax.training.hyper"],
    "init_state": ["transformer_jax.training.state"],
    "make_train_step": ["transformer_jax.training.step"],
    "TASKS": ["transformer_jax.tasks.base", "transformer_jax.tasks.task"],
    "ARCHITECTURES": ["transformer_jax.models.architecture"],
    "init_params": ["transformer_jax.models.architecture"],
    "DecodeConfig": ["transformer_jax.config"],
    "Ends": ["transformer_jax.decoding.settings"],
    "prepare": ["transformer_jax.decoding.generate"],
}
"""Modules that may hold a name, the newest last."""
_LOCATION = re.compile(r" loc\([^\n]*\)$|^#loc.*\n", re.MULTILINE)
_MODULE = re.compile(r"^module @\S+")


def _named(name: str) -> Any:
    for home in reversed(_HOMES[name]):
        try:
            module = importlib.import_module(home)
        except ImportError:
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise SystemExit(f"{name} is in none of {_HOMES[name]}; add its module to _HOMES in {__file__}")


# One side, in a process of its own.


def record(folder: Path) -> None:
    """Write numbers.json and a file NAME.mlir for every program of the package that this process imports."""
    folder.mkdir(parents=True)
    for name, text in _programs():
        (folder / f"{name}.mlir").write_text(text)
    (folder / "numbers.json").write_text(json.dumps(_numbers(folder), indent=1))


def _numbers(folder: Path) -> dict[str, Any]:
    from transformer_jax.cli.main import main

    sys.path.insert(0, str(FOLDER))
    import config

    numbers = {}
    for name in (*config.RUNS, *config.WITNESSES):
        workdir = folder / "runs" / name
        assert main(["train", f"--config={FOLDER / 'config.py'}:{name}", f"--workdir={workdir}"]) == 0, name
        for line in (workdir / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            kept = {key: value for key, value in values.items() if key not in _CLOCKS}
            numbers[f"{name} {kept.pop('step')} {kept.pop('split')}"] = kept
        if name in _SCORED:
            assert main(["evaluate", f"--checkpoint={workdir}", "--splits=test"]) == 0, name
            scores = json.loads((workdir / "evaluation" / "test.json").read_text())
            numbers[f"{name} scores"] = {key: value for key, value in scores.items() if isinstance(value, float)}
            if (outputs := workdir / "evaluation" / "test.txt").exists():
                numbers[f"{name} outputs"] = outputs.read_text()
    return numbers


_CLOCKS = ("crc32", "seconds", "tokens_per_s", "images_per_s", "time", "wall_time")
_SCORED = ("quickstart", "windows_lion", "recurrent", "classification_batch_norm", "tagging", "span_qa", "vision")


def _programs() -> Iterator[tuple[str, str]]:
    """Yield name and text of the training step of every config, and of the stages of decoding of those that decode."""
    import jax
    import jax.numpy as jnp

    split, init_state, tasks = _named("split"), _named("init_state"), _named("TASKS")
    for file in sorted((Path.cwd() / "configs").glob("*.py")):
        config = _named("read_config")(str(file), {})
        batch = tasks[config.task.name].batch_template(config, ROWS, {"inputs": LENGTH, "targets": LENGTH})
        static, hyper = split(config)
        state = jax.eval_shape(lambda h, static=static: init_state(static, h), hyper)
        step = _named("make_train_step")(static)
        lowered = jax.jit(lambda s, b, h, step=step: step(s, b, h)).lower(
            state, batch, jax.tree.map(jnp.asarray, hyper)
        )
        yield f"{file.stem}.step", _text(lowered)
        yield from ((f"{file.stem}.{name}", text) for name, text in _decoding(config.model))


def _decoding(model: Any) -> Iterator[tuple[str, str]]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    decoder = _named("ARCHITECTURES")[model.architecture].decoder(model)
    generate = sys.modules[_named("prepare").__module__]
    if decoder is None:
        return
    params = jax.eval_shape(lambda: decoder.prepare(_named("init_params")(model, 0)))
    pairs = {"inputs": np.ones((ROWS, LENGTH), np.int32), "inputs_mask": np.ones((ROWS, LENGTH), bool)}
    batch = pairs if model.num_encoder_layers else {}
    request = generate.Request(batch, [[3]] * ROWS, np.full(ROWS, LENGTH), LENGTH)
    ends = _named("Ends")(end_id=1, never=(0,))
    ways = {"beam": {"beam_size": 4}, "sample": {"method": "sample", "num_samples": 2}}
    for name, fields in ways.items():
        search = generate.prepare((decoder,), (params,), _named("DecodeConfig")(**fields), ends, request)
        capacity, *_ = generate.capacities(0, search.limit)

        def begin(params, values, inputs, search=search, capacity=capacity):
            return generate._begin(search.decoders, search.settings, search.limit, capacity, params, values, inputs)

        def stage(params, values, inputs, state, search=search, capacity=capacity):
            return generate._stage(search.decoders, search.settings, capacity, params, values, inputs, state)

        given = search.params, *jax.tree.map(jnp.asarray, (search.values, search.inputs))
        yield f"{name}.begin", _text(jax.jit(begin).lower(*given))
        yield f"{name}.stage", _text(jax.jit(stage).lower(*given, jax.eval_shape(begin, *given)))


def _text(lowered: Any) -> str:
    return _MODULE.sub("module", _LOCATION.sub("", lowered.as_text()))


# Both sides.


def compare(then: Path, now: Path) -> list[str]:
    """Return a line for every number and program that differs."""
    found = [json.loads((side / "numbers.json").read_text()) for side in (then, now)]
    lines = [
        f"{name}: {found[0].get(name)} -> {found[1].get(name)}"
        for name in sorted({*found[0], *found[1]})
        if found[0].get(name) != found[1].get(name)
    ]
    texts = [{file.name: file.read_text() for file in side.glob("*.mlir")} for side in (then, now)]
    for name in sorted({*texts[0], *texts[1]}):
        before, after = (side.get(name, "").splitlines() for side in texts)
        if before != after:
            changed = sum(line[:1] in "+-" for line in difflib.unified_diff(before, after, n=0, lineterm=""))
            lines.append(f"{name}: {changed - 2} of {len(before)} lines of the program differ")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help="keep what both sides recorded in this folder, for `diff`")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record)
        return
    if not arguments.commit:
        parser.error("which commit?")
    with tempfile.TemporaryDirectory() as scratch:
        output, tree = arguments.output or Path(scratch) / "recorded", Path(scratch) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), arguments.commit], cwd=ROOT, check=True)
        try:
            for side, folder in (("then", tree), ("now", ROOT)):
                command = [sys.executable, "-P", __file__, f"--record={output / side}"]
                environment = os.environ | {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": f"{scratch}/cache"}
                print(f"recording {side}: {folder}", flush=True)
                result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
                if result.returncode:
                    sys.exit(result.stderr)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)
        problems = compare(output / "then", output / "now")
        programs = len([*(output / "now").glob("*.mlir")])
        count = len(json.loads((output / "now" / "numbers.json").read_text()))
    print("\n".join([*problems, f"{len(problems)} differences in {count} lines of numbers and {programs} programs"]))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
