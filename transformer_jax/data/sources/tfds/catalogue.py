"""Names of datasets, folders of prepared ones, and the builders that prepare them.

A dataset is named NAME, NAME/CONFIG or NAME/CONFIG:VERSION. The project's own builders take precedence over TFDS's
catalogue.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config import close_names
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json, read_json, read_json_object
from transformer_jax.readers.records import TEXT, expect
from transformer_jax.trust import check, reading

ARRAY_RECORD = "array_record"
_EMBEDDED = "embedded_translate"
_TFDS, _FEATURES = "tensorflow_datasets", "features.json"
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")
_NAME = re.compile(r"(?P<name>[A-Za-z]\w*)(?:/(?P<config>[^/:]+))?(?::(?P<version>\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
# Importing these modules registers the catalogue's oldest datasets. TFDS imports them too, but stops at the first one
# that lacks an optional library, for example of reinforcement learning.
_LEGACY = ("question_answering", "summarization", "text", "text_simplification", "translate")


class UnknownDatasetError(DataError):
    """A name that TFDS does not have."""


class DatasetName(NamedTuple):
    """The parts of NAME/CONFIG:VERSION; missing parts are empty."""

    name: str
    config: str
    version: str

    @classmethod
    def parse(cls, text: str) -> DatasetName:
        """Return the parts of a name; raise DataError for another form."""
        match = _NAME.fullmatch(text)
        if not match:
            raise DataError(f"dataset {text!r}: expected NAME, NAME/CONFIG or NAME/CONFIG:VERSION")
        return cls(**{part: value or "" for part, value in match.groupdict().items()})

    def __str__(self) -> str:
        return self.name + (f"/{self.config}" if self.config else "") + (f":{self.version}" if self.version else "")


def data_root(data_dir: str) -> Path:
    """Return the folder of prepared datasets; for an empty `data_dir`, TFDS's default."""
    if not data_dir:
        from tensorflow_datasets.core import constants

        data_dir = constants.DATA_DIR
    return Path(os.path.expanduser(data_dir))


def prepare_command(dataset: str | DatasetName, data_dir: str) -> str:
    """Return the command line that prepares a dataset."""
    flags = [f"--dataset={dataset}", *([f"--data_dir={data_dir}"] if data_dir else [])]
    return shlex.join(["transformer-jax", "prepare", *flags])


def prepared_folder(dataset: str, data_dir: str) -> Path:
    """Return the folder NAME/CONFIG/VERSION of a prepared dataset; the newest version if none is given.

    Args:
      dataset: its name; may be empty if `data_dir` is the folder itself.
      data_dir: the folder of prepared datasets, or the dataset's own folder; empty for TFDS's default.

    Raises: DataError if there is no such dataset, or it is not prepared; the message has the command that prepares it.
    """
    if not dataset and not data_dir:
        raise DataError("data.source=tfds needs data.dataset, or the folder of a dataset as data.dir")
    folder = Path(os.path.expanduser(data_dir))
    if data_dir and _is_dataset(folder):
        _check_same(folder, dataset)
        return folder
    if not dataset:
        raise DataError(
            f"data.dir={data_dir!r} is not the folder of a dataset, NAME/CONFIG/VERSION with a dataset_info.json; "
            "if it contains prepared datasets, choose one with data.dataset"
        )
    wanted = DatasetName.parse(dataset)
    above = data_root(data_dir) / wanted.name / wanted.config
    versions = _versions(above)
    if wanted.version:
        versions = [path for path in versions if path.name == wanted.version]
    if versions:
        return versions[-1]
    prepared = [] if wanted.config else [path.name for path in _folders(above) if _versions(path)]
    if prepared:
        raise DataError(f"data.dataset={dataset!r} names no config; prepared: {', '.join(prepared)}")
    _check_name(wanted)
    raise DataError(
        f"data.dataset={dataset!r} is not prepared in {data_root(data_dir)}; to prepare it, run: "
        f"{prepare_command(wanted, data_dir)}"
    )


_INFO = {"name": TEXT, "version": TEXT}


def _check_same(folder: Path, dataset: str) -> None:
    """Raise DataError if a folder does not hold the dataset of that name; an empty name is not checked."""
    try:
        info = expect(read_json_object(folder / "dataset_info.json"), _INFO, {"configName": TEXT})
        held = DatasetName(info["name"], info.get("configName", ""), info["version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}/dataset_info.json cannot be read: {error}") from error
    wanted = DatasetName.parse(dataset) if dataset else held
    if any(part and part != has for part, has in zip(wanted, held, strict=True)):
        raise DataError(f"data.dir={str(folder)!r} contains {held}, not data.dataset={dataset!r}")


def open_prepared(folder: Path) -> Any:
    """Return the TFDS builder of a prepared dataset, which reads its folder.

    Raises: DataError if it cannot be read, or only with TensorFlow; UntrustedError as `_check_features`.
    """
    import tensorflow_datasets as tfds

    _check_features(folder / _FEATURES)
    try:
        builder = tfds.builder_from_directory(folder)
    except Exception as error:  # TFDS does not catch the errors of its file parsers
        raise DataError(f"{folder}: TFDS cannot read the description of this dataset: {error}") from error
    found = builder.info.file_format
    if found is None or found.value != ARRAY_RECORD:
        config = builder.info.config_name or ""
        command = prepare_command(DatasetName(builder.name, config, ""), "ANOTHER_FOLDER")
        raise DataError(
            f"{folder} is in the format {found.value if found else 'of an old TFDS'}; without TensorFlow only "
            f"{ARRAY_RECORD} can be read; to prepare it in another folder, run: {command}"
        )
    return builder


def _check_features(file: Path) -> None:
    """Check that features.json names no code of others; without the file there is nothing to check.

    TFDS imports the module of every class that the file names, before it finds out whether the class is one of its own.

    Raises: UntrustedError if a class is neither of TFDS nor of a trusted module; DataError if the file cannot be read.
    """
    try:
        names = set(_classes_in(read_json(file)))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    with reading(file):
        for name in sorted(names):
            module, _, leaf = name.rpartition(".")
            if module.partition(".")[0] != _TFDS:
                check({"a feature": f"{module}:{leaf}"})


def _classes_in(values: Any) -> Iterator[str]:
    """Yield the dotted names of classes in the JSON of features, of this and of earlier versions of TFDS.

    Raises: ValueError for a text that begins like JSON and cannot be read.
    """
    if isinstance(values, str):
        if values.lstrip().startswith("{"):  # earlier versions put the JSON of a feature's content into a text
            yield from _classes_in(parse_json(values))
    elif isinstance(values, list):
        for value in values:
            yield from _classes_in(value)
    elif isinstance(values, dict):
        for name, value in values.items():
            if name in _CLASS_KEYS and isinstance(value, str) and "." in value:
                yield value
            yield from _classes_in(value)


def make_builder(dataset: str, data_dir: str) -> Any:
    """Return the builder that downloads and prepares a dataset.

    Raises: DataError for an unknown name; UntrustedError as `_check_features` for versions that are prepared already.
    """
    import tensorflow_datasets as tfds

    wanted = DatasetName.parse(dataset)
    _check_name(wanted)
    root = str(data_root(data_dir))
    for file in sorted((data_root(data_dir) / wanted.name).rglob(_FEATURES)):  # TFDS reads those rather than its code
        _check_features(file)
    if wanted.name == _EMBEDDED:
        from transformer_jax.data.sources.tfds.embedded_translate import EmbeddedTranslate, config_of_name

        options = {"version": wanted.version} if wanted.version else {}
        config = config_of_name(wanted.config)
        config = EmbeddedTranslate.builder_configs.get(config.name, config)
        return _constructed(EmbeddedTranslate, data_dir=root, config=config, **options)
    return _constructed(tfds.builder, str(wanted), data_dir=root)


def _constructed(make: Any, *names: str, **options: Any) -> Any:
    try:
        return make(*names, **options)
    except (ValueError, AssertionError) as error:  # for example a version that the code no longer has
        raise DataError(str(error)) from error


def _check_name(wanted: DatasetName) -> None:
    """Raise DataError, with the nearest names, for an unknown config; UnknownDatasetError for an unknown dataset."""
    if wanted.name == _EMBEDDED:
        from transformer_jax.data.sources.tfds.embedded_translate import config_of_name

        config_of_name(wanted.config)
        return
    import tensorflow_datasets as tfds

    for module in _LEGACY:
        importlib.import_module(f"tensorflow_datasets.{module}")
    known = {_EMBEDDED, *tfds.list_builders(with_community_datasets=False)}
    if wanted.name not in known:
        raise UnknownDatasetError(f"TFDS has no dataset {wanted.name!r}; {_nearest(wanted.name, known)}")
    if wanted.config:
        try:
            configs = list(tfds.builder_cls(wanted.name).builder_configs)
        except ImportError:  # its code needs a library that is not installed, so this cannot be known
            return
        if wanted.config not in configs:
            raise DataError(
                f"the dataset {wanted.name!r} has no config {wanted.config!r}; {_nearest(wanted.config, configs)}"
            )


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    found = close_names(name, known, 3) or known[:8]
    return f"nearest: {', '.join(found)}" if found else "it has none"


def _versions(folder: Path) -> list[Path]:
    """Return the prepared versions, the newest last."""
    found = [path for path in _folders(folder) if _VERSION.fullmatch(path.name) and _is_dataset(path)]
    return sorted(found, key=lambda path: [int(number) for number in path.name.split(".")])


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _is_dataset(folder: Path) -> bool:
    return (folder / "dataset_info.json").is_file()
