"""Make the work directory and the study that tests/test_golden.py reads: `python tests/golden/make.py`.

They come from an earlier commit, so that the tests show that later code reads them. They were written for the last time
before 0.1.0; from now on a change that cannot read them is a defect.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from transformer_jax.host.files import CHECKSUM, json_text, with_checksum

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
WORKDIR, STUDY = FOLDER / "workdir", FOLDER / "study"
SAVED, TOTAL = 3000, 3060  # as in config.py

ANYWHERE = "/made/in"
"""Replaces the temporary folder in the files of the study."""


def _run(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "transformer_jax", *words], cwd=ROOT, check=True)


def make_workdir(scratch: Path) -> None:
    """Write WORKDIR in the state of a run that was killed right after it saved step SAVED of TOTAL."""
    made = scratch / "workdir"
    _run("train", f"--config={FOLDER / 'config.py'}:workdir", f"--workdir={made}")
    lines = (made / "metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.rmtree(WORKDIR, ignore_errors=True)
    shutil.copytree(made / "checkpoints" / str(SAVED), WORKDIR / "checkpoints" / str(SAVED))
    shutil.copy(made / "config.json", WORKDIR)
    shutil.copy(made / "tokenizer.model", WORKDIR)
    (WORKDIR / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] <= SAVED))


def make_study(scratch: Path) -> None:
    """Write STUDY: the study's record and its trials, without files that `report` does not read."""
    made = scratch / "norms"
    _run("sweep", f"--study={FOLDER / 'experiments' / 'norms'}", f"--workdir={made}", "--num_workers=1")
    shutil.rmtree(STUDY, ignore_errors=True)
    kept = ("study.json", "trial.json", "result.json", "config.json", "metrics.jsonl")
    for file in sorted(path for path in made.rglob("*") if path.name in kept and "checkpoints" not in path.parts):
        target = STUDY / file.relative_to(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_moved(file.read_text(), scratch, checked=file.suffix == ".json"))


def _moved(text: str, scratch: Path, checked: bool) -> str:
    """Return the text of a file with ANYWHERE in place of this machine's folders; `checked`: it has a checksum."""
    moved = text.replace(str(scratch), ANYWHERE).replace(str(FOLDER), ANYWHERE)
    if not checked or moved == text:
        return moved
    values = {name: value for name, value in json.loads(moved).items() if name != CHECKSUM}
    return json_text(with_checksum(values), indent=2) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_workdir(Path(folder))
        make_study(Path(folder))
