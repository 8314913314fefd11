"""The documents as a set: their paths and index, and the pages that repeat or quote the source."""

import ast
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest
import yaml
from docs_support import DOCS, ROOT, program

from transformer_jax.config import ExperimentConfig, walk

PAGES = sorted(path for path in DOCS.glob("*.md") if path.name != "README.md")

pages, hooks = program("pages"), program("hooks")


# Paths and the site.


def test_every_page_is_on_one_path_and_has_its_title():
    listed = pages.pages((DOCS / "README.md").read_text())
    assert sorted(page.file for page in listed) == [path.name for path in PAGES]
    for page in listed:
        assert (DOCS / page.file).read_text().splitlines()[0] == f"# {page.title}"
    assert list(dict.fromkeys(page.path for page in listed)) == [
        "Try it",
        "Use your data",
        "Compare designs",
        "Change the code",
    ]


@pytest.fixture(scope="module")
def written():
    return pages.written()


@pytest.mark.parametrize("path", [*PAGES, ROOT / "mkdocs.yml"], ids=lambda path: path.name)
def test_generated_parts_are_up_to_date(path, written):
    assert path.read_text() == written[path], "run `make pages`"


def test_a_page_without_a_path_is_named():
    with pytest.raises(
        KeyError, match=r"docs/README.md does not list pictures.md; add a line `\* \[Title\]\(pictures.md"
    ):
        pages.path_line((DOCS / "README.md").read_text(), "pictures.md")


def test_path_lines():
    front = "# D\n\n## One\n\n* [A](a.md): x.\n* [B](b.md): y.\n\n## Two\n\n* [C](c.md): z.\n"
    assert pages.path_line(front, "a.md") == (
        "Path: [One](README.md#one) · from [Documentation](README.md) · next [B](b.md)"
    )
    assert pages.path_line(front, "c.md") == (
        "Path: [Two](README.md#two) · from [B](b.md) · next [Contributing](../CONTRIBUTING.md)"
    )
    once = pages.with_path_line("# A\n\ntext\n", "Path: old")
    assert once == "# A\n\nPath: old\n\ntext\n"
    assert pages.with_path_line(once, "Path: new") == "# A\n\nPath: new\n\ntext\n"


def test_the_last_path_ends_in_contributing():
    last = pages.pages((DOCS / "README.md").read_text())[-1]
    line = f"Path: [{last.path}](docs/README.md#{pages.anchor(last.path)}) · from [{last.title}](docs/{last.file})"
    assert (ROOT / "CONTRIBUTING.md").read_text().splitlines()[2] == line


def test_the_nav_of_the_site_has_every_page():
    class Loader(yaml.SafeLoader):
        """Reads `!ENV`, which mkdocs adds to YAML."""

    Loader.add_constructor("!ENV", lambda loader, node: loader.construct_sequence(node))
    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    front, *paths = config["nav"]
    assert front == {"Documentation": "README.md"}
    files = [file for path in paths for entries in path.values() for entry in entries for file in entry.values()]
    assert sorted(files) == [path.name for path in PAGES]
    assert "theme" not in config


def test_links_of_the_site_that_lead_out_of_docs():
    page = "see [`a`](../x/a.py) and [b](b.md#c) ![p](p.svg)\n```\n[no](../x)\n```\n[[1]](../y#z)"
    assert hooks.inside_links(page, "") == "see `a` and [b](b.md#c) ![p](p.svg)\n```\n[no](../x)\n```\n[1]"
    assert hooks.inside_links(page, "https://forge/n/blob/main/") == (
        "see [`a`](https://forge/n/blob/main/x/a.py) and [b](b.md#c) ![p](p.svg)\n```\n[no](../x)\n```\n"
        "[[1]](https://forge/n/blob/main/y#z)"
    )


def test_pictures_from_outside_of_docs_are_shown_by_the_site():
    page = "![a](../x/a.svg) [b](../x/b.svg)\n```\n![no](../c.svg)\n```\n![d](d.svg)"
    assert hooks.inside_links(page, "") == "![a](outside/x/a.svg) b\n```\n![no](../c.svg)\n```\n![d](d.svg)"
    assert [*hooks.pictures_outside(page)] == ["x/a.svg"]


def test_tables_of_the_site_scroll():
    html = hooks.scrolling_tables("<p>a</p><table><tr></tr></table>")
    assert re.fullmatch(r'<p>a</p><div class="table-scroll"[^>]* tabindex="0"><table><tr></tr></table></div>', html)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_no_heading_begins_with_a_digit(path):
    """Its anchor would be an invalid selector of CSS, at which the scripts of the site's theme stop."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S)
    assert re.findall(r"^#+ \d.*$", text, re.M) == []


def mkdocs(*words, cwd=ROOT):
    command = [sys.executable, "-m", "mkdocs", "build", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_warning_of_the_build_is_an_error(tmp_path):
    """With `--quiet`, mkdocs counts no warnings."""
    (words,) = re.findall(r"-m mkdocs build (.*)", (ROOT / "Makefile").read_text())
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[no such page](nowhere.md)")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    built = mkdocs(*words.split(), cwd=tmp_path)
    assert built.returncode == 1
    assert "nowhere.md" in built.stderr


@pytest.mark.slow
def test_no_page_of_the_site_is_wider_than_the_window(browser, tmp_path):
    """At the widths of a phone and of a desktop; wide tables and code scroll in their place."""
    built = mkdocs("--strict", f"--site-dir={tmp_path}")
    assert built.returncode == 0, built.stderr
    page = browser.new_page()
    page.route("http*://**", lambda route: route.abort())
    errors = []
    page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
    files = sorted(tmp_path.rglob("index.html"))
    assert len(files) == len(PAGES) + 1
    for width in (390, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        for file in files:
            page.goto(file.as_uri())
            inside = page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
            assert inside <= width, f"{file.parent.name} at {width}"
            assert page.locator("img").evaluate_all("all => all.every(img => img.complete && img.naturalWidth > 0)")
    page.close()
    # From the network come the colours of code; a worker searches, which files in place of a server do not allow.
    assert [error for error in errors if "hljs" not in error and "Worker" not in error] == []


# The API page.


def test_the_api_page_documents_every_public_name():
    text = (DOCS / "api.md").read_text()
    for name in pages.public_names():
        _, _, section = text.partition(f"\n## `{name}`\n")
        source, _, rest = section.partition("\n## ")[0].partition("```python\n")
        assert re.search(r"\]\(\.\./transformer_jax/[\w/]+\.py\)", source), name
        assert len(re.sub(r"```.*?```", "", rest, flags=re.S).split()) > 5, f"{name} has no docstring"


def test_a_docstring_as_markdown():
    docstring = """Return it.

    More of it, in [B, T].

    Args:
      one: the first,
        on two lines.
      two, three: others.
    Returns: a thing.
    Raises: ConfigError
      for a bad one.
    """
    assert pages.as_markdown("Return it." + textwrap.dedent(docstring.removeprefix("Return it."))) == (
        "Return it.\n\nMore of it, in [B, T].\n\n**Args:**\n\n* `one`: the first,\n  on two lines.\n"
        "* `two`, `three`: others.\n\n**Returns:** a thing.\n\n**Raises:** ConfigError\n  for a bad one."
    )


def test_a_signature():
    (node,) = ast.parse("def f(self, a: int, b=1, *c: str, d: 'X' = None, **e) -> list[int]: ...").body
    assert pages.signature(node, "f") == "f(self, a: int, b=1, *c: str, d: 'X' = None, **e) -> list[int]"
    assert pages.signature(node, "g", without_self=True) == "g(a: int, b=1, *c: str, d: 'X' = None, **e) -> list[int]"
    (node,) = ast.parse(f"def f(a: int, *, {'b' * 90}=1): ...").body
    assert pages.signature(node, "f") == f"f(\n    a: int,\n    *,\n    {'b' * 90}=1,\n)"


# The reading tour.


def stops():
    """Yield the file and the snippets of every stop of the tour."""
    text = (DOCS / "reading_tour.md").read_text()
    for section in re.split(r"(?m)^## (?=Stop \d+: )", text)[1:]:
        (file,) = re.findall(r"^\[`[^`]+`\]\(\.\./(transformer_jax/[\w/]+\.py)\)$", section, re.M)
        yield file, re.findall(r"^```python\n(.*?)\n```$", section, re.M | re.S)


def is_excerpt(snippet, source):
    """Return whether a snippet is a run of lines of a source, with any indentation of the whole."""
    lines, wanted = source.splitlines(), snippet.splitlines()
    parts = (lines[i : i + len(wanted)] for i in range(len(lines) - len(wanted) + 1))
    return any(textwrap.dedent("\n".join(part)).splitlines() == wanted for part in parts)


def test_the_tour_has_ten_stops():
    assert len([*stops()]) == 10
    assert all(snippets for _, snippets in stops())


@pytest.mark.parametrize(("file", "snippets"), [*stops()], ids=lambda value: value if isinstance(value, str) else "")
def test_the_snippets_of_the_tour_are_the_source(file, snippets):
    for snippet in snippets:
        assert is_excerpt(snippet, (ROOT / file).read_text()), f"{file} no longer has\n{snippet}"


def test_an_excerpt():
    source = "class A:\n    def f(self):\n        return 1\n"
    assert is_excerpt("def f(self):\n    return 1", source)
    assert not is_excerpt("def f(self):\n    return 2", source)
    assert not is_excerpt("def f(self):\nreturn 1", source)


def test_the_files_that_the_tour_names_exist():
    text = (DOCS / "reading_tour.md").read_text()
    for name in re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text):
        assert (ROOT / name).exists() or (ROOT / "transformer_jax" / name).exists(), name


# Troubleshooting.

FROM_OUTSIDE = (Path(jax.__file__).parent / "_src" / "xla_bridge.py", ROOT / "Makefile")
"""Files with messages of JAX and of make that the page quotes."""


def texts(file):
    """Return the texts of a Python file, with a NUL for every value that is put into them."""
    if file.suffix != ".py":
        return [re.sub(r'" \+ .*? \+ "', "\0", file.read_text())]
    tree = ast.parse(file.read_text())
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within:
            found.append(re.sub(r"%(?:%|[-.\d]*[a-z])", lambda m: "%" if m[0] == "%%" else "\0", node.value))
    return found


def is_in(message, candidates):
    """Return whether a text has all parts of a message, which `...` divides, in their order."""
    search = re.compile(r".*?".join(re.escape(part.strip()) for part in message.split("...")), re.S)
    return any(search.search(re.sub(r"\s+", " ", text)) for text in candidates)


MESSAGES = re.findall(r"^### (.*)$", (DOCS / "troubleshooting.md").read_text(), re.M)


@pytest.fixture(scope="module")
def source_texts():
    files = [*sorted((ROOT / "transformer_jax").rglob("*.py")), *FROM_OUTSIDE]
    return [text for file in files for text in texts(file)]


@pytest.mark.parametrize("message", MESSAGES)
def test_quoted_messages_are_in_the_source(message, source_texts):
    fixed = [part for part in message.split("...") if len(part.strip(" :;,.'()")) > 3]
    assert sum(map(len, fixed)) >= 8, "too little of it is fixed to be found"
    assert is_in(message, source_texts)


def test_messages_that_are_not_in_the_source(source_texts):
    assert not is_in("no such file of ...", source_texts)
    assert not is_in("DAMAGED CHECKPOINT ... it is deleted", source_texts)


def test_every_message_has_a_cause_and_a_cure():
    sections = re.split(r"(?m)^###? ", (DOCS / "troubleshooting.md").read_text())
    for message in MESSAGES:
        (section,) = (section for section in sections if section.startswith(message + "\n"))
        assert section.count("**Cause.**") == section.count("**Cure.**") == 1


# The glossary.


def terms():
    return re.findall(r"^\*\*(.+?)\*\*: (.*?)(?=\n\n|\Z)", (DOCS / "glossary.md").read_text(), re.M | re.S)


def test_the_glossary_is_in_alphabetical_order():
    names = [name.lower() for name, _ in terms()]
    assert len(names) > 60
    assert names == sorted(names)
    assert len(names) == len(set(names))


def test_every_term_is_explained_in_one_to_three_sentences():
    for name, text in terms():
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`\[])", text.strip())
        assert 1 <= len(sentences) <= 3, name


def test_the_fields_and_files_of_the_glossary_exist():
    text = (DOCS / "glossary.md").read_text()
    known = {name for name, _, _ in walk(ExperimentConfig())}
    sections = {name.partition(".")[0] for name in known if "." in name}
    for name in re.findall(rf"`((?:{'|'.join(sections)})\.[a-z_]+)(?:=[^`]*)?`", text):
        assert name in known, name
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
        assert (ROOT / "transformer_jax" / path).exists(), path
