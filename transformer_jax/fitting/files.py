"""Which files of a folder are for training, validation and test, and in which format they are."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from transformer_jax.data.images import SUFFIXES as IMAGES
from transformer_jax.data.sources import UNREAD
from transformer_jax.data.sources.lines import TextFile
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.fitting.kinds import CorpusKind
from transformer_jax.fitting.names import NamedFile, listed, named, stems_of
from transformer_jax.fitting.refusals import other_kind
from transformer_jax.host.terminal import say
from transformer_jax.readers.arrays import open_npz

ROLES = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "validate", "val", "dev", "development", "eval", "heldout", "testa"),
    "test": ("test", "testing", "testb"),
}
"""Words of the names of files and folders, by the split that they are for."""
TRAIN_PART, VALID_PART = "[:90%]", "[90%:]"
"""Parts of the training file of a folder without a validation file."""
_OF_SUFFIX = {"tsv": "tsv", "jsonl": "jsonl", "conll": "conll", "conllu": "conllu", "json": "squad", "txt": "txt"}
_SUFFIX_WORDS = "set", "data", "file", "files", "split"
"""Words that follow the name of a split without a space, as in `trainset`."""
_LABELS_AS_SUFFIXES = {"pos", "neg"}
_NO_LANGUAGE = {*UNREAD, "md", "rst", "html", "pdf", "log", "py", "sh", "zip", "gz"}
"""Suffixes of files beside the texts, such as README.md."""
_SAMPLE, _MOST_LABELS = 2000, 200
"""Lines of a text that are looked at, and most different words in front of them that may be labels."""


def find_files(kind: CorpusKind, data: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
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
    files = [named(file) for file in sorted(folder.iterdir()) if file.is_file() and not file.name.startswith(".")]
    if only is not None:
        files = [file for file in files if file.stem == named(only).stem]
        if (plain := only.with_suffix("")) != only and only.suffix == ".gz" and plain.is_file():
            raise DataError(f"{only}: {plain} exists too, and would be read instead; remove or rename one of them")
    groups = _groups(kind, files, data, given)
    if only is not None:
        groups = {format: {s: of for s, of in stems.items() if only in of} for format, stems in groups.items()}
    found = {format: stems for format in kind.formats if (stems := groups.get(format))}
    if not found:
        raise other_kind(kind, data["dir"], [only] if only else [file.path for file in files], groups)
    format = _format(found, data, given)
    fields: dict[str, Any] = {"data.format": format}
    if only is not None:
        fields["data.dir"] = str(Path(data["dir"]).parent)
    fields |= _splits(found[format], data, given, data["dir"])
    _check_other_formats(found, format, fields, data["dir"])
    if only is None:
        _say_not_read(files, found[format], fields, data)
    if format == "parallel":
        pairs = found[format]
        train = next((stem for stem in stems_of(fields["data.train_split"]) if stem in pairs), next(iter(pairs)))
        fields |= _locales(pairs[train], data, given)
    return fields


def _check_other_formats(
    found: Mapping[str, Mapping[str, Any]], format: str, fields: Mapping[str, Any], where: str
) -> None:
    """Raise DataError if the file for validation is of another format than that for training."""
    for other, stems in found.items():
        names = [path.name for stem in stems if _role(stem) == "valid" for path in stems[stem]]
        if other != format and names and fields.get("data.valid_split", "").endswith(VALID_PART):
            raise DataError(
                f"{where}: the training file is {format}, but {listed(names)} is {other}; write both in one format, or "
                "give a part of the training file: --config.data.train_split=NAME[:90%] "
                "--config.data.valid_split=NAME[90%:]"
            )


def _groups(
    kind: CorpusKind, files: Sequence[NamedFile], data: Mapping[str, Any], given: Set[str]
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
            groups.setdefault(name, {}).setdefault(file.stem, []).append(file.path)
    if pairs := _pairs(kind, others, data):
        groups["parallel"] = pairs
    if "labelled" in groups and "data.format" not in given and kind.config == "classify":
        tables = {_role(stem) for format in ("tsv", "jsonl") for stem in groups.get(format, {})}
        texts = {_role(stem) for stem in groups["labelled"]}
        has_table = "train" in tables or (None in tables and "train" not in texts)
        groups["labelled"] = {} if has_table else _labelled(groups["labelled"], data)
    return groups


def _pairs(
    kind: CorpusKind, others: Mapping[str, Mapping[str, Path]], data: Mapping[str, Any]
) -> dict[str, list[Path]]:
    """Return the pairs of texts by stem; raises DataError if the training files have more than two languages."""
    locales = [data[name] for name in ("source_locale", "target_locale")]
    pairs, several = {}, {}
    for stem, files in others.items():
        sides = {suffix: path for suffix, path in files.items() if suffix not in _NO_LANGUAGE}
        if len(pair := [x for x in locales if x in sides]) == 2:
            pairs[stem] = [sides[name] for name in pair]
        elif len(sides) == 2 and {*sides} != _LABELS_AS_SUFFIXES:
            pairs[stem] = [*sides.values()]
        elif len(sides) > 2:
            several[stem] = [*sides]
    if kind.config == "translate" and not any(_role(stem) == "train" for stem in pairs):
        for stem, found in several.items():
            if _role(stem) == "train" or not pairs:
                raise DataError(
                    f"{stem} has the languages {listed(found)}; name two, as in --config.data.source_locale={found[0]} "
                    f"--config.data.target_locale={found[1]}"
                )
    return pairs


def _say_not_read(
    files: Sequence[NamedFile], found: Mapping[str, Sequence[Path]], fields: Mapping[str, Any], data: Mapping[str, Any]
) -> None:
    """Name the files of data that no split has."""
    chosen = {**data, **{name.removeprefix("data."): value for name, value in fields.items()}}
    splits = ",".join(str(chosen[f"{role}_split"] or "") for role in ROLES)
    names = stems_of(splits)
    read = {path for stem, paths in found.items() if stem in names for path in paths}
    others = [x.path.name for x in files if x.path not in read and x.suffix not in _NO_DATA]
    if others and not re.search(r"[*?]", splits):
        say(f"not read in {data['dir']}: {listed(others)} (`evaluate --input=FILE` scores a further file)")


_NO_DATA = {"md", "rst", "py", "sh", "log", "html", "pdf"}


def _labelled(files: Mapping[str, list[Path]], data: Mapping[str, Any]) -> dict[str, list[Path]]:
    """Return the files whose lines begin with a label, and those for scores beside them, which may be short.

    Raises: DataError if none does, and one cannot be read.
    """
    found, problem = {}, None
    for stem, paths in files.items():
        try:
            if _begins_with_labels(paths[0], data):
                found[stem] = paths
        except DataError as error:
            problem = problem or error
    if problem and not found:
        raise problem
    return {
        stem: paths for stem, paths in files.items() if found and (stem in found or _role(stem) in ("valid", "test"))
    }


def _begins_with_labels(path: Path, data: Mapping[str, Any]) -> bool:
    """Return whether the first words of a file's lines are few, as labels are; raises DataError for tabs after them."""
    file = TextFile(path, allow_empty=True, encoding=data["encoding"])
    lines = list(itertools.chain.from_iterable(file.blocks()))
    lines = lines[:: max(len(lines) // _SAMPLE, 1)]  # of the whole file, which may be sorted
    first = [line.split(" ", 1)[0] for line in lines if " " in line.strip()]
    if 2 * sum("\t" in word.strip() for word in first) > len(first):
        name = path.name.replace(".txt", ".tsv")
        raise DataError(f"{path}: has a tab after the first word, as tables have; rename it to {name}")
    return len(first) == len(lines) and 1 < len({*first}) <= min(len(lines) // 3, _MOST_LABELS)


def _format(found: Mapping[str, Mapping[str, Any]], data: Mapping[str, Any], given: Set[str]) -> str:
    if "data.format" in given:
        if data["format"] not in found:
            raise DataError(f"data.format='{data['format']}': {data['dir']} has no such file, but {', '.join(found)}")
        return data["format"]
    for format, stems in found.items():
        if any(_role(stem) == "train" for stem in stems):
            return format
    return next(iter(found))


def _locales(pair: Sequence[Path], data: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    suffixes = [named(path).suffix for path in pair]
    source, target = data["source_locale"], data["target_locale"]
    if {source, target} == {*suffixes}:
        return {}
    if source in suffixes and "data.source_locale" in given:
        return {"data.target_locale": next(s for s in suffixes if s != source)}
    if target in suffixes and "data.target_locale" in given:
        return {"data.source_locale": next(s for s in suffixes if s != target)}
    return dict(zip(("data.source_locale", "data.target_locale"), suffixes, strict=True))


def _splits(
    files: Mapping[str, Sequence[Path]], data: Mapping[str, Any], given: Set[str], where: str
) -> dict[str, Any]:
    """Return train_split, valid_split and test_split: by names, or parts of the only file."""
    fields: dict[str, Any] = {}
    stems = [*files]
    if "data.train_split" in given:
        train = data["train_split"]
    else:
        without_role = [stem for stem in stems if len(stems) == 1 or _role(stem) is None]
        train = _of_role(stems, "train", where) or (without_role[0] if len(without_role) == 1 else None)
        if train is None:
            raise DataError(
                f"{where}: which of {listed(stems)} is for training? Name it, as in --config.data.train_split="
                f"'{_largest(files)}[:90%]' --config.data.valid_split='{_largest(files)}[90%:]'"
            )
    others = [stem for stem in files if stem not in stems_of(train)]
    if "data.valid_split" not in given:
        valid = _of_role(others, "valid", where)
        if valid is None and re.search(r"[\[,*?]", train):
            raise DataError(f"{where}: no file for validation; name it, as in --config.data.valid_split=NAME")
        fields["data.valid_split"] = valid or train + VALID_PART
        train = train if valid else train + TRAIN_PART
    if "data.test_split" not in given:
        fields["data.test_split"] = _of_role(others, "test", where) or ""
    return {"data.train_split": train, **fields}


def _largest(files: Mapping[str, Sequence[Path]]) -> str:
    """Return the stem with most bytes; the first one of images."""
    return max(files, key=lambda stem: sum(path.stat().st_size for path in files[stem]))


def _of_role(stems: Iterable[str], role: str, where: str) -> str | None:
    """Return the stem for a split: the one that is its name, else the one that has it among its words.

    Raises: DataError if several have; of test sets the first is taken, since a further one is scored by its name.
    """
    of_role = [stem for stem in stems if _role(stem) == role]
    exact = next((stem for name in ROLES[role] for stem in of_role if stem.lower() == name), None)
    if exact is None and len(of_role) > 1 and role != "test":
        raise DataError(
            f"{where}: which of {listed(of_role)} is for {'training' if role == 'train' else 'validation'}? Name one, "
            f"or all, as in --config.data.{role}_split={','.join(of_role[:2])}"
        )
    return exact or (of_role[0] if of_role else None)


def _role(stem: str) -> str | None:
    words = re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", stem).lower())
    short = [*words, *(word.removesuffix(end) for word in words for end in _SUFFIX_WORDS if word.endswith(end))]
    return next((role for word in short for role, names in ROLES.items() if word in names), None)


def _images(kind: CorpusKind, path: Path, data: Mapping[str, Any], given: Set[str]) -> dict[str, Any]:
    """Return the fields of images: an .npz file, one folder per label, or one per set with one per label in it."""
    where = data["dir"]
    arrays = [path] if path.suffix == ".npz" else sorted(path.glob("*.npz")) if path.is_dir() else []
    if len(arrays) == 1:
        try:
            with open_npz(arrays[0]) as opened:
                names = [*opened.names]
                sets = [name.removesuffix("_x").removeprefix("x_") for name in names if "x" in name.split("_")]
        except (OSError, ValueError) as error:
            raise DataError(f"{arrays[0]}: cannot be read as an .npz file: {error}") from error
        if not sets or "x" in sets:
            raise DataError(
                f"{arrays[0]} has the arrays {listed(names)}; expected train_x with images and train_y with labels, "
                "and perhaps valid_x, valid_y, test_x and test_y"
            )
        return {"data.source": "npz"} | _splits(dict.fromkeys(sets, ()), data, given, where)
    if not path.is_dir():
        raise DataError(f"{where} is a file; --config={kind.config} reads {kind.wanted}")
    folders = [x for x in sorted(path.iterdir()) if x.is_dir() and not x.name.startswith((".", "__"))]
    sets = [x.name for x in folders if any(_has_images(y) for y in x.iterdir())]
    fields: dict[str, Any] = {"data.source": "image_folder"}
    labels = [x.name for x in folders if x.name not in sets and _has_images(x)]
    if sets and labels:
        raise DataError(
            f"{where}: {listed(labels)} has images, and {listed(sets)} has folders with images; expected one"
        )
    if sets:
        return fields | _splits(dict.fromkeys(sets, ()), data, given, where)
    if labels:
        return fields | _splits({".": ()}, data, given, where)
    files = [named(x) for x in sorted(path.iterdir()) if x.is_file()]
    raise other_kind(kind, where, [file.path for file in files], _groups(kind, files, data, given))


def _has_images(path: Path) -> bool:
    """Return whether a path is the folder of a label: one with images."""
    is_label = path.is_dir() and not path.name.startswith((".", "__"))
    return is_label and any(file.suffix.lower() in IMAGES for file in path.iterdir())
