"""The whole config, and the checks that involve several sections."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax import trust
from transformer_jax.config.conversion import from_mapping, to_config_dict
from transformer_jax.config.data import IMAGE_SOURCES, RECALL, DataConfig
from transformer_jax.config.decode import GENERATING, DecodeConfig, parse_ids
from transformer_jax.config.fields import chosen_names, number, section
from transformer_jax.config.layers import kind_settings, unread_in_kinds
from transformer_jax.config.model import (
    ATTENTION,
    DROPOUT_RATES,
    PREDICTING_TOKENS,
    RECURRENT,
    TRANSFORMERS,
    ModelConfig,
)
from transformer_jax.config.problems import config_error, problems_of, unread_by
from transformer_jax.config.sections import field_types, loaded_classes, section_class, walk, with_section_classes
from transformer_jax.config.task import TaskConfig
from transformer_jax.config.training import (
    ENDING,
    EvaluationConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
    parse_freeze,
)
from transformer_jax.errors import ConfigError

if typing.TYPE_CHECKING:
    import ml_collections

MAX_SEED = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """All settings of a run."""

    seed: int = number(0, "determines initial parameters, data order and dropout", 0, MAX_SEED, hyper=True)
    seed_init: int | None = number(
        None, "seed of the initial parameters alone; unset: that of `seed`", 0, MAX_SEED, hyper=True
    )
    seed_data: int | None = number(
        None,
        "seed of the order of the data, and of its random corruption and augmentation, alone; unset: that of `seed`",
        0,
        MAX_SEED,
        host=True,
    )
    model: ModelConfig = section(ModelConfig)
    task: TaskConfig = section(TaskConfig)
    data: DataConfig = section(DataConfig)
    optimizer: OptimizerConfig = section(OptimizerConfig)
    training: TrainingConfig = section(TrainingConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    decode: DecodeConfig = section(DecodeConfig, read_by=GENERATING)
    parallel: ParallelConfig = section(ParallelConfig)

    @property
    def init_seed(self) -> int:
        """The seed of the initial parameters."""
        return self.seed if self.seed_init is None else self.seed_init

    @property
    def data_seed(self) -> int:
        """The seed of all that decides which examples a step sees, and in which form."""
        return self.seed if self.seed_data is None else self.seed_data

    def resolved(self) -> ExperimentConfig:
        """Return the config with every None replaced by its derived value; raises ConfigError with every problem.

        Each section has the class that the architecture or the task defines for it.
        """
        trust.own(self._outside_parts().values())
        config = with_section_classes(self)
        if problems := problems_of(config):
            raise config_error(problems)
        model, optimizer = config.model.resolved(), self.optimizer
        if model.head_dropout_rate is None and "model.head_dropout_rate" not in unread_by(config):
            model = dataclasses.replace(model, head_dropout_rate=model.dropout_rate)
        if optimizer.learning_rate is None:
            optimizer = dataclasses.replace(
                optimizer, learning_rate=(model.emb_dim * max(optimizer.warmup_steps, 1)) ** -0.5
            )
        if optimizer.decay_steps is None:
            optimizer = dataclasses.replace(optimizer, decay_steps=self.training.num_train_steps)
        return dataclasses.replace(config, model=model, task=config.task.resolved(), optimizer=optimizer)

    def with_derived_unset(self) -> ExperimentConfig:
        """Return a resolved config with None for every value that is equal to its derived default."""
        config = self
        for name, field, value in walk(self):
            if field.default is not None or value is None:
                continue
            section, _, leaf = name.rpartition(".")
            unset = _replaced(config, section, leaf, None)
            with contextlib.suppress(ConfigError):
                if unset.resolved() == self:
                    config = unset
        return config

    def own_hyper_fields(self, section: str) -> dict[str, Any]:
        """Return the values of a section's fields marked `hyper`, by name; None for a `switch` that is off.

        Of `model` only those that a built-in architecture reads, without the rates of dropout.
        """
        values = getattr(self, section)
        own = _own_hyper_fields(values)
        off = {f.name for f in own if f.metadata.get("switch") and getattr(values, f.name) == f.metadata.get("off", 0)}
        return {f.name: None if f.name in off else getattr(values, f.name) for f in own}

    def without_own_hyper_fields(self, section: str) -> Any:
        """Return a section with defaults for the fields of `own_hyper_fields`: its static part."""
        values = getattr(self, section)
        return dataclasses.replace(values, **{field.name: field.default for field in _own_hyper_fields(values)})

    def problems(self) -> Iterator[str]:
        """Yield problems between sections, as messages with the dotted names of the fields."""
        optimizer, training, data = self.optimizer, self.training, self.data
        yield from self._task_problems()
        yield from self._input_problems()
        yield from self._recall_problems()
        yield from self._label_problems()
        yield from self._head_problems()
        yield from self._decode_problems()
        yield from self._recurrent_problems()
        yield from self._batch_norm_problems()
        if optimizer.schedule == "none" and optimizer.warmup_steps:
            yield (
                f"optimizer.warmup_steps={optimizer.warmup_steps} with schedule='none', which has no warm-up; "
                "set it to 0 or choose schedule='constant'"
            )
        if optimizer.learning_rate is None and optimizer.schedule != "inverse_sqrt":
            yield (
                f"optimizer.learning_rate is unset; only schedule='inverse_sqrt' has a default, "
                f"not '{optimizer.schedule}'"
            )
        if optimizer.learning_rate is None and not optimizer.warmup_steps:
            yield "optimizer.learning_rate is unset; its default needs warmup_steps > 0"
        decay_steps = training.num_train_steps if optimizer.decay_steps is None else optimizer.decay_steps
        given = "optimizer.decay_steps" if optimizer.decay_steps is not None else "training.num_train_steps"
        if optimizer.schedule in ENDING and decay_steps <= optimizer.warmup_steps:
            yield (
                f"{given}={decay_steps} is the step at which optimizer.schedule='{optimizer.schedule}' ends, and must "
                f"exceed optimizer.warmup_steps={optimizer.warmup_steps}"
            )
        elif optimizer.schedule == "wsd":
            begins = dataclasses.replace(optimizer, decay_steps=decay_steps).decay_start
            if begins < optimizer.warmup_steps:
                yield (
                    f"optimizer.decay_fraction={optimizer.decay_fraction} of {given}={decay_steps} begins after update "
                    f"{begins}, before the warm-up ends (optimizer.warmup_steps={optimizer.warmup_steps}); lower one "
                    "of them"
                )
        if self.model.has_position_table and data.max_length > self.model.max_length:
            yield (
                f"data.max_length={data.max_length} exceeds the learned position table, "
                f"model.max_length={self.model.max_length}"
            )
        window = self.evaluation.max_length or data.max_length
        if self.model.has_position_table and window > max(self.model.max_length, data.max_length):
            yield (
                f"evaluation.max_length={window} exceeds the learned position table, "
                f"model.max_length={self.model.max_length}"
            )
        if self.evaluation.context and self.task.prefix != "none":
            yield f"evaluation.context={self.evaluation.context} cannot be used with task.prefix='{self.task.prefix}'"
        if self.evaluation.context >= window:
            yield f"evaluation.context={self.evaluation.context} leaves no token to score in windows of {window} tokens"
        if data.row_multiple % training.accumulation_steps:
            yield (
                f"training.accumulation_steps={training.accumulation_steps} does not divide "
                f"data.row_multiple={data.row_multiple}"
            )
        width = "packed_length" if data.batching == "packed" else "max_length"
        if data.batching == "rows" and data.rows_per_batch % data.row_multiple:
            yield f"data.row_multiple={data.row_multiple} does not divide data.rows_per_batch={data.rows_per_batch}"
        if data.batching != "rows" and data.row_multiple * getattr(data, width) > data.tokens_per_batch:
            yield (
                f"data.tokens_per_batch={data.tokens_per_batch} cannot hold row_multiple={data.row_multiple} "
                f"rows of {width}={getattr(data, width)}"
            )
        sides = (data.input_feature or data.source_locale, data.target_feature or data.target_locale)
        if sides[0] == sides[1] and data.format != "tsv":
            yield f"data.source_locale and data.target_locale are both '{data.source_locale}'"
        yield from self._vocabulary_problems()
        yield from unread_in_kinds(self)
        yield from self._mixer_problems()
        if self.evaluation.average_checkpoints > training.keep_last:
            yield (
                f"evaluation.average_checkpoints={self.evaluation.average_checkpoints} exceeds "
                f"training.keep_last={training.keep_last}"
            )

    def _mixer_problems(self) -> Iterator[str]:
        stateful = [mixer for mixer in self.model.values_in_layers("mixer") if mixer != ATTENTION]
        for name, causal in (("prefix", "none"), ("source_mask", "causal")):
            if stateful and (value := getattr(self.task, name)) != causal:
                yield (
                    f"model: a layer with mixer='{stateful[0]}' reads in one direction; task.{name}='{value}' needs "
                    f"attention in both: set task.{name}={causal}, or mixer=attention in all layers"
                )

    def _vocabulary_problems(self) -> Iterator[str]:
        model, separate = self.model, self.data.separate_tokenizers
        if separate and model.share_embeddings:
            yield (
                "data.separate_tokenizers=true needs two embedding tables, since an id stands for other text on either "
                "side: set model.share_embeddings=false"
            )
        if not separate and not model.share_embeddings and model.source_vocab_size not in (None, model.vocab_size):
            yield (
                f"model.source_vocab_size={model.source_vocab_size} differs from model.vocab_size={model.vocab_size}, "
                "but both sides have one tokenizer: set data.separate_tokenizers=true"
            )

    def _label_problems(self) -> Iterator[str]:
        """Yield problems of tasks with labels and answers."""
        task, data = self.task, self.data
        is_second_read = task.name == "classification" or "{second}" in data.input_template
        if data.second_feature and not is_second_read and _table(TaskConfig, "name").is_built_in(task.name):
            yield (
                f"data.second_feature={data.second_feature!r} has no effect with task.name='{task.name}': only "
                "task.name='classification' and a data.input_template with {second} read it"
            )
        one_way = self.model.form == "decoder_only" or (
            self.model.architecture == RECURRENT and not self.model.bidirectional
        )
        if task.name == "classification" and one_way and task.pooling == "first":
            yield (
                f"task.pooling='first' with model.architecture='{self.model.architecture}': the first token does not "
                "see the text; choose last or mean"
            )
        if task.name == "images" and task.pooling == "first" and not self.model.class_token:
            yield (
                "task.pooling='first' with model.class_token=False: the first vector is that of one patch; choose "
                "mean, or set model.class_token=true"
            )
        if task.rand_augment and task.name == "images" and self.model.image_channels not in (1, 3):
            yield (
                f"task.rand_augment={task.rand_augment} needs grey images or colours; "
                f"model.image_channels={self.model.image_channels}"
            )
        if task.name == "span_qa" and data.max_length < task.question_length + 4:
            yield (
                f"data.max_length={data.max_length} leaves no room for a context beside task.question_length="
                f"{task.question_length} and three special tokens"
            )

    def _head_problems(self) -> Iterator[str]:
        """Yield the problem of a first value of the output layer that is a table of embeddings."""
        model, task, table = self.model, self.task.name, _table(TaskConfig, "name")
        over_vocabulary = task in PREDICTING_TOKENS
        if model.zero_head and not table.is_built_in(task):
            # A task from outside says so by what it reads: a cap of the logits over the vocabulary.
            over_vocabulary = table[task].reads_field({"model", "model.output_logit_cap", "output_logit_cap"})
        if model.zero_head and model.tie_output and model.inputs == "tokens" and over_vocabulary:
            yield (
                "model.zero_head=True cannot be used with model.tie_output=True: the output layer is the embedding "
                "table, which cannot begin at 0; set model.tie_output=false"
            )

    def _decode_problems(self) -> Iterator[str]:
        vocab_size, decode = self.model.vocab_size, self.decode
        if decode.beam_size > vocab_size:
            yield f"decode.beam_size={decode.beam_size} exceeds model.vocab_size={vocab_size}"
        bounded = self.model.architecture == ModelConfig.architecture or self.model.has_position_table
        if bounded and decode.max_new_tokens is not None and decode.max_new_tokens > self.model.max_length:
            yield f"decode.max_new_tokens={decode.max_new_tokens} exceeds model.max_length={self.model.max_length}"
        with contextlib.suppress(ValueError):  # the section has reported text that is not ids
            for name in ("forbidden_ids", "prefix_ids"):
                for outside in sorted({i for i in parse_ids(getattr(decode, name)) if i >= vocab_size}):
                    yield f"decode.{name}: {outside} is outside model.vocab_size={vocab_size}"

    def _input_problems(self) -> Iterator[str]:
        """Yield a problem if the model reads tokens and the corpus has images, or the other way round."""
        source, inputs = self.data.source, self.model.inputs
        if source in IMAGE_SOURCES and inputs == "tokens":
            yield (
                f"data.source='{source}' has images, but model.inputs='tokens' reads text; set model.inputs='patches' "
                "and task.name='images', or choose a source of text"
            )
        built_in = DataConfig.__dataclass_fields__["source"].metadata["choices"]
        if inputs == "patches" and source in built_in and source not in IMAGE_SOURCES:
            yield (
                f"data.source='{source}' has text, but model.inputs='patches' reads images; choose one of "
                f"{', '.join(IMAGE_SOURCES)}"
            )

    def _recall_problems(self) -> Iterator[str]:
        """Yield the problems of rows of keys and values with other sections."""
        data, task = self.data, self.task
        if data.source != RECALL:
            return
        if task.name != "language_model" and _table(TaskConfig, "name").is_built_in(task.name):
            yield f"data.source='{RECALL}' has rows for task.name='language_model', not '{task.name}'"
        needed = data.recall_vocab_size()
        if self.model.inputs == "tokens" and self.model.vocab_size < needed:
            yield (
                f"model.vocab_size={self.model.vocab_size} is less than the {needed} ids of data.source='{RECALL}' "
                f"with data.recall_keys={data.recall_keys}"
            )
        if task.prefix != "none":
            yield f"task.prefix='{task.prefix}' cannot be used with data.source='{RECALL}', which counts answers alone"
        if (self.evaluation.max_length or data.max_length) <= data.recall_length < data.max_length:
            yield (
                f"evaluation.max_length={self.evaluation.max_length} cuts rows of data.recall_length="
                f"{data.recall_length} words and their end"
            )

    def _task_problems(self) -> Iterator[str]:
        """Yield the reasons why the task cannot train the architecture."""
        architecture, task, batching = self.model.architecture, self.task.name, self.data.batching
        if (architecture, task) == (ModelConfig.architecture, TaskConfig.name) and batching in ("buckets", "packed"):
            return  # without importing either
        chosen = _table(TaskConfig, "name")[task]
        if batching not in chosen.batchings:
            yield f"data.batching='{batching}': task.name='{task}' can only use {', '.join(chosen.batchings)}"
        if self.model.inputs not in chosen.inputs:
            yield (
                f"model.inputs='{self.model.inputs}' cannot be trained with task.name='{task}', which reads "
                f"{' or '.join(chosen.inputs)}"
            )
        trained = chosen.architectures
        if trained is None:
            return
        if architecture in trained:
            if self.model.form not in trained:
                yield from self._stack_problems(trained)
            return
        architectures = _table(ModelConfig, "architecture")
        if architectures.is_built_in(architecture):
            yield (
                f"model.architecture='{architecture}' cannot be trained with task.name='{task}', which trains "
                f"{', '.join(trained)}"
            )
        elif chosen.needs_decoder and not architectures[architecture].generates:
            yield (
                f"model.architecture='{architecture}' has no method `decoder`, which task.name='{task}' needs of "
                f"architectures other than {', '.join(trained)}"
            )

    def _stack_problems(self, trained: tuple[str, ...]) -> Iterator[str]:
        """Yield the problem of a recurrent model whose stacks are not those of one of these Transformers."""
        stacks = {
            "encoder_decoder": "both stacks",
            "decoder_only": "model.num_encoder_layers=0",
            "encoder_only": "model.num_decoder_layers=0",
        }
        model, wanted = self.model, " or ".join(text for form, text in stacks.items() if form in trained)
        yield (
            f"model.num_encoder_layers={model.num_encoder_layers} and model.num_decoder_layers="
            f"{model.num_decoder_layers}: task.name='{self.task.name}' trains a recurrent model with {wanted}"
        )

    def _recurrent_problems(self) -> Iterator[str]:
        """Yield the problems of a recurrent model with other sections."""
        model, rate = self.model, self.model.teacher_forcing_rate
        if model.architecture != RECURRENT:
            return
        if rate < 1 and self.data.batching == "packed":
            yield (
                f"model.teacher_forcing_rate={rate} cannot be used with data.batching='packed', in which the token "
                "before may be of another example; choose data.batching='buckets'"
            )
        if rate < 1 and self.task.name == "classification":
            yield f"model.teacher_forcing_rate={rate}: task.name='classification' predicts no tokens to read"
        example = "encoder/forwards_0" if model.num_encoder_layers else "decoder/layers_0"
        with contextlib.suppress(ValueError):  # the section has reported text that is not a list of rules
            for rule in parse_freeze(self.optimizer.freeze):
                if rule.layers is not None:
                    yield (
                        f"optimizer.freeze: '{rule.pattern}:{rule.layers}' with model.architecture='{RECURRENT}', "
                        f"whose layers have names, not numbers; freeze them by their paths, such as '{example}'"
                    )
        if self.task.prefix != "none":
            yield (
                f"task.prefix='{self.task.prefix}' cannot be used with model.architecture='{RECURRENT}', which reads "
                "every text in one direction"
            )

    def _batch_norm_problems(self) -> Iterator[str]:
        """Yield the settings that BatchNorm cannot be trained or evaluated with."""
        data, training, average = self.data, self.training, self.evaluation.average_checkpoints
        norm = self.model.norm
        if not self.model.has_norms_over_batch:
            return
        name = "rows_per_batch" if data.batching == "rows" else "row_multiple"
        if getattr(data, name) == 1:
            yield (
                f"data.{name}=1 with model.norm='{norm}' allows batches of one row: BatchNorm would see a single "
                f"example; set data.{name} to at least 2"
            )
        if training.accumulation_steps > 1:
            yield (
                f"training.accumulation_steps={training.accumulation_steps} with model.norm='{norm}': every part of "
                "a batch would be normalised by itself, which is another model; set training.accumulation_steps=1"
            )
        if training.loss_chunks > 1 and self.task.name == "masked_lm":
            yield (
                f"training.loss_chunks={training.loss_chunks} with model.norm='{norm}': the norm of the head needs "
                "all predicted tokens of a batch at once; set training.loss_chunks=1"
            )
        if average > 1:
            yield (
                f"evaluation.average_checkpoints={average} with model.norm='{norm}': averaged parameters have "
                "other activations than each checkpoint, so that no running averages fit them (Izmailov et al. 2018, "
                "section 3.2); set evaluation.average_checkpoints=1"
            )

    def to_config_dict(self) -> ml_collections.ConfigDict:
        """Return the config for overrides; unset derived fields are typed placeholders, so that a flag can set them."""
        trust.own(self._outside_parts().values())
        return to_config_dict(with_section_classes(self))

    @classmethod
    def from_config_dict(
        cls, values: Mapping[str, Any] | ml_collections.ConfigDict, known_problems: typing.Iterable[str] = ()
    ) -> ExperimentConfig:
        """Rebuild, validate and resolve a config; raises ConfigError with all problems, `known_problems` first.

        A ConfigDict is of the user's own program. Any other mapping is taken to be read from a file.

        Raises: UntrustedError if a file names a module that may not be imported, see `trust`.
        """
        unresolved = cls.unresolved(values, known_problems)
        with trust.reading() if isinstance(values, Mapping) else contextlib.nullcontext():
            return unresolved.resolved()

    @classmethod
    def unresolved(
        cls, values: Mapping[str, Any] | ml_collections.ConfigDict, known_problems: typing.Iterable[str] = ()
    ) -> ExperimentConfig:
        """Rebuild and validate a config; fields whose value is derived keep None; errors as `from_config_dict`."""
        problems = list(known_problems)
        # A ConfigDict is not a Mapping; its to_dict resolves placeholders.
        is_of_file = isinstance(values, Mapping)
        plain = values if is_of_file else values.to_dict()
        named = outside_parts(flat(plain))
        if is_of_file:
            trust.check(named)
        else:
            trust.own(named.values())
        config = from_mapping(cls, plain, "", problems)
        problems += problems_of(config)
        if problems:
            raise config_error(problems)
        return config

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def _outside_parts(self) -> dict[str, str]:
        return outside_parts({name: value for name, _, value in walk(self)})


@functools.cache
def _outside_fields() -> dict[str, dataclasses.Field]:
    """Return the fields that may name an object of another module, by dotted name."""
    return {name: field for name, (_, field) in leaf_fields({}).items() if field.metadata.get("outside")}


def outside_parts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return those values that name an object of another module, as `MODULE:OBJECT`, by dotted name of the field.

    Values of `model.layer_kinds` are among them, by the names `model.layer_kinds: LETTER: FIELD`.

    Args:
      values: by dotted name. A name under which the user's program has registered an object is left out.
    """
    found: dict[str, str] = {}
    for name, field in _outside_fields().items():
        value = values.get(name)
        for part in chosen_names(field, value) if isinstance(value, str) else ():
            if _is_outside(field, part):
                found[name if name not in found else f"{name} ({part})"] = part
    kinds = values.get("model.layer_kinds")
    with contextlib.suppress(ValueError):  # `layers.layer_problems` reports it
        for letter, settings in kind_settings(kinds if isinstance(kinds, str) else "").items():
            for leaf, value in settings.items():
                field = _outside_fields().get(f"model.{leaf}")
                if field is not None and _is_outside(field, value):
                    found[f"model.layer_kinds: {letter}: {leaf}"] = value
    return found


def without_outside_trackers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored config, for any use but training, without the objects of other modules that only training needs.

    These are the values `MODULE:OBJECT` of fields marked `bookkeeping`: trackers. They change no parameter, so that
    their modules may be missing, or not be trusted.

    Args:
      values: nested, as in a checkpoint's record.
    """
    result = dict(values)
    for name, field in _outside_fields().items():
        section, _, leaf = name.rpartition(".")
        of = result.get(section)
        if field.metadata.get("bookkeeping") and isinstance(of, Mapping) and isinstance(of.get(leaf), str):
            parts = chosen_names(field, of[leaf])
            kept = [part for part in parts if not _is_outside(field, part)]
            if kept != parts:
                result[section] = {**of, leaf: ",".join(kept)}
    return result


def _is_outside(field: dataclasses.Field, name: str) -> bool:
    return ":" in name and name not in (field.metadata["choices"].loaded_table or ())


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of nested sections by dotted name."""
    result = {}
    for name, value in values.items():
        of = {f"{name}.{leaf}": item for leaf, item in value.items()} if isinstance(value, Mapping) else {name: value}
        result.update(of)
    return result


def _replaced(config: ExperimentConfig, section: str, name: str, value: Any) -> ExperimentConfig:
    changed: dict[str, Any] = {name: value}
    if section:
        changed = {section: dataclasses.replace(getattr(config, section), **changed)}
    return dataclasses.replace(config, **changed)


def _own_hyper_fields(section: Any) -> list[dataclasses.Field]:
    """Return the fields marked `hyper` without rates of dropout, which are in DropoutRates.

    An architecture from outside reads the shared fields of `model` from its config, so they stay there.
    """
    shared, read = field_types(ModelConfig) if isinstance(section, ModelConfig) else (), set()
    if isinstance(section, ModelConfig):
        built_in = (*TRANSFORMERS, RECURRENT)
        readers = {f.name: f.metadata.get("read_by", {}) for f in dataclasses.fields(ModelConfig)}
        read = {name for name, by in readers.items() if section.architecture in by.get("model.architecture", built_in)}
    own = read.difference(DROPOUT_RATES)
    return [
        f for f in dataclasses.fields(section) if f.metadata.get("hyper") and (f.name not in shared or f.name in own)
    ]


EXTENSIBLE = ("model", "task")
"""Sections to which architectures and tasks may add fields."""


def leaf_fields(values: Mapping[str, Any] | None = None) -> dict[str, tuple[Any, dataclasses.Field]]:
    """Return annotation and field of every field by its dotted name, as in `model.num_heads`.

    Args:
      values: a config as nested mappings; the result has the fields that its architecture and task add. Default: the
        fields of all architectures and tasks that are registered or imported so far.
    Raises: ConfigError for an architecture or a task that cannot be used.
    """
    result = {}
    for name, annotation in field_types(ExperimentConfig).items():
        if not dataclasses.is_dataclass(annotation):
            result[name] = (annotation, ExperimentConfig.__dataclass_fields__[name])
            continue
        shared: Any = annotation
        classes: list[Any] = loaded_classes(shared)
        if values is not None:
            classes = [section_class(shared, values.get(name) or {})]
        for cls in classes:
            types = field_types(cls)
            for field in dataclasses.fields(cls):
                result.setdefault(f"{name}.{field.name}", (types[field.name], field))
    return result


def is_rounding(name: str) -> bool:
    """Return whether the field with a dotted name is marked `rounding`."""
    _, field = leaf_fields().get(name, (None, None))
    return field is not None and bool(field.metadata.get("rounding"))


def is_bookkeeping(name: str, values: Mapping[str, Any]) -> bool:
    """Return whether the field with a dotted name is marked `bookkeeping`.

    Args:
      values: the values of a config by dotted name, for fields that are so marked only with some values of others.
    """
    _, field = leaf_fields().get(name, (None, None))
    marked = field is not None and field.metadata.get("bookkeeping")
    if isinstance(marked, Mapping):
        return all(values.get(other) == value for other, value in marked.items())
    return bool(marked)


def _table(section: type, name: str) -> Any:
    return section.__dataclass_fields__[name].metadata["choices"].table  # ty: ignore[missing-attribute]


def completed(stored: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored config with defaults for the fields that it lacks because they were added later.

    Args:
      config: the config to compare it with; it has all fields.
    """
    result = dict(stored)
    annotations = field_types(ExperimentConfig)
    for part, values in config.items():
        if not isinstance(values, Mapping):
            result.setdefault(part, getattr(ExperimentConfig, part, None))
            continue
        before = result.get(part, {})
        if isinstance(before, Mapping):
            cls: Any = annotations.get(part)
            known = {} if cls is None else _defaults(cls, values, before)
            result[part] = {name: value for name, value in known.items() if name in values} | dict(before)
    return result


def _defaults(cls: type, values: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a stored section has for fields that it lacks: their defaults, derived from its values."""
    section: Any = section_class(cls, values)
    defaults = {field.name: field.default for field in dataclasses.fields(section)}
    if issubclass(section, (ModelConfig, TaskConfig)):  # the sections that `ExperimentConfig.resolved` resolves
        # A value of a wrong type is reported as a difference.
        with contextlib.suppress(TypeError, ZeroDivisionError):
            known = {name: value for name, value in stored.items() if name in defaults}
            defaults |= dataclasses.asdict(section(**known).resolved())
    return defaults
