"""The token cache: a split is tokenised once, into files that later runs map into memory.

A cache folder belongs to one (corpus, split, tokenizer, format), which its name is a hash of, and holds the ids of all
pairs one after the other (uint16 where the vocabulary allows) and where each pair starts. Limits such as `max_length`
are no part of it: batching applies them. It appears under its name complete or not at all, whoever else builds it or
is killed meanwhile, and every file is checked against its sha256 when it is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from transformer_jax.config import EOS_ID
from transformer_jax.data.sources import Source, Split
from transformer_jax.data.token_ids import RaggedIds, TokenizedSplit
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import DataError
from transformer_jax.kill_points import kill_point
from transformer_jax.progress import progress_bar

_FORMAT = 1
_CHUNK = 1 << 15  # examples that are in memory as text
_SIDES = ("inputs", "targets")
# A build writes something every few seconds; a folder untouched for an hour belongs to a process that was killed.
_ABANDONED_SECONDS = 3600
_log = logging.getLogger(__name__)

Say = Callable[[str], None]
"""Shows the user a line."""


class _DamagedCacheError(Exception):
    """A cache folder whose content is not what was written."""


def cache_key(fingerprint: Mapping[str, Any], split_name: str, tokenizer: Tokenizer) -> str:
    """Hex digest of everything that the ids of a split depend on."""
    return _digest(_key_parts(fingerprint, split_name, tokenizer))


def _key_parts(fingerprint: Mapping[str, Any], split_name: str, tokenizer: Tokenizer) -> dict[str, Any]:
    return {"format": _FORMAT, "source": dict(fingerprint), "split": split_name, "tokenizer": tokenizer.sha256}


def _digest(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def open_split(
    directory: Path, source: Source, split_name: str, tokenizer: Tokenizer, say: Say | None = None
) -> TokenizedSplit:
    """Opens a split's cache, building it first where it is missing or damaged.

    Args:
      directory: holds the cache folders; made if missing.
      source: the corpus; its text is read only if the cache has to be built, a part at a time.
      split_name: the split.
      tokenizer: what to tokenise with.
      say: called when the cache has to be built, which may take minutes; on a terminal there is a progress bar too.

    Raises:
      DataError: the corpus is bad, or the folder cannot be written (a full disk, no permission).
    """
    parts = _key_parts(source.fingerprint(), split_name, tokenizer)
    key = _digest(parts)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", split_name)
    folder = directory / f"{name}-{key[:16]}"
    for _ in range(3):  # another process may replace a damaged cache at the same moment
        try:
            return _open(folder, key)
        except FileNotFoundError:
            damaged = False
        except _DamagedCacheError as error:
            _log.warning("token cache %s is damaged (%s); rebuilding it", folder, error)
            damaged = True
        num_examples = source.num_examples(split_name)  # which may take a while
        if not num_examples:
            raise DataError(f"split '{split_name}' is empty")
        try:
            if damaged:
                _discard(folder, key)
            if folder.is_dir():  # another process was faster
                continue
            if say is not None:
                why = _why(directory, name, parts)
                say(f"cutting {num_examples:,} examples of {split_name} into pieces{why}")
            _build(folder, parts, source, tokenizer, say is not None)
        except OSError as error:
            raise DataError(
                f"{directory}: cannot write the token cache of split '{split_name}': {error.strerror or error}; "
                "data.cache_dir chooses another folder"
            ) from error
    raise DataError(f"{folder}: the token cache is damaged again each time it is built; is the disk failing?")


def _why(directory: Path, name: str, parts: Mapping[str, Any]) -> str:
    """What has changed since a cache of this split was built, if one is there."""
    for meta in sorted(directory.glob(f"{name}-*/meta.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            before = json.loads(meta.read_text(encoding="utf-8"))["parts"]
            if before["tokenizer"] == parts["tokenizer"] and before["source"] != parts["source"]:
                return f": {meta.parent} is of another corpus"
    return ""


def _open(folder: Path, key: str) -> TokenizedSplit:
    """Raises FileNotFoundError if there is no such cache and _DamagedCacheError if its content is not intact."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["key"] != key:
            raise _DamagedCacheError("meta.json belongs to another cache")
        arrays = {}
        for name, entry in meta["files"].items():
            path = folder / name
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry["sha256"]:
                    raise _DamagedCacheError(f"{name} does not match its checksum")
            arrays[name] = np.memmap(path, entry["dtype"], "r")
        sides = {
            side: RaggedIds(arrays[f"{side}.ids"], arrays[f"{side}.offsets"])
            for side in _SIDES
            if f"{side}.ids" in arrays
        }
        return TokenizedSplit(sides.get("inputs"), sides["targets"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _DamagedCacheError(f"{type(error).__name__}: {error}") from error


class _ArrayFile:
    """An array file that is appended to while its checksum is taken."""

    def __init__(self, file: BinaryIO, dtype: str) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._dtype = dtype

    def append(self, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values, self._dtype).tobytes()
        self._digest.update(data)
        self._file.write(data)

    def entry(self) -> dict[str, str]:
        """What meta.json says of the file."""
        return {"dtype": self._dtype, "sha256": self._digest.hexdigest()}


def _build(folder: Path, parts: Mapping[str, Any], source: Source, tokenizer: Tokenizer, show: bool) -> None:
    """Writes a cache beside its final place and moves it there; leaves nothing behind when it fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    building = folder.with_name(f".building-{folder.name}-{uuid.uuid4().hex}")
    building.mkdir()
    try:
        with _bar(source.num_examples(parts["split"]), show) as advance:
            files = _write_arrays(building, source.chunks(parts["split"], _CHUNK), tokenizer, advance)
        meta = json.dumps({"key": _digest(parts), "parts": parts, "files": files}, indent=1)
        (building / "meta.json").write_text(meta, encoding="utf-8")
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Another process was faster; its ids are the same.
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _bar(total: int, show: bool) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    return progress_bar("tokenising", total) if show else contextlib.nullcontext(lambda _: None)


def _write_arrays(
    building: Path, chunks: Iterator[Split], tokenizer: Tokenizer, advance: Callable[[int], None]
) -> dict[str, dict[str, str]]:
    """Tokenises chunk by chunk, so that memory does not grow with the corpus; returns the files' entries."""
    id_dtype = "<u2" if tokenizer.vocab_size <= 1 << 16 else "<i4"
    num_ids: dict[str, int] = {}
    num_chunks = 0
    files: dict[str, _ArrayFile] = {}
    with contextlib.ExitStack() as stack:
        for chunk in chunks:
            for side, lines in zip(_SIDES, (chunk.inputs, chunk.targets), strict=True):
                if not lines:  # a monolingual corpus has no inputs
                    continue
                if side not in num_ids:
                    num_ids[side] = 0
                    for kind, dtype in (("ids", id_dtype), ("offsets", "<i8")):
                        name = f"{side}.{kind}"
                        files[name] = _ArrayFile(stack.enter_context((building / name).open("wb")), dtype)
                    files[f"{side}.offsets"].append(np.zeros(1, np.int64))
                ids, offsets = tokenizer.encode_batch(lines)
                with_eos = np.insert(ids, offsets[1:], EOS_ID)
                files[f"{side}.ids"].append(with_eos)
                # The rows before it in the chunk have grown by their eos, as has the row itself.
                files[f"{side}.offsets"].append(num_ids[side] + offsets[1:] + np.arange(1, len(offsets)))
                num_ids[side] += len(with_eos)
            num_chunks += 1
            kill_point("inside_token_cache", num_chunks)
            advance(len(chunk.targets))
    return {name: file.entry() for name, file in files.items()}


def _discard(folder: Path, key: str) -> None:
    """Removes a damaged cache; another process may be doing the same, and its new one is put back."""
    aside = folder.with_name(f".building-{folder.name}-{uuid.uuid4().hex}")
    try:
        os.rename(folder, aside)
    except FileNotFoundError:
        return
    with contextlib.suppress(_DamagedCacheError, OSError):  # OSError: there is a third one by now
        _open(aside, key)
        os.rename(aside, folder)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(directory: Path) -> None:
    """Removes what killed builds left behind."""
    for folder in directory.glob(".building-*"):
        try:
            newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        except OSError:  # its owner has just moved or removed it
            continue
        if time.time() - newest > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
