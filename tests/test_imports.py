"""Dependencies point one way, according to the source of every module with imports inside functions."""

import ast
import itertools
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from transformer_jax.cli.help import COMMANDS

PACKAGE = Path(__file__).parent.parent / "transformer_jax"

BASE = {"config", "errors", "typing", "hashing", "host", "registry", "readers", "trust"}
MODEL = BASE | {"nn", "models"}
TASKS = MODEL | {"decoding", "data", "tasks"}
SERVICES = TASKS | {"parallel", "checkpoints"}
HOMES = {"metrics_file"}
TRACKED = HOMES | {"trackers"}
PROGRAM = {"builtin", "config_file"}  # for modules that start processes
RUNS = SERVICES | TRACKED | {"training", "evaluation"}

# The other parts that each part may import. Add a new part here, at its place in the order.
ALLOWED = {
    "errors": set(),
    "trust": {"errors"},
    "typing": set(),
    "readers": set(),
    "host": {"__version__", "errors", "readers"},
    "hashing": {"typing"},
    "registry": {"config", "errors", "trust"},
    "config": {"errors", "readers", "trust"},
    "builtin": {"config", "errors", "readers"},
    "config_file": {"builtin", "config", "errors", "host", "readers", "tasks", "trust"},
    "metrics_file": {"errors", "host", "readers"},
    "nn": BASE,
    "models": BASE | {"nn"},
    "decoding": MODEL,
    "data": BASE,
    "parallel": BASE | {"nn"},
    "checkpoints": BASE,
    "tasks": MODEL | {"decoding", "data"},
    "convert": SERVICES | HOMES,
    "trackers": BASE | HOMES | {"checkpoints"},
    "training": SERVICES | TRACKED,  # receives an `evaluate` callable
    "evaluation": SERVICES | TRACKED | {"training"},  # asks which weights of a state are scored
    "inspection": RUNS,  # draws the training schedule, translates sentences for its pictures
    "fitting": RUNS,  # reads files and the tokenizer of a checkpoint, for the generic configs
    "sweeps": RUNS | PROGRAM,
    "explorer": RUNS | {"inspection"},
    "cli": RUNS | PROGRAM | {"__version__", "convert", "sweeps", "inspection", "explorer"},
    "__main__": {"cli", "host"},
    "__init__": set(),  # names the modules of the public names as text
}

# Imported only inside functions, so that `--help` and a wrong flag answer at once.
HEAVY = {
    *(
        "jax",
        "flax",
        "optax",
        "orbax",
        "sentencepiece",
        "tokenizers",
        "sacrebleu",
        "rouge_score",
        "sacremoses",
        "babel",
        "num2words",
    ),
    *("tensorboardX", "rich", "tensorflow_datasets", "array_record", "tensorflow", "scipy", "matplotlib"),
    *("safetensors", "optuna", "sqlalchemy", "submitit", "ray", "filelock", "PIL", "wandb", "mlflow"),
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(tree: ast.AST) -> list[tuple[str, int]]:
    """Return (absolute dotted name, line) of everything that a module imports."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute in this package"
            # `from transformer_jax import nn` imports a part, `from transformer_jax.nn import x` a name of one.
            names += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return names


def wrong_imports(path: Path, source: str) -> list[str]:
    part, file = part_of(path), path.relative_to(PACKAGE).as_posix()
    return [f"{file}:{line}: {part} must not import {imported}" for imported, line in forbidden_parts(path, source)]


def forbidden_parts(path: Path, source: str) -> list[tuple[str, int]]:
    """Return (part, line) of every import that the table forbids, temporary exceptions included."""
    part, found = part_of(path), []
    for name, line in imported_names(ast.parse(source)):
        top, *rest = name.split(".")
        if top == "transformer_jax" and rest and rest[0] != part and rest[0] not in ALLOWED[part]:
            found.append((rest[0], line))
    return found


def module_name(path: Path) -> str:
    parts = ("transformer_jax", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_between(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the given modules that each module imports, also under TYPE_CHECKING and in functions."""
    found: dict[str, set[str]] = {}
    for module, source in sources.items():
        found[module] = set()
        for name, _ in imported_names(ast.parse(source)):
            target = name if name in sources else name.rpartition(".")[0]  # a module, or a name in one
            if target in sources and target != module:
                found[module].add(target)
    return found


def cycle_in(imports: Mapping[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next and the last the first; empty if there is no cycle."""
    without_cycle: set[str] = set()

    def follow(trail: list[str]) -> list[str]:
        for target in sorted(imports[trail[-1]]):
            if target in trail:
                return trail[trail.index(target) :]
            if target not in without_cycle and (cycle := follow([*trail, target])):
                return cycle
        without_cycle.add(trail[-1])
        return []

    return next((cycle for module in sorted(imports) if (cycle := follow([module]))), [])


def test_every_part_has_its_place_in_the_order():
    assert {part_of(path) for path in modules()} <= set(ALLOWED)


def test_no_import_cycle_between_files():
    cycle = cycle_in(imports_between({module_name(path): path.read_text() for path in modules()}))
    assert not cycle, " imports ".join([*cycle, *cycle[:1]])


@pytest.mark.parametrize(
    "last",
    [
        "from transformer_jax.a import x",
        "from transformer_jax import a",
        "import transformer_jax.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from transformer_jax.a import x",
        "def f():\n    from transformer_jax.a import x",
    ],
)
def test_an_import_cycle_between_files_is_found(last):
    sources = {
        "transformer_jax.a": "from transformer_jax.b import c",
        "transformer_jax.b": "",
        "transformer_jax.b.c": "import os\nfrom transformer_jax.d import y",
        "transformer_jax.d": last,
    }
    assert cycle_in(imports_between(sources)) == ["transformer_jax.a", "transformer_jax.b.c", "transformer_jax.d"]
    assert cycle_in(imports_between(sources | {"transformer_jax.d": "import os"})) == []


def test_imports_point_one_way():
    wrong = [line for path in modules() for line in wrong_imports(path, path.read_text())]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "from transformer_jax.training.step import make_train_step",
        "import transformer_jax.evaluation.scoring",
        "def f():\n    from transformer_jax import data",
        "from transformer_jax.models import encoder_decoder",
    ],
)
def test_a_forbidden_import_is_found(source):
    assert len(wrong_imports(PACKAGE / "nn" / "masks.py", source)) == 1


def test_the_order_has_no_cycles():
    placed: set[str] = {"__version__"}
    while len(placed) <= len(ALLOWED):
        free = {part for part, below in ALLOWED.items() if part not in placed and below <= placed}
        assert free, f"these import each other: {sorted(set(ALLOWED) - placed)}"
        placed |= free


@pytest.mark.parametrize("part", ["__init__", "__main__", "builtin", "cli", "config", "config_file", "errors"])
def test_modules_for_help_import_no_heavy_library_at_the_top(part):
    paths = [path for path in modules() if part_of(path) == part]
    assert paths
    for path in paths:
        for node in ast.parse(path.read_text()).body:
            names = {name.split(".")[0] for name, _ in imported_names(node)} if _is_import(node) else set()
            assert not names & HEAVY, f"{path.relative_to(PACKAGE)}:{node.lineno} imports {names & HEAVY}"


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def test_third_party_imports_are_declared():
    """A package installed only because another one needs it may disappear with an upgrade."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    requirements = itertools.chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    declared = {_distribution(requirement) for requirement in requirements}
    provided_by = {"absl": "absl-py", "orbax": "orbax-checkpoint", "ml_collections": "ml-collections"}
    provided_by["tensorflow_datasets"] = "tensorflow-datasets"
    provided_by |= {"PIL": "pillow", "rouge_score": "rouge-score"}
    for path in modules():
        for name, line in imported_names(ast.parse(path.read_text())):
            top = name.split(".")[0]
            if top not in sys.stdlib_module_names and top != "transformer_jax":
                assert provided_by.get(top, top).lower() in declared, f"{path.relative_to(PACKAGE)}:{line}: {top}"


PRIVATE = {("parallel/processes.py", "jax._src.distributed")}
"""Private names of other libraries; each has a test that fails if an upgrade removes the name."""


def test_no_other_private_name_of_a_library_is_used():
    """Names with a leading underscore, imported or read from an object that is not the package's own class."""
    imported, taken = set(), []
    for path in modules():
        file, tree = path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text())
        for name, _ in imported_names(tree):
            if not name.startswith("transformer_jax") and any(
                part.startswith("_") and not part.startswith("__") for part in name.split(".")
            ):
                imported.add((file, name))
        own = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_self(node.value)}
        own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        own |= {"_replace", "_asdict", "_fields", "_make", "_exit"}  # public, of named tuples and of os
        taken += [
            f"{file}:{node.lineno}: {node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
            and node.attr not in own
        ]
    assert imported == PRIVATE
    assert not taken, "\n".join(taken)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _distribution(requirement: str) -> str:
    name = requirement.split(";")[0]
    for separator in "[<>=!~ ":
        name = name.split(separator)[0]
    return name.lower()


def test_a_study_depends_on_no_benchmark():
    root = PACKAGE.parent
    for path in sorted((root / "experiments").rglob("*.py")):
        for name, line in imported_names(ast.parse(path.read_text())):
            assert name.split(".")[0] != "benchmarks", f"{path.relative_to(root)}:{line}: {name}"


def test_architectures_are_named_only_in_models():
    """Other code uses the table of architectures; the package root may mention one as a hint for a removed name."""
    names = ("EncoderDecoder", "DecoderOnly", "models.encoder_decoder", "models.decoder_only")
    others = [path for path in modules() if part_of(path) not in ("models", "__init__")]
    found = {path.name: name for path in others for name in names if name in path.read_text()}
    assert not found


def test_no_command_imports_another():
    commands = {f"transformer_jax.cli.{name}" for name in COMMANDS}
    sources = {module_name(path): path.read_text() for path in modules() if part_of(path) == "cli"}
    found = {module: names & commands for module, names in imports_between(sources).items() if module in commands}
    assert commands <= set(sources)
    assert not {module: names for module, names in found.items() if names}
