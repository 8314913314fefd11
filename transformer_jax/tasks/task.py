"""The interface of a task with its metrics, and the table of all tasks.

This module and those of the built-in tasks import JAX only inside functions: configs, studies and reports read the
declared metrics without a device.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig, nearest
from transformer_jax.errors import ConfigError
from transformer_jax.registry import Registry

if TYPE_CHECKING:
    import flax.linen as nn
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, EvaluationBatches, Rows, TrainingBatches
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.datasets import Data
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.models.architecture import Initial, Model
    from transformer_jax.nn.dropout import Dropout
    from transformer_jax.tasks.trained.text_generator import TextGenerator
    from transformer_jax.typing import Array, Batch, Params


_T = TypeVar("_T")
Sums = dict[str, Any]
"""Sums over a batch, float32 scalars: `loss`, which is minimised, `weight`, which divides it, and others."""

TRAIN = "train"
"""The split of metrics that training logs, as in `train/loss`."""
SAMPLES = 1000
"""Resamples of a paired bootstrap."""
SEED = 12345
"""Seed of the resamples. It is sacreBLEU's default, so its command line gives the same numbers."""


@dataclasses.dataclass(frozen=True)
class MetricSpec:
    """A metric, declared once; tables, rankings, studies, searches and reports read it from here.

    - direction: `max` if higher values are better, `min` if lower ones are; empty if neither.
    - unit: as reports show it.
    - heading: heading of a table's column, without the unit; a metric without a heading has no column.
    - format: format of a value, as for `str.format`.
    - needs_generation: whether it needs generated output, which is slow, or only a forward pass.
    - logged: whether a validation during training logs it; only logged metrics can rank checkpoints.
    """

    name: str
    direction: str = ""
    unit: str = ""
    heading: str = ""
    format: str = "{:.4f}"
    needs_generation: bool = False
    logged: bool = True

    @property
    def column(self) -> str:
        """The heading of a table's column, with the unit if that is short."""
        return f"{self.heading} %" if self.unit == "%" else self.heading

    @property
    def label(self) -> str:
        """The name in a sentence."""
        return self.heading or self.name.replace("_", " ")


LOGGED_BY_LOOP = (
    MetricSpec("gradient_norm"),
    MetricSpec("learning_rate"),
    MetricSpec("tokens"),
    MetricSpec("padding_efficiency"),
    MetricSpec("epoch"),
    MetricSpec("flops", heading="floating-point operations"),
)
"""Training metrics that the loop logs in addition to `Task.logged`."""
LOGGED_BY_BLOCKS = (MetricSpec("balance_loss"), MetricSpec("router_z_loss"))
"""Training metrics of models whose blocks have losses: `training.block_losses.BLOCK_LOSSES`."""
LOGGED_BY_Z_LOSS = (MetricSpec("z_loss"),)
"""The training metric of `training.z_loss`."""
LOGGED_BY_CLOCK = (MetricSpec("seconds", unit="s"), MetricSpec("tokens_per_s", unit="1/s"))
"""Logged metrics that depend on the clock, so a seed does not reproduce them; studies do not measure them."""


class Scores(NamedTuple):
    """A split's scores.

    metrics: by name, those of `Task.metrics` and others that are only written to the file. outputs: one line per
    example, if the task generates or predicts text and this was requested.
    """

    metrics: dict[str, Any]
    outputs: list[str] | None = None


class ExampleSums(NamedTuple):
    """A score as a function of sums over examples.

    values: statistics of each example, float64 [examples, k]. score: returns the score, [...], of sums [..., k].
    """

    values: np.ndarray
    score: Callable[[np.ndarray], np.ndarray]


class SystemScore(NamedTuple):
    """One system's score in one metric, under a paired bootstrap; metrics/bootstrap.py has the definitions.

    mean: over the draws. interval: half the width of the 95 % interval of a draw's score. difference: to the first
    system. always_equal: whether its score equals that of the first system on every draw, which makes the p-value
    meaningless. The first system has no difference and no p-value.
    """

    score: float
    mean: float
    interval: float
    difference: float | None
    p_value: float | None
    always_equal: bool = False


class PairedBootstrap(NamedTuple):
    """Scores by metric, one per system; and signatures by metric, with the seed and the number of draws."""

    scores: dict[str, list[SystemScore]]
    signatures: dict[str, str]


@runtime_checkable
class Evaluation(Protocol):
    """A corpus and its config, for scoring; implemented by `evaluation.evaluator.Evaluator`."""

    @property
    def config(self) -> ExperimentConfig: ...

    @property
    def data(self) -> Data: ...

    def check(self, split: str) -> None:
        """Raise DataError if there is no such split, or if an example is too long for the model."""
        ...

    def batches(self, params: Params, split: str) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield the batches of a split, and the example of every row, int32 [B]; -1 for an empty row."""
        ...

    def sums(self, params: Params, split: str) -> dict[str, float]:
        """Return the sums of `Task.loss` over every example of a split."""
        ...

    def sums_by_example(self, params: Params, split: str) -> dict[str, np.ndarray]:
        """Return the sums of `Task.loss` of each example of a split, float64 [examples]."""
        ...

    def made_once(self, params: Params, make: Callable[[Params], _T]) -> _T:
        """Return `make(params)` with all parameters on one device; call `make` once per set of parameters."""
        ...


class Task(abc.ABC):
    """Examples, loss and metrics. A task holds no state: every method receives the config, or an `Evaluation` with it.

    A task's module may import JAX at its top; this only makes reading configs slower.
    """

    config_class: type[TaskConfig] = TaskConfig
    """`TaskConfig`, or a subclass with more fields; values of fields marked `hyper` are in `hyper.task[NAME]`.

    A subclass is for tasks from outside of this package. The fields of built-in tasks are in `TaskConfig`, with
    `read_by`.
    """
    architectures: tuple[str, ...] | None = None
    """Built-in architectures that the task can train; any other needs a decoder, unless `needs_decoder` is False.

    A recurrent model must have the stacks of one of the others (`ModelConfig.form`). None: all architectures.
    """
    inputs: tuple[str, ...] = ("tokens",)
    """Values of `model.inputs` that the task can train."""
    needs_decoder: bool = True
    """Whether an architecture from outside of the package needs a decoder for this task."""
    reads: frozenset[str] | None = None
    """Dotted names of the fields that the task reads: of those of `task` and `decode`, of `training.label_smoothing`
    and `training.z_loss`, and of all others that some built-in tasks do not read (`read_by` with `task.name`). Setting
    any other of these is an error. None: all of them, but those of `decode` only if the task `generates`, and
    `model.head_dropout_rate` only if it has a `head`.

    The name of a section, such as `decode`, stands for all its fields. The fields of the subclass need not be listed.
    For the names of built-in tasks, `read_by` says the same; their attribute is for tasks that extend them.
    """
    logged: tuple[MetricSpec, ...] = (MetricSpec("loss", "min"),)
    """The averages that training logs; `means` returns them."""
    batchings: tuple[str, ...] = ("buckets", "packed")
    """Values of `data.batching` that the task can make batches with."""
    unit: str = "tokens"
    """Name of the things whose number per second the progress shows: the tokens that the model reads, or images."""
    compares_outputs: bool = False
    """Whether `compare` uses `compare_outputs`, which needs only the written outputs, instead of `statistics`."""

    @property
    def generates(self) -> bool:
        """Whether the task decodes: it has a `generator`, or a metric of generated outputs."""
        has_generator = type(self).generator is not Task.generator
        return has_generator or any(spec.needs_generation for spec in self.metrics)

    def reads_field(self, names: Set[str]) -> bool:
        """Return whether the task reads a field, of which one name is among `names`; see `reads`."""
        if self.reads is not None:
            return bool(names & self.reads)
        if "model.head_dropout_rate" in names:
            return type(self).head is not Task.head
        return self.generates or "decode" not in names

    @property
    @abc.abstractmethod
    def metrics(self) -> tuple[MetricSpec, ...]:
        """Return the metrics of a split in the order of a table's columns; `loss` is among them."""

    def measured(self, config: ExperimentConfig) -> tuple[MetricSpec, ...]:
        """Return the metrics that a corpus of this config has."""
        return self.metrics

    # From examples to a loss.

    @abc.abstractmethod
    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the columns of an example for the token cache."""

    def added_tokens(self, config: ExperimentConfig) -> tuple[str, ...]:
        """Return the names of special tokens that the tokenizer must have beyond text, such as `<mask>`.

        `<mask>`, `<cls>`, `<sep>` and `<extra_id_0>`, `<extra_id_1>`, ... give a role to their ids, `SpecialIds`. See
        `train_tokenizer` for a tokenizer that a run trains, and `with_added_tokens` for one that it reads, which may
        have no room for them: the task must check that the role has an id.
        """
        return ()

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return the tokens around a text in the batches; an exported tokenizer puts them there. Default: none."""
        from transformer_jax.data.tokenizers.tokenizer import Frame

        return Frame()

    @abc.abstractmethod
    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the lengths of each example's sequences in a batch, int32 [examples] by name; one or two names."""

    def num_over_length(self, evaluator: Evaluation, split: str) -> int:
        """Return the number of examples of a split with a sequence longer than `data.max_length`.

        Training leaves such out.
        """
        import numpy as np

        lengths = self.lengths(evaluator.config, evaluator.data.splits[split]).values()
        return int((np.maximum.reduce([*lengths]) > evaluator.config.data.max_length).sum())

    @abc.abstractmethod
    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of a batch; keys as in `transformer_jax.typing`.

        Args:
          rows: the examples of every row. shape: rows and width of every sequence of `lengths`.
          step: number of the training step; random corruption depends on it, on config.data_seed and the row's
            number. None in evaluation, where corruption depends on the example's number alone.
        """

    def training_batches(self, config: ExperimentConfig, split: EncodedSplit) -> TrainingBatches:
        """Return the training batches of a split; here those of `lengths` and `arrays`.

        Raises: ConfigError, DataError, as the classes of plans.
        """
        from transformer_jax.data.datasets import plan_batches

        return plan_batches(config, self.lengths(config, split), functools.partial(self.arrays, config, split))

    def evaluation_batches(
        self, config: ExperimentConfig, split: EncodedSplit, tokens_per_batch: int, max_width: int | None
    ) -> EvaluationBatches:
        """Return the batches of an evaluation; here those of `lengths` and `arrays`.

        Args:
          tokens_per_batch, max_width: as in `EvaluationBatches`.
        """
        from transformer_jax.data.batching import EvaluationBatches

        return EvaluationBatches(
            self.lengths(config, split),
            functools.partial(self.arrays, config, split),
            tokens_per_batch=tokens_per_batch,
            row_multiple=config.data.row_multiple,
            max_width=max_width,
        )

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int] | None:
        """Return the width of every sequence of `lengths` in a batch of the longest examples, for `inspect`.

        None if they are not known; then the operations of a step are not counted.

        Args:
          length: maximum length that `data` allows.
        """
        return None

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct] | None:
        """Return shapes and types of a training batch without any data, for `inspect`; None if they are not known."""
        return None

    def head(self, config: TaskConfig, model: ModelConfig) -> nn.Module | None:
        """Return the module that computes outputs; None for logits over the vocabulary."""
        return None

    def head_flops(self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> int | None:
        """Return the operations of the matrix products of the head's forward pass.

        None if there is no head, or its operations are not known: then those of logits over the vocabulary are counted.

        Args:
          rows, widths: as in `Architecture.train_flops`.
        """
        return None

    def counted_tokens(self, batch: Batch) -> Array | None:
        """Return the array whose entries other than 0 are the tokens that the speed of training counts; see `unit`.

        Here they are the tokens that the model reads; without a mask of them, the weighted predictions.
        """
        return batch.get("inputs_mask", batch.get("weights"))

    def slot_masks(self, batch: Batch) -> tuple[Array, ...]:
        """Return the arrays whose entries are the slots of the batch; those other than 0 are not padding.

        Here it is the mask of the inputs; without one, the weights.
        """
        counted = Task.counted_tokens(self, batch)
        return () if counted is None else (counted,)

    @abc.abstractmethod
    def loss(
        self, config: TaskConfig, model: Model, batch: Batch, dropout: Dropout | None, hyper: Any, chunks: int = 1
    ) -> Sums:
        """Return sums over a batch: `loss`, `weight` and all that `means` needs.

        With `training.z_loss`, also the sum `z_loss`, which `metrics.cross_entropy` then has: the step adds it to
        `loss`, with its weight. A task without it must not read the field.

        Args:
          batch: the arrays of `arrays`, on the device.
          hyper: scalars, `training.hyper.Hyper`; in evaluation its `label_smoothing` is None.
          chunks: number of parts in which outputs are computed, to save memory.
        """

    def means(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics of `logged` per unit of weight, from sums of one batch, of several or of draws."""
        return {"loss": sums["loss"] / sums["weight"]}

    def check_corpus(self, config: ExperimentConfig, data: Data) -> None:
        """Raise DataError if a corpus does not fit the task, before training; here any corpus fits."""
        return

    def side_files(self, data: Data) -> dict[str, bytes]:
        """Return files that a checkpoint needs beside its arrays, such as the tokenizer, by name."""
        return data.side_files()

    # From parameters to scores.

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return a split's scores; here those of `means` that `metrics` declares.

        Args:
          generate: also measure metrics that need generated output.
        Raises: DataError as `Evaluation.check`.
        """
        means = self.means(evaluator.sums(params, split))
        return Scores({spec.name: float(means[spec.name]) for spec in self.metrics if spec.name in means})

    def generator(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, others: Sequence[Any] = ()
    ) -> TextGenerator:
        """Return the object that generates text from lines of text, for `generate`.

        Args:
          others: the other models of an ensemble, `text_generator.Member`.
        Raises: ConfigError if the task generates no text.
        """
        raise ConfigError(f"task.name='{config.task.name}' does not generate text")

    def predictor(self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, labels: Sequence[str]) -> Any:
        """Return the `predictor.Predictor` of labels, tags or answers, for `predict`.

        Args:
          labels: names of the labels of the checkpoint; empty if it predicts none.
        Raises: ConfigError if the task predicts no such thing.
        """
        raise ConfigError(f"task.name='{config.task.name}' does not predict labels, tags or answers")

    def references(self, config: ExperimentConfig, data: Data, split: str) -> Sequence[Any] | None:
        """Return the reference of every example, a text or a list of texts.

        `compare` uses it to check that two corpora are the same. None if there is no such text; the whole corpora must
        then be equal.
        """
        return None

    def statistics(self, evaluator: Evaluation, params: Params, split: str) -> Mapping[str, np.ndarray]:
        """Return additive numbers of each example, float64 [examples] by name; here the sums of its loss."""
        return evaluator.sums_by_example(params, split)

    def from_sums(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return metrics by name, [...], from `statistics` [...] summed over examples; here `means`."""
        return self.means(sums)

    def output_sums(
        self, config: ExperimentConfig, outputs: Sequence[str], references: Sequence[Any]
    ) -> Mapping[str, ExampleSums]:
        """Return the metrics of generated outputs that follow from sums over examples, by name; here none.

        Args:
          outputs, references: of every example; as `compare_outputs` has them.
        """
        return {}

    def compare_outputs(
        self,
        config: ExperimentConfig,
        systems: Sequence[Sequence[str]],
        references: Sequence[Any],
        samples: int,
        seed: int,
    ) -> PairedBootstrap:
        """Return the paired bootstrap of each system's outputs; only called if `compares_outputs`."""
        raise NotImplementedError(f"{type(self).__name__} compares statistics, not outputs")


def param_shapes(config: ExperimentConfig) -> Params:
    """Return the shapes and types of an experiment's parameters, as jax.ShapeDtypeStructs."""
    return initial_shapes(config).params


def initial_shapes(config: ExperimentConfig) -> Initial:
    """Return the shapes and types of an experiment's parameters, and of the running averages of its norms."""
    import jax

    from transformer_jax.models.architecture import initial

    head = TASKS[config.task.name].head(config.task, config.model)
    return jax.eval_shape(lambda: initial(config.model, 0, head))


TASKS: Registry[Task] = Registry(
    "task.name",
    Task,
    {
        "translation": "transformer_jax.tasks.translation:Translation",
        "text_to_text": "transformer_jax.tasks.text_to_text:TextToText",
        "language_model": "transformer_jax.tasks.language_model:LanguageModelTask",
        "classification": "transformer_jax.tasks.classification:Classification",
        "tagging": "transformer_jax.tasks.tagging:Tagging",
        "span_qa": "transformer_jax.tasks.span_qa:SpanQA",
        "masked_lm": "transformer_jax.tasks.masked_lm:MaskedLM",
        "span_corruption": "transformer_jax.tasks.span_corruption:SpanCorruption",
        "denoising": "transformer_jax.tasks.denoising:Denoising",
        "images": "transformer_jax.tasks.images:Images",
    },
)
"""By the values of `task.name`."""


def training_metrics(task: Task) -> tuple[MetricSpec, ...]:
    """Return the metrics of a line of the training log, without times."""
    return (*task.logged, *LOGGED_BY_LOOP, *LOGGED_BY_Z_LOSS, *LOGGED_BY_BLOCKS)


def declared(task: Task, metric: str) -> MetricSpec:
    """Return the declaration of SPLIT/METRIC; for a study's own metric, a declaration with only the name."""
    split, _, name = metric.rpartition("/")
    of_training = (*training_metrics(task), *LOGGED_BY_CLOCK)
    specs = (*of_training, *task.metrics) if split == TRAIN else (*task.metrics, *of_training)
    return next((spec for spec in specs if spec.name == name), MetricSpec(name))


def validation_metrics(config: ExperimentConfig, generate: bool) -> tuple[MetricSpec, ...]:
    """Return the metrics that a validation during training logs.

    Args:
      generate: include metrics that need generated output.
    """
    specs = TASKS[config.task.name].measured(config)
    return tuple(spec for spec in specs if spec.logged and (generate or not spec.needs_generation))


def higher_is_better(config: Mapping[str, Any]) -> bool:
    """Return whether higher values of `training.best_metric` are better.

    Args:
      config: nested dictionaries, as in a checkpoint's record.
    """
    return declared(TASKS[config["task"]["name"]], f"valid/{config['training']['best_metric']}").direction == "max"


def best_metric(config: ExperimentConfig) -> MetricSpec:
    """Return the declaration of `training.best_metric`.

    Raises: ConfigError if a validation has no such metric, or the metric has no direction.
    """
    specs = {spec.name: spec for spec in validation_metrics(config, generate=True) if spec.direction}
    name = config.training.best_metric
    if name not in specs:
        raise ConfigError(
            f"config: training.best_metric='{name}': task '{config.task.name}' ranks checkpoints by one of "
            f"{', '.join(specs)}{nearest(name, specs)}"
        )
    return specs[name]
