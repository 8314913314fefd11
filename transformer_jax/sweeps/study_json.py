"""A study as JSON, so that a report of finished trials needs no code of the study.

Functions cannot be stored: `measure` becomes a mark that there is one, and figures that the study draws itself are
left out. `with_code` takes them from the study's code.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config import outside_parts
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.sweeps.contrasts import from_record, recorded
from transformer_jax.sweeps.designs import Design
from transformer_jax.sweeps.equal_sizes import EqualParameters
from transformer_jax.sweeps.figures import (
    Curves,
    CurvesByLayer,
    CustomFigure,
    HeatMap,
    MetricByAxis,
    MetricByBin,
    MetricByVariant,
)
from transformer_jax.sweeps.study import NOWHERE, Axis, Metric, Range, Study
from transformer_jax.sweeps.tuning import from_record as tuned_from_record
from transformer_jax.sweeps.tuning import tuned_record
from transformer_jax.trust import UntrustedError, check, reading

_FIGURES = {cls.__name__: cls for cls in (MetricByVariant, Curves, CurvesByLayer, MetricByAxis, HeatMap, MetricByBin)}


def declaration_of(study: Study) -> dict[str, Any]:
    """Return the declaration of a study as JSON values."""
    return {
        "question": study.question,
        "baseline": study.baseline,
        "axes": [dataclasses.asdict(axis) for axis in study.axes],
        "metrics": [dataclasses.asdict(metric) for metric in study.metrics],
        "seeds": list(study.seeds),
        "settings": dict(study.settings),
        "reference": dict(study.reference),
        "contrasts": recorded(study.contrasts),
        "precision": dict(study.precision),
        "max_seeds": study.max_seeds,
        "measures": study.measure is not None,
        "figures": [
            {"kind": type(figure).__name__, **dataclasses.asdict(figure)}
            for figure in study.figures
            if not isinstance(figure, CustomFigure)
        ],
        "custom_figures": [figure.title for figure in study.figures if isinstance(figure, CustomFigure)],
        "equal_parameters": None if study.equal_sizes is None else dataclasses.asdict(study.equal_sizes),
        "equal_flops": _plain(study.equal_flops),
        "tuned": tuned_record(study.tuned),
        "chosen": {variant: dict(fields) for variant, fields in study.chosen.items()},
        "pretraining": None if study.pretraining is None else declaration_of(study.pretraining),
        "not_shown": study.not_shown,
    }


def declared_study(values: Mapping[str, Any], file: Path) -> Study:
    """Return the study of a declaration; its `measure` cannot be called, and its baseline is found only if built in.

    Args:
      file: where the declaration is stored, for messages.
    Raises: DataError if it is not a declaration of a study; UntrustedError if it names a module that may not be
      imported.
    """
    try:
        with reading(file):
            _check_parts(values)
            return _study(values, file)
    except UntrustedError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise DataError(f"{file}: does not declare a study: {type(error).__name__}: {error}") from error


def with_code(study: Study, code: Study) -> Study:
    """Return a recorded study with the functions of its study.py, which cannot be recorded.

    A config is code, and the recorded baseline is only a path in a file. So it is looked up in the folder of the study
    only if the study.py names the same baseline. Otherwise it must be a built-in config.
    """

    def folder(recorded: Study, of_code: Study | None) -> Path:
        return code.folder if of_code is not None and recorded.baseline == of_code.baseline else NOWHERE

    drawn = tuple(figure for figure in code.figures if isinstance(figure, CustomFigure))
    first = study.pretraining
    return dataclasses.replace(
        study,
        figures=(*study.figures, *drawn),
        measure=study.measure and code.measure,
        pretraining=None if first is None else dataclasses.replace(first, folder=folder(first, code.pretraining)),
        folder=folder(study, code),
    )


def _check_parts(values: Mapping[str, Any]) -> None:
    """Raise UntrustedError if settings or values of axes name a module that may not be imported."""
    named = [axis["values"] for axis in values["axes"] if "field" not in axis]
    for overrides in [values["settings"], *(of for by_label in named for of in by_label.values())]:
        check(outside_parts(overrides))


def _study(values: Mapping[str, Any], file: Path) -> Study:
    first = values["pretraining"]
    return Study(
        question=str(values["question"]),
        baseline=str(values["baseline"]),
        axes=tuple(map(_axis, values["axes"])),
        metrics=tuple(Metric(**metric) for metric in values["metrics"]),
        seeds=tuple(map(int, values["seeds"])),
        settings=dict(values["settings"]),
        reference=dict(values["reference"]),
        contrasts=from_record(values["contrasts"]),
        precision=dict(values.get("precision", {})),
        max_seeds=int(values.get("max_seeds", Study.max_seeds)),
        measure=functools.partial(_cannot_measure, str(file)) if values["measures"] else None,
        figures=tuple(
            _FIGURES[figure["kind"]](**{name: value for name, value in figure.items() if name != "kind"})
            for figure in values["figures"]
        ),
        equal_parameters=_equal_parameters(values.get("equal_parameters")),
        equal_flops=_plain(values["equal_flops"]),
        tuned=tuned_from_record(values.get("tuned")),
        chosen={variant: dict(fields) for variant, fields in values.get("chosen", {}).items()},
        pretraining=None if first is None else declared_study(first, file),
        not_shown=str(values["not_shown"]),
        folder=NOWHERE,
    )


def _axis(values: Mapping[str, Any]) -> Axis | Range:
    if "field" in values:
        return Range(**values)
    if "pairs" not in values:
        return Axis(**values)
    pairs = tuple((a, b) for a, b in values["pairs"])
    return Design(values["name"], values["values"], pairs, values["left_out"])


def _equal_parameters(values: Mapping[str, Any] | None) -> EqualParameters | tuple[str, ...]:
    return () if values is None else EqualParameters(tuple(values["fields"]), bool(values["embeddings"]))


def _plain(equal_flops: bool | Mapping[str, str]) -> bool | dict[str, str]:
    return dict(equal_flops) if isinstance(equal_flops, Mapping) else bool(equal_flops)


def _cannot_measure(file: str, scorer: Any) -> Mapping[str, int | float]:
    raise ConfigError(f"{file}: a stored study cannot measure; pass --study=FOLDER")
