"""Tables in LaTeX."""

import re
import shutil
import subprocess

import pytest
from report_support import CROSSED, write_workdir

from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.formatting import estimate_of
from transformer_jax.sweeps.report.latex import escaped, tables_tex
from transformer_jax.sweeps.report.summary import summarise


@pytest.fixture(scope="module", params=["compared with a reference", "contrasts"])
def made(request, tmp_path_factory):
    texts = {"text": CROSSED} if request.param == "contrasts" else {}
    results = collect(write_workdir(tmp_path_factory.mktemp("study"), **texts)[0])
    rows = summarise(results)
    return results, rows, tables_tex(results, rows, effects(results))


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("50% of a_b & c#$", r"50\% of a\_b \& c\#\$"),
        (r"\begin{x}^~", r"\textbackslash{}begin\{x\}\textasciicircum{}\textasciitilde{}"),
        ("1.5 ± 0.2\nnext", r"1.5 $\pm$ 0.2 next"),
        ("\N{EN DASH}", "--"),
        ("--a -b ---", "-{}-a -b -{}-{}-"),
        ("'' ,, `a` \"", r"'{}' ,{}, \textasciigrave{}a\textasciigrave{} \char34{}"),
        ("<<a|b>>", r"\textless{}\textless{}a\textbar{}b\textgreater{}\textgreater{}"),
        ("[1]", "{}[1]"),  # not the argument of the row before
        ("**", "{}**"),
    ],
)
def test_text_is_shown_unchanged(text, latex):
    assert escaped(text) == latex


def columns_of(tabular):
    return len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", tabular)[1])


def test_every_row_has_all_columns(made):
    results, _, tex = made
    tabulars = re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", tex, re.S)
    assert len(tabulars) == 1 + bool(results.study.contrasts)
    for tabular in tabulars:
        rows = re.findall(r"^(.*) \\\\$", tabular, re.M)
        for row in rows:
            spanned = sum(int(width) - 1 for width in re.findall(r"\\multicolumn\{(\d+)\}", row))
            assert len(re.split(r"(?<!\\)&", row)) + spanned == columns_of(tabular)
        rules = re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", tabular)
        assert int(rules[-1][1]) <= columns_of(tabular)
        assert [tabular.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]


def test_the_numbers_are_those_of_the_page_and_the_best_is_bold(made):
    results, rows, tex = made
    for row in rows:
        if row.metric in [metric.name for metric in results.study.metrics]:
            text = escaped(estimate_of(row))
            assert (rf"\textbf{{{text}}}" if row.best else text) in tex
    assert tex.count(r"\textbf") == sum(row.best for row in rows)
    assert ("% Bold: ahead of every other variant" in tex) == any(row.best for row in rows)
    assert "best mean" not in tex
    assert tex.startswith(f"% {results.study.question}\n")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tectonic") is None and shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_the_tables_compile(made, tmp_path):
    (tmp_path / "tables.tex").write_text(made[2])
    document = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{tables.tex}\end{document}"
    (tmp_path / "paper.tex").write_text(document)
    program = ["tectonic"] if shutil.which("tectonic") else ["pdflatex", "-interaction=nonstopmode", "-halt-on-error"]
    subprocess.run([*program, "paper.tex"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "paper.pdf").stat().st_size > 1000
