"""Why a folder is not one for a config: the kind of data that it has, and the config or the name that fits."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer_jax.data.images import SUFFIXES as IMAGES
from transformer_jax.data.sources import why_unread
from transformer_jax.errors import DataError
from transformer_jax.fitting.kinds import USES, CorpusKind
from transformer_jax.fitting.names import listed, named
from transformer_jax.readers import open_file, parse_json
from transformer_jax.readers.archives import CompressedError, open_gzip

_MOST_SEEN = 1000
_FIRST_BYTES = 4096


def other_kind(
    kind: CorpusKind, where: str, files: Sequence[Path], groups: Mapping[str, Mapping[str, Sequence[Path]]]
) -> DataError:
    """Return the error of a folder without files of a kind.

    Args:
      where: the folder, or the file, that was named. files: those in it. groups: the files by format and stem.
    """
    wanted = f"--config={kind.config} reads {kind.wanted}"
    for path in sorted(files, key=lambda path: "train" not in path.name.lower()):
        if problem := why_unread(path) or _other_name(kind, path):
            return DataError(f"{problem}; {wanted}")
    if problem := _other_set(kind, files):
        return DataError(f"{where}: {problem}; {wanted}")
    for format, stems in groups.items():
        has, configs = USES[format]
        others = [f"--config={name}" for name in configs if name != kind.config]
        if stems and others:
            names = [path.name for path in next(iter(stems.values()))]
            hint = ""
            if kind.config == "classify" and format == "documents":
                hint = ", or --config.data.format=labelled if every line begins with a label"
            return DataError(f"{where} has {has} ({' and '.join(names)}); use {' or '.join(others)}{hint}; {wanted}")
    inside = Path(os.path.expanduser(where)).glob("[!.]*/*")
    if kind.formats and any(x.suffix.lower() in IMAGES for x in (*files, *itertools.islice(inside, _MOST_SEEN))):
        return DataError(f"{where} has images; use --config=pictures; {wanted}")
    names = listed([path.name for path in files])
    return DataError(f"{where} has {names or 'no files'}; {wanted}")


def _other_name(kind: CorpusKind, path: Path) -> str:
    """Return the problem with a file's suffix and the remedy; an empty text if no problem is found."""
    _, stem, suffix = named(path)
    gz = ".gz" if path.suffix == ".gz" else ""
    if suffix == "json" and "jsonl" in kind.formats:
        start = _start_of(path).lstrip()
        if start.startswith("["):
            return f"{path} is a JSON array; write one object per line as {stem}.jsonl"
        try:
            if "data" not in parse_json(start.partition("\n")[0], check_text=False):
                return f"{path} has JSON lines; rename it to {stem}.jsonl{gz}"
        except (ValueError, TypeError):
            return ""
    if suffix == "txt" and "conll" in kind.formats and _has_words(_start_of(path)):
        return f"{path} has a word and a tag per line; rename it to {stem}.conll{gz}"
    if suffix == "txt" and "parallel" in kind.formats and len(stem.rpartition(".")[2]) == 2 and "." in stem:
        return (
            f"{path}: the last part of a name is the language; rename it to {stem}{gz}, and its other language likewise"
        )
    return ""


def _other_set(kind: CorpusKind, files: Sequence[Path]) -> str:
    """Return that there is one file per label, such as pos.txt and neg.txt, or film.pos and film.neg; or nothing."""
    if kind.config != "classify":
        return ""
    names = [named(path) for path in files]
    for labels in _OPPOSITES:
        if {"txt"} == {x.suffix for x in names if x.stem.lower() in labels} and labels <= {
            x.stem.lower() for x in names
        }:
            break
        if labels <= {x.suffix.lower() for x in names}:
            break
    else:
        return ""
    shown = " and ".join(sorted(labels))
    return f"one file per label ({shown}) is not a format here; write a label, a tab and a text per line of train.tsv"


_OPPOSITES = ({"pos", "neg"}, {"positive", "negative"}, {"spam", "ham"})


def _has_words(text: str) -> bool:
    """Return whether text has lines of two or more columns, and blank lines between sentences."""
    lines = text.split("\n")[:-1] or [text]
    widths = [len(line.split()) for line in lines if line.strip()]
    return bool(widths) and max(widths) == min(widths) >= 2 and any(not line.strip() for line in lines)


def _start_of(path: Path) -> str:
    try:
        with open_gzip(path) if path.suffix == ".gz" else open_file(path) as file:
            return file.read(_FIRST_BYTES).decode("utf-8", "replace").removeprefix("\ufeff")
    except (OSError, CompressedError):
        return ""
