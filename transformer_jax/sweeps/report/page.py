"""A report as one HTML page that loads nothing from elsewhere. Its script sorts and filters tables, and may be off."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.readers import read_text
from transformer_jax.sweeps.report.answer import Part, answer_parts
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.drawing import Drawn
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.grid_from_results import derived_differences
from transformer_jax.sweeps.report.html import Html, element
from transformer_jax.sweeps.report.latex import TABLES
from transformer_jax.sweeps.report.number_text import number_text
from transformer_jax.sweeps.report.page_tables import (
    answer_table,
    contrast_table,
    differences_table,
    trials_table,
    tuning_table,
)
from transformer_jax.sweeps.report.reproduction import (
    command_note,
    exact_config,
    machines,
    sweep_command,
    versions,
)
from transformer_jax.sweeps.report.sentences import NOT_SHOWN, asked, interval_note, notes, subject
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.tuning import sentences
from transformer_jax.sweeps.results_folder import FIGURES, MEASUREMENTS

_FILES = (
    f"Beside this page: every figure as SVG and PDF in {FIGURES}/, the tables for LaTeX in {TABLES}, and all numbers "
    f"of all trials in {MEASUREMENTS}."
)


def page(results: StudyResults, rows: list[Row], effects: list[Effect], figures: Sequence[Drawn]) -> str:
    question, script = results.study.question, _own("page.js")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", question),
        element("link", rel="icon", href="data:,"),
        element("style", _own("style.css")),
    )
    main = element(
        "main",
        element("h1", question),
        _opening(results, rows, effects, figures),
        *_not_shown(results),
        element("p", subject(results), class_="soft"),
        answer_table(results, rows),
        *(_section("Differences", contrast_table(results, effects)) if effects else []),
        *_section("Figures", element("div", *(_figure(of) for of in figures if not of.opens_page), class_="figures")),
        element("p", _FILES, class_="soft"),
        *_tuning(results),
        *_section("How to read it", element("ul", *(element("li", note) for note in notes(results, rows, effects)))),
        *_section("Config fields that differ", differences_table(results), *_derived(results)),
        *_section("Trials", element("details", element("summary", "Every trial"), trials_table(results))),
        *_section("Exact configs", *_configs(results)),
        *_section("How it was made", *_origin(results)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', main, element('script', script)), lang='en')}\n"


def _opening(results: StudyResults, rows: list[Row], effects: list[Effect], figures: Sequence[Drawn]) -> Html:
    """Return the answer and its figure, which are side by side where there is room."""
    said = _section("Answer", *_answer(answer_parts(results, rows, effects)))
    if note := interval_note(results, rows, effects):
        said.append(element("p", note, class_="soft"))
    said += _changed(results)
    beside = [_figure(figure) for figure in figures if figure.opens_page]
    return element("div", element("div", *said), *beside, class_="opening")


def _own(name: str) -> Html:
    return Html(read_text(Path(__file__).parent / name))


def _policy(script: str) -> str:
    """Return the content security policy: this script alone, and nothing from elsewhere."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _tuning(results: StudyResults) -> list[Html]:
    said = sentences(results)
    if not said:
        return []
    said_list = element("ul", *(element("li", sentence) for sentence in said))
    return _section("Tuning", said_list, tuning_table(results))


def _section(title: str, *content: Html) -> list[Html]:
    return [element("h2", title), *content]


def _answer(parts: Sequence[Part]) -> list[Html]:
    if len(parts) == 1 and not parts[0].details:
        return [element("p", _unbroken(parts[0].sentence), class_="answer")]
    return [element("ul", *map(_part, parts), class_="answer")]


def _part(part: Part) -> Html:
    sentence = _unbroken(part.sentence)
    if not part.details:
        return element("li", sentence)
    details = element("ul", *(element("li", _unbroken(said)) for said in part.details))
    return element("li", element("details", element("summary", sentence), details), class_="summed")


def _unbroken(sentence: str) -> str:
    """Return a sentence in which no line ends within an interval or a p-value."""
    sentence = re.sub(r"(\d)e-(\d)", "\\1e-\N{WORD JOINER}\\2", sentence)
    return re.sub(r" ([±=]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", sentence)


def _not_shown(results: StudyResults) -> list[Html]:
    said = results.study.not_shown
    return [element("p", element("strong", NOT_SHOWN), f" {said}")] if said else []


def _changed(results: StudyResults) -> list[Html]:
    said = asked(results)
    return [element("p", element("strong", said))] if said else []


def _figure(figure: Drawn) -> Html:
    image = element("img", src=f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}", alt=figure.alt)
    caption = element("figcaption", element("strong", figure.title), element("small", figure.caption or figure.alt))
    return element("figure", image, caption)


def _derived(results: StudyResults) -> list[Html]:
    said = [
        f"{name} follows from {' and '.join(causes)}." for name, causes in derived_differences(results.variants).items()
    ]
    return [element("p", " ".join(said), class_="soft")] if said else []


def _configs(results: StudyResults) -> list[Html]:
    shown = [
        element("details", element("summary", variant.short_name), element("pre", exact_config(variant), tabindex="0"))
        for variant in results.variants
    ]
    said = "All fields except the seed, which differs by trial, and data.cache_dir, the folder of the token cache."
    return [element("p", said, class_="soft"), *shown]


def _origin(results: StudyResults) -> list[Html]:
    command = sweep_command(results)
    seconds = sum(trial.result.seconds for trial in results.trials if trial.result is not None)
    if command is None:
        said = [element("p", "The study's file as it is now does not make these configs; the exact configs are above.")]
    else:
        said = [
            element("p", command_note(results)),
            element("pre", command, tabindex="0"),
        ]
    lines = [
        *_counted("Machine", machines(results)),
        *_counted("Versions", versions(results)),
        f"Training: {number_text(seconds)} seconds in total over all trials.",
    ]
    return [*said, element("ul", *(element("li", line) for line in lines))]


def _counted(title: str, counts: Counter[str]) -> list[str]:
    """Return a line per value, with the number of trials if there is more than one value."""
    return [
        f"{title}: {value or 'not known'}" + (f" ({count} trials)" if len(counts) > 1 else "")
        for value, count in counts.items()
    ]
