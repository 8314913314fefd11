"""A study: one question, a baseline config, the axes along which it is varied, and what is measured.

experiments/NAME/study.py defines STUDY:

    STUDY = Study(
        question="Does Pre-LN need a warm-up?",
        baseline="configs/quickstart.py",
        axes=(
            over("model.norm_position", "post", "pre"),
            Axis("warm-up", {"yes": {}, "no": {"optimizer.warmup_steps": 0}}),
        ),
        seeds=(0, 1, 2),
        metrics=(Metric("test/sacrebleu"), Metric("valid/loss")),
    )

Whether more or less of a metric is better, its task declares. Axes are crossed. `zipped` makes one axis of several
whose values go together; the values of an `Axis` that is written out are a list of named overrides.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.config import EXTENSIBLE, base_type, nearest
from transformer_jax.config_file import leaf_types, load, may_be_own, run_file
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import Figure, check_figures
from transformer_jax.tasks.base import TRAIN, Task, declared, training_metrics

if TYPE_CHECKING:  # imports JAX
    from transformer_jax.evaluation.run import Scorer

Measure = Callable[["Scorer"], Mapping[str, int | float]]
"""Of a trained trial: more numbers, by NAME/METRIC, where NAME is neither `train` nor a split of the corpus."""

FILE = "study.py"
SEED = "seed"
RESERVED_NAMES = frozenset(
    {
        *("seed", "status", "steps", "seconds", "parameters", "metric", "direction", "mean", "half_width", "seeds"),
        *("trials", "diverged", "failed", "pruned", "none_yet", "not_begun", "best", "difference"),
        *("difference_half_width", "pairs", "p_value", "p_value_holm", "axis", "against"),
    }
)
"""Columns of a report's CSV files beside those of the axes and metrics: no axis has such a name."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclasses.dataclass(frozen=True)
class Axis:
    """What is varied: config overrides by dotted field name, under a name for each value.

    Names of values are parts of folder names: letters, digits, `_`, `.` and `-`.
    """

    name: str
    values: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ConfigError(f"axis '{self.name}': {len(self.values)} value(s); an axis has at least two")
        for name in (self.name, *self.values):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"axis '{self.name}': '{name}' is no name of letters, digits, '_', '.' and '-'")


@dataclasses.dataclass(frozen=True)
class Range:
    """A field between two numbers, for searches that draw values; `log`: uniform in the logarithm.

    Of a field of integers, integers are drawn, and both ends are integers.
    """

    field: str
    low: int | float
    high: int | float
    log: bool = False

    def __post_init__(self) -> None:
        # A field of an architecture or task from outside may not be known before `Study` has imported that.
        if self.field in leaf_types() or not may_be_own(self.field):
            self.check_field()
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"range of '{self.field}': from {self.low} to {self.high}")
        if self.log and self.low <= 0:
            raise ConfigError(f"range of '{self.field}': log needs a low end above 0, not {self.low}")

    def check_field(self) -> None:
        """Raises ConfigError if there is no such field, or it does not have the type of the ends."""
        where = f"range of '{self.field}'"
        _check_fields(where, [self.field])
        if base_type(leaf_types()[self.field]) not in (int, float):
            raise ConfigError(f"{where}: the field is no number; an Axis has named values")
        if self.is_integer and not (float(self.low).is_integer() and float(self.high).is_integer()):
            raise ConfigError(f"{where}: from {self.low} to {self.high}, but the field is an integer")

    @property
    def name(self) -> str:
        return self.field.rpartition(".")[2]

    @property
    def is_integer(self) -> bool:
        """Whether the field's values are integers."""
        return base_type(leaf_types()[self.field]) is int


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of a trial, and whether more (max) or less (min) of it is better.

    Without a direction it has the one that the task declares; if that has none either, neither more nor less is better.

    name: SPLIT/METRIC as `evaluate` writes them, `train/METRIC` as the log's last line has it, or of `Study.measure`.
    """

    name: str
    direction: str = ""

    def __post_init__(self) -> None:
        if self.direction not in ("max", "min", "") or not re.fullmatch(r"[\w.\[\]:%-]+/\w+", self.name):
            raise ConfigError(
                f"metric '{self.name}', '{self.direction}': expected SPLIT/METRIC, and 'max', 'min' or nothing"
            )

    @property
    def split(self) -> str:
        return self.name.rpartition("/")[0]


@dataclasses.dataclass(frozen=True)
class Study:
    """A question and all that is needed to answer it.

    Attributes:
      baseline: a config file, PATH.py[:ARGUMENT], from the folder that holds `experiments`.
      axes: crossed with each other; a `Range` among them needs a search that draws.
      seeds: every variant is trained with each.
      metrics: the first is the one that answers the question, and has a direction, its own or the task's.
      settings: overrides for every trial.
      reference: names of values by axis: the variant that the others are compared with. Default: the first value each.
      contrasts: axes. With any, variants are compared with those that differ from them in one of these axes alone, in
        which they have the reference's value, and not all with the reference.
      measure: what more is measured of a trained trial; a function of study.py.
      figures: of the report.
    """

    question: str
    baseline: str
    axes: tuple[Axis | Range, ...]
    metrics: tuple[Metric, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reference: Mapping[str, str] = dataclasses.field(default_factory=dict)
    contrasts: tuple[str, ...] = ()
    measure: Measure | None = None
    figures: tuple[Figure, ...] = ()

    def __post_init__(self) -> None:
        if not (self.axes and self.metrics and self.seeds):
            raise ConfigError("a study has at least one axis, one metric and one seed")
        for kind, names in (
            ("axes", [axis.name for axis in self.axes]),
            ("metrics", [metric.name for metric in self.metrics]),
            ("seeds", list(map(str, self.seeds))),
            ("contrasts", list(self.contrasts)),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"{kind}: {', '.join(twice)} twice")
        self._import_owners()
        for axis in self.axes:
            if isinstance(axis, Range):
                axis.check_field()
        _check_fields("settings", self.settings)
        if SEED in self.settings:
            raise ConfigError("settings: `seeds` says which seeds there are")
        axes = {axis.name: axis for axis in self.axes if isinstance(axis, Axis)}
        for axis in axes.values():
            for name, overrides in axis.values.items():
                _check_fields(f"axis '{axis.name}', '{name}'", overrides)
                if SEED in overrides:
                    raise ConfigError(f"axis '{axis.name}', '{name}': `seeds` says which seeds there are")
        if taken := sorted(RESERVED_NAMES.intersection(axis.name for axis in self.axes)):
            raise ConfigError(f"axis '{taken[0]}': reports have a column of this name; give the axis another")
        for name in self.contrasts:
            if name not in axes:
                raise ConfigError(f"contrasts: no axis with named values '{name}'{nearest(name, axes)}")
        for name, value in self.reference.items():
            if name not in axes:
                raise ConfigError(f"reference: no axis '{name}'{nearest(name, axes)}")
            if value not in axes[name].values:
                raise ConfigError(
                    f"reference: axis '{name}' has no value '{value}'{nearest(value, list(axes[name].values))}"
                )
        check_figures(self.figures, {a.name: a.values if isinstance(a, Axis) else () for a in self.axes})

    def _import_owners(self) -> None:
        """Imports the architectures and tasks whose own fields the study sets, so that these fields are known.

        The study or its baseline names them; the baseline is read only if a field is unknown otherwise.
        """
        overrides = [self.settings]
        for axis in self.axes:
            overrides += axis.values.values() if isinstance(axis, Axis) else [{axis.field: axis.low}]
        for values in overrides:
            for name in values:
                section, _, leaf = name.partition(".")
                if section in EXTENSIBLE and isinstance(values[name], str):
                    leaf_types({section: {leaf: values[name]}})
        if all(name in leaf_types() or not may_be_own(name) for values in overrides for name in values):
            return
        file = self.baseline.partition(":")[0]
        for root in map(Path, ["", *sys.path]):
            if (root / file).is_file():
                leaf_types(load(str(root / self.baseline)).to_dict())
                return

    def for_task(self, task: Task, splits: Sequence[str] | None = None) -> Study:
        """Return the study with metrics as the task of its trials declares them: each has its direction.

        Args:
          splits: of the corpus, if they are known.
        Raises: ConfigError for a metric that nobody measures, one whose direction is not the declared one, and a first
          metric without a direction.
        """
        metrics = tuple(self._for_task(metric, task, splits) for metric in self.metrics)
        if not metrics[0].direction:
            raise ConfigError(
                f"metric '{metrics[0].name}' is a study's first metric, which ranks the arms: it needs 'max' or 'min'"
            )
        return dataclasses.replace(self, metrics=metrics)

    def _for_task(self, metric: Metric, task: Task, splits: Sequence[str] | None) -> Metric:
        spec = declared(task, metric.name)
        if metric.split == TRAIN:
            _check_metric(metric, [known.name for known in training_metrics(task)])
        elif metric.split in (splits or ()) or (splits is None and self.measure is None):
            _check_metric(metric, [known.name for known in task.metrics])
        elif self.measure is None:
            others = [split for split in splits or () if split != TRAIN]
            raise ConfigError(
                f"metric '{metric.name}': the corpus has no split '{metric.split}' to be scored, but "
                f"{', '.join(others)}{nearest(metric.split, others)}"
            )
        elif splits is not None or metric.direction:  # the study's own, which may have the name of a declared one
            return metric
        if spec.direction and metric.direction and metric.direction != spec.direction:
            raise ConfigError(
                f"metric '{metric.name}', '{metric.direction}': the task declares it as '{spec.direction}'; leave the "
                "direction out"
            )
        return dataclasses.replace(metric, direction=metric.direction or spec.direction)

    @property
    def reference_variant(self) -> dict[str, str]:
        """The variant that the others are compared with, if it is one of a grid."""
        first = {axis.name: next(iter(axis.values)) for axis in self.axes if isinstance(axis, Axis)}
        return first | dict(self.reference)


def over(field: str, *values: Any, name: str = "") -> Axis:
    """An axis of the values of one field, each named as it is written; raises ConfigError for a value given twice."""
    name = name or field.rpartition(".")[2]
    return Axis(name, _named(name, [(_written(value), {field: value}) for value in values]))


def _written(value: Any) -> str:
    if not isinstance(value, float):
        return str(value).replace(":", ".")  # of MODULE:OBJECT
    short = f"{value:g}"
    return (short if float(short) == value else repr(value)).replace("+", "")


def _named(axis: str, values: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    result: dict[str, Mapping[str, Any]] = {}
    for name, overrides in values:
        if name in result:
            raise ConfigError(f"axis '{axis}': '{name}' is the name of two values")
        result[name] = overrides
    return result


def zipped(*axes: Axis, name: str = "") -> Axis:
    """One axis of several with equally many values: the first values of all, the second ones, and so on.

    Raises: ConfigError if they do not have equally many, or set a field twice.
    """
    counts = {axis.name: len(axis.values) for axis in axes}
    if len(set(counts.values())) != 1:
        raise ConfigError(f"zipped axes have equally many values, not {counts}")
    values = []
    for together in zip(*(axis.values.items() for axis in axes), strict=True):
        label = "_".join(value for value, _ in together)
        values.append((label, merged([overrides for _, overrides in together], f"zipped axes, '{label}'")))
    name = name or "_".join(counts)
    return Axis(name, _named(name, values))


def load_study(folder: Path) -> Study:
    """The STUDY of a folder's study.py, which may import its neighbours as `experiments.NAME.module`.

    Raises: ConfigError if it cannot be had, and for what is wrong in it.
    """
    file = folder / FILE
    if not file.is_file():
        others = sorted(path.parent.name for path in folder.parent.glob(f"*/{FILE}"))
        there = f"; there are {', '.join(others)}{nearest(folder.name, others)}" if others else ""
        raise ConfigError(f"--study={folder}: there is no {file}{there}")
    _import_from(folder.absolute().parent.parent)
    module = run_file(file, "study")
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise ConfigError(f"{file}: does not define STUDY, a transformer_jax.sweeps.study.Study")
    return study


def _check_metric(metric: Metric, known: Sequence[str]) -> None:
    """Raises ConfigError for a metric that evaluation, or training's log, does not have."""
    name = metric.name.rpartition("/")[2]
    if name not in known:
        raise ConfigError(
            f"metric '{metric.name}': of '{metric.split}' there are {', '.join(known)}{nearest(name, known)}"
        )


def _import_from(root: Path) -> None:
    """Has `import experiments...` find what is in a folder, and not the package of that name elsewhere."""
    if str(root) in sys.path:
        sys.path.remove(str(root))
    sys.path.insert(0, str(root))
    known = sys.modules.get("experiments")
    if known is not None and str(root / "experiments") not in map(str, getattr(known, "__path__", ())):
        for name in [name for name in sys.modules if name.partition(".")[0] == "experiments"]:
            del sys.modules[name]


def _check_fields(where: str, names: Iterable[str]) -> None:
    for name in names:
        if name not in leaf_types():
            raise ConfigError(f"{where}: no field '{name}'{nearest(name, leaf_types())}")


def merged(parts: Iterable[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """Overrides of several axes together; raises ConfigError if two of them set a field to different values."""
    result: dict[str, Any] = {}
    for overrides in parts:
        for name, value in overrides.items():
            if name in result and result[name] != value:
                raise ConfigError(f"{where}: '{name}' is set to {result[name]} and to {value}")
            result[name] = value
    return result
