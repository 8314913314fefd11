"""A results folder: the files of a report, from which it can be drawn again and its study continued.

declaration.json   question, axes and figures of the study, its search, and the command that repeats it
trials.json        config, corpus and end of every trial; checksums of the CSV files
measurements.csv   every number of every trial: its log and its scores
pretraining.csv    the same for the trials of the study's pretraining, if it has one
example_noise.csv  noise of the test set in every contrast, where it is known
results.csv, ...   tables that are made from these, such as contrasts.csv and differences.csv

declaration.json and trials.json contain their own checksums. A file that does not match its checksum is refused.
Tables may be missing. Configs have neither the seed, which is named beside them, nor the folder of the token cache.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import hashlib
import io
import math
import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from transformer_jax.checkpoints.folders import list_steps
from transformer_jax.checkpoints.manifest import read_manifest
from transformer_jax.checkpoints.workdir import CHECKPOINTS
from transformer_jax.config import ExperimentConfig, flat
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.host.files import json_text, json_values, with_checksum
from transformer_jax.host.versions import own_version
from transformer_jax.readers import read_bytes
from transformer_jax.sweeps.results import ASKED, Given, Result, Status, given_of, read_object
from transformer_jax.sweeps.search.search import NAMES, PRUNERS, SearchOptions
from transformer_jax.sweeps.study import SEED
from transformer_jax.sweeps.trials import TRIALS, Trial, variant_name
from transformer_jax.trust import UntrustedError, reading

FORMAT = 1
DECLARATION = "declaration.json"
TRIALS_FILE, MEASUREMENTS, PRETRAINING_FILE = "trials.json", "measurements.csv", "pretraining.csv"
TUNING_FILE = "tuning_measurements.csv"
EXAMPLE_NOISE = "example_noise.csv"
_NEEDED = (MEASUREMENTS, PRETRAINING_FILE, TUNING_FILE, EXAMPLE_NOISE)
FIGURES = "figures"
"""The folder of the figures in a results folder."""
LOG, SCORE = "log", "score"
CACHE_DIR = "data.cache_dir"
_RESTORE = "restore it from version control, or write the report again from its work directory"
_INTEGER = re.compile(r"[+-]?\d+")


class CommittedTrial(NamedTuple):
    """A trial in a results folder.

    - result: None if it had none yet.
    - corpus: sha256 of the corpus that it was trained on; empty if it is not known.
    - lines: the numbers of its log, as lines of metrics.jsonl.
    """

    trial: Trial
    result: Result | None
    corpus: str
    lines: list[dict[str, Any]]


class KeptFigure(NamedTuple):
    """A figure of an earlier report, kept as it is.

    number: its place among the study's figures, from 1. is_own: the code of the study has drawn it.
    """

    number: int
    file: str
    title: str
    alt: str
    is_own: bool


class Recorded(NamedTuple):
    """The record of a study, some of which only its work directory shows.

    - declaration: as `study_json.declared_study` reads it.
    - is_built_in: it is a study of the package. with_code: its code was run.
    - absent: as `StudyResults.absent`. command: repeats the study; None if there is none.
    """

    declaration: dict[str, Any]
    is_built_in: bool
    with_code: bool
    absent: dict[str, str]
    command: str | None


@dataclasses.dataclass(frozen=True)
class ResultsFolder:
    """The content of a results folder.

    Attributes:
      study: name of the study. place: path of its folder, relative to the folder that holds `experiments`.
      config: the baseline in place of the study's own, if there was one.
      asked: contrasts, metrics and widths at the first trial; None if they are not known.
      kept: figures that cannot be drawn from the numbers.
      listing: the content of trials.json.
    """

    path: Path
    study: str
    place: str
    config: str | None
    is_pretraining: bool
    given: Given | None
    search: SearchOptions
    recorded: Recorded
    asked: dict[str, Any] | None
    kept: tuple[KeptFigure, ...]
    listing: Mapping[str, Any]

    @functools.cached_property
    def trials(self) -> list[CommittedTrial]:
        """The trials of the study.

        Raises: DataError for files that are not those of a report; UntrustedError if a config names a module that may
          not be imported. So the study's own code must be loaded before.
        """
        return self._read_trials(self.listing, MEASUREMENTS)

    @functools.cached_property
    def first(self) -> list[CommittedTrial] | None:
        """The trials of the pretraining; None if there are none. Errors as `trials`."""
        part = self.listing.get("pretraining")
        return None if part is None else self._read_trials({**self.listing, **part}, PRETRAINING_FILE)

    @functools.cached_property
    def tuning(self) -> list[CommittedTrial] | None:
        """The trials of the tuning; None if there are none. Errors as `trials`."""
        part = self.listing.get("tuning")
        return None if part is None else self._read_trials({**self.listing, **part}, TUNING_FILE)

    def _read_trials(self, listing: Mapping[str, Any], file: str) -> list[CommittedTrial]:
        with _named_errors(self.path), reading(self.path / TRIALS_FILE):
            return list(_trials(listing, self.path, file))

    @property
    def file(self) -> Path:
        """The file with the declaration."""
        return self.path / DECLARATION


def is_results_folder(path: Path) -> bool:
    """Return whether a folder has the files that `read_results_folder` needs; False for a work directory."""
    return (path / TRIALS_FILE).is_file()


def read_results_folder(path: Path) -> ResultsFolder:
    """Return the content of a results folder.

    Raises: ConfigError if it is none; DataError if a file is missing, damaged, edited or of a newer version.
    """
    if not is_results_folder(path) and not (path / DECLARATION).exists():
        raise ConfigError(_why_none(path))
    listing = _read(path / TRIALS_FILE, {"files": _is_texts, "trials": _is_objects, "config": _is_object})
    record = _read(
        path / DECLARATION,
        {
            **dict.fromkeys(("study", "place"), _is_text),
            **dict.fromkeys(("is_built_in", "with_code", "is_pretraining"), _is_truth),
            **dict.fromkeys(("config", "command"), _is_text_or_none),
            "declaration": _is_object,
            "absent": _is_texts,
            "search": lambda value: _is_object(value) and value.get("name") in NAMES and value.get("pruner") in PRUNERS,
            ASKED: lambda value: value is None or _is_object(value),
            "kept": _is_objects,
        },
    )
    if listing.get("study") != record["study"]:
        raise DataError(f"{path}: {DECLARATION} is of '{record['study']}', {TRIALS_FILE} of '{listing.get('study')}'")
    for name, sha256 in listing["files"].items():
        _check_file(path / name, sha256, name in _NEEDED)
    with _named_errors(path):
        return ResultsFolder(
            path=path,
            study=record["study"],
            place=record["place"],
            config=record["config"],
            is_pretraining=record["is_pretraining"],
            given=given_of(record),
            search=SearchOptions(**record["search"]),
            recorded=Recorded(**{name: record[name] for name in Recorded._fields}),
            asked=record[ASKED],
            kept=tuple(KeptFigure(**figure) for figure in record["kept"]),
            listing=listing,
        )


@contextlib.contextmanager
def _named_errors(path: Path) -> Generator[None]:
    """Turn errors of values that no report has written into a DataError with the folder."""
    try:
        yield
    except UntrustedError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ConfigError) as error:
        raise DataError(
            f"{path}: its files are not those of a report: {type(error).__name__}: {error}; {_RESTORE}"
        ) from error


def trials_record(trials: Iterable[CommittedTrial]) -> dict[str, Any]:
    """Return trials as JSON values: the fields in which all configs agree once, then those of each trial."""
    trials = list(trials)
    configs = [_fields(of.trial.config) for of in trials]
    common = {
        name: value
        for name, value in configs[0].items()
        if all(name in config and config[name] == value for config in configs)
    }
    libraries: list[Mapping[str, str]] = []
    entries = []
    for of, config in zip(trials, configs, strict=True):
        entries.append(
            {
                "labels": dict(of.trial.labels),
                "seed": of.trial.seed,
                "config": {name: value for name, value in config.items() if name not in common},
                "trained_by": of.trial.trained_by,
                "starts_from": of.trial.starts_from,
                "corpus": of.corpus,
                "result": None if of.result is None else _result_record(of.result, libraries),
            }
        )
    return {"versions": libraries, "config": common, "trials": entries}


def nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested sections; the inverse of `config.flat`."""
    result: dict[str, Any] = {}
    for name, value in fields.items():
        section, _, leaf = name.rpartition(".")
        (result.setdefault(section, {}) if section else result)[leaf] = value
    return result


def file_text(values: Mapping[str, Any]) -> bytes:
    """Return a JSON file of a results folder with its format, the version of the package and its checksum."""
    # Neither is a reason to refuse a file: the format is.
    return f"{json_text(with_checksum({'format': FORMAT, 'package': own_version(), **values}), indent=1)}\n".encode()


def content_sha256(data: bytes) -> str:
    """Return the sha256 of a file; line ends may be those of Windows, as version control can make them."""
    return hashlib.sha256(data.replace(b"\r\n", b"\n")).hexdigest()


def corpus_of_run(folder: Path) -> str:
    """Return the sha256 of the corpus in the newest checkpoint of a run; empty if there is none."""
    for step in reversed(list_steps(folder / CHECKPOINTS)):
        try:
            return str(read_manifest(folder / CHECKPOINTS / str(step)).record["corpus"]["sha256"])
        except (CheckpointError, KeyError, TypeError):
            continue
    return ""


def _fields(config: ExperimentConfig) -> dict[str, Any]:
    values = json_values(flat(config.to_dict()))
    return {name: value for name, value in values.items() if name not in (SEED, CACHE_DIR)}


def _result_record(result: Result, libraries: list[Mapping[str, str]]) -> dict[str, Any]:
    """Return how a trial has ended, without its metrics, which are in the CSV file."""
    if result.versions not in libraries:
        libraries.append(result.versions)
    return {
        "status": result.status,
        "why": result.why,
        "steps": result.steps,
        "seconds": result.seconds,
        "parameters": result.parameters,
        "machine": result.machine,
        "versions": libraries.index(result.versions),
        "log_sha256": result.log_sha256,
    }


def _trials(listing: Mapping[str, Any], path: Path, file: str) -> Iterator[CommittedTrial]:
    numbers = numbers_by_trial(path / file)
    for entry in listing["trials"]:
        labels, seed = {str(n): str(v) for n, v in entry["labels"].items()}, int(entry["seed"])
        name = f"{variant_name(labels)},seed={seed}"
        config = ExperimentConfig.from_config_dict(nested({**listing["config"], **entry["config"], SEED: seed}))
        trial = Trial(labels, seed, config, entry["trained_by"], entry["starts_from"])
        lines, metrics = numbers.get(name, ([], {}))
        yield CommittedTrial(trial, _result(entry, trial, metrics, listing["versions"]), str(entry["corpus"]), lines)


def _result(
    entry: Mapping[str, Any], trial: Trial, metrics: dict[str, int | float], versions: Sequence[Mapping[str, str]]
) -> Result | None:
    values = entry["result"]
    if values is None:
        return None
    if values["status"] not in get_args(Status):
        raise ValueError(f"unknown status '{values['status']}'")
    of_trial: dict[str, Any] = {
        "labels": trial.labels,
        "seed": trial.seed,
        "metrics": metrics,
        "corpus": entry["corpus"],
    }
    return Result(**{**values, **of_trial, "versions": versions[values["versions"]]})


def numbers_by_trial(file: Path) -> dict[str, tuple[list[dict[str, Any]], dict[str, int | float]]]:
    """Return the lines of the log and the metrics of every trial in a file of measurements; errors as `csv_rows`."""
    found: dict[str, tuple[list[dict[str, Any]], dict[str, int | float]]] = {}
    for row in csv_rows(file):
        lines, metrics = found.setdefault(row["trial"], ([], {}))
        if row["of"] == SCORE:
            metrics[row["metric"]] = number(row["value"]) if row["value"] else math.nan
            continue
        step, (split, _, name) = int(row["step"]), row["metric"].rpartition("/")
        last: dict[str, Any] = lines[-1] if lines else {}
        if (last.get("step"), last.get("split")) != (step, split) or name in last:
            last = {"step": step, "split": split}
            lines.append(last)
        last[name] = number(row["value"]) if row["value"] else None
    return found


def csv_rows(file: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file by name of their column.

    Raises: DataError if it cannot be read, or a row has another number of columns than the first.
    """
    try:
        text = read_bytes(file).decode()
    except FileNotFoundError as error:
        raise DataError(f"{file}: is missing; {_RESTORE}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    rows = csv.reader(io.StringIO(text, newline=""))
    header = next(rows, [])
    for number_of_row, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(f"{file}: row {number_of_row} has {len(row)} columns, not {len(header)}; {_RESTORE}")
        yield dict(zip(header, row, strict=True))


def number(text: str) -> int | float:
    """Return a number of a CSV file as it was written: an integer, or a float of full precision."""
    return int(text) if _INTEGER.fullmatch(text) else float(text or math.nan)


def _why_none(path: Path) -> str:
    if not path.is_dir():
        return f"--results={path}: is not a folder; give the folder that `report` has written"
    if (path / TRIALS).is_dir():
        return (
            f"--results={path}: is the work directory of a sweep; `report` takes it as --workdir={path}, and `sweep` "
            f"needs a folder that `report` has written, such as {path}/report"
        )
    if (path / "results.csv").is_file():
        return (
            f"--results={path}: has no {TRIALS_FILE}, so an earlier version has written it, and the configs of its "
            "trials are not known"
        )
    return f"--results={path}: has no {TRIALS_FILE}, so it is not a folder that `report` has written"


def _check_file(file: Path, sha256: str, is_needed: bool) -> None:
    try:
        data = read_bytes(file)
    except FileNotFoundError as error:
        if not is_needed:
            return
        raise DataError(f"{file}: is missing; {_RESTORE}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if content_sha256(data) != sha256:
        raise DataError(f"{file}: does not match its checksum in {TRIALS_FILE}: it is damaged or edited; {_RESTORE}")


def _read(file: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    if not file.exists():
        raise DataError(f"{file}: is missing; {_RESTORE}")
    values = read_object(file, {"format": lambda value: type(value) is int and value >= 1})
    if values["format"] > FORMAT:
        raise DataError(
            f"{file}: has the format {values['format']}, written by transformer_jax {values.get('package')}; this "
            f"version, {own_version()}, reads up to format {FORMAT}; update it"
        )
    return read_object(file, fields)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_object, value))


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))
