"""Which files of a folder are for training, validation and test, and in which format they are."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.data.images import SUFFIXES as IMAGES
from transformer_jax.data.sources import UNREAD, why_unread
from transformer_jax.data.sources.lines import TextFile
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.fitting.kinds import USES, Kind
from transformer_jax.readers.arrays import open_npz

ROLES = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev", "development"),
    "test": ("test", "testing"),
}
"""Words of the names of files and folders, by the split that they are for."""
TRAIN_PART, VALID_PART = "[:90%]", "[90%:]"
"""Parts of the training file of a folder without a validation file."""
_OF_SUFFIX = {"tsv": "tsv", "jsonl": "jsonl", "conll": "conll", "conllu": "conllu", "json": "squad", "txt": "txt"}
_SAMPLE = 200
_MAX_NAMED = 6


class _File(NamedTuple):
    path: Path
    stem: str
    suffix: str


def find_files(kind: Kind, data: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    """Return the fields of `data` that say which files are read, by dotted name.

    Args:
      data: values of the section. given: dotted names of the fields that are set.
    Raises: DataError if there is no such file, if the folder has another kind of data, or if it is not clear which
      file is for training; ConfigError for a format that the kind does not read.
    """
    path = Path(os.path.expanduser(data["dir"]))
    if not path.exists():
        raise DataError(f"data.dir={data['dir']!r} does not exist; it is the folder of {kind.wanted}")
    if not kind.formats:
        return _images(kind, path, data, given)
    if "data.format" in given and data["format"] not in kind.formats:
        raise ConfigError(f"data.format='{data['format']}': --config={kind.config} reads {', '.join(kind.formats)}")
    folder, only = (path, None) if path.is_dir() else (path.parent, path)
    files = [_split(file) for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    groups = _groups(kind, files, data, given)
    if only is not None:
        stem = _split(only).stem
        groups = {format: {stem: of[stem]} for format, of in groups.items() if stem in of and only in of[stem]}
    found = {format: stems for format in kind.formats if (stems := groups.get(format))}
    if not found:
        raise _other_kind(kind, data["dir"], [_split(only)] if only else files, groups)
    format = _format(found, data, given)
    fields: dict[str, Any] = {"data.format": format}
    if only is not None:
        fields["data.dir"] = str(Path(data["dir"]).parent)
    if format == "parallel":
        fields |= _locales(found[format], data, given)
    return fields | _splits(list(found[format]), data, given, data["dir"])


def _split(path: Path) -> _File:
    stem, _, suffix = path.name.removesuffix(".gz").rpartition(".")
    return _File(path, stem or suffix, suffix)


def _groups(
    kind: Kind, files: Sequence[_File], data: Mapping[str, Any], given: Set[str]
) -> dict[str, dict[str, list[Path]]]:
    """Return the files by format and stem; two files of one stem and other suffixes are a pair of texts."""
    groups: dict[str, dict[str, list[Path]]] = {}
    others: dict[str, dict[str, Path]] = {}
    for file in files:
        format = _OF_SUFFIX.get(file.suffix)
        if format == "txt":
            names = ("labelled", "documents")
        elif format:
            names = (format,)
        else:
            others.setdefault(file.stem, {})[file.suffix] = file.path
            continue
        for name in names:
            groups.setdefault(name, {})[file.stem] = [file.path]
    locales = [data[name] for name in ("source_locale", "target_locale")]
    for stem, sides in others.items():
        pair = [x for x in locales if x in sides]
        if len(pair) == 2 or (len(sides) == 2 and not {*sides} & {*UNREAD}):
            groups.setdefault("parallel", {})[stem] = [sides[name] for name in (pair if len(pair) == 2 else sides)]
    if "labelled" in groups and "data.format" not in given and kind.config == "classify":
        groups["labelled"] = {s: f for s, f in groups["labelled"].items() if _begins_with_labels(f[0], data)}
    return groups


def _begins_with_labels(path: Path, data: Mapping[str, Any]) -> bool:
    """Return whether the first words of a file's lines are few, as labels are."""
    file = TextFile(path, allow_empty=True, encoding=data["encoding"])
    lines = list(itertools.islice(itertools.chain.from_iterable(file.blocks()), _SAMPLE))
    first = [line.split(" ", 1)[0] for line in lines if " " in line.strip()]
    return len(first) == len(lines) and 1 < len({*first}) <= len(lines) // 3


def _format(found: Mapping[str, Mapping[str, Any]], data: Mapping[str, Any], given: Set[str]) -> str:
    if "data.format" in given:
        if data["format"] not in found:
            raise DataError(f"data.format='{data['format']}': {data['dir']} has no such file, but {', '.join(found)}")
        return data["format"]
    for format, stems in found.items():
        if any(_role(stem) == "train" for stem in stems):
            return format
    return next(iter(found))


def _locales(pairs: Mapping[str, list[Path]], data: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    suffixes = [_split(path).suffix for path in next(iter(pairs.values()))]
    source, target = data["source_locale"], data["target_locale"]
    if {source, target} == {*suffixes}:
        return {}
    if source in suffixes and "data.source_locale" in given:
        return {"data.target_locale": next(s for s in suffixes if s != source)}
    if target in suffixes and "data.target_locale" in given:
        return {"data.source_locale": next(s for s in suffixes if s != target)}
    return dict(zip(("data.source_locale", "data.target_locale"), suffixes, strict=True))


def _splits(stems: Sequence[str], data: Mapping[str, Any], given: Set[str], where: str) -> dict[str, Any]:
    """Return train_split, valid_split and test_split: by names, or parts of the only file."""
    fields: dict[str, Any] = {}
    if "data.train_split" in given:
        train = data["train_split"]
    else:
        train = _of_role(stems, "train") or (stems[0] if len(stems) == 1 else None)
        if train is None:
            raise DataError(
                f"{where}: which of {_listed(stems)} is for training? Name it, as in --config.data.train_split="
                f"{stems[0]} --config.data.valid_split={stems[1]}"
            )
    if "data.valid_split" not in given:
        valid = _of_role([stem for stem in stems if stem != train], "valid")
        if valid is None and re.search(r"[\[,*?]", train):
            raise DataError(f"{where}: no file for validation; name it, as in --config.data.valid_split=NAME")
        fields["data.valid_split"] = valid or train + VALID_PART
        train = train if valid else train + TRAIN_PART
    if "data.test_split" not in given:
        fields["data.test_split"] = _of_role([stem for stem in stems if stem != train], "test") or ""
    return {"data.train_split": train, **fields}


def _of_role(stems: Iterable[str], role: str) -> str | None:
    """Return the stem for a split: the one that is its name, else the first one that has it among its words."""
    of_role = [stem for stem in stems if _role(stem) == role]
    return next((stem for stem in of_role if stem in ROLES[role]), of_role[0] if of_role else None)


def _role(stem: str) -> str | None:
    words = re.split(r"[^a-z0-9]+", stem.lower())
    return next((role for word in words for role, names in ROLES.items() if word in names), None)


def _other_kind(
    kind: Kind, where: str, files: Sequence[_File], groups: Mapping[str, Mapping[str, Sequence[Path]]]
) -> DataError:
    """Return the error of a folder without files of a kind; it names the config for what the folder has."""
    wanted = f"--config={kind.config} reads {kind.wanted}"
    for file in files:
        if problem := why_unread(file.path):
            return DataError(f"{problem}; {wanted}")
    for format, stems in groups.items():
        has, configs = USES[format]
        others = [f"--config={name}" for name in configs if name != kind.config]
        if stems and others:
            names = [path.name for path in next(iter(stems.values()))]
            return DataError(f"{where} has {has} ({' and '.join(names)}); use {' or '.join(others)}; {wanted}")
    inside = Path(os.path.expanduser(where)).glob("*/*") if kind.formats else ()
    if any(f".{file.suffix}" in IMAGES for file in files) or any(x.is_dir() or x.suffix in IMAGES for x in inside):
        return DataError(f"{where} has no such files; for images, use --config=pictures; {wanted}")
    names = _listed([file.path.name for file in files])
    return DataError(f"{where} has {names or 'no files'}; {wanted}")


def _images(kind: Kind, path: Path, data: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    """Return the fields of images: an .npz file, one folder per label, or one per set with one per label in it."""
    where = data["dir"]
    arrays = [path] if path.suffix == ".npz" else sorted(path.glob("*.npz")) if path.is_dir() else []
    if len(arrays) == 1:
        try:
            with open_npz(arrays[0]) as opened:
                sets = [name.removesuffix("_x").removeprefix("x_") for name in opened.names if "x" in name.split("_")]
        except (OSError, ValueError) as error:
            raise DataError(f"{arrays[0]}: cannot be read as an .npz file: {error}") from error
        return {"data.source": "npz"} | _splits(sets, data, given, where)
    if not path.is_dir():
        raise DataError(f"{where} is a file; --config={kind.config} reads {kind.wanted}")
    folders = [x for x in sorted(path.iterdir()) if x.is_dir() and not x.name.startswith(".")]
    sets = [x.name for x in folders if any(y.is_dir() for y in x.iterdir())]
    fields: dict[str, Any] = {"data.source": "image_folder"}
    if sets:
        return fields | _splits(sets, data, given, where)
    if any(y.suffix.lower() in IMAGES for x in folders for y in x.iterdir()):
        return fields | _splits(["."], data, given, where)
    files = [_split(x) for x in sorted(path.iterdir()) if x.is_file()]
    raise _other_kind(kind, where, files, _groups(kind, files, data, given))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMED])
    return f"{shown}, ..." if len(names) > _MAX_NAMED else shown
