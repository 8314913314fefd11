"""A study: one question, a baseline config, the axes along which it is varied, and the metrics.

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

The task declares whether higher or lower values of a metric are better. Axes are crossed. `over` makes an axis of the
values of one field; `zipped` joins axes whose values belong together into one axis; `Axis` takes any named overrides.
"""

from __future__ import annotations

import contextvars
import dataclasses
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax import builtin
from transformer_jax.config import EXTENSIBLE, base_type, nearest, outside_parts
from transformer_jax.config_file import leaf_types, load_config_dict, may_be_own, run_file
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.contrasts import Contrast as Contrast
from transformer_jax.sweeps.contrasts import Declared, check_contrasts
from transformer_jax.sweeps.contrasts import Interaction as Interaction
from transformer_jax.sweeps.equal_sizes import EqualParameters
from transformer_jax.sweeps.figures import Figure, check_figures
from transformer_jax.sweeps.statistics import PILOT
from transformer_jax.sweeps.steps_to import COSTS, Target, target_of
from transformer_jax.sweeps.tuning import FACTOR, VALID, Tuned
from transformer_jax.tasks.task import TRAIN, Task, declared, training_metrics
from transformer_jax.trust import own

if TYPE_CHECKING:  # imports JAX
    from transformer_jax.evaluation.scoring import Scorer

Measure = Callable[["Scorer"], Mapping[str, int | float]]
"""Measures a trained trial: returns numbers by NAME/METRIC, where NAME is neither `train` nor a split of the corpus."""

FILE = "study.py"
SEED, STEPS, INIT_FROM = "seed", "training.num_train_steps", "training.init_from"
RESERVED_NAMES = frozenset(
    {
        *("seed", "status", "steps", "seconds", "parameters", "metric", "direction", "mean", "half_width", "seeds"),
        *("trials", "diverged", "failed", "pruned", "none_yet", "not_begun", "best", "difference"),
        *(
            "difference_half_width",
            "pairs",
            "p_value",
            "p_value_holm",
            "axis",
            "against",
            "trial",
            "of",
            "step",
            "value",
        ),
        "not_reached",
        *("verdict", "declared_width", "seeds_to_decide", "smallest_effect", "seed_error", "test_error"),
    }
)
"""Columns of a report's CSV files other than those of axes and metrics; an axis cannot have such a name."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
NOWHERE = Path("/nonexistent")
"""The folder of a study that was read from a work directory; see `sweeps.study_json`."""
_folder = contextvars.ContextVar("folder of the study.py that is being loaded", default=Path())


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis with named values; each value is a set of config overrides by dotted field name.

    Names consist of letters, digits, `_`, `.` and `-`, since they become parts of folder names.
    """

    name: str
    values: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ConfigError(f"axis '{self.name}': {len(self.values)} value(s); an axis has at least two")
        for name in (self.name, *self.values):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"axis '{self.name}': '{name}' is not a name of letters, digits, '_', '.' and '-'")

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """The contrasts that the axis brings; only a `designs.Design` has some."""
        return ()


@dataclasses.dataclass(frozen=True)
class Range:
    """A field with values between two numbers, for searches that draw them; `log`: uniform in the logarithm.

    For an integer field integers are drawn, and both ends must be integers.
    """

    field: str
    low: int | float
    high: int | float
    log: bool = False

    def __post_init__(self) -> None:
        # A field of a user's architecture or task may be unknown until `Study` has imported its module.
        if self.field in leaf_types() or not may_be_own(self.field):
            self.check_field()
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(
                f"range of '{self.field}': from {self.low} to {self.high}: needs finite numbers, low < high"
            )
        if self.log and self.low <= 0:
            raise ConfigError(f"range of '{self.field}': log needs a low end above 0, not {self.low}")

    def check_field(self) -> None:
        """Raise ConfigError if there is no such field, or its type does not match the ends."""
        where = f"range of '{self.field}'"
        _check_fields(where, [self.field])
        if base_type(leaf_types()[self.field]) not in (int, float):
            raise ConfigError(f"{where}: the field is not a number; use an Axis with named values")
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
    """A number of a trial, and whether higher (max) or lower (min) values are better.

    Without a direction it has the one that the task declares; if the task declares none, neither is better.

    name: SPLIT/METRIC as `evaluate` writes it, `train/METRIC` from the last line of the log, or a name from
      `Study.measure`.
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


def StepsTo(quantity: str, value: float, cost: str = "steps") -> Metric:
    """Return the metric of the steps until a logged validation first reaches a value; see `sweeps.steps_to`.

    A quantity reaches it when it is at most `value`, or at least, if higher values are better. A trial in which it
    does not has no number, but more than its last validation.

    Args:
      quantity: logged by validations, such as `valid/loss`.
      cost: `steps`; `flops` or `seconds`, as the log has them.
    Raises: ConfigError for another cost, and for a value that is not finite.
    """
    target = Target(quantity, float(value), cost)
    if cost not in COSTS or not math.isfinite(value) or target_of(target.name) != target:
        raise ConfigError(
            f"StepsTo('{quantity}', {value}, '{cost}'): expected SPLIT/NAME, a finite number and one of "
            f"{', '.join(COSTS)}{nearest(cost, COSTS)}"
        )
    return Metric(target.name, "min")


@dataclasses.dataclass(frozen=True)
class Study:
    """A question and all that is needed to answer it.

    Attributes:
      baseline: a config file, PATH.py[:ARGUMENT] or PATH.json, or the name of a built-in config; see `find_baseline`.
      axes: crossed with each other; a `Range` needs a random or TPE search.
      seeds: every variant is trained with each.
      metrics: the first answers the question; it needs a direction, from the study or the task.
      settings: overrides for every trial.
      reference: the variant that the others are compared with, as names of values by axis. Default: the first value of
        every axis.
      contrasts: the differences that answer the question, `Contrast` and `Interaction`. The name of an axis stands for
        every value of it against the reference's. `Walk` and `LeaveOneOut` bring theirs. If there are any, variants are
        not all compared with the reference. The other axes are conditions: the report has a sentence for each contrast
        under each of them.
      precision: half the width that the 95 % interval of every contrast is to have, by name of a metric with a
        direction. A sweep trains five seeds, and then as many as the widths need, at most `max_seeds`.
      max_seeds: most seeds of a study with a precision.
      measure: a function of study.py that measures further numbers of a trained trial.
      tasks: those that `measure` can measure; without any, it can measure all.
      figures: of the report.
      equal_parameters: a field such as `model.mlp_dim`, which is set so that every variant has as many parameters as
        the baseline variant, to 0.5 %. This is the reference; with contrasts, the variant with the reference's values
        on their axes and the same conditions. Of a tuple of fields, the first that the variant reads. All parameters
        count, as in the report's column; `EqualParameters(fields, embeddings=False)` leaves out tables.
      equal_flops: every variant trains with as many floating-point operations as the reference; the number of its steps
        follows; see `tasks.flops.step_operations`. If the shapes of batches depend on the corpus, it is tokenized
        before the sweep. Names of values by axis, as `{"budget": "flops"}`: only the variants with these values.
      tuned: a field, such as the learning rate, of which every variant is trained with its own best value. It is chosen
        on seeds that the study does not have, by the validation split, before the trials of the study run; sizes and
        steps that are made equal are chosen before.
      pretraining: a study of a first training. A trial starts from the checkpoint (`training.init_from`) of the trial
        that has its seed, and on every axis of that study its value. Axes of the same name have the same values.
      not_shown: what the question may suggest and the study does not show, as a noun phrase and further sentences. It
        follows the words "Not shown:" in the report.
      chosen: values that follow from equal_parameters and equal_flops, which `with_chosen` computes, and from tuned, by
        variant and field. The sweep records them.
      folder: the folder of study.py; `load_study` sets it.
    """

    question: str
    baseline: str
    axes: tuple[Axis | Range, ...]
    metrics: tuple[Metric, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reference: Mapping[str, str] = dataclasses.field(default_factory=dict)
    contrasts: tuple[Declared, ...] = ()
    precision: Mapping[str, float] = dataclasses.field(default_factory=dict)
    max_seeds: int = 10
    measure: Measure | None = None
    tasks: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    equal_parameters: str | tuple[str, ...] | EqualParameters = ()
    equal_flops: bool | Mapping[str, str] = False
    tuned: Tuned | None = None
    pretraining: Study | None = None
    not_shown: str = ""
    chosen: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    folder: Path = dataclasses.field(default_factory=lambda: _folder.get(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.baseline, str):
            raise ConfigError(f"baseline={self.baseline!r}: expected the path of a config file as text")
        if not (self.axes and self.metrics and self.seeds):
            raise ConfigError("a study has at least one axis, one metric and one seed")
        for kind, names in (
            ("axes", [axis.name for axis in self.axes]),
            ("metrics", [metric.name for metric in self.metrics]),
            ("seeds", list(map(str, self.seeds))),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ConfigError(f"{kind}: {', '.join(twice)} twice")
        self._import_owners()
        for axis in self.axes:
            if isinstance(axis, Range):
                axis.check_field()
        _check_fields("settings", self.settings)
        if SEED in self.settings:
            raise ConfigError("settings: cannot set the seed; list the seeds in `seeds`")
        axes = {axis.name: axis for axis in self.axes if isinstance(axis, Axis)}
        for axis in axes.values():
            for name, overrides in axis.values.items():
                _check_fields(f"axis '{axis.name}', '{name}'", overrides)
                if SEED in overrides:
                    raise ConfigError(f"axis '{axis.name}', '{name}': cannot set the seed; list the seeds in `seeds`")
        if taken := sorted(RESERVED_NAMES.intersection(axis.name for axis in self.axes)):
            raise ConfigError(f"axis '{taken[0]}': reports have a column of this name; choose another name")
        _check_values("reference", self.reference, axes)
        if isinstance(self.contrasts, Declared):
            raise ConfigError(f"contrasts={self.contrasts!r}: expected a tuple; one entry needs a comma behind it")
        pairs = {(one.axis, frozenset((one.a, one.b))) for one in self.contrasts if isinstance(one, Contrast)}
        pairs |= {
            (name, frozenset((value, self.reference_variant[name])))
            for name in axes.keys() & {one for one in self.contrasts if isinstance(one, str)}
            for value in axes[name].values
        }
        brought = [one for axis in axes.values() for one in axis.contrasts]
        brought = [one for one in brought if (one.axis, frozenset((one.a, one.b))) not in pairs]
        object.__setattr__(self, "contrasts", (*self.contrasts, *brought))
        self._check_precision()
        check_contrasts(self.contrasts, self.reference_variant, {name: list(axes[name].values) for name in axes})
        check_figures(self.figures, {a.name: a.values if isinstance(a, Axis) else () for a in self.axes})
        if self.equal_sizes is not None:
            self._check_equal_parameters(self.equal_sizes)
        if self.equal_flops:
            if isinstance(self.equal_flops, Mapping):
                _check_values("equal_flops", self.equal_flops, axes)
            self._check_equal_flops()
        if self.pretraining is not None:
            self._check_pretraining(self.pretraining)
        if self.tuned is not None:
            self._check_tuned(self.tuned)

    def _check_equal_parameters(self, equal: EqualParameters) -> None:
        equal.check()
        for axis in self.axes:
            if isinstance(axis, Range):
                raise ConfigError(
                    f"equal_parameters: the range '{axis.field}' has no baseline variant; use an Axis of named values"
                )
            if taken := sorted({*equal.fields}.intersection(*[set().union(*axis.values.values())])):
                raise ConfigError(f"equal_parameters: axis '{axis.name}' cannot set {taken[0]}, which is computed")

    def _check_precision(self) -> None:
        for name, width in self.precision.items():
            if name not in [metric.name for metric in self.metrics]:
                raise ConfigError(
                    f"precision: the study has no metric '{name}'{nearest(name, [m.name for m in self.metrics])}"
                )
            if not (math.isfinite(width) and width > 0):
                raise ConfigError(f"precision: '{name}': {width} is not a width above 0")
        object.__setattr__(self, "precision", {name: float(width) for name, width in self.precision.items()})
        if self.precision and self.max_seeds < (pilot := max(PILOT, len(self.seeds))):
            raise ConfigError(f"max_seeds={self.max_seeds}: the first stage has {pilot} seeds already")
        if self.precision and (self.pretraining is not None or any(isinstance(axis, Range) for axis in self.axes)):
            raise ConfigError("precision: cannot be had in a study with a pretraining or a range; list the seeds")

    def _check_tuned(self, tuned: Tuned) -> None:
        tuned.check()
        if self.pretraining is not None or any(isinstance(axis, Range) for axis in self.axes):
            raise ConfigError("tuned: cannot be had in a study with a pretraining or a range")
        if tuned.field == SEED:
            raise ConfigError("tuned: the seed cannot be tuned")
        for axis in self.axes:
            if axis.name in (FACTOR, "chosen", "good", "margin"):
                raise ConfigError(f"axis '{axis.name}': a tuning has a column of this name; choose another name")
            if isinstance(axis, Axis) and any({*overrides} == {tuned.field} for overrides in axis.values.values()):
                raise ConfigError(
                    f"tuned: axis '{axis.name}' compares values of {tuned.field}, which is tuned; a value of an axis "
                    "may set it beside another field, as the middle of its grid"
                )
        equal = () if self.equal_sizes is None else self.equal_sizes.fields
        if tuned.field in (*equal, *((STEPS,) if self.equal_flops else ())):
            raise ConfigError(f"tuned: {tuned.field} is computed, so that variants are equal; it cannot be tuned")
        last = max(self.seeds) + max(0, self.max_seeds - len(self.seeds)) if self.precision else max(self.seeds)
        own = {*self.seeds, *range(max(self.seeds), last + 1)}
        if taken := sorted(own.intersection(tuned.seed_numbers)):
            raise ConfigError(
                f"tuned: the study has the seed {taken[0]} too, or may add it; set first_seed to one above {last}"
            )

    def _check_equal_flops(self) -> None:
        for axis in self.axes:
            if isinstance(axis, Range):
                raise ConfigError(
                    f"equal_flops: the range '{axis.field}' has no reference; use an Axis of named values"
                )
            if any(STEPS in overrides for overrides in axis.values.values()):
                raise ConfigError(f"equal_flops: axis '{axis.name}' cannot set {STEPS}, which is computed")

    def _check_pretraining(self, first: Study) -> None:
        if first.measure is not None or first.pretraining is not None:
            raise ConfigError("pretraining: cannot have a pretraining of its own, nor `measure`")
        if first.seeds != self.seeds:
            raise ConfigError(
                f"pretraining: has the seeds {first.seeds}, and the study {self.seeds}; both need the same"
            )
        axes = {axis.name: axis for axis in self.axes}
        for axis in first.axes:
            other = axes.get(axis.name)
            if other is None:
                raise ConfigError(f"pretraining: the study has no axis '{axis.name}'{nearest(axis.name, axes)}")
            if isinstance(axis, Range) or isinstance(other, Range):
                raise ConfigError(f"pretraining: '{axis.name}' is a range; use an Axis of named values")
            if set(axis.values) != set(other.values):
                raise ConfigError(
                    f"pretraining: axis '{axis.name}' has the values {', '.join(axis.values)}, and that of the study "
                    f"{', '.join(other.values)}; both need the same"
                )
        overrides = [self.settings, *(v for a in self.axes if isinstance(a, Axis) for v in a.values.values())]
        if any(INIT_FROM in values for values in overrides):
            raise ConfigError(f"{INIT_FROM}: cannot be set in a study with a pretraining, which sets it")

    def _import_owners(self) -> None:
        """Import the user's architectures and tasks whose fields the study sets, so that these fields are known.

        The study or its baseline names them; the baseline is read only if a field is still unknown.
        """
        overrides = [self.settings]
        for axis in self.axes:
            overrides += axis.values.values() if isinstance(axis, Axis) else [{axis.field: axis.low}]
        if self.folder != NOWHERE:  # else they are from a file
            own(part for values in overrides for part in outside_parts(values).values())
        for values in overrides:
            for name in values:
                section, _, leaf = name.partition(".")
                if section in EXTENSIBLE and isinstance(values[name], str):
                    leaf_types({section: {leaf: values[name]}})
        if all(name in leaf_types() or not may_be_own(name) for values in overrides for name in values):
            return
        leaf_types(load_config_dict(self.find_baseline()).to_dict())

    def find_baseline(self) -> str:
        """Return the absolute path of the baseline, with its argument.

        A relative path is looked for beside study.py, in the folder that holds `experiments`, if study.py is in such a
        folder, in the current folder, and among the built-in configs. A study that was read from a work directory finds
        built-in configs only, since a config is code.

        Raises: ConfigError, which names these places, if there is no such file.
        """
        name, colon, argument = self.baseline.partition(":")
        file, known, places = Path(name).expanduser(), builtin.configs(), []
        if self.folder != NOWHERE:
            folder = self.folder.absolute()
            root = _root(folder)
            places = [folder, *([root] if root / "experiments" in folder.parents else []), Path.cwd()]
        for place in places:
            if (place / file).is_file():
                return f"{place / file}{colon}{argument}"
        if file.stem in known and file == Path("configs", known[file.stem].name):
            return f"{known[file.stem]}{colon}{argument}"
        if name in known:
            return f"{known[name]}{colon}{argument}"
        where = f"neither in {' nor in '.join(map(str, dict.fromkeys(places)))}, nor" if places else "not"
        raise ConfigError(
            f"baseline='{self.baseline}': {where} among the built-in configs ({', '.join(known)})"
            f"{nearest(file.stem, known)}"
        )

    def for_task(self, task: Task, splits: Sequence[str] | None = None) -> Study:
        """Return the study with the direction that the task declares for each metric.

        Args:
          splits: of the corpus, if they are known.
        Raises: ConfigError for a metric that is never measured, for a direction other than the declared one, and for a
          first metric without a direction.
        """
        metrics = tuple(self.metric_for_task(metric, task, splits) for metric in self.metrics)
        if not metrics[0].direction:
            raise ConfigError(
                f"metric '{metrics[0].name}' is the study's first, which ranks the variants: it needs 'max' or 'min'"
            )
        for metric in metrics:
            if metric.name in self.precision and not metric.direction:
                raise ConfigError(
                    f"precision: metric '{metric.name}' has no direction, so no value of it is better; give 'max' or "
                    "'min'"
                )
        return dataclasses.replace(self, metrics=metrics, tuned=self._tuned_for(task, splits))

    def _tuned_for(self, task: Task, splits: Sequence[str] | None) -> Tuned | None:
        """Return `tuned` with the name of its metric; raise ConfigError if the task gives it no direction."""
        if self.tuned is None:
            return None
        metric = self.metric_for_task(self.tuning_metric, task, splits)
        if not metric.direction:
            raise ConfigError(f"tuned: metric '{metric.name}' has no direction, so no value of it is better")
        return dataclasses.replace(self.tuned, metric=metric.name)

    def metric_for_task(self, metric: Metric, task: Task, splits: Sequence[str] | None) -> Metric:
        """Return one metric with its direction; arguments and errors as in `for_task`."""
        if (target := target_of(metric.name)) is not None:
            return _checked_target(metric, target, task)
        spec = declared(task, metric.name)
        if metric.split == TRAIN:
            _check_metric(metric, [known.name for known in training_metrics(task)])
        elif metric.split in (splits or ()) or (splits is None and self.measure is None):
            _check_metric(metric, [known.name for known in task.metrics])
        elif self.measure is None:
            others = [split for split in splits or () if split != TRAIN]
            raise ConfigError(
                f"metric '{metric.name}': the corpus has no split '{metric.split}' to score, only "
                f"{', '.join(others)}{nearest(metric.split, others)}"
            )
        elif (
            splits is not None or metric.direction
        ):  # measured by the study, perhaps under the name of a declared metric
            return metric
        if spec.direction and metric.direction and metric.direction != spec.direction:
            raise ConfigError(
                f"metric '{metric.name}', '{metric.direction}': the task declares it as '{spec.direction}'; leave the "
                "direction out"
            )
        return dataclasses.replace(metric, direction=metric.direction or spec.direction)

    @property
    def tuning_metric(self) -> Metric:
        """The metric by which values are tuned; only for a study that is tuned."""
        assert self.tuned is not None
        first = self.metrics[0].name if self.metrics[0].split == VALID else f"{VALID}/loss"
        name = self.tuned.metric or first
        return next((metric for metric in self.metrics if metric.name == name), Metric(name))

    @property
    def reference_variant(self) -> dict[str, str]:
        """Names of values by axis of the variant that the others are compared with; a `Range` has none."""
        first = {axis.name: next(iter(axis.values)) for axis in self.axes if isinstance(axis, Axis)}
        return first | dict(self.reference)

    @property
    def equal_sizes(self) -> EqualParameters | None:
        """`equal_parameters` as an object; None if sizes are not equalised."""
        if isinstance(self.equal_parameters, EqualParameters):
            return self.equal_parameters
        fields = (self.equal_parameters,) if isinstance(self.equal_parameters, str) else tuple(self.equal_parameters)
        return EqualParameters(fields) if fields else None

    def baseline_variant(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Return the variant that has as many parameters as this one with `equal_parameters`."""
        compared = {one if isinstance(one, str) else one.axis for one in self.contrasts} or labels
        return {axis: self.reference_variant[axis] if axis in compared else of for axis, of in labels.items()}

    def has_equal_flops(self, labels: Mapping[str, str]) -> bool:
        """Return whether the number of a variant's steps follows from the operations of the reference."""
        if not self.equal_flops or labels == self.reference_variant:
            return False
        return not isinstance(self.equal_flops, Mapping) or self.equal_flops.items() <= labels.items()


def _check_values(where: str, named: Mapping[str, str], axes: Mapping[str, Axis]) -> None:
    """Raise ConfigError for names of values by axis that the study lacks."""
    for name, value in named.items():
        if name not in axes:
            raise ConfigError(f"{where}: no axis '{name}'{nearest(name, axes)}")
        if value not in axes[name].values:
            raise ConfigError(f"{where}: axis '{name}' has no value '{value}'{nearest(value, list(axes[name].values))}")


def over(field: str, *values: Any, name: str = "") -> Axis:
    """Return an axis of values of one field, each named as written; raise ConfigError for a value given twice."""
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
    """Return one axis from several of equal length: its i-th value joins the i-th values of all of them.

    Raises: ConfigError if their numbers of values differ, or two of them set a field to different values.
    """
    counts = {axis.name: len(axis.values) for axis in axes}
    if len(set(counts.values())) != 1:
        raise ConfigError(f"zipped axes must have equally many values, but have {counts}")
    values = []
    for together in zip(*(axis.values.items() for axis in axes), strict=True):
        label = "_".join(value for value, _ in together)
        values.append((label, merged([overrides for _, overrides in together], f"zipped axes, '{label}'")))
    name = name or "_".join(counts)
    return Axis(name, _named(name, values))


def load_study(folder: Path) -> Study:
    """Return the STUDY of a folder's study.py, which may import its neighbours as `experiments.NAME.module`.

    Raises: ConfigError if there is no such file, it fails, or it does not define STUDY.
    """
    file = folder / FILE
    if not file.is_file():
        others = sorted(path.parent.name for path in folder.parent.glob(f"*/{FILE}"))
        there = f"; there are {', '.join(others)}{nearest(folder.name, others)}" if others else ""
        raise ConfigError(f"--study={folder}: there is no {file}{there}")
    _import_from(_root(folder.absolute()))
    loading = _folder.set(folder)
    try:
        module = run_file(file, "study")
    finally:
        _folder.reset(loading)
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise ConfigError(f"{file}: does not define STUDY, a transformer_jax.sweeps.study.Study")
    return study


def _checked_target(metric: Metric, target: Target, task: Task) -> Metric:
    """Return the metric of `StepsTo`; raise ConfigError if no validation logs its quantity with a direction."""
    logged = [f"valid/{spec.name}" for spec in task.metrics if spec.logged and spec.direction]
    if target.quantity not in logged:
        raise ConfigError(
            f"metric '{metric.name}': '{target.quantity}' is not a quantity that validations log and that has a "
            f"direction: {', '.join(logged)}{nearest(target.quantity, logged)}"
        )
    if metric.direction == "max":
        raise ConfigError(f"metric '{metric.name}', 'max': fewer {target.cost} are better; leave the direction out")
    return dataclasses.replace(metric, direction="min")


def _check_metric(metric: Metric, known: Sequence[str]) -> None:
    """Raise ConfigError if evaluation or the training log has no such metric."""
    name = metric.name.rpartition("/")[2]
    if name not in known:
        raise ConfigError(
            f"metric '{metric.name}': '{metric.split}' has the metrics {', '.join(known)}{nearest(name, known)}"
        )


def _root(folder: Path) -> Path:
    """Return the folder that holds `experiments`, also of a study within the folder of another: two or more above."""
    root = folder.parent.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return root


def _import_from(root: Path) -> None:
    """Make `import experiments...` find the package in a folder, not another one of that name."""
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
    """Return the overrides of several axes together; raise ConfigError if two set a field to different values."""
    result: dict[str, Any] = {}
    for overrides in parts:
        for name, value in overrides.items():
            if name in result and result[name] != value:
                raise ConfigError(f"{where}: '{name}' is set to {result[name]} and to {value}")
            result[name] = value
    return result
