"""Preparation of a corpus of the table: download, check, and write the folder for `data.dir`."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.data.downloads.fetching import UnreachableError, check_download, fetch, local_errors
from transformer_jax.data.downloads.table import CORPORA, Corpus
from transformer_jax.errors import DataError
from transformer_jax.host.files import open_own_file, try_lock
from transformer_jax.host.progress_bars import byte_progress
from transformer_jax.host.terminal import doing


class PreparedCorpus(NamedTuple):
    """The folder for `data.dir`, and whether it was there already."""

    folder: Path
    was_there: bool


def prepare_corpus(name: str, data_dir: Path) -> PreparedCorpus:
    """Download a corpus and unpack it into DATA_DIR/NAME, unless it is there already.

    Downloaded files are kept in DATA_DIR/downloads/NAME. A file that lies there is checked and not downloaded.

    Args:
      name: a key of CORPORA.
    Raises: DataError if a file cannot be downloaded (the message says which files to put where), is not the expected
      one or cannot be written, if another process prepares the corpus, or if the folder is there but incomplete.
    """
    corpus, folder = CORPORA[name], data_dir / name
    if _is_finished(folder, corpus):
        return PreparedCorpus(folder, True)
    downloads = data_dir / "downloads" / name
    with local_errors(downloads):
        downloads.mkdir(parents=True, exist_ok=True)
    with _locked(downloads / ".lock", name):
        if _is_finished(folder, corpus):  # another process had the lock until now
            return PreparedCorpus(folder, True)
        _fetch_missing(name, corpus, downloads)
        with doing(f"unpacking {name}"), local_errors(folder):
            _unpack(corpus, downloads, folder)
    return PreparedCorpus(folder, False)


def _is_finished(folder: Path, corpus: Corpus) -> bool:
    """Return whether a folder has all files of a corpus, plain or .gz; raise DataError if it lacks some of them."""
    if not os.path.lexists(folder):
        return False
    missing = [name for name in corpus.outputs if not any((folder / (name + end)).is_file() for end in ("", ".gz"))]
    if missing:
        problem = f"has no {missing[0]}" if folder.is_dir() else "is not a folder"
        raise DataError(f"{folder} exists, but {problem}; move it away, or pass another --data_dir")
    return True


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Generator[None]:
    with local_errors(path):
        file = open_own_file(path)
    with file:
        if try_lock(file) == "in use":
            raise DataError(f"{path}: another process is preparing {name}; run the command again when that has ended")
        yield


def _fetch_missing(name: str, corpus: Corpus, downloads: Path) -> None:
    for file in corpus.files:
        path = downloads / file.name
        if os.path.lexists(path):
            with local_errors(path):
                try:
                    check_download(file, path)
                except DataError as error:
                    raise DataError(f"{error}\nDelete it or replace it, and run the same command again.") from error
    missing = [file for file in corpus.files if not (downloads / file.name).exists()]
    if not missing:
        return
    try:
        with byte_progress(f"downloading {name}", sum(file.size or 0 for file in missing)) as progress:
            for file in missing:
                fetch(file, downloads, progress)
    except UnreachableError as error:
        raise DataError(f"cannot download {error}\n{_instructions(name, corpus, downloads)}") from error


def _instructions(name: str, corpus: Corpus, downloads: Path) -> str:
    """Return which files to put where, if they cannot be downloaded."""
    lines = [f"To prepare {name} without network, put these files into {downloads} and run the same command again:"]
    for file in corpus.files:
        if not (downloads / file.name).exists():
            size = "" if file.size is None else f" ({file.size:,} bytes)"
            lines += [
                f"  {file.name}{size}",
                f"    URL     {file.url}",
                f"    sha256  {file.sha256 or 'not known: the file changes from time to time'}",
            ]
    return "\n".join(lines)


def _unpack(corpus: Corpus, downloads: Path, folder: Path) -> None:
    """Write the files of a corpus into a temporary folder, and rename it when it is complete."""
    temporary = folder.with_name(f".{folder.name}.part")
    _remove(temporary)  # of a process that was killed
    temporary.mkdir()
    try:
        for name, content in corpus.unpack({file.name: downloads / file.name for file in corpus.files}):
            with (temporary / name).open("xb") as file:
                file.writelines(content)
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(folder)
    finally:
        _remove(temporary)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
