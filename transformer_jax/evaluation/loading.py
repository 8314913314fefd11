"""Loading of parameters, config and tokenizer from a checkpoint, which contains all three."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from transformer_jax.checkpoints import folders
from transformer_jax.checkpoints.averaging import average_params
from transformer_jax.checkpoints.checksums import by_path, tree_of
from transformer_jax.checkpoints.finite import check_finite
from transformer_jax.checkpoints.locate import CHECKPOINTS, open_checkpoint
from transformer_jax.checkpoints.manifest import RECORD, DamagedCheckpointError, run_record
from transformer_jax.checkpoints.store import EXTRA, PARAMS, CheckpointStore, again_if_vanished
from transformer_jax.checkpoints.workdir import lasting_differences
from transformer_jax.config import (
    DecodeConfig,
    EvaluationConfig,
    ExperimentConfig,
    TrainingConfig,
    field_types,
    nearest,
    without_outside_trackers,
)
from transformer_jax.config.task import RULES_OF_SCORES
from transformer_jax.data.datasets import Data
from transformer_jax.data.side_files import stored_labels
from transformer_jax.data.tokenizers import (
    SOURCE_TOKENIZER_FILE,
    TOKENIZER_FILE,
    Tokenizer,
    check_decode_ids,
    tokenizer_of_files,
)
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.parallel.placement import on_one_device
from transformer_jax.readers.records import INTEGER, OBJECT, expect, fields_of
from transformer_jax.tasks.task import TASKS, higher_is_better, initial_shapes
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.predictor import Predictor
from transformer_jax.tasks.trained.text_generator import Member, TextGenerator
from transformer_jax.tasks.trained.translator import Translator
from transformer_jax.training.extras import EXTRAS, RAW, initial_extra, stored_paths, weights_of
from transformer_jax.training.hyper import split
from transformer_jax.trust import reading, trust_modules
from transformer_jax.typing import Params

logger = logging.getLogger(__name__)
T = TypeVar("T", bound=TextGenerator)
_OVERRIDABLE = {"evaluation": EvaluationConfig, "decode": DecodeConfig}
_AVERAGE = "evaluation.average_checkpoints"


class Loaded(NamedTuple):
    """A checkpoint ready for use.

    steps: the steps whose parameters were averaged. corpus: the fingerprint of the training corpus; None if the model
    was converted. directory: the folder of the checkpoints. name: `step_5`, or the name of a copy, if the path named
    this one checkpoint; None for the newest. labels: names of the labels that it predicts; empty if it predicts none.
    weights: `averaged`, or `raw` for those that the optimizer updates; empty if these are its only weights. trackers:
    those of its training. `config` has only the built-in ones of them, since others may not be here, or not be trusted.
    """

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    steps: tuple[int, ...]
    corpus: dict[str, Any] | None
    directory: Path
    name: str | None
    labels: tuple[str, ...] = ()
    weights: str = ""
    trackers: str = TrainingConfig.trackers

    @property
    def tracked_config(self) -> ExperimentConfig:
        """The config with all trackers of the training, for `trackers.results`; it must not be resolved again."""
        return dataclasses.replace(
            self.config, training=dataclasses.replace(self.config.training, trackers=self.trackers)
        )

    @property
    def workdir(self) -> Path:
        """Return WORKDIR of WORKDIR/checkpoints; for a folder of checkpoints elsewhere, that folder."""
        return self.directory.parent if self.directory.name == CHECKPOINTS else self.directory

    def folder(self, kind: str) -> Path:
        """Return the folder for files of a kind made from this checkpoint: WORKDIR/KIND, or WORKDIR/KIND/NAME."""
        return self.workdir / kind / (self.name or "")


def load(
    path: Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    trust: str | Sequence[str] = (),
    raw_weights: bool = False,
) -> Loaded:
    """Load the newest valid checkpoint of WORKDIR, or the checkpoint WORKDIR/checkpoints/STEP.

    The newest checkpoint is averaged with those before it, as its config says (`evaluation.average_checkpoints`). A
    single checkpoint that the path names is not averaged unless an override asks for it.

    Args:
      path: also WORKDIR/checkpoints/best, or a copy of a checkpoint anywhere.
      overrides: config fields by dotted name that replace the checkpoint's: of `evaluation` and `decode`, `data.dir`,
        `data.cache_dir`, `data.test_sets` and `data.resize`.
      trust: names of modules outside this package that the checkpoint may name, and that are then imported; modules
        that the program has imported need none, unless `data.source` is a function in one. Trust lasts until the
        program ends.
      raw_weights: load the weights that the optimizer updates, where the training averages them and scores the average.
    Raises:
      CheckpointError: there is no valid checkpoint, or fewer than should be averaged; or its arrays do not match its
        config.
      ConfigError: an override names another field; `raw_weights` for a checkpoint whose only weights they are.
      UntrustedError: the checkpoint names a module that may not be imported.
    """
    trust_modules(trust)
    return again_if_vanished(lambda: _load(path, overrides or {}, raw_weights))


def of_training(config: ExperimentConfig, params: Params, data: Data, step: int, workdir: Path) -> Loaded:
    """Return the trained model as `load` would load it from the last checkpoint, without averaging checkpoints.

    Args:
      config: the config of the run in `workdir`. params: `TrainState.evaluated` after the last update. data: the data
        of the run. step: the number of the last step.
    Raises: CheckpointError if a parameter is NaN or infinite.
    """
    params = on_one_device(params)
    check_finite(by_path(params), f"{workdir}: step {step}")
    trackers = config.training.trackers
    config, corpus = apply_overrides(config.to_dict(), {}), data.source.fingerprint()
    weights = weights_of(_shapes(config).get(EXTRA, {}))
    directory = workdir / CHECKPOINTS
    return Loaded(config, params, data.tokenizer, (step,), corpus, directory, None, data.labels, weights, trackers)


def load_translator(
    path: Path | str,
    overrides: Mapping[str, Any] | None = None,
    ensemble: Sequence[Path | str] = (),
    *,
    trust: str | Sequence[str] = (),
) -> Translator:
    """Return the translator of a checkpoint; arguments and errors are those of `load_generator`.

    Raises: ConfigError if the task is not translation.
    """
    return _of_class(Translator, load_generator(path, overrides, ensemble, trust=trust), "a translation model")


def load_language_model(
    path: Path | str,
    overrides: Mapping[str, Any] | None = None,
    ensemble: Sequence[Path | str] = (),
    *,
    trust: str | Sequence[str] = (),
) -> LanguageModel:
    """Return the language model of a checkpoint; arguments and errors are those of `load_generator`.

    Raises: ConfigError if the task is another.
    """
    return _of_class(LanguageModel, load_generator(path, overrides, ensemble, trust=trust), "a language model")


def _of_class(cls: type[T], generator: TextGenerator, kind: str) -> T:
    if not isinstance(generator, cls):
        raise ConfigError(f"the checkpoint has task.name='{generator.config.task.name}'; expected {kind}")
    return generator


def load_generator(
    path: Path | str,
    overrides: Mapping[str, Any] | None = None,
    ensemble: Sequence[Path | str] = (),
    *,
    trust: str | Sequence[str] = (),
) -> TextGenerator:
    """Return the generator of text of a checkpoint; arguments and errors are those of `load`.

    Args:
      ensemble: checkpoints whose log probabilities are averaged with this one's.
    Raises: ConfigError if their tokenizers or start ids differ, the task generates no text, or `decode.prefix_ids` has
      ids that no output can begin with.
    """
    loaded, others = load(path, overrides, trust=trust), []
    for other_path in ensemble:
        other = load(other_path, overrides)
        if other.tokenizer.sha256 != loaded.tokenizer.sha256:
            raise ConfigError(f"--ensemble: {other_path} has another tokenizer than {path}; both must have the same")
        starts = loaded.config.model.decoder_start_id, other.config.model.decoder_start_id
        if starts[0] != starts[1]:
            raise ConfigError(
                f"--ensemble: model.decoder_start_id is {starts[0]} in {path} but {starts[1]} in {other_path}; it "
                "must be the same"
            )
        others.append(Member(other.config.model, other.params))
    return generator_of(loaded, others)


def generator_of(loaded: Loaded, others: Sequence[Member] = ()) -> TextGenerator:
    """Return the generator of text of a loaded checkpoint, with other models of an ensemble; see `load_generator`."""
    check_decode_ids(loaded.config.decode, loaded.tokenizer.special_ids)
    return TASKS[loaded.config.task.name].generator(loaded.config, loaded.params, loaded.tokenizer, others)


def load_predictor(
    path: Path | str, overrides: Mapping[str, Any] | None = None, *, trust: str | Sequence[str] = ()
) -> Predictor[Any]:
    """Return the object that predicts labels, tags or answers; arguments and errors are those of `load`.

    Raises: ConfigError if the task predicts no such thing.
    """
    loaded = load(path, overrides, trust=trust)
    task = TASKS[loaded.config.task.name]
    return task.predictor(loaded.config, loaded.params, loaded.tokenizer, loaded.labels)


def _load(path: Path | str, overrides: Mapping[str, Any], raw: bool) -> Loaded:
    store, step = open_checkpoint(path, higher_is_better)
    if step is None:
        return store.first_good(lambda candidate: _load_step(store, candidate, overrides, path, None, raw))
    name = store.folder(step).name
    name = f"step_{step}" if folders.is_step(name) else name
    return _load_step(store, step, {_AVERAGE: 1} | dict(overrides), path, name, raw)


def _load_step(
    store: CheckpointStore, step: int, overrides: Mapping[str, Any], path: Path | str, name: str | None, raw: bool
) -> Loaded:
    checkpoint = store.open(step)
    record = run_record(checkpoint.record)
    with reading(checkpoint.directory / RECORD):
        config = apply_overrides(record["config"], overrides)
    shapes = _shapes(config, is_converted="converted" in checkpoint.record)
    weights = weights_of(shapes[EXTRA])
    if raw and not weights:
        fields = " or ".join(kind.field for kind in EXTRAS.values() if kind.weights)
        raise ConfigError(f"{path}: has only one set of weights, since it was trained without {fields}")
    count = config.evaluation.average_checkpoints
    if count == 1:
        steps, params = (step,), _evaluated(store, step, shapes, raw)
    else:
        steps = tuple(s for s in store.steps() if s <= step)[-count:]
        if len(steps) < count:
            logger.warning(
                "%s: %s=%d, but only %d were saved up to step %d; averaging those",
                path,
                _AVERAGE,
                count,
                len(steps),
                step,
            )
        try:
            _warn_of_other_configs(store, steps, checkpoint.record["config"])
            params = average_params(lambda averaged: _evaluated(store, averaged, shapes, raw), steps)
        except (
            DamagedCheckpointError
        ) as error:  # do not fall back to other checkpoints: their average would be another model
            raise CheckpointError(str(error)) from error
    check_finite(by_path(params), f"{path}: step {', '.join(map(str, steps))}")
    expected = [TOKENIZER_FILE, *([SOURCE_TOKENIZER_FILE] if config.data.separate_tokenizers else [])]
    for missing in set(expected) - checkpoint.side_files.keys():
        raise CheckpointError(f"{checkpoint.directory}: {missing} is missing")
    tokenizer = tokenizer_of_files({file: checkpoint.side_files[file] for file in expected})
    labels = stored_labels(checkpoint.side_files) or ()
    weights = RAW if raw else weights
    corpus, trackers = record["corpus"], record["config"]["training"].get("trackers", TrainingConfig.trackers)
    return Loaded(config, params, tokenizer, steps, corpus, store.directory, name, labels, weights, trackers)


def _warn_of_other_configs(store: CheckpointStore, steps: Sequence[int], config: Mapping[str, Any]) -> None:
    """Warn of checkpoints to average that were trained with another config than the newest: perhaps another run."""
    for step in steps[:-1]:
        if lines := lasting_differences(run_record(store.read_record(step))["config"], config, f"checkpoint {step}"):
            logger.warning(
                "%s: checkpoint %d was trained with another config than checkpoint %d, and is averaged with it\n%s",
                *(store.directory, step, steps[-1], "\n".join(f"  - {line}" for line in lines.values())),
            )


def _shapes(config: ExperimentConfig, is_converted: bool = False) -> dict[str, Any]:
    """Return shapes and types of the fields of a state that have the weights; a converted model has parameters only."""
    initial = initial_shapes(config)
    hyper = split(config).hyper
    extra = {} if is_converted else jax.eval_shape(lambda start: initial_extra(start, hyper), initial)
    return {PARAMS: initial.params, EXTRA: extra}


def _evaluated(store: CheckpointStore, step: int, shapes: Mapping[str, Any], raw: bool) -> Params:
    """Return the parameters of a checkpoint as `TrainState.evaluated`; only the arrays that these need are read.

    Args:
      shapes: of the fields of the state. raw: as in `training.extras.evaluated`.
    """
    leaves = by_path(shapes)
    stored = stored_paths(leaves, raw)
    arrays = by_path(store.restore_parts(tree_of({path: leaves[path] for path in stored.values()}), step).state)
    return tree_of({path: arrays[place] for path, place in stored.items()})


_SECTIONS = {
    "model": OBJECT,
    "training": fields_of({"keep_last": INTEGER}),
    "evaluation": fields_of({"average_checkpoints": INTEGER}),
}


def apply_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> ExperimentConfig:
    """Return the config of a checkpoint with overrides of fields that do not change the trained model.

    Trackers from outside the package are left out.

    Raises: ConfigError for any other field.
    """
    try:
        sections = expect(
            {name: dict(of) if isinstance(of, Mapping) else of for name, of in values.items()},
            _SECTIONS,
            {"data": OBJECT, "decode": OBJECT},
        )
    except ValueError as error:
        raise CheckpointError(f"the config of the checkpoint is damaged: {error}") from error
    known = [f"{section}.{field}" for section, cls in _OVERRIDABLE.items() for field in field_types(cls)]
    known += ["data.dir", "data.cache_dir", "data.test_sets", "data.resize", *RULES_OF_SCORES]
    for dotted, value in overrides.items():
        section, _, name = dotted.partition(".")
        if dotted not in known:
            raise ConfigError(
                f"{dotted}: only evaluation.*, decode.*, data.dir, data.test_sets, data.resize and rules of scores can "
                f"differ from the checkpoint's{nearest(dotted, known)}"
            )
        sections.setdefault(section, {})[name] = value
    # Implementations are not part of the trained model, and this machine may not have them.
    if sections["model"].get("attention_implementation") == "cudnn" and jax.default_backend() != "gpu":
        sections["model"]["attention_implementation"] = "auto"
    sections["model"].pop("recurrent_implementation", None)  # cuDNN's LSTM is for training
    # The checkpoints on disk limit the average, not the number that the training was configured to keep.
    keep = sections["training"]["keep_last"]
    sections["training"]["keep_last"] = max(keep, sections["evaluation"]["average_checkpoints"])
    return ExperimentConfig.from_config_dict(without_outside_trackers(sections))
