"""Results folders of earlier versions, which have no trials.json.

The study comes from its code, the numbers from results.csv and, if it is there, measurements.csv. The page that lies
beside them has the rest: exact configs, machine, versions, the command, and the figures.
"""

from __future__ import annotations

import dataclasses
import html.parser
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig, flat
from transformer_jax.config_file import leaf_types
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.readers import parse_json, read_text
from transformer_jax.sweeps.report.grid_from_results import absent_variants
from transformer_jax.sweeps.report.variants import NO_RESULT, STATUSES, TrialResult, Variant
from transformer_jax.sweeps.results import Result
from transformer_jax.sweeps.results_folder import (
    DECLARATION,
    FIGURES,
    MEASUREMENTS,
    TRIALS_FILE,
    CommittedTrial,
    KeptFigure,
    Recorded,
    csv_rows,
    nested,
    number,
    numbers_by_trial,
)
from transformer_jax.sweeps.search.search import SearchOptions
from transformer_jax.sweeps.study import SEED, Axis, Study
from transformer_jax.sweeps.study_json import declaration_of
from transformer_jax.sweeps.trials import Trial, start_of, trained_once, variant
from transformer_jax.trust import reading

logger = logging.getLogger(__name__)

RESULTS, PAGE = "results.csv", "report.html"
_OTHER_COLUMNS = ("steps", "seconds", "parameters")


@dataclasses.dataclass
class _Page(html.parser.HTMLParser):
    """The parts of a report's page that no CSV file has.

    Attributes:
      configs: JSON by name of the variant. lines: of the lists. commands: other preformatted texts. figures: alt text
        and title of each. reasons: why a trial has not finished, by name of its variant and seed.
    """

    configs: dict[str, str] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)
    commands: list[str] = dataclasses.field(default_factory=list)
    figures: list[list[str]] = dataclasses.field(default_factory=list)
    reasons: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self._text: list[str] = []
        self._summary, self._table = "", ""
        self._cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        of = dict(attrs)
        if tag in ("summary", "pre", "li", "td", "th", "strong", "h2"):
            self._text = []
        if tag == "h2":
            self._summary = ""
        if tag == "img":
            self.figures.append([of.get("alt") or "", ""])
        if "aria-label" in of:
            self._table = of["aria-label"] or ""
        if tag == "tr":
            self._cells = []

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        text = "".join(self._text)
        if tag == "summary":
            self._summary = text
        elif tag == "pre" and self._summary:
            self.configs[self._summary], self._summary = text, ""
        elif tag == "pre":
            self.commands.append(text)
        elif tag == "li":
            self.lines.append(text)
        elif tag == "strong" and self.figures and not self.figures[-1][1]:
            self.figures[-1][1] = text
        elif tag in ("td", "th"):
            self._cells.append(text)
        elif tag == "tr" and self._table == "trials" and len(self._cells) > 2:
            self.reasons[self._cells[0], self._cells[1]] = self._cells[-1]

    def values(self, title: str) -> str:
        """Return what the page says after a title, such as "Machine"; several lines are joined."""
        found = [line.partition(": ")[2] for line in self.lines if line.startswith(f"{title}: ")]
        return "; ".join(found).removeprefix("not known")


@dataclasses.dataclass(frozen=True)
class OlderResults:
    """Trials of an older results folder, its search, record, and figures by number."""

    trials: list[CommittedTrial]
    search: SearchOptions
    recorded: Recorded
    kept: dict[int, KeptFigure]


def is_older_folder(path: Path) -> bool:
    """Return whether a folder has the table of trials that earlier versions wrote, and no file of later ones."""
    return (path / RESULTS).is_file() and not any((path / name).exists() for name in (DECLARATION, TRIALS_FILE))


def read_older_results(path: Path, study: Study, is_built_in: bool) -> OlderResults:
    """Return the content of an older results folder.

    Args:
      study: from its code.
    Raises: ConfigError if the trials are of another study; DataError for files that cannot be read.
    """
    page = _page(path / PAGE)
    trials = list(_trials(path, study, page))
    found = {}
    for of in trials:
        found.setdefault(of.trial.variant, []).append(TrialResult(of.trial, path, of.result))
    variants = [Variant(of[0].trial.labels, tuple(of), study.seeds) for of in found.values()]
    command = next((text for text in page.commands if text.startswith("transformer-jax sweep ")), None)
    recorded = Recorded(declaration_of(study), is_built_in, True, absent_variants(study, variants), command)
    return OlderResults(trials, _search(command), recorded, {of.number: of for of in _figures(path, page)})


def _page(file: Path) -> _Page:
    page = _Page()
    try:
        page.feed(read_text(file))
    except FileNotFoundError:
        logger.warning("%s: is missing; machine, versions and exact configs are not known", file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return page


def _trials(path: Path, study: Study, page: _Page) -> Iterator[CommittedTrial]:
    rows = list(csv_rows(path / RESULTS))
    axes = [axis.name for axis in study.axes]
    columns = list(rows[0]) if rows else []
    if columns[: len(axes) + 2] != [*axes, SEED, "status"]:
        raise ConfigError(
            f"--results={path}: {RESULTS} begins with the columns {', '.join(columns[: len(axes) + 2])}, and the study "
            f"has the axes {', '.join(axes)}"
        )
    labels = [{axis: row[axis] for axis in axes} for row in rows]
    for axis in study.axes:
        values = {of[axis.name] for of in labels}
        if isinstance(axis, Axis) and (unknown := sorted(values.difference(axis.values))):
            raise ConfigError(f"--results={path}: the axis '{axis.name}' has no value '{unknown[0]}' in the study now")
    configs = _configs(path, study, labels, page)
    trials = [
        Trial(of, int(row[SEED]), dataclasses.replace(configs[i], seed=int(row[SEED])), None, _start(study, of, row))
        for i, (of, row) in enumerate(zip(labels, rows, strict=True))
    ]
    logs = numbers_by_trial(path / MEASUREMENTS) if (path / MEASUREMENTS).is_file() else {}
    versions = dict(part.partition(" ")[::2] for part in page.values("Versions").split(", ") if part)
    if ";" in page.values("Versions"):
        versions = dict([page.values("Versions").partition(" ")[::2]])
    for trial, row in zip(trained_once(trials), rows, strict=True):
        lines, metrics = logs.get(trial.name, ([], {}))
        others = (*axes, SEED, "status", *_OTHER_COLUMNS)
        of_row = {name: number(text) for name, text in row.items() if name not in others and text}
        yield CommittedTrial(trial, _result(row, trial, metrics or of_row, page, versions), "", lines)


def _start(study: Study, labels: Mapping[str, str], row: Mapping[str, str]) -> str | None:
    return start_of(study, labels, int(row[SEED]))


def _result(
    row: Mapping[str, str],
    trial: Trial,
    metrics: Mapping[str, int | float],
    page: _Page,
    versions: Mapping[str, str],
) -> Result | None:
    status: Any = row["status"]
    if status not in STATUSES:
        raise DataError(f"{RESULTS}: unknown status '{status}'")
    if status == NO_RESULT:
        return None
    steps, seconds, parameters = (number(row.get(name) or "0") for name in _OTHER_COLUMNS)
    why = page.reasons.get((Variant(trial.labels, ()).short_name, row[SEED]), "")
    machine = page.values("Machine")
    return Result(
        trial.labels, trial.seed, status, why, metrics, int(steps), float(seconds), int(parameters), machine, versions
    )


def _configs(path: Path, study: Study, labels: Sequence[Mapping[str, str]], page: _Page) -> list[ExperimentConfig]:
    """Return the config of each row: the exact one of the page; else, with a warning, that of the study now.

    Fields that this version does not have are left out, with a warning.
    """
    found: dict[str, ExperimentConfig] = {}
    gone: dict[str, Any] = {}
    without: dict[str, str] = {}
    for of in labels:
        name = Variant(of, ()).short_name
        if name in found:
            continue
        try:
            values = flat(parse_json(page.configs[name]))
            gone |= {field: value for field, value in values.items() if field not in leaf_types()}
            known = nested({field: value for field, value in values.items() if field not in gone})
            with reading(path / PAGE):
                found[name] = ExperimentConfig.from_config_dict(known)
        except (KeyError, ValueError, AttributeError, ConfigError) as error:
            without[name] = str(error)
            found[name] = variant(study, of, {})
    if gone:
        listing = ", ".join(f"{field}={value}" for field, value in gone.items())
        logger.warning("%s: fields of its configs that do not exist any more are left out: %s", path / PAGE, listing)
    if without:
        logger.warning(
            "%s: configs of the study as it is now are shown, not the exact ones, of %s: %s",
            path / PAGE,
            ", ".join(without),
            next(iter(without.values())),
        )
    return [found[Variant(of, ()).short_name] for of in labels]


def _figures(path: Path, page: _Page) -> Iterator[KeptFigure]:
    files = sorted((path / FIGURES).glob("[0-9]*_*.svg"), key=lambda file: int(file.name.partition("_")[0]))
    if len(files) != len(page.figures):
        return
    for file, (alt, title) in zip(files, page.figures, strict=True):
        yield KeptFigure(int(file.name.partition("_")[0]), file.name, title, alt, False)


def _search(command: str | None) -> SearchOptions:
    given = dict(word[2:].partition("=")[::2] for word in shlex.split(command or "") if word.startswith("--"))
    if "search" not in given:
        return SearchOptions()
    count = given.get("num_trials")
    return SearchOptions(
        given["search"], int(count) if count else None, int(given.get("search_seed", 0)), given.get("pruner", "none")
    )
