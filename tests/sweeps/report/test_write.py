"""The page and the Markdown: their numbers equal those of the CSV, text is escaped, and bytes are reproducible."""

import csv
import dataclasses
import html
import html.parser
import math
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from report_support import CROSSED, DIVERGED, write_workdir

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import MetricByVariant
from transformer_jax.sweeps.report import answer_tables, latex, page_tables
from transformer_jax.sweeps.report import page as page_of
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.formatting import NOTHING
from transformer_jax.sweeps.report.markdown import escaped
from transformer_jax.sweeps.report.summary import results_csv, summarise
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results import failure

EVIL = "<script>alert('$x_1$ & \"y\"')</script>"


class Page(html.parser.HTMLParser):
    """Elements, texts, scripts, and the rows of the first table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.rows, self.scripts = [], [], "", [], []
        self._in_first = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._in_first = self._in_first or (tag == "tbody" and "tbody" not in self.tags)
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if self._in_first and tag == "tr":
            self.rows.append([])
        if self._in_first and tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._in_first = self._in_first and tag != "tbody"

    def handle_data(self, data):
        if self.tags[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.tags[-1:] != ["style"]:
            self.text += data
        if self._in_first:
            self.rows[-1][-1] += data


def report(results, output):
    write_report(results, summarise(results), effects(results), output)
    return (output / "report.html").read_text(), (output / "report.md").read_text()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return collect(*write_workdir(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    output = tmp_path_factory.mktemp("report")
    return output, *report(results, output)


def assert_rounds(shown, value):
    """Check that a shown number is the value rounded to its last digit, and that a missing value is not a number."""
    if value == "":
        assert shown == NOTHING
        return
    place = 10 ** -len(shown.partition("e")[0].partition(".")[2]) * 10 ** int(shown.partition("e")[2] or 0)
    assert math.isclose(float(shown), float(value), rel_tol=0, abs_tol=0.5 * place * (1 + 1e-9))


def assert_row_is_that_of_the_csv(cells, lines):
    """cells: mean, difference and p-value of each metric, in the order of the lines of summary.csv."""
    for number, line in enumerate(lines):
        mean, difference, p_value = cells[3 * number : 3 * number + 3]
        for shown, columns in (
            (mean, ("mean", "half_width")),
            (difference, ("difference", "difference_half_width")),
        ):
            for part, column in zip(re.sub(r"[★*]|\(best\)", "", shown).split("±"), columns, strict=False):
                assert_rounds(part.strip(), line[column])
            assert ("±" in shown) == bool(line[columns[1]])
        assert_rounds(p_value, line["p_value_holm"])
        assert ("★" in mean) == (line["best"] == "True")


def lines_of(output, variant):
    with (output / "summary.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["num_heads"] == variant]
    return [next(line for line in lines if line["metric"] == m) for m in ("test/exact_match", "test/loss")]


def test_every_number_of_the_page_equals_that_of_the_csv(written):
    output, page, _ = written
    rows = Page(page).rows
    assert [row[0] for row in rows] == ["1 (reference)", "2", "4", "8", "16"]
    for name, *cells, trials in rows:
        assert_row_is_that_of_the_csv(cells, lines_of(output, name.partition(" ")[0]))
        assert trials == ("2 finished, 1 of 3 diverged" if name == "4" else "3 finished")


def test_every_number_of_the_markdown_equals_that_of_the_csv(written):
    output, _, markdown = written
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(table) == 7
    for line in table[2:]:
        name, *cells, _ = (cell.strip() for cell in line.strip("|").split("|"))
        assert_row_is_that_of_the_csv(cells, lines_of(output, name.partition(" ")[0]))


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    output = tmp_path_factory.mktemp("report")
    return output, *report(collect(*write_workdir(tmp_path_factory.mktemp("study"), text=CROSSED)), output)


def test_differences_of_contrasts_equal_those_of_the_csv(crossed):
    output, page, markdown = crossed
    with (output / "contrasts.csv").open() as file:
        lines = list(csv.DictReader(file))
    table = page.partition('aria-label="differences"')[2].partition("</table>")[0]
    rows = [re.findall(r"<t[dh][^>]*>([^<]*)</t", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.S)][2:]
    in_markdown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
        if ": " in line and " minus " in line
    ]
    assert [row[:3] for row in rows] == [row[:3] for row in in_markdown]
    assert len(rows) == len(lines) / 2 == 7
    assert rows[0][:3] == ["num_heads: 2 minus 1", NOTHING, "pre"]
    assert rows[-1][:3] == ["norm: pre minus post", "4", NOTHING]
    for cells in (*zip(rows, range(0, 14, 2), strict=True), *zip(in_markdown, range(0, 14, 2), strict=True)):
        (_, _, _, *numbers), first = cells
        for (difference, p_value, verdict), line in zip(
            zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True), lines[first:], strict=False
        ):
            for shown, column in zip(difference.split("±"), ("difference", "difference_half_width"), strict=False):
                assert_rounds(shown.strip(), line[column])
            assert_rounds(p_value, line["p_value_holm"])
            assert line["verdict"] in verdict
    assert "differ only in num_heads or norm" in Page(page).text
    assert "(reference)" not in page


def test_a_column_for_every_axis(crossed):
    """Of variants, contrasts, config fields and trials, also in Markdown and LaTeX."""
    output, page, markdown = crossed
    for label, names in (
        ("answer", ["num_heads", "norm"]),
        ("differences", ["contrast", "num_heads", "norm"]),
        ("differences of the configs", ["num_heads", "norm"]),
        ("trials", ["num_heads", "norm", "seed", "status"]),
    ):
        table = page.partition(f'aria-label="{label}"')[2].partition("</table>")[0]
        assert re.findall(r'<th [^>]*data-filter=""[^>]*>([^<]*)</th>', table) == names
        for row in re.findall(r"<tr>(.*?)</tr>", table.partition("<tbody>")[2], re.S):
            assert row.count('<th scope="row"') == len(names) - 2 * (label == "trials")
    assert "num_heads=" not in page.partition("<h2>Answer</h2>")[2].partition("<h2>Figures</h2>")[0]
    assert "\n| num_heads | norm | test exact match (%), mean ± 95 % |" in markdown
    assert "\n| contrast | num_heads | norm | test exact match (%), difference |" in markdown
    tex = (output / latex.TABLES).read_text()
    assert r"num\_heads & norm & mean &" in tex
    assert r"contrast & num\_heads & norm & difference & $p$ & verdict" in tex


def test_cells_have_the_numbers_of_the_csv_in_full_precision(written, crossed):
    for (output, page, _), label, file, columns in (
        (written, "answer", "summary.csv", ("mean", "difference", "p_value_holm")),
        (crossed, "differences", "contrasts.csv", ("difference", "p_value_holm")),
    ):
        table = page.partition(f'aria-label="{label}"')[2].partition("</table>")[0].partition("<tbody>")[2]
        shown = re.findall(r'<td[^>]* data-value="([^"]*)"', table)
        with (output / file).open() as opened:
            lines = [line for line in csv.DictReader(opened) if line["metric"] in ("test/exact_match", "test/loss")]
        assert shown == [line[column] for line in lines for column in columns]


def test_labels_are_sorted_as_numbers_or_in_the_order_of_the_study(crossed):
    table = crossed[1].partition('aria-label="trials"')[2].partition("</table>")[0]
    found = set(re.findall(r'data-label="([^"]*)" data-value="([^"]*)"', table))
    assert found == {("1", "1.0"), ("2", "2.0"), ("4", "4.0"), ("pre", "0.0"), ("post", "1.0")}


def test_contrasts_of_an_earlier_report_are_removed(crossed, results, tmp_path):
    (tmp_path / "contrasts.csv").write_text("")
    report(results, tmp_path)
    assert not (tmp_path / "contrasts.csv").exists()


def test_numbers_of_alternative_texts_equal_those_of_the_csv(written):
    output, page, _ = written
    alt = next(value for tag, name, value in Page(page).attributes if (tag, name) == ("img", "alt"))
    best, worst = re.search(r"best num_heads 1, (\S+); worst num_heads 16, (\S+)\.", alt).groups()
    assert_rounds(best, lines_of(output, "1")[0]["mean"])
    assert_rounds(worst, lines_of(output, "16")[0]["mean"])


def test_the_page_names_methods_versions_and_command(written):
    _, page, markdown = written
    text = Page(page).text
    for said in ("Holm 1979", "paired t-test", "3 seeds say little", "Student's t", "1 of 3 diverged"):
        assert said in text
        assert said in markdown
    assert "jax 0.10.2, python 3.11.9" in text
    assert "112.5 seconds" in text
    assert '"mlp_dim": 40' in text
    assert "transformer-jax sweep --study=experiments/heads --workdir=runs/heads --config.model.mlp_dim=40" in text


def test_the_report_does_not_depend_on_the_path_of_the_work_directory(written, results):
    """So that a report can be committed."""
    output = written[0]
    for file in [*output.glob("*.*"), *output.glob("figures/*")]:
        assert str(results.workdir).encode() not in file.read_bytes()
    assert f"trials/{DIVERGED}/<batch>" in Page(written[1]).text


def test_text_from_data_is_escaped(results, tmp_path):
    axis = results.study.axes[0]
    values = {label if label != "16" else EVIL: fields for label, fields in axis.values.items()}
    changed = dataclasses.replace(axis)
    object.__setattr__(changed, "values", values)  # no study file may give such a name
    last = results.variants[-1]
    trials = tuple(
        dataclasses.replace(t, trial=dataclasses.replace(t.trial, labels={"num_heads": EVIL})) for t in last.trials
    )
    variants = (*results.variants[:-1], dataclasses.replace(last, labels={"num_heads": EVIL}, trials=trials))
    study = dataclasses.replace(results.study, question=EVIL)
    object.__setattr__(study, "axes", (changed,))
    page, markdown = report(dataclasses.replace(results, study=study, variants=variants), tmp_path)
    parsed = Page(page)
    assert parsed.text.count(EVIL) >= 6  # heading, table, configs, ...
    assert "1 x <cpu>" in parsed.text
    assert not {"b", "cpu", "batch"} & set(parsed.tags)
    assert "".join(parsed.scripts) == (Path(page_of.__file__).parent / "page.js").read_text() + "\n"
    assert not any(name.startswith("on") for _, name, _ in parsed.attributes)
    assert "<" not in re.sub("<batch>|<span>[$]</span>", "", markdown)
    assert r"\|" not in markdown


def test_a_pipe_or_a_line_end_does_not_end_a_cell_of_markdown():
    assert escaped("a|b\nc *d* _e_ f_g `h` <i> [j](k) \\") == (
        r"a\|b c \*d\* \_e\_ f_g \`h\` &lt;i&gt; \[j\](k) " + "\\\\"
    )


EVERY_SIGN = r"--a $x_1$ _b_ __c__ 5% & #1 ~d~ ^2 \ {e} |f| **g** <h> [i] `j` -- $"


def shown(markdown, tag):
    """Return the texts that a reader of Markdown shows in elements of a kind."""
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").render(markdown)
    return [
        html.unescape(re.sub(r"</?span>", "", text)) for text in re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", rendered)
    ]


def test_every_sign_of_a_name_is_shown_as_it_is(results, tmp_path, monkeypatch):
    """Question, axis, value and metric, in the page, in Markdown and in LaTeX."""
    for module in (answer_tables, page_tables):
        monkeypatch.setattr(module, "metric_label", lambda *_: EVERY_SIGN)
    variants = []
    for variant in results.variants:
        labels = {EVERY_SIGN: EVERY_SIGN if variant is results.variants[0] else variant.labels["num_heads"]}
        trials = (dataclasses.replace(t, trial=dataclasses.replace(t.trial, labels=labels)) for t in variant.trials)
        variants.append(dataclasses.replace(variant, labels=labels, trials=tuple(trials)))
    axis = dataclasses.replace(results.study.axes[0])
    object.__setattr__(axis, "name", EVERY_SIGN)  # no study file may give such a name
    object.__setattr__(axis, "values", {variant.labels[EVERY_SIGN]: {} for variant in variants})
    figures = (MetricByVariant("test/loss", EVERY_SIGN),)
    study = dataclasses.replace(results.study, question=EVERY_SIGN, figures=figures)
    object.__setattr__(study, "axes", (axis,))
    page, markdown = report(dataclasses.replace(results, study=study, variants=tuple(variants)), tmp_path)
    assert shown(markdown, "h1") == [EVERY_SIGN]
    assert shown(markdown, "th")[:2] == [EVERY_SIGN, f"{EVERY_SIGN}, mean ± 95 %"]
    assert EVERY_SIGN in shown(markdown, "strong")  # the title of the figure
    assert shown(markdown, "td")[0] == f"{EVERY_SIGN} (reference)"
    alt = re.search(r'alt="([^"]*)"', MarkdownIt("commonmark").render(markdown))[1]
    assert EVERY_SIGN in html.unescape(alt)
    assert not re.search(r"(?<!<span>)(?<!\\)\$", markdown)  # no formula
    assert Page(page).text.count(EVERY_SIGN) >= 6
    tex = (tmp_path / latex.TABLES).read_text()
    assert tex.startswith(f"% {EVERY_SIGN}\n")
    assert tex.count(latex.escaped(EVERY_SIGN)) == 2 + 2  # the axis, its value and the metrics


def test_nothing_is_loaded_from_elsewhere(written):
    page = written[1]
    addresses = [value for _, name, value in Page(page).attributes if name in ("src", "href", "srcset")]
    assert len(addresses) == 1 + 2
    assert all(address.startswith("data:") for address in addresses)
    assert "url(" not in page
    assert "@import" not in page


def test_every_figure_has_an_alternative_text(written):
    output, page, markdown = written
    parsed = Page(page)
    alts = [value for tag, name, value in parsed.attributes if (tag, name) == ("img", "alt")]
    files = sorted(file.name for file in (output / "figures").glob("*.svg"))
    assert sorted(file.stem for file in (output / "figures").glob("*.pdf")) == [name[:-4] for name in files]
    assert files == ["1_test_exact_match.svg", "2_valid_loss_by_step.svg"]
    assert len(alts) == parsed.tags.count("img") == len(files)
    assert all("5 variants" in alt and "num_heads 4: 2 finished, 1 of 3 diverged" in alt for alt in alts)
    assert all(f"](figures/{name})" in markdown for name in files)


def test_equal_results_give_equal_bytes(written, results, tmp_path):
    report(results, tmp_path)
    names = [file.relative_to(written[0]) for file in written[0].rglob("*.*")]
    assert len(names) == 12
    assert all((tmp_path / name).read_bytes() == (written[0] / name).read_bytes() for name in names)


def test_figures_of_an_earlier_report_are_removed(results, tmp_path):
    report(results, tmp_path)
    kept = tmp_path / "figures" / "mine.svg"
    kept.write_text("")
    figures = (MetricByVariant("test/loss"),)
    report(dataclasses.replace(results, study=dataclasses.replace(results.study, figures=figures)), tmp_path)
    names = ["1_test_loss.pdf", "1_test_loss.svg", "mine.svg"]
    assert sorted(file.name for file in (tmp_path / "figures").iterdir()) == names


def test_a_trial_that_could_not_run_has_no_size_and_no_machine(results, tmp_path):
    first, second = results.variants[:2]
    trials = [dataclasses.replace(t, result=failure(t.trial, "no room")) for t in (first.trials[0], *second.trials)]
    variants = (
        dataclasses.replace(first, trials=(trials[0], *first.trials[1:])),
        dataclasses.replace(second, trials=tuple(trials[1:])),
    )
    changed = dataclasses.replace(results, variants=variants)
    page, _ = report(changed, tmp_path)
    rows = re.findall(r"<tr>(.*?)</tr>", page.partition("differences of the configs")[2].partition("</table>")[0], re.S)
    assert "model.head_dim follows from model.num_heads." in page
    parameters = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[-1] for row in rows if "</td>" in row]
    assert parameters == ["1000", NOTHING]
    text = Page(page).text
    assert "not known" not in text
    assert "Machine: 1 x <cpu>Versions: jax 0.10.2, python 3.11.9Training: 15.00 seconds" in re.sub(
        r"\s*\n\s*", "", text
    )
    lines = list(csv.DictReader(results_csv(changed).splitlines()))
    empty = dict.fromkeys(("steps", "seconds", "parameters", "test/loss"), "")
    assert [line["status"] for line in lines] == ["failed", "finished", "finished", "failed", "failed", "failed"]
    assert all({name: line[name] for name in empty} == empty for line in lines if line["status"] == "failed")


def test_a_folder_that_cannot_be_written(results, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"--output={tmp_path / 'file'}: cannot be written"):
        report(results, tmp_path / "file")
