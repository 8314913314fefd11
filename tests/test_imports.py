"""Dependencies point one way: read from the source of every module, imports inside functions included."""

import ast
import itertools
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "transformer_jax"

BASE = {"config", "errors", "typing", "hashing", "progress"}
MODEL = BASE | {"nn", "models"}
SERVICES = MODEL | {"decoding", "data", "parallel", "checkpoints", "kill_points"}

# What each part may import besides itself. A new part must be placed here, and so in this order.
ALLOWED = {
    "errors": set(),
    "typing": set(),
    "hashing": {"typing"},
    "config": {"errors"},
    "config_file": {"config", "errors"},
    "kill_points": {"errors"},
    "huge_pages": set(),
    "progress": set(),
    "machine": set(),
    "compilation_cache": {"machine"},
    "nn": BASE,
    "models": BASE | {"nn"},
    "decoding": MODEL,
    "data": BASE | {"kill_points"},
    "parallel": BASE | {"nn"},  # gives the names of axes in nn a meaning
    "checkpoints": BASE | {"kill_points"},
    "training": SERVICES | {"__version__"},  # is handed an `evaluate` callable
    "evaluation": SERVICES | {"training"},  # its loss is the training loss
    "inspection": SERVICES | {"training", "evaluation"},  # draws the training schedule, translates what it looks at
    "sweeps": SERVICES | {"compilation_cache", "config_file", "huge_pages", "machine", "training", "evaluation"},
    "cli": SERVICES
    | {"__version__", "compilation_cache", "config_file", "training", "evaluation", "sweeps", "inspection"},
    "__main__": {"cli", "huge_pages"},
    "__init__": set(),  # names the homes of the public names as text
}

# Imported inside functions only, so that `--help` and a wrong flag answer at once.
HEAVY = {
    *("jax", "flax", "optax", "orbax", "sentencepiece", "tokenizers", "sacrebleu", "sacremoses", "babel", "num2words"),
    *("tensorboardX", "rich", "tensorflow_datasets", "array_record", "tensorflow", "scipy", "matplotlib"),
    *("optuna", "sqlalchemy", "submitit", "ray"),
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(tree: ast.AST) -> list[tuple[str, int]]:
    """(absolute dotted name, line) of everything that a module imports."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute in this package"
            # `from transformer_jax import nn` imports a part, `from transformer_jax.nn import x` from one.
            names += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return names


def wrong_imports(path: Path, source: str) -> list[str]:
    part, wrong = part_of(path), []
    for name, line in imported_names(ast.parse(source)):
        top, *rest = name.split(".")
        if top == "transformer_jax" and rest and rest[0] != part and rest[0] not in ALLOWED[part]:
            wrong.append(f"{path.relative_to(PACKAGE)}:{line}: {part} must not import {rest[0]}")
    return wrong


def test_every_part_has_its_place_in_the_order():
    assert {part_of(path) for path in modules()} <= set(ALLOWED)


def test_imports_point_one_way():
    wrong = [line for path in modules() for line in wrong_imports(path, path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "from transformer_jax.training.step import make_train_step",
        "import transformer_jax.evaluation.run",
        "def f():\n    from transformer_jax import data",
        "from transformer_jax.models import encoder_decoder",
    ],
)
def test_a_wrong_import_is_seen(source):
    assert len(wrong_imports(PACKAGE / "nn" / "masks.py", source)) == 1


def test_the_order_has_no_cycles():
    placed: set[str] = {"__version__"}
    while len(placed) <= len(ALLOWED):
        free = {part for part, below in ALLOWED.items() if part not in placed and below <= placed}
        assert free, f"these import each other: {sorted(set(ALLOWED) - placed)}"
        placed |= free


@pytest.mark.parametrize("part", ["__init__", "__main__", "cli", "config", "config_file", "errors"])
def test_what_answers_help_imports_no_heavy_library_at_the_top(part):
    paths = [path for path in modules() if part_of(path) == part]
    assert paths
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            names = {name.split(".")[0] for name, _ in imported_names(node)} if _is_import(node) else set()
            assert not names & HEAVY, f"{path.relative_to(PACKAGE)}:{node.lineno} imports {names & HEAVY}"


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_third_party_imports_are_declared():
    """A package that is only there because something else needs it today is missing tomorrow."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    requirements = itertools.chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    declared = {_distribution(requirement) for requirement in requirements}
    provided_by = {"absl": "absl-py", "orbax": "orbax-checkpoint", "ml_collections": "ml-collections"}
    provided_by["tensorflow_datasets"] = "tensorflow-datasets"
    for path in modules():
        for name, line in imported_names(ast.parse(path.read_text())):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "transformer_jax":
                assert provided_by.get(top, top).lower() in declared, f"{path.relative_to(PACKAGE)}:{line}: {top}"


def _distribution(requirement: str) -> str:
    name = requirement.split(";")[0]
    for separator in "[<>=!~ ":
        name = name.split(separator)[0]
    return name.lower()
