"""The files that a forge or a container reads: citation, security, issue templates, Dockerfile."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import transformer_jax

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEMPLATES = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # those that the format requires
    assert citation["version"] == transformer_jax.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["title"].startswith("transformer_jax: ")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_are_forms(path):
    form = yaml.safe_load(path.read_text())
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))
    fields = [part for part in form["body"] if part["type"] != "markdown"]
    assert {part["type"] for part in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    names = [part["id"] for part in fields]
    assert len(names) == len(set(names)) > 0
    assert all(part["attributes"]["label"] for part in fields)
    for name in re.findall(r"\b(?:docs/)?\w+\.md\b", path.read_text()):
        assert (ROOT / name).exists(), name


def test_there_are_issue_templates():
    assert {path.stem for path in TEMPLATES} == {"bug", "idea", "result"}


def instructions():
    """Return the instructions of the Dockerfile as (name, arguments)."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def test_the_dockerfile_copies_files_that_exist_and_are_not_ignored():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for name, words in instructions() if name == "COPY" for word in words.split()[:-1]}
    assert copied == kept
    assert all((ROOT / name).exists() for name in copied)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["only-include"]) <= copied
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= copied


def test_the_dockerfile_installs_an_extra_and_starts_a_command():
    extras = {words.partition("=")[2] for name, words in instructions() if words.startswith("EXTRA=")}
    extras |= set(re.findall(r"EXTRA=(\w+)", (ROOT / "Dockerfile").read_text()))
    assert extras <= set(PROJECT["optional-dependencies"])
    (program,) = (words for name, words in instructions() if name == "ENTRYPOINT")
    assert yaml.safe_load(program)[0] in PROJECT["scripts"]


def test_the_dockerfile_says_that_it_was_not_built_and_names_no_host():
    text = (ROOT / "Dockerfile").read_text()
    assert text.startswith("# NOT BUILT HERE")
    assert not re.search(r"://|index-url|\w+\.(?:org|io|com|net)\b", text)
