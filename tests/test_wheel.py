"""The built wheel, installed into a new environment and used in empty folders.

The environment has the wheel alone; the libraries are those of the environment that runs the tests.
"""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from run_support import write_corpus

ROOT = Path(__file__).parent.parent
TINY = [
    *("--config.model.emb_dim=16", "--config.model.mlp_dim=16", "--config.model.num_heads=2"),
    *("--config.model.scan_layers=true", "--config.training.num_train_steps=2", "--config.optimizer.warmup_steps=1"),
    "--config.data.num_buckets=1",
]
CORPUS = ["--config.data.num_train_pairs=200", "--config.data.num_eval_pairs=20", "--config.model.vocab_size=400"]
DECODE = ["--config.decode.max_new_tokens=6"]  # models that have learned nothing write until the limit

pytestmark = pytest.mark.slow


def files_of(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Return the folder of the environment, where the installed package cannot be written to."""
    built, folder = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("environment")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={built}", str(ROOT)], check=True)
    (wheel,) = built.glob("*.whl")
    venv.create(folder)
    python = folder / "bin" / "python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    package = site / "transformer_jax"
    subprocess.run(["chmod", "-R", "a-w", str(package)], check=True)
    before = files_of(package)
    yield folder
    assert files_of(package) == before
    subprocess.run(["chmod", "-R", "u+w", str(package)], check=True)


@pytest.fixture
def installed(environment, tmp_path):
    """Return a function that runs the installed command in an empty folder and returns what it printed."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    cwd = tmp_path / "empty"
    cwd.mkdir()

    def run(*words: str) -> str:
        command = [environment / "bin" / "transformer-jax", *words]
        result = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_the_built_in_files_are_those_of_the_repository(installed, environment):
    listed = json.loads(installed("list", "--json"))
    assert set(listed["configs"]) == {path.stem for path in ROOT.glob("configs/*.py")}
    assert set(listed["studies"]) == {path.parent.name for path in ROOT.glob("experiments/*/study.py")}
    assert set(listed["parts"]) == {path.stem for path in ROOT.glob("examples/parts/*.py")}
    paths = [Path(entry["path"]) for entries in listed.values() for entry in entries.values()]
    assert all(path.is_relative_to(environment) and path.exists() for path in paths)
    assert list(environment.glob("lib/python*/site-packages/transformer_jax/builtin/experiments/*/results")) == []


def test_the_list_of_keys_is_in_the_wheel(environment):
    (file,) = environment.glob("lib/python*/site-packages/transformer_jax/convert/keys.json")
    assert file.read_bytes() == (ROOT / "transformer_jax" / "convert" / "keys.json").read_bytes()


def test_quickstart(installed, tmp_path):
    assert "Five sentences of the test split" in installed("quickstart", *TINY, *CORPUS, *DECODE)
    assert (tmp_path / "empty" / "runs" / "quickstart" / "evaluation" / "test.json").exists()


def test_train_with_a_built_in_config(installed, tmp_path):
    folder = write_corpus(tmp_path / "corpus")
    names = [f"--config.data.{name}_split={name}" for name in ("train", "valid")]
    flags = [*names, "--config.data.test_split=valid", "--config.model.vocab_size=300"]
    installed("train", "--config=multi30k", f"--config.data.dir={folder}", "--workdir=run", *TINY, *flags)
    assert (tmp_path / "empty" / "run" / "checkpoints" / "2").is_dir()


def test_sweep_and_report_with_a_built_in_study(installed, tmp_path):
    """The study measures gradients with modules of `experiments/`, in the process of its trials."""
    flags = ["--search=random", "--num_trials=1", "--executor=vmap", *TINY, *CORPUS, *DECODE]
    installed("sweep", "--study=norm_placement", "--workdir=study", *flags)
    assert "| 3 finished |" in installed("report", "--workdir=study")
    assert (tmp_path / "empty" / "study" / "report" / "report.html").exists()
