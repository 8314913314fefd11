"""No model, search or training step knows the meaning of an id: masks, weights and special ids are arguments."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "transformer_jax"
PARTS = ("nn", "models", "decoding", "training")

# Special tokens as parts of identifiers; `pad` and `cls` alone are a function and a class.
SPECIAL = re.compile(r"(^|_)((?i:eos|bos|unk)|PAD|CLS|SEP|(pad|cls|sep)_(ids?|token))(_|$)")
# Names of arrays of ids.
IDS = {"ids", "tokens", "inputs", "targets", "decoder_inputs", "prompts", "sources", "labels"}


def identifiers(node: ast.AST) -> list[str]:
    """Return the names that a syntax tree node itself contains; a string used as code, such as a key, counts as one."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.Constant(value=str(name)):
            return [name]
        case ast.keyword(arg=str(name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.alias(name=name, asname=other):
            return [name, other or ""]
    return []


def docstrings(tree: ast.AST) -> set[ast.AST]:
    """Return strings that stand alone: docstrings of modules, classes, functions and attributes."""
    alone = (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return {value for value in alone if isinstance(value, ast.Constant)}


def holds_ids(node: ast.AST) -> bool:
    """Return whether an expression is an array of ids or a part: `ids`, `batch["inputs"]`, `found.tokens[:, 1:]`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in IDS
        case ast.Subscript(value=value, slice=index):
            return holds_ids(value) or (isinstance(index, ast.Constant) and index.value in IDS)
    return False


def uses_of_an_ids_value(source: str) -> list[str]:
    tree = ast.parse(source)
    texts, found = docstrings(tree), []
    for node in ast.walk(tree):
        if node not in texts:
            line = getattr(node, "lineno", 0)
            found += [f"line {line}: {name}" for name in identifiers(node) if SPECIAL.search(name)]
        # No id is negative, so `ids < 0` does not depend on an id's meaning.
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Lt):
            sides = [node.left, *node.comparators]
            if any(map(holds_ids, sides)) and any(
                isinstance(side, ast.Constant) and isinstance(side.value, int) for side in sides
            ):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


def test_no_module_knows_what_an_id_means():
    paths = [path for part in PARTS for path in sorted((PACKAGE / part).rglob("*.py"))]
    assert len(paths) > 40
    found = [f"{path.relative_to(PACKAGE)}, {use}" for path in paths for use in uses_of_an_ids_value(path.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "from transformer_jax.config import PAD_ID",
        "import config\nx = config.EOS_ID",
        "def f(pad_id): ...",
        "x = special['eos']",
        "mask = ids != 0",
        "mask = batch['inputs'] > 0",
        "ended = 1 == found.tokens[:, 1:]",
    ],
)
def test_a_use_of_an_ids_value_is_found(source):
    assert uses_of_an_ids_value(source)


@pytest.mark.parametrize("source", ['"""PAD_ID is 0."""', "ids[0] == end_id", "jnp.pad(x, 1)", "ids < 0"])
def test_other_code_is_left_alone(source):
    assert not uses_of_an_ids_value(source)
