"""Renew the generated parts of the documents: docs/api.md, the path line of every page, and `nav` of mkdocs.yml.

    python docs/tools/pages.py

docs/README.md says which pages there are, on which path and in which order. The API page has the signatures and
docstrings of the public names. All is read from files; nothing is imported but the table of public names.
tests/test_docs.py fails if a file is not what this program would write.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FRONT = DOCS / "README.md"
MKDOCS = ROOT / "mkdocs.yml"
PACKAGE = "transformer_jax"
_API_INTRO = """\
The names of `import transformer_jax as tj`, with their signatures and docstrings. `tj.NAME` imports its module at the
first use. Other modules may change without notice. [Python](python.md) shows how the names work together.

This page is generated from the source. After a change of a docstring, run `make pages`.
"""

# Paths.


class Page(NamedTuple):
    """A page of a path: its file in docs/, its title, its path."""

    file: str
    title: str
    path: str


def pages(front: str) -> list[Page]:
    """Return the pages that the lists of docs/README.md name, in their order."""
    found, path = [], ""
    for line in front.splitlines():
        if line.startswith("## "):
            path = line.removeprefix("## ")
        elif item := re.match(r"\* \[(.+?)\]\((\w+\.md)\): ", line):
            found.append(Page(item[2], item[1], path))
    return found


def anchor(heading: str) -> str:
    """Return the anchor that a forge makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def path_line(front: str, file: str) -> str:
    """Return the line below the title of a page: its path, the page before it and the next one.

    Raises: KeyError if docs/README.md does not list the page.
    """
    listed = pages(front)
    files = [page.file for page in listed]
    if file not in files:
        raise KeyError(f"docs/README.md does not list {file}; add a line `* [Title]({file}): what it has.` to a path")
    at = files.index(file)
    first = Page("README.md", "Documentation", "")
    before = listed[at - 1] if at else first
    parts = [f"Path: [{listed[at].path}](README.md#{anchor(listed[at].path)})", f"from [{before.title}]({before.file})"]
    if at + 1 < len(listed):
        parts.append(f"next [{listed[at + 1].title}]({listed[at + 1].file})")
    else:
        parts.append("next [Contributing](../CONTRIBUTING.md)")
    return " · ".join(parts)


def with_path_line(text: str, line: str) -> str:
    """Return a page with this path line below its title, in place of an older one."""
    title, _, rest = text.partition("\n")
    rest = re.sub(r"\A\n*(?:Path: .*\n)?\n*", "", rest)
    return f"{title}\n\n{line}\n\n{rest}"


def nav(front: str) -> str:
    """Return the lines of `nav` of mkdocs.yml."""
    lines, path = ["nav:", "  - Documentation: README.md"], ""
    for page in pages(front):
        if page.path != path:
            path = page.path
            lines.append(f"  - {path}:")
        lines.append(f'      - "{page.title}": {page.file}')
    return "\n".join(lines) + "\n"


def with_nav(text: str, front: str) -> str:
    """Return mkdocs.yml with the nav of docs/README.md; `nav` is its last entry."""
    return re.sub(r"^nav:\n.*\Z", "", text, flags=re.M | re.S) + nav(front)


# The API page.


class Found(NamedTuple):
    """A definition: the module that has it, and its statement."""

    module: str
    node: ast.stmt


def module_file(module: str) -> Path:
    """Return the file of a module of the package."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def tree(module: str) -> ast.Module:
    """Return the syntax tree of a module of the package."""
    return ast.parse(module_file(module).read_text())


def find(module: str, name: str) -> Found | None:
    """Return the definition of a name that a module defines or imports from the package; None if it is from outside."""
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Found(module, node)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return Found(module, node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(str(node.module), alias.name)
    return None


def signature(node: ast.FunctionDef, name: str, without_self: bool = False) -> str:
    """Return `name(arguments) -> result`, with an argument per line if it is longer than 100 characters."""
    arguments = node.args
    if without_self:
        arguments = ast.arguments(
            arguments.posonlyargs,
            arguments.args[1:],
            arguments.vararg,
            arguments.kwonlyargs,
            arguments.kw_defaults,
            arguments.kwarg,
            arguments.defaults,
        )
    result = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    parts = list(_arguments(arguments))
    one_line = f"{name}({', '.join(parts)}){result}"
    if len(one_line) <= 100:
        return one_line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    pairs = list(zip(positional, defaults, strict=True))
    for argument, default in pairs:
        yield _argument(argument, default)
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(argument, default)
    if arguments.kwarg is not None:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return ast.unparse(argument)
    return f"{ast.unparse(argument)}{' = ' if argument.annotation is not None else '='}{ast.unparse(default)}"


def as_markdown(docstring: str) -> str:
    """Return a docstring with `Args:`, `Returns:` and `Raises:` as lists or paragraphs of Markdown."""
    lines, result = textwrap.dedent(docstring).strip().splitlines(), []
    in_section = False
    for line in lines:
        if head := re.match(r"(Args|Returns|Yields|Raises):? ?(.*)$", line):
            if head[1] != "Raises" and not line.startswith(f"{head[1]}:"):
                result.append(line)
                continue
            in_section = True
            result += ["", f"**{head[1]}:** {head[2]}".rstrip()]
            if not head[2]:
                result.append("")
        elif in_section and (item := re.match(r"  ([\w, *]+): (.*)$", line)):
            names = ", ".join(f"`{name.strip()}`" for name in item[1].split(","))
            result.append(f"* {names}: {item[2]}")
        elif in_section and line.startswith("  "):
            result.append("  " + line.strip())
        else:
            in_section = in_section and not line
            result.append(line)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in result)).strip()


def _docstring(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef | ast.ClassDef)
    return ast.get_docstring(node) or ""


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _is(node: ast.FunctionDef, decorator: str) -> bool:
    return any(ast.unparse(found).split(".")[-1] == decorator for found in node.decorator_list)


def _classes(found: Found) -> Iterator[Found]:
    """Yield a class and its bases of the package, nearest first."""
    yield found
    assert isinstance(found.node, ast.ClassDef)
    for base in found.node.bases:
        name = ast.unparse(base).partition("[")[0]
        parent = find(found.module, name)
        if parent is not None and isinstance(parent.node, ast.ClassDef):
            yield from _classes(parent)


def _members(found: Found) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the public fields and methods of a class by name, its own and those of its bases in the package."""
    seen: set[str] = set()
    for part in _classes(found):
        assert isinstance(part.node, ast.ClassDef)
        for node in part.node.body:
            name = node.name if isinstance(node, ast.FunctionDef) else getattr(getattr(node, "target", None), "id", "_")
            if (not name.startswith("_") or name == "__init__") and name not in seen:
                seen.add(name)
                yield name, node


def _class_page(name: str, found: Found) -> Iterator[str]:
    members = dict(_members(found))
    start = members.pop("__init__", None)
    fields = [
        f"    {field}: {ast.unparse(node.annotation)}"
        for field, node in members.items()
        if isinstance(node, ast.AnnAssign)
    ]
    if isinstance(start, ast.FunctionDef):
        yield _code(signature(start, name, without_self=True))
    elif fields:
        yield _code("\n".join([f"class {name}:", *fields]))
    yield as_markdown(_docstring(found.node)) + "\n"
    for member, node in members.items():
        if not isinstance(node, ast.FunctionDef) or not _docstring(node):
            continue
        yield f"### `{name}.{member}`\n"
        if _is(node, "property"):
            yield _code(f"{member}: {ast.unparse(node.returns)}" if node.returns is not None else member)
        else:
            yield _code(signature(node, member, without_self=not _is(node, "staticmethod")))
        yield as_markdown(_docstring(node)) + "\n"


def _name_page(name: str, home: str) -> Iterator[str]:
    found = find(home, name)
    assert found is not None, f"{home} has no {name}"
    file = module_file(found.module).relative_to(ROOT)
    yield f"## `{name}`\n"
    yield f"[`{file}`](../{file})\n"
    if isinstance(found.node, ast.ClassDef):
        yield from _class_page(name, found)
    elif isinstance(found.node, ast.FunctionDef):
        yield _code(signature(found.node, name))
        yield as_markdown(_docstring(found.node)) + "\n"
    else:
        body = tree(found.module).body
        statement = next(i for i, node in enumerate(body) if ast.dump(node) == ast.dump(found.node))
        yield _code(ast.get_source_segment(module_file(found.module).read_text(), body[statement]) or "")
        after = body[statement + 1] if statement + 1 < len(body) else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            yield as_markdown(after.value.value) + "\n"


def api_page(homes: dict[str, str]) -> str:
    """Return docs/api.md without its path line.

    Args:
      homes: the module, below the package, by public name.
    """
    contents = " ·\n".join(f"[`{name}`](#{anchor(name)})" for name in homes)
    parts = ["# API\n", _API_INTRO, contents + "\n"]
    for name, home in homes.items():
        parts += _name_page(name, f"{PACKAGE}.{home}")
    return "\n".join(parts)


def public_names() -> dict[str, str]:
    """Return the modules of the public names."""
    (node,) = (node for node in tree(PACKAGE).body if isinstance(node, ast.Assign) and "_HOMES" in ast.unparse(node))
    return ast.literal_eval(node.value)


def written() -> dict[Path, str]:
    """Return the text that every file should have, by path."""
    front = FRONT.read_text()
    texts = {path: path.read_text() for path in sorted(DOCS.glob("*.md")) if path != FRONT}
    texts[DOCS / "api.md"] = api_page(public_names())
    result = {path: with_path_line(text, path_line(front, path.name)) for path, text in texts.items()}
    return result | {MKDOCS: with_nav(MKDOCS.read_text(), front)}


def main() -> int:
    for path, text in written().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
