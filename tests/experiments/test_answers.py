"""The answers of README.md and of the studies' READMEs are those of the pages, drawn from the committed results."""

import functools
import re
import textwrap
from pathlib import Path

import pytest

from transformer_jax.sweeps.report.answer import answer_parts
from transformer_jax.sweeps.report.committed import collect_results
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.markdown import escaped
from transformer_jax.sweeps.report.summary import RESULTS, summarise

ROOT = Path(__file__).parent.parent.parent
ANSWERED = sorted(file.parent.parent.name for file in ROOT.glob(f"experiments/*/results/{RESULTS}"))
NUMBER = r"(?<![A-Za-z])(?<![A-Z]-)\d+(?:\.\d+)?(?:e-\d+)?"  # not in T5, F1 or SST-2


@functools.cache
def parts(name):
    results = collect_results(ROOT / "experiments" / name / "results")
    return answer_parts(results, summarise(results), effects(results))


def sentences(name):
    """Return the answer of a page without what it shows at a click, as one line."""
    return " ".join(escaped(part.sentence) for part in parts(name))


def on_one_line(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", ANSWERED)
def test_the_answer_of_a_readme_begins_with_that_of_the_page(name):
    text = (ROOT / "experiments" / name / "README.md").read_text()
    paragraph = text.partition("\n**Answer:** ")[2].partition("\n\n")[0]
    wanted = textwrap.fill(f"**Answer:** {sentences(name)}", 120, break_on_hyphens=False, break_long_words=False)
    assert on_one_line(paragraph) == sentences(name), f"experiments/{name}/README.md needs:\n{wanted}"


def rows(page, folder=""):
    """Return the third cell of the rows of a table of studies, by name."""
    row = rf"^\| \[`(\w+)`\]\({folder}\w+\) \| [^|]* \| ([^|]*) \|$"
    return dict(re.findall(row, (ROOT / page).read_text(), re.M))


@pytest.mark.parametrize("name", ANSWERED)
def test_numbers_of_a_short_answer_are_those_of_the_page(name):
    said = " ".join(sentence for part in parts(name) for sentence in (part.sentence, *part.details))
    short = rows("experiments/README.md")[name]
    assert set(re.findall(NUMBER, short)) <= set(re.findall(NUMBER, said)), (short, said)
    assert "significant" not in short  # the words of the verdicts: ahead, equal, undecided, not told apart
    if "No difference could be shown" in said:
        assert "no difference could be shown" in short
    if any(part.sentence.startswith("No variant is ahead") for part in parts(name)):
        assert "cannot be told apart" in short


def test_the_studies_with_results_are_those_of_the_table():
    assert {*ANSWERED, "parallelism"} == rows("experiments/README.md").keys()


def test_the_front_page_has_rows_of_the_table():
    front = rows("README.md", "experiments/")
    assert front.items() <= rows("experiments/README.md").items()
    assert front.keys() >= {"norm_placement", "positions", "num_heads"}


def test_the_beginning_of_the_readme_quotes_a_page():
    text = (ROOT / "README.md").read_text()
    (paragraph,) = (of for of in text.split("\n\n") if "[One study](experiments/" in of)
    (name,) = re.findall(r"\[One study\]\(experiments/(\w+)\)", paragraph)
    assert any(f'"{escaped(part.sentence)}"' in on_one_line(paragraph) for part in parts(name))
    page = (ROOT / "experiments" / name / "results" / "report.md").read_text()
    assert set(re.findall(r"\d+\.\d+", paragraph)) <= set(re.findall(r"\d+\.\d+", page))
