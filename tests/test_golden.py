"""Numbers stay as recorded: training steps, initial values, a checkpoint's scores, a study's report.

tests/golden/README.md lists the recorded numbers and how to renew them.
"""

import csv
import difflib
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from support import slow_but

# The only names of the package that these tests use; everything else runs through the command line.
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_config
from transformer_jax.host.machine import processor, processor_facts
from transformer_jax.training.hyper import split
from transformer_jax.training.state import placed_state


def initial_params(config: Any) -> Any:
    """Return the initial parameters of training as a tree of arrays."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return placed_state(*split(config), here).params


GOLDEN = Path(__file__).parent / "golden"
CONFIG = GOLDEN / "config.py"
RENEW = os.environ.get("RENEW_GOLDEN") == "1"
SAVED = 3000  # the checkpoint's step in golden/workdir

TOLERANCE = 1e-5
"""Relative tolerance on a machine other than the one that recorded the numbers."""
BFLOAT16_TOLERANCE = 1e-2

LOGGED = ("loss", "gradient_norm", "tokens")
COUNTED = (*LOGGED, "padding_efficiency")
"""`padding_efficiency`: filled slots of a batch / its slots."""
SCORES = ("loss", "perplexity", "accuracy", "tokens", "over_length")
TRANSLATION_SCORES = ("exact_match", "sacrebleu", "chrf", "unfinished")

# The corpus and the tokenizers depend on these versions.
_DATA_LIBRARIES = ("babel", "num2words", "numpy", "sentencepiece", "tokenizers")


# Recorded numbers.


@functools.cache
def here() -> dict[str, str]:
    """Return everything that decides how numbers are rounded."""
    wanted = ("avx", "fma", "amx", "sve", "asimd")
    words = {word for line in processor_facts() for word in line.partition(":")[2].split()}
    return {
        "processor": f"{processor()}{_model()}",
        "instructions": " ".join(sorted(word for word in words if word.startswith(wanted))),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "backend": f"{jax.device_count()} {jax.default_backend()}",
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def _model() -> str:
    """Return family, model and stepping: virtual machines give different processors one name and equal instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    wanted = ("cpu family", "model", "stepping")
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return "".join(f", {name} {facts[name]}" for name in wanted if name in facts)


def data_versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _DATA_LIBRARIES}


class Recorded(NamedTuple):
    """The numbers of tests/golden/FILE.json under a name; `exact`: they were recorded on a machine like this one."""

    file: Path
    name: str
    numbers: dict[str, Any]
    exact: bool


def recorded(file: str, name: str) -> Recorded:
    """Return the recorded numbers of a name; skip the test if library versions would make another corpus."""
    path = GOLDEN / f"{file}.json"
    if RENEW:
        return Recorded(path, name, {}, True)
    entry = json.loads(path.read_text())[name]
    if entry["data_versions"] != data_versions():
        pytest.skip(f"recorded with {entry['data_versions']}; here are {data_versions()}, which make another corpus")
    return Recorded(path, name, entry["numbers"], entry["made_with"] == here())


def check(known: Recorded, numbers: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    """Compare numbers with the recorded ones, or record them if RENEW_GOLDEN=1.

    Args:
      numbers: by line of the file.
      tolerance: relative, on other machines than the one that recorded them; there hashes are not compared.
    """
    if RENEW:
        write(known.file, known.name, numbers)
        return
    problems = list(differences(known.numbers, numbers, None if known.exact else tolerance))
    if problems:
        shown = "\n".join(problems[:12] + ([f"and {len(problems) - 12} more"] if len(problems) > 12 else []))
        rule = "bit for bit, on the machine they were recorded on" if known.exact else f"within {tolerance:g}"
        pytest.fail(
            f"{known.file.relative_to(GOLDEN.parent.parent)}, '{known.name}' ({rule}):\n{shown}\n"
            "A change of structure leaves these numbers as they are. If they have to change, renew them with\n"
            "    RENEW_GOLDEN=1 python -m pytest tests/test_golden.py\n"
            "in a commit of its own, whose message states the reason and the size of the difference.",
            pytrace=False,
        )


def differences(wanted: Any, found: Any, tolerance: float | None, place: str = ""):
    """Yield a line for every number that differs; with tolerance None numbers must be equal."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name in [*wanted, *(name for name in found if name not in wanted)]:
            where = f"{place} {name}".strip()
            if name not in found or name not in wanted:
                yield f"  {where}: {'missing' if name in wanted else 'not recorded'}"
            elif name != "sha256" or tolerance is None:
                yield from differences(wanted[name], found[name], tolerance, where)
    elif wanted != found:
        if not (isinstance(wanted, float) and isinstance(found, float)):
            yield f"  {place}: {found!r}, recorded {wanted!r}"
        elif tolerance is None or not math.isclose(wanted, found, rel_tol=tolerance):
            relative = abs(found - wanted) / max(abs(wanted), 1e-300)
            yield f"  {place}: {found!r}, recorded {wanted!r}, relative difference {relative:.1e}"


def write(path: Path, name: str, numbers: dict[str, Any]) -> None:
    """Write the numbers of a name to a file, one line of JSON each."""
    content = json.loads(path.read_text()) if path.exists() else {}
    content[name] = {"made_with": here(), "data_versions": data_versions(), "numbers": numbers}
    entries = []
    for key, entry in sorted(content.items()):
        lines = ",\n".join(f"   {json.dumps(line)}: {json.dumps(value)}" for line, value in entry["numbers"].items())
        heads = "".join(f'  "{head}": {json.dumps(entry[head])},\n' for head in ("made_with", "data_versions"))
        entries.append(f' {json.dumps(key)}: {{\n{heads}  "numbers": {{\n{lines}\n  }}\n }}')
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def logged(workdir: Path, after: int = 0, names: Sequence[str] = LOGGED) -> dict[str, dict[str, float]]:
    """Return the numbers of metrics.jsonl after a step, by step and split."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {
        f"step {line['step']} {line['split']}": {name: line[name] for name in names if name in line}
        for line in lines
        if line["step"] > after
    }


# Training.


RUNS = ("quickstart", "post_packed", "relative_scanned", "bfloat16_accumulated")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_training_steps(tmp_path, name):
    known = recorded("steps", name)
    assert main(["train", f"--config={CONFIG}:{name}", f"--workdir={tmp_path}"]) == 0
    numbers = logged(tmp_path)
    assert len(numbers) == 21  # 20 steps and the validation at the end
    check(known, numbers, BFLOAT16_TOLERANCE if name.startswith("bfloat16") else TOLERANCE)


WITNESSES = (
    *("windows_lion", "packed_language_model", "adafactor", "accumulated_with_dropout", "masked_lm_frozen"),
    *("denoising", "span_corruption", "classification_batch_norm", "tagging", "span_qa", "vision", "recurrent"),
)
AMPLIFYING = ("windows_lion", "adafactor", "classification_batch_norm")
"""A change of rounding grows: Lion takes signs, Adafactor divides by small averages, BatchNorm by deviations."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WITNESSES)
def test_training_steps_of_every_task_optimizer_and_kind_of_batch(tmp_path, name):
    known = recorded("steps", name)
    assert main(["train", f"--config={CONFIG}:{name}", f"--workdir={tmp_path}"]) == 0
    numbers = logged(tmp_path, names=COUNTED)
    assert len(numbers) == 9
    assert all({*COUNTED} <= {*line} for at, line in numbers.items() if at.endswith("train"))
    check(known, numbers, 1e-2 if name in AMPLIFYING else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["jit", "shard_map", "pmap"])
def test_training_steps_on_eight_devices(tmp_path, launcher):
    known = recorded("steps", f"eight_devices_{launcher}")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    command = [sys.executable, "-m", "transformer_jax", "train", f"--config={CONFIG}:devices", f"--workdir={tmp_path}"]
    command += [f"--config.parallel.launcher={launcher}", "--config.data.row_multiple=8"]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"XLA_FLAGS": flags.strip()})
    check(known, logged(tmp_path, names=COUNTED), 1e-4)


@pytest.mark.slow
def test_training_steps_of_trials_in_one_program(study, tmp_path):
    known = recorded("steps", "trials_in_one_program")
    shutil.rmtree(tmp_path / "study")
    assert main(["sweep", *study, "--executor=vmap"]) == 0
    trials = {folder.name: logged(folder) for folder in sorted((tmp_path / "study" / "trials").iterdir())}
    check(known, {f"{name} {at}": line for name, lines in trials.items() for at, line in lines.items()}, 1e-4)


# Initial values.

VARIATIONS = {
    "learned": {"position_encoding": "learned"},
    "relative": {"position_encoding": "relative"},
    "untied_output": {"tie_output": False},
    "separate_embeddings": {"share_embeddings": False},
    "no_bias": {"use_bias": False},
}


@pytest.mark.parametrize("name", slow_but("relative_scanned", [*RUNS, *VARIATIONS]))
def test_initial_values(name):
    known = recorded("parameters", name)
    fields = {f"model.{field}": value for field, value in VARIATIONS.get(name, {}).items()}
    config = read_config(f"{CONFIG}:{'study' if name in VARIATIONS else name}", fields)
    numbers = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(initial_params(config)):
        values = np.asarray(leaf)
        numbers[jax.tree_util.keystr(path, simple=True, separator="/")] = {
            "shape": f"{values.dtype}{list(values.shape)}",
            "norm": math.sqrt(math.fsum(float(x) ** 2 for x in values.ravel())),
            "sha256": hashlib.sha256(values.tobytes()).hexdigest()[:16],
        }
    check(known, numbers)


# The work directory of an earlier commit.


@pytest.fixture
def workdir(tmp_path):
    return Path(shutil.copytree(GOLDEN / "workdir", tmp_path / "workdir"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("greedy", []),
        ("beam_4", ["--decode.beam_size=4"]),
    ],
)
def test_scores_and_translations(workdir, name, flags):
    known = recorded("evaluation", name)
    assert main(["evaluate", f"--checkpoint={workdir}", "--splits=test", *flags]) == 0
    written = workdir / "evaluation"
    translations = GOLDEN / "translations" / f"{name}.txt"
    if RENEW:
        translations.parent.mkdir(exist_ok=True)
        shutil.copy(written / "test.txt", translations)
    check_translations(translations, (written / "test.txt").read_text().splitlines(), known.exact)
    scores = json.loads((written / "test.json").read_text())
    # Where translations may differ, scores may differ too.
    names = SCORES + (TRANSLATION_SCORES if known.exact else ())
    wanted = {name: value for name, value in known.numbers.items() if name in names}
    check(known._replace(numbers=wanted), {name: scores[name] for name in names})


def check_translations(file, lines, exact):
    """Equal on the recording machine; elsewhere one in ten may differ, where rounding decides between equal tokens."""
    wanted = file.read_text().splitlines()
    assert len(lines) == len(wanted)
    differing = sum(a != b for a, b in zip(lines, wanted, strict=True))
    shown = "\n".join(difflib.unified_diff(wanted, lines, file.name, "now", lineterm="", n=0))
    assert differing <= (0 if exact else len(wanted) // 10), shown


@pytest.mark.slow
def test_an_interrupted_run_is_finished(workdir, capsys):
    known = recorded("steps", "resumed")
    before = (workdir / "metrics.jsonl").read_bytes()
    assert main(["train", f"--config={CONFIG}:workdir", f"--workdir={workdir}"]) == 0
    assert f"after step {SAVED}" in capsys.readouterr().err
    assert (workdir / "metrics.jsonl").read_bytes().startswith(before)
    numbers = logged(workdir, SAVED)
    assert len(numbers) == 4  # three of twenty steps each, and the validation at the end
    check(known, numbers)


# The finished study of an earlier commit.


@pytest.fixture
def study(tmp_path):
    """Return flags that name the copies of a study and of its work directory."""
    shutil.copy(CONFIG, tmp_path)
    folder = shutil.copytree(GOLDEN / "experiments", tmp_path / "experiments")
    made = shutil.copytree(GOLDEN / "study", tmp_path / "study")
    return [f"--workdir={made}", f"--study={folder / 'norms'}"]


def cells(file):
    """Return a table as numbers and words."""
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {f"row {at}": {name: _number(cell) for name, cell in row.items()} for at, row in enumerate(rows, start=1)}


def _number(cell):
    try:
        return float(cell)
    except ValueError:
        return cell


def test_the_report_of_a_finished_study(study, tmp_path):
    """Statistics do not need a model: on every machine they agree except in the last digits."""
    output = tmp_path / "report"
    assert main(["report", *study, f"--output={output}"]) == 0
    for name in ("results.csv", "summary.csv"):
        if RENEW:
            (GOLDEN / "report").mkdir(exist_ok=True)
            shutil.copy(output / name, GOLDEN / "report" / name)
        wanted = cells(GOLDEN / "report" / name)
        assert wanted
        assert list(differences(wanted, cells(output / name), 1e-9)) == []


def test_a_finished_study_is_not_run_again(study, tmp_path):
    kept = ("result.json", "metrics.jsonl")
    before = {path: path.read_bytes() for path in (tmp_path / "study").rglob("*.json*") if path.name in kept}
    assert len(before) == 8
    assert main(["sweep", *study, "--num_workers=1"]) == 0
    assert {path: path.read_bytes() for path in before} == before
    assert not list((tmp_path / "study").rglob("checkpoints"))


# The comparison itself.


def test_differences_are_found():
    wanted = {"a": {"loss": 1.0, "tokens": 7, "sha256": "x"}, "b": {"loss": math.pi}}
    assert list(differences(wanted, wanted, None)) == []
    almost = {"a": {"loss": 1.0, "tokens": 7, "sha256": "y"}, "b": {"loss": math.nextafter(math.pi, 4)}}
    assert len(list(differences(wanted, almost, None))) == 2
    assert list(differences(wanted, almost, 1e-5)) == []
    for other in ({"a": wanted["a"]}, {**wanted, "c": {}}, {**wanted, "b": {"loss": 3.1}}, {**wanted, "b": {}}):
        assert len(list(differences(wanted, other, 1e-5))) == 1
    assert list(differences({"tokens": 7}, {"tokens": 8}, 1.0)) == ["  tokens: 8, recorded 7"]
