"""Hugging Face folders as a whole: model, config and tokenizer, in and out.

A folder or work directory is written under another name and renamed when it is complete, so that a half-written one is
never taken for a whole one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.checkpoints.checksums import by_path, tree_of
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import SOURCE_TO_TARGET, DecodeConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.config.imported import imported
from transformer_jax.convert import folder_config, folder_tensors, keys
from transformer_jax.convert.families import FAMILIES
from transformer_jax.convert.generation import generation_settings, task_params
from transformer_jax.convert.generation_reading import read_generation
from transformer_jax.convert.labels import label_keys, labels_of_config
from transformer_jax.convert.preprocessor import preprocessor, read_preprocessor
from transformer_jax.convert.special_ids import id_keys, special_ids_of
from transformer_jax.convert.tables import Family
from transformer_jax.convert.tensor_files import SHARD_BYTES, WRITTEN_TYPES, TensorFiles, write_tensors
from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.convert.tokenizer_files import EXPECTED, JSON, kind_of, read_folder_tokenizer
from transformer_jax.convert.tokenizer_rules import check_family
from transformer_jax.data.labels import LABELS_FILE, labels_bytes
from transformer_jax.data.tokenizers import NoText, SpecialIds, Tokenizer, TokenizerPair, sizes_text, tokenizer_by_file
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.host.versions import library_versions
from transformer_jax.models.architecture import init_params
from transformer_jax.readers import read_json_object
from transformer_jax.tasks.task import TASKS
from transformer_jax.typing import Params

CONFIG = "config.json"
GENERATION = "generation_config.json"
PREPROCESSOR = "preprocessor_config.json"
Advance = Callable[[int], None]


class Pretrained(NamedTuple):
    """A model that was read from a folder.

    config: resolved. tokenizer: None if the folder has none. special_ids: those of the tokenizer; without one, those of
    config.json. task: its name, the fields of its head and the prefix of its sources. labels: their names in the order
    of the outputs; empty for a head without labels. ignored: the keys and tensors that were not needed, with the
    reasons. decode: the folder's settings of generation.
    """

    config: ModelConfig
    params: Params
    tokenizer: Tokenizer | None
    task: TaskConfig
    labels: tuple[str, ...]
    ignored: dict[str, str]
    special_ids: SpecialIds = SpecialIds()
    decode: DecodeConfig = DecodeConfig()


@dataclasses.dataclass(frozen=True)
class Folder:
    """A Hugging Face folder whose config and headers have been read and checked.

    resize: the value of `data.resize` with which images are scaled as there. decode: the settings of generation.
    prefixes: the texts that the model knows in front of a source, by the names of their tasks there.
    """

    path: Path
    family: Family
    config: ModelConfig
    files: Any  # TensorFiles, or the arrays of another format
    tokenizer: Tokenizer | None
    task: TaskConfig
    labels: tuple[str, ...]
    ignored: dict[str, str]
    warnings: tuple[str, ...] = ()
    resize: str = "squash"
    special_ids: SpecialIds = SpecialIds()
    decode: DecodeConfig = DecodeConfig()
    prefixes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in by_path(self.shapes()).values())

    def shapes(self) -> Params:
        """Return the shapes of the parameters, as jax.ShapeDtypeStructs."""
        return _shapes(self.config, self.task)

    def load(self, advance: Advance = lambda nbytes: None) -> Pretrained:
        """Read the numbers; raises CheckpointError if tensors are missing, unknown or of another shape or type."""
        leaves, ignored = folder_tensors.read_params(
            self.family, self.config, by_path(self.shapes()), self.files, jnp.from_dlpack, advance
        )
        params, ignored = tree_of(leaves), self.ignored | ignored
        return Pretrained(
            self.config,
            params,
            self.tokenizer,
            self.task,
            self.labels,
            ignored,
            special_ids=self.special_ids,
            decode=self.decode,
        )


def open_folder(path: Path | str, task_name: str | None = None, params_of: str | None = None) -> Folder:
    """Read config, tokenizer and the headers of the tensors of a folder.

    Args:
      task_name: the task of the model; default: the first of its class. params_of: the entry of `task_specific_params`
        in config.json with its settings of generation; see `read_generation`.
    Raises: CheckpointError if a file is missing or damaged, or says something that our blocks cannot; ConfigError if
      the class of the folder has no head for the task.
    """
    path = Path(os.path.expanduser(path))
    theirs, where = _read_config(path / CONFIG), str(path / CONFIG)
    classes = folder_config.possible_classes(theirs, where)
    files = TensorFiles(path)
    family = _chosen(classes, files, theirs, where)
    config, ignored = folder_config.read_model_config(family, theirs, where)
    folder_tensors.check_layers(family, config, files)
    config = folder_tensors.with_optional_tensors(family, config, files)
    later = folder_config.later_version(theirs, where)
    if later is not None:
        ignored["transformers_version"] = later
    tokenizer, resize = NoText(), "squash"
    if config.inputs == "patches":
        steps = read_preprocessor(path / PREPROCESSOR, config)
        config, ignored, resize = dataclasses.replace(config, **steps.model), ignored | steps.ignored, steps.resize
    elif (tokenizer := read_folder_tokenizer(path)) is not None:
        _check_tokenizer(path, config, tokenizer)
        end = tokenizer.special_ids.eos
        if theirs.get("eos_token_id", end) not in (end, [end], None):
            ignored["eos_token_id"] = f"{theirs['eos_token_id']} there; here a text ends at {end}, by the tokenizer"
    ids = special_ids_of(theirs, config.vocab_size) if tokenizer is None else tokenizer.special_ids
    labels = labels_of_config(family, theirs, folder_tensors.rows_of_head(family, files), where)
    task = folder_config.read_task(family, len(labels.names), task_name)
    warnings = () if later is None else (later,)
    ignored |= labels.ignored
    folder = Folder(path, family, config, files, tokenizer, task, labels.names, ignored, warnings, resize, ids)
    if family.has_decoder:
        return _with_generation(folder, theirs, params_of)
    if params_of is not None:
        raise ConfigError(f"{path}: {family.label} generates no text; leave out the entry '{params_of}'")
    return folder


def _with_generation(folder: Folder, theirs: Mapping[str, Any], params_of: str | None) -> Folder:
    """Return a folder with its settings of generation, and the reasons for those that are ignored."""
    file = folder.path / GENERATION
    generation = _read_config(file) if file.exists() else None
    end = folder.special_ids.eos
    found = read_generation(folder.config, end, theirs, generation, str(folder.path), folder.task.name, params_of)
    task = folder.task if found.prefix is None else dataclasses.replace(folder.task, source_prefix=found.prefix)
    ignored = {name: reason for name, reason in folder.ignored.items() if name not in found.used} | found.ignored
    warnings = folder.warnings
    if found.prefix is None and found.prefixes and task.name in SOURCE_TO_TARGET:
        known = ", ".join(f"{text!r} ({name})" for name, text in found.prefixes.items())
        warnings += (f"task.source_prefix is empty; the model knows {known}; --task_params=NAME chooses one",)
    changed = {"task": task, "decode": found.decode, "prefixes": found.prefixes, "ignored": ignored}
    return dataclasses.replace(folder, warnings=warnings, **changed)


def _chosen(classes: Sequence[Family], files: TensorFiles, theirs: Mapping[str, Any], where: str) -> Family:
    """Return the class of a folder: of those that config.json may mean, the one whose tensors it has.

    Families may have the same tensors. Without a `model_type` it is the one that reads most keys of config.json.

    Raises: CheckpointError if neither config.json nor the tensors say which family it is.
    """
    found = folder_tensors.fitting(classes, files.tensors)
    if not found and len({family.name for family in classes}) > 1:
        raise CheckpointError(
            f"{where}: has no model_type, and the tensors are those of none of {', '.join(FAMILIES)}; add the "
            "model_type if you know it"
        )
    return max(found or classes[:1], key=lambda family: len(keys.of_family(family.name) & {*theirs}))


def _check_tokenizer(path: Path, config: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raise CheckpointError for a tokenizer whose ids the embedding tables lack, or for two with one table."""
    separate = isinstance(tokenizer, TokenizerPair)
    if separate and config.share_embeddings:
        raise CheckpointError(
            f"{path}: its tokenizer has separate_vocabs=true, but its model has one embedding table for both sides "
            "(share_encoder_decoder_embeddings)"
        )
    sides = [("", tokenizer.vocab_size, config.vocab_size)]
    if separate:
        sides = [
            ("target ", tokenizer.vocab_size, config.vocab_size),
            ("source ", tokenizer.source.vocab_size, config.source_vocab_size),
        ]
    for side, num_ids, rows in sides:
        if num_ids > rows:
            raise CheckpointError(f"{path}: its {side}tokenizer has {num_ids} ids, its embedding only {rows} rows")


def describe_folder(path: Path | str, task_name: str | None = None, params_of: str | None = None) -> dict[str, Any]:
    """Return what would be read of a folder, as JSON values, without the numbers; raises as `Folder.load`.

    Arguments are those of `open_folder`.
    """
    folder = open_folder(path, task_name, params_of)
    ignored = folder.ignored | folder_tensors.unused_tensors(
        folder.family, folder.config, by_path(folder.shapes()), folder.files
    )
    tokenizer = folder.tokenizer
    return {
        "family": folder.family.label,
        "task": folder.task.name,
        **({"warnings": list(folder.warnings)} if folder.warnings else {}),
        **({"untrained": list(folder.family.lacks)} if folder.family.lacks else {}),
        **({"labels": list(folder.labels)} if folder.labels else {}),
        "parameters": folder.num_parameters,
        "bytes": folder.files.nbytes,
        "tensors": len(folder.files.tensors),
        "types": ", ".join(sorted({tensor.dtype for tensor in folder.files.tensors.values()})),
        "tokenizer": _described(tokenizer),
        "model": dataclasses.asdict(folder.config),
        **({"decode": _set_fields(folder.decode)} if folder.family.has_decoder else {}),
        **({"prefix": folder.task.source_prefix} if folder.task.source_prefix else {}),
        "ignored": ignored,
    }


def _set_fields(decode: DecodeConfig) -> dict[str, Any]:
    return {
        field.name: value
        for field in dataclasses.fields(decode)
        if (value := getattr(decode, field.name)) != field.default
    }


def _described(tokenizer: Tokenizer | None) -> str:
    if tokenizer is None or isinstance(tokenizer, NoText):
        return "none"
    return f"{kind_of(tokenizer)}, {sizes_text(tokenizer)} ids"


def from_pretrained(path: Path | str, task_name: str | None = None, params_of: str | None = None) -> Pretrained:
    """Return what a Hugging Face folder holds; arguments and errors are those of `open_folder`."""
    return open_folder(path, task_name, params_of).load()


def save_pretrained(
    path: Path | str,
    config: ModelConfig,
    params: Params,
    tokenizer: Tokenizer | None = None,
    *,
    special_ids: SpecialIds | None = None,
    task: TaskConfig | None = None,
    labels: Sequence[str] = (),
    decode: DecodeConfig | None = None,
    family: str | None = None,
    dtype: str = "float32",
    resize: str = "squash",
    shard_bytes: int = SHARD_BYTES,
    advance: Advance = lambda nbytes: None,
) -> list[str]:
    """Write a folder that `from_pretrained` of transformers loads.

    Args:
      path: a folder that does not exist yet, or is empty.
      config: resolved; tokenizer: None writes the model alone. special_ids: of padding and end-of-sequence, if there is
        no tokenizer; one that is not known is written as null.
      task: whose head the parameters have; default: `folder_config.usual_task`. labels: names of the head's outputs,
        for a task with labels.
      decode: settings of generation.
      family: a name of `FAMILIES`; default: the one that can express the config.
      dtype: float32, float16 or bfloat16, the type of the numbers in the files.
      resize: how images are scaled, a value of `data.resize`; `none` is written as `squash`.
    Returns: fields for training alone and settings of generation that the folder does not hold.
    Raises: ConfigError, which names the fields that the family cannot express, if the parameters are not those of the
      config, or for another dtype; CheckpointError if the folder is not empty or cannot be written.
    """
    if dtype not in WRITTEN_TYPES:
        raise ConfigError(f"dtype='{dtype}': expected one of {', '.join(WRITTEN_TYPES)}")
    task = folder_config.usual_task(config) if task is None else task
    chosen = folder_config.closest(config, task) if family is None else folder_config.family_named(family, task)
    theirs = folder_config.write_model_config(chosen, config, task)
    _check_shapes(config, params, task)
    theirs |= label_keys(chosen, task, labels)
    ids = id_keys(chosen, config, special_ids if tokenizer is None else tokenizer.special_ids)
    theirs |= ids | {"dtype": dtype, "torch_dtype": dtype}
    texts = {CONFIG: theirs}
    if config.inputs == "patches":
        texts[PREPROCESSOR] = preprocessor(config, resize)
    left_out = [*folder_config.not_written(chosen, config), *chosen.lacks]
    if chosen.architecture != "encoder_only":
        settings = generation_settings(config, decode, ids.get("eos_token_id"))
        texts[GENERATION] = ids | settings.keys
        left_out += settings.left_out
        theirs |= task_params(task, settings.keys)
    if chosen.architecture == "encoder_decoder":
        theirs["forced_eos_token_id"] = None
    side_files = {}
    if tokenizer is not None and not isinstance(tokenizer, NoText):
        of_source = tokenizer.source.special_ids
        frame = TASKS[task.name].text_frame(config, of_source)
        if task.text_start:
            frame = frame._replace(start=of_source.start_of_text)
        marian = chosen.architecture == "encoder_decoder"
        side_files = tokenizer_files(tokenizer, config.max_length, frame, marian=marian, token_types=config.token_types)
        if JSON in side_files:
            check_family(chosen.name, chosen.label, side_files[JSON])
    tensors = folder_tensors.outgoing(chosen, config, by_path(params))
    with complete_folder(Path(path)) as folder:
        write_tensors(folder, tensors, dtype, shard_bytes, advance)
        for name, values in texts.items():
            (folder / name).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for name, data in side_files.items():
            (folder / name).write_bytes(data)
    return left_out


def _check_shapes(config: ModelConfig, params: Params, task: TaskConfig) -> None:
    """Raise ConfigError if the parameters are not those of the config and the task's head."""
    expected = {path: leaf.shape for path, leaf in by_path(_shapes(config, task)).items()}
    found = {path: jnp.shape(leaf) for path, leaf in by_path(params).items()}
    for path in sorted(expected.keys() | found.keys()):
        if expected.get(path) != found.get(path):
            raise ConfigError(
                f"params: {path} has the shape {found.get(path, 'of nothing, it is missing')}, the config says "
                f"{expected.get(path, 'that there is none')}"
            )


@functools.lru_cache(maxsize=16)
def _shapes(config: ModelConfig, task: TaskConfig) -> Params:
    head = TASKS[task.name].head(task, config)
    return jax.eval_shape(lambda: init_params(config, 0, head))


def write_workdir(
    folder: Folder, workdir: Path, base: ExperimentConfig | None = None, advance: Advance = lambda nbytes: None
) -> ExperimentConfig:
    """Write a work directory with one checkpoint, of step 0, from a Hugging Face folder.

    Args:
      base: the config whose task, corpus and other settings the work directory gets; default: the embedded corpus.
    Raises: CheckpointError if the folder lacks a tokenizer, or the work directory is not empty; ConfigError if the
      config does not fit the model.
    """
    if folder.tokenizer is None:
        raise CheckpointError(f"{folder.path}: has no tokenizer, which a checkpoint needs; expected {EXPECTED}")
    config = _experiment(folder, base)
    with complete_folder(workdir) as directory:
        model = folder.load(advance)
        record: dict[str, Any] = {
            "config": config.to_dict(),
            "corpus": None,
            "converted": str(folder.path),
            "prefixes": dict(folder.prefixes),
            "untrained": list(folder.family.lacks),
            "versions": library_versions(),
        }
        with CheckpointStore(directory / "checkpoints") as store:
            files = {name: part.model_bytes for name, part in tokenizer_by_file(folder.tokenizer).items()}
            if folder.labels:
                files[LABELS_FILE] = labels_bytes(folder.labels)
            store.save(0, {"params": model.params}, record, files)
        (directory / CONFIG).write_text(json.dumps(record["config"], indent=2) + "\n", encoding="utf-8")
    return config


def _experiment(folder: Folder, base: ExperimentConfig | None) -> ExperimentConfig:
    model, family = folder.config, folder.family
    assert folder.tokenizer is not None
    base = imported(model, folder.task, folder.resize, folder.decode) if base is None else base
    if base.task.name not in family.tasks:
        needed = " or ".join(f"'{name}'" for name in family.tasks)
        raise ConfigError(f"the config has task.name='{base.task.name}'; {family.label} needs {needed}")
    head = {*family.task_fields, *(("num_labels",) if family.has_labels else ())}
    task = dataclasses.replace(base.task, **{name: getattr(folder.task, name) for name in head})
    if not task.source_prefix:
        task = dataclasses.replace(task, source_prefix=folder.task.source_prefix)
    if task.name == folder.task.name:
        task = dataclasses.replace(task, text_start=folder.task.text_start)
    if base.decode == DecodeConfig():
        base = dataclasses.replace(base, decode=folder.decode)
    data = base.data
    if model.inputs == "tokens":
        data = dataclasses.replace(
            data,
            tokenizer=kind_of(folder.tokenizer),
            separate_tokenizers=isinstance(folder.tokenizer, TokenizerPair),
            vocabulary_file="",
            source_vocabulary_file="",
        )
    return dataclasses.replace(base, model=model, task=task, data=data).resolved()


@contextlib.contextmanager
def complete_folder(path: Path) -> Generator[Path]:
    """Yield a folder to write into, which gets the name `path` once the block ends without an error.

    Raises: CheckpointError if `path` is not empty, or cannot be written.
    """
    path = Path(os.path.expanduser(path)).resolve()
    partial = path.with_name(f".{path.name}.partial")
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise CheckpointError(f"{path}: is not empty; choose another, or delete it")
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        partial.mkdir(parents=True)
        try:
            yield partial
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error


def _read_config(file: Path) -> dict[str, Any]:
    try:
        return read_json_object(file)
    except FileNotFoundError as error:
        missing = f"has no {CONFIG}" if file.parent.is_dir() else "there is no such folder"
        raise CheckpointError(f"{file.parent}: {missing}") from error
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
