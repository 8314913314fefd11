"""`training.init_from`: initial parameters of a new run, taken from the checkpoint of another run.

The run uses the tokenizer of the checkpoint, so that ids mean the same. Its head is new if the checkpoint is of another
task, or with `training.new_head`. All other parameters must be in the checkpoint, with the same shapes; only the
learned positions of patches are interpolated for another size of the images. With `training.new_parameters` all are
new, and only the tokenizer is taken.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.checkpoints.checksums import by_path, path_of, tree_of
from transformer_jax.checkpoints.finite import check_finite
from transformer_jax.checkpoints.locate import open_checkpoint
from transformer_jax.checkpoints.manifest import Leaf
from transformer_jax.checkpoints.store import EXTRA, CheckpointStore
from transformer_jax.checkpoints.workdir import WorkDirectory
from transformer_jax.config import (
    RECURRENT,
    SOURCE_TO_TARGET,
    ExperimentConfig,
    ModelConfig,
    TaskConfig,
    changes_function,
    completed,
    layer_numbers,
    unread_by,
)
from transformer_jax.config.model import WITHOUT_HEAD_GAINS
from transformer_jax.config.recurrent import fields_of_missing_stacks
from transformer_jax.data.side_files import stored_labels, stored_tokenizer
from transformer_jax.data.tokenizers import with_added_tokens
from transformer_jax.errors import CheckpointError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.batch_norm import RUNNING
from transformer_jax.nn.positions import resized_table
from transformer_jax.parallel.processes import from_primary, gathered
from transformer_jax.readers.records import OBJECT, expect
from transformer_jax.tasks.task import TASKS, higher_is_better
from transformer_jax.training.describe import say_once
from transformer_jax.training.extras import EXTRAS, stored_paths, weights_of
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.resume import check_tokenizer
from transformer_jax.training.start import Start
from transformer_jax.training.state import TrainState
from transformer_jax.typing import Array, Params

HEAD = "head"
"""The only part of the parameters that a checkpoint may lack, because a new task has a new head."""

_POSITIONS = "encoder/position_embedding/learned/embedding"

STARTS_FROM = {"encoder_only": ("encoder_decoder",)}
"""Other built-in architectures that a built-in one can start from: they use the same stack in the same way.

An encoder reads the same in both. A decoder trained to attend to an encoder is not a language model, and an encoder
that has seen both directions is not a decoder, so these pairs are refused although some of their arrays would fit.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherRun(Start):
    """A start from parameters of another run that fit this one; paths are those of `TrainState.evaluated`.

    name: of the checkpoint in messages. loaded: arrays that this run takes, as the checkpoint has them; none with
    `training.new_parameters`. stored: where the checkpoint has its arrays, as `training.extras.stored_paths`. new:
    arrays of this run that the checkpoint lacks. unused: arrays of the checkpoint that this run lacks. predicted: names
    of the labels that the checkpoint predicts; None if it predicts none. positions: the function that interpolates the
    learned positions of patches; None if they fit.
    """

    name: str
    store: CheckpointStore
    stored_step: int
    loaded: Mapping[str, Leaf]
    stored: Mapping[str, str]
    new: Mapping[str, Leaf]
    unused: Mapping[str, Leaf]
    predicted: tuple[str, ...] | None = None
    positions: Callable[[Array], Array] | None = None

    @property
    def head_labels(self) -> tuple[str, ...] | None:
        """Names of the labels of the head that this run loads, in the order of its rows; None if the head is new."""
        return self.predicted if any(_part(path) == HEAD for path in self.loaded) else None

    def check_labels(self, labels: Sequence[str]) -> None:
        theirs = self.head_labels
        if theirs is None or not labels or theirs == tuple(labels):
            return
        missing = [name for name in theirs if name not in labels]
        extra = [name for name in labels if name not in theirs]
        sides = (("lacks", missing), ("has", extra))
        different = " and ".join(f"{verb} {', '.join(map(repr, names))}" for verb, names in sides if names)
        raise CheckpointError(
            f"{self.name}: its head is for the labels {', '.join(theirs)}, but the training split has "
            f"{', '.join(labels)}: it {different or 'has another order'}. Give them the same names with "
            "data.label_names, or set training.new_head=true for a new head"
        )

    def first_state(self, static: StaticConfig, hyper: Hyper, shardings: Any) -> TrainState:
        return self.load(super().first_state(static, hyper, shardings))

    def load(self, state: TrainState) -> TrainState:
        """Return `state` with the parameters of the checkpoint in place of those with the same path; print a summary.

        The parameters are those that the checkpoint is scored with, and the running averages of norms come with them.
        Every tree of `extra` starts at them, such as the average of the weights.

        Args:
          state: newly initialised; the result has its shardings.
        Raises: CheckpointError if the checkpoint is damaged.
        """
        if not self.loaded:
            say_once(f"{self.name}: all parameters are new; only the tokenizer is that of step {self.stored_step}")
            return state
        template = tree_of(
            {
                self.stored[path]: jax.ShapeDtypeStruct(self.loaded[path].shape, leaf.dtype, sharding=leaf.sharding)
                for path, leaf in by_path(state.evaluated).items()
                if path in self.loaded
            }
        )
        found = by_path(self.store.restore_parts(template, self.stored_step, partial=True).state)
        _check_finite_everywhere(found, f"{self.name}: step {self.stored_step}")
        stored = {path: found[self.stored[path]] for path in self.loaded}
        if self.positions is not None:
            stored[_POSITIONS] = jax.device_put(self.positions(stored[_POSITIONS]), stored[_POSITIONS].sharding)
        self._describe()

        def filled(tree: Any) -> Any:
            return jax.tree_util.tree_map_with_path(lambda path, leaf: stored.get(path_of(path), leaf), tree)

        # A step donates its state, so no array may be in it twice.
        extra = {
            name: jax.tree.map(jnp.copy, filled(tree)) if name in EXTRAS else tree for name, tree in state.extra.items()
        }
        return state._replace(params=filled(state.params), extra=extra)

    def _describe(self) -> None:
        trees = {place.split("/")[1] for place in self.stored.values() if place.startswith(f"{EXTRA}/")}
        kind = f", {weights} weights" if (weights := weights_of(trees)) else ""
        say_once(f"{self.name}: loaded from step {self.stored_step}{kind}: {_summary(self.loaded)}")
        if self.positions is not None:
            say_once(f"{self.name}: the learned positions are interpolated for this model.image_size")
        if self.unused:
            say_once(f"{self.name}: in the checkpoint but not loaded: {_summary(self.unused)}")
        if self.new:
            say_once(f"{self.name}: not in the checkpoint, newly initialised: {_summary(self.new)}")


def open_other_run(config: ExperimentConfig, directory: WorkDirectory, template: Params) -> OtherRun | None:
    """Open the checkpoint of `training.init_from` and check that this run can start from it; load nothing yet.

    Args:
      template: shapes and types of this run's parameters, and of the running averages beside them
        (`TrainState.evaluated`).
    Returns: None if the config names no checkpoint.
    Raises: CheckpointError if there is no such checkpoint; if it lacks parameters outside of `head/`, or has parameters
      of another shape; if it is of an architecture that this one cannot start from; if the work directory or the config
      has another tokenizer, or another kind of tokenizer.
    """
    if not config.training.init_from:
        return None
    name = f"training.init_from={config.training.init_from}"
    try:
        store, step = open_checkpoint(config.training.init_from, higher_is_better)
        if step is None:
            step = from_primary(store.newest_good, "choosing the checkpoint of training.init_from")
        checkpoint = store.open(step)
        places, tokenizer = stored_paths(checkpoint.leaves), stored_tokenizer(checkpoint.side_files)
        stored = {path: checkpoint.leaves[place] for path, place in places.items()}
        whole_record = expect(checkpoint.record, {}, {"config": OBJECT})
        record = whole_record.get("config", {})
        source = expect(completed(record, config.to_dict()), dict.fromkeys(("model", "task", "data"), OBJECT))
        kind = source["data"]["tokenizer"]
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(f"{name}: {error}") from error
    # A converted base model has no such numbers, only zeros in their place.
    given = whole_record.get("untrained", [])
    untrained = {path for path in given if isinstance(path, str)} if isinstance(given, list) else set()
    stored = {path: leaf for path, leaf in stored.items() if path not in untrained}
    expected = {path: Leaf(tuple(x.shape), x.dtype.name) for path, x in by_path(template).items()}
    usable: dict[str, Leaf] = {}
    differences: list[str] = []
    resizes = False
    if not config.training.new_parameters:
        _check_architecture(name, source["model"], config.model, stored)
        _check_inputs(name, source["model"], config.model)
        _check_layers(name, source["model"], config.model)
        _check_gains(name, source["model"], config.model)
        has_new_head = config.training.new_head or source["task"]["name"] != config.task.name
        usable = {path: leaf for path, leaf in stored.items() if not (has_new_head and _part(path) == HEAD)}
        differences = _differences(source["model"], config)
        resizes = (
            config.model.inputs == "patches"
            and _POSITIONS in expected
            and _POSITIONS in usable
            and expected[_POSITIONS].shape[0] != usable[_POSITIONS].shape[0]
        )
        fitting = usable | ({_POSITIONS: expected[_POSITIONS]} if resizes and _same_width(expected, usable) else {})
        if problems := _problems(expected, fitting):
            listing = "\n".join(f"  - {problem}" for problem in problems)
            remedy = (
                f"\nGive these fields of model the checkpoint's values: {', '.join(differences)}" if differences else ""
            )
            raise CheckpointError(f"{name}: step {step} does not fit this model\n{listing}{remedy}")
    if tokenizer is not None:
        added = TASKS[config.task.name].added_tokens(config)
        tokenizer = with_added_tokens(tokenizer, added, config.model.vocab_size)
        check_tokenizer(config, directory.path, tokenizer, name, "leave out one of the two")
        if kind != config.data.tokenizer:
            raise CheckpointError(
                f"{name}: its tokenizer has data.tokenizer='{kind}', but the config has "
                f"data.tokenizer='{config.data.tokenizer}'; set data.tokenizer={kind}, since the run uses the "
                "checkpoint's tokenizer"
            )
        if config.model.inputs == "tokens":
            say_once(f"{name}: uses the tokenizer of the checkpoint")
    if differences:
        say_once(f"{name}: the model of the checkpoint has other fields: {', '.join(differences)}")
    if not config.training.new_parameters and (note := _other_prefix(whole_record, config.task)):
        say_once(f"{name}: warning: {note}")
    return OtherRun(
        name=name,
        store=store,
        stored_step=step,
        tokenizer=tokenizer,
        loaded={path: usable[path] for path in expected if path in usable},
        stored=places,
        new={path: leaf for path, leaf in expected.items() if path not in usable},
        unused={path: leaf for path, leaf in stored.items() if path not in expected or path not in usable},
        predicted=None if untrained else stored_labels(checkpoint.side_files),
        positions=functools.partial(
            resized_table,
            size=config.model.image_size // config.model.patch_size,
            has_class_token=config.model.class_token,
        )
        if resizes
        else None,
    )


def _check_architecture(name: str, source: Mapping[str, Any], model: ModelConfig, stored: Mapping[str, Leaf]) -> None:
    """Raise CheckpointError if both architectures are built in and ours cannot start from theirs; see STARTS_FROM.

    Of recurrent models, the stacks are compared in place of the architectures.
    """
    theirs, ours, field = source["architecture"], model.architecture, "model.architecture"
    if theirs == ours == RECURRENT:
        stacks = {stack: source[stack] for stack in ("num_encoder_layers", "num_decoder_layers")}
        theirs, ours, field = dataclasses.replace(model, **stacks).form, model.form, "a recurrent model with the form"
    if theirs == ours or not (ARCHITECTURES.is_built_in(theirs) and ARCHITECTURES.is_built_in(ours)):
        return
    sources = (ours, *STARTS_FROM.get(ours, ()))
    if theirs not in sources:
        raise CheckpointError(
            f"{name}: has {field}='{theirs}'; {field}='{ours}' can only start from {' or '.join(sources)}"
        )
    if any(_part(path) == "source_embedding" for path in stored):
        raise CheckpointError(
            f"{name}: has model.share_embeddings=False, so its 'embedding' is that of the decoder; "
            f"{field}='{ours}' can only start from an encoder-decoder that shares its embeddings"
        )


def _check_layers(name: str, source: Mapping[str, Any], model: ModelConfig) -> None:
    """Raise CheckpointError if a folder of layers that both models have is of other layers of the stack there."""
    values = {field.name: source[field.name] for field in dataclasses.fields(ModelConfig) if field.name in source}
    try:
        theirs = layer_numbers(ModelConfig(**values))
    except (ValueError, KeyError, TypeError):  # a damaged record; the shapes of the arrays are compared anyway
        return
    for folder, ours in layer_numbers(model).items():
        if len(theirs.get(folder, ())) == len(ours) and theirs[folder] != ours:
            raise CheckpointError(
                f"{name}: its {folder} has the layers {', '.join(map(str, theirs[folder]))} of the stack, here "
                f"{', '.join(map(str, ours))}; set model.layer_pattern and layer_kinds as in the checkpoint"
            )


def _check_inputs(name: str, source: Mapping[str, Any], model: ModelConfig) -> None:
    """Raise CheckpointError if the checkpoint reads something else than this model: ids, or patches of another form."""
    fields = ["inputs"]
    if source["inputs"] == model.inputs == "patches":
        fields = ["patch_size", "image_channels", "class_token"]
    if different := [field for field in fields if source[field] != getattr(model, field)]:
        theirs, ours = (
            ", ".join(f"model.{field}={value(field)!r}" for field in different)
            for value in (source.__getitem__, lambda field: getattr(model, field))
        )
        raise CheckpointError(f"{name}: has {theirs}, but the config has {ours}; set it as in the checkpoint")


def _check_gains(name: str, source: Mapping[str, Any], model: ModelConfig) -> None:
    """Raise CheckpointError if the gains of norms have another form there: the same array would mean another gain."""
    theirs, ours = source["norm_scale"], model.norm_scale
    both_have = "none" not in (source["norm"], model.norm)
    both_have |= not {source["qk_norm"], model.qk_norm}.intersection(WITHOUT_HEAD_GAINS)
    if {theirs, ours} == {"learned", "offset"} and both_have:
        raise CheckpointError(
            f"{name}: has model.norm_scale='{theirs}', but the config has '{ours}', with which its gains would mean "
            "something else; set it as in the checkpoint"
        )


def _same_width(expected: Mapping[str, Leaf], stored: Mapping[str, Leaf]) -> bool:
    return expected[_POSITIONS].shape[1:] == stored[_POSITIONS].shape[1:]


def _other_prefix(record: Mapping[str, Any], task: TaskConfig) -> str | None:
    """Return a note if a model was not trained with this run's `task.source_prefix`.

    Args:
      record: of the checkpoint. That of a converted folder has the prefixes that the model knows, by their tasks.
    """
    if task.name not in SOURCE_TO_TARGET:
        return None
    before, given = record.get("config", {}).get("task", {}), record.get("prefixes")
    if isinstance(before, dict) and before.get("text_start") and not task.text_start:
        return "this run has task.text_start=false; the checkpoint was trained with true"
    theirs = before.get("source_prefix", "") if isinstance(before, dict) else ""
    known = {name: text for name, text in given.items() if text} if isinstance(given, dict) else {}
    # A converted model that knows prefixes was not trained without one.
    trained_with = known if known and not theirs else {"its config": theirs, **known}
    if task.source_prefix in trained_with.values():
        return None
    listed = ", ".join(f"{text!r} ({name})" for name, text in trained_with.items())
    return f"this run has task.source_prefix={task.source_prefix!r}; the checkpoint was trained with {listed}"


def _differences(source: Mapping[str, Any], config: ExperimentConfig) -> list[str]:
    """Return the fields of the model that change its function and differ from the checkpoint's, with both values."""
    unread = {name.removeprefix("model.") for name in unread_by(config)}
    if config.model.architecture == RECURRENT:
        missing = fields_of_missing_stacks(config.model)
        unread |= {*missing, *missing.values()}
    fields = {field.name: field for field in dataclasses.fields(config.model)}
    return [
        f"{field}={source[field]!r}, here {getattr(config.model, field)!r}"
        for field, declared in fields.items()
        if field in source
        and (source[field] is not None or "derived_from" not in declared.metadata)
        and source[field] != getattr(config.model, field)
        and changes_function(declared)
        and field != "architecture"
        and field not in unread
    ]


def _problems(expected: Mapping[str, Leaf], stored: Mapping[str, Leaf]) -> list[str]:
    """Return a line for every array that differs or is missing outside of the head; one line for a missing part."""
    missing = [path for path in expected if path not in stored and _part(path) != HEAD]
    absent = {_part(path) for path in missing} - {_part(path) for path in stored}
    lines = [
        f"{part}: absent in the checkpoint, {sum(_part(path) == part for path in missing)} arrays"
        for part in sorted(absent)
    ]
    for path in sorted(expected):
        if path in missing and _part(path) not in absent:
            lines.append(f"{path}: {expected[path]} expected, absent in the checkpoint")
        elif path in stored and stored[path][:2] != expected[path][:2]:
            remedy = "; set training.new_head=true for a new head" if _part(path) == HEAD else ""
            lines.append(f"{path}: {stored[path]} in the checkpoint, {expected[path]} expected{remedy}")
    return lines


def _part(path: str) -> str:
    return path.partition("/")[0]


def _check_finite_everywhere(arrays: Mapping[str, Any], name: str) -> None:
    """Check arrays as `check_finite`; every process raises what the first with a problem found in its own part."""
    problem = ""
    try:
        check_finite(arrays, name)
    except CheckpointError as error:
        problem = str(error)
    if found := next(filter(None, gathered(problem)), ""):
        raise CheckpointError(found)


def _summary(leaves: Mapping[str, Leaf]) -> str:
    """Return counts, as in `3 arrays with 120 parameters: decoder 2, embedding 1`, and of running averages."""
    params = {path: leaf for path, leaf in leaves.items() if path.rpartition("/")[2] not in RUNNING}
    parts: Iterable[tuple[str, int]] = sorted(collections.Counter(map(_part, params)).items())
    size = sum(math.prod(leaf.shape) for leaf in params.values())
    listing = ", ".join(f"{part} {count}" for part, count in parts)
    averages = f"; {count} running averages" if (count := len(leaves) - len(params)) else ""
    return f"{len(params)} arrays with {size:,} parameters: {listing or 'none'}{averages}"
