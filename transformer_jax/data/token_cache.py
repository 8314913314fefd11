"""The token cache: the columns of a split are encoded once, into files that later runs map into memory.

A cache folder belongs to one combination of corpus, split, tokenizer, columns and format; its name is their hash. A
ragged column NAME is stored as NAME.ids, the ids of all examples one after the other, and NAME.offsets, the starts of
the examples; any other column as NAME.array. Limits such as `max_length` are applied by batching, not here. A folder
appears under its name only when it is complete, even if several processes build it or one is killed. Every file is
checked against its sha256 when it is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from transformer_jax.data.columns import ArrayColumn, BadValueError, Column, EncodedSplit, RaggedIds, exact
from transformer_jax.data.sources import Source, Split
from transformer_jax.data.tokenizers import EncodedTexts, Tokenizer
from transformer_jax.data.tokenizers.token_kinds import TokenKinds
from transformer_jax.errors import DataError
from transformer_jax.host.files import json_sha256, sha256_of
from transformer_jax.host.kill_points import kill_point
from transformer_jax.host.progress_bars import progress_bar
from transformer_jax.readers import read_json_object
from transformer_jax.readers.arrays import map_numbers

_FORMAT = 2
_OFFSETS = "<i8"
_CHUNK = 1 << 15  # examples that are in memory as text, at most
_CHUNK_BYTES = 1 << 28  # and bytes of arrays, such as images
# A build writes something every few seconds; a folder untouched for an hour belongs to a process that was killed.
_ABANDONED_SECONDS = 3600
_log = logging.getLogger(__name__)

Say = Callable[[str], None]
"""A function that shows the user a line."""


class _DamagedCacheError(Exception):
    """The content of a cache folder is damaged."""


def _key_parts(
    fingerprint: Mapping[str, Any], split_name: str, tokenizer: Tokenizer, columns: Sequence[Column]
) -> dict[str, Any]:
    """Return everything that the arrays of a split depend on."""
    return {
        "format": _FORMAT,
        "source": dict(fingerprint),
        "split": split_name,
        "tokenizer": tokenizer.sha256,
        "special_ids": tokenizer.special_ids._asdict(),
        "source_special_ids": tokenizer.source.special_ids._asdict(),
        "columns": [column.key for column in columns],
    }


def open_split(
    directory: Path,
    source: Source,
    split_name: str,
    tokenizer: Tokenizer,
    columns: Sequence[Column],
    say: Say | None = None,
) -> EncodedSplit:
    """Open a split's cache; build it first if it is missing or damaged.

    Args:
      directory: holds the cache folders; made if missing.
      source: the corpus; its text is read only if the cache has to be built, a part at a time.
      split_name: the split.
      tokenizer: encodes text. columns: the columns of an example; their names differ.
      say: called before the cache is built, which may take minutes; on a terminal there is a progress bar too.

    Raises: DataError if the corpus is bad or lacks a column's feature, or the folder cannot be written (a full disk,
      no permission).
    """
    if len({column.name for column in columns}) < len(columns) or not columns:
        raise ValueError(f"expected columns with different names, got {[column.name for column in columns]}")
    parts = _key_parts(source.fingerprint(split_name), split_name, tokenizer, columns)
    key = json_sha256(parts)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", split_name)
    folder = directory / f"{name}-{key[:16]}"
    for _ in range(3):  # another process may replace a damaged cache at the same moment
        try:
            return _open(folder, key, columns, tokenizer)
        except FileNotFoundError:
            damaged = False
        except _DamagedCacheError as error:
            _log.warning("token cache %s is damaged (%s); rebuilding it", folder, error)
            damaged = True
        num_examples = source.num_examples(split_name)  # this may take a while
        if not num_examples:
            raise DataError(f"split '{split_name}' is empty")
        try:
            if damaged:
                _discard(folder, lambda aside: _open(aside, key, columns, tokenizer))
            if folder.is_dir():  # another process was faster
                continue
            if say is not None:
                why = _why(directory, name, parts)
                doing = "tokenizing" if any(column.ragged for column in columns) else "storing"
                say(f"{doing} {split_name} ({num_examples:,} examples){why}")
            _build(folder, parts, source, tokenizer, columns, say is not None)
        except OSError as error:
            raise DataError(
                f"{directory}: cannot write the token cache of split '{split_name}': {error.strerror or error}; "
                "set data.cache_dir to another folder"
            ) from error
    raise DataError(f"{folder}: the token cache is damaged again each time it is built; is the disk failing?")


def _why(directory: Path, name: str, parts: Mapping[str, Any]) -> str:
    """Return a note about a cache of this split from another corpus; "" if there is none."""
    for meta in sorted(directory.glob(f"{name}-*/meta.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            before = read_json_object(meta)["parts"]
            if before["tokenizer"] == parts["tokenizer"] and before["source"] != parts["source"]:
                return f"; {meta.parent} is for another corpus"
    return ""


def _open(folder: Path, key: str, columns: Sequence[Column], tokenizer: Tokenizer) -> EncodedSplit:
    """Open a cache; raise FileNotFoundError if there is none, and _DamagedCacheError if it is damaged."""
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        meta = read_json_object(folder / "meta.json")
        if meta.pop("sha256", None) != json_sha256(meta):
            raise _DamagedCacheError("meta.json does not match its checksum")
        if meta["key"] != key:
            raise _DamagedCacheError("meta.json belongs to another cache")
        files = meta["files"]
        stored_columns = {column.name: _stored(folder, files, column, tokenizer) for column in columns}
        if len({len(rows) for rows in stored_columns.values()}) > 1:
            raise _DamagedCacheError("its columns have unequally many examples")
        return EncodedSplit(stored_columns, tokenizer.special_ids, tokenizer.source.special_ids, TokenKinds(tokenizer))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _DamagedCacheError(f"{type(error).__name__}: {error}") from error


def _stored(folder: Path, files: Mapping[str, Any], column: Column, tokenizer: Tokenizer) -> RaggedIds | np.ndarray:
    """Return a column that is mapped from its files; the column says their types, whatever meta.json says.

    Args:
      files: the entries of meta.json.
    Raises: _DamagedCacheError, and the errors of readers and lookups, if a file does not match its entry or the column.
    """

    def mapped(name: str, dtype: str) -> np.ndarray:
        path, entry = folder / name, files[name]
        if sha256_of(path) != entry["sha256"]:
            raise _DamagedCacheError(f"{name} does not match its checksum")
        if entry["dtype"] != dtype:
            raise _DamagedCacheError(f"{name} has the type {entry['dtype']}, expected {dtype}")
        flat = map_numbers(path, dtype, (path.stat().st_size // np.dtype(dtype).itemsize,))
        return flat.reshape(-1, *entry["shape"])

    dtype = column.stored_dtype(tokenizer)
    if not column.ragged:
        rows = mapped(f"{column.name}.array", dtype)
        if isinstance(column, ArrayColumn) and rows.shape[1:] != column.shape:
            raise _DamagedCacheError(f"{column.name}.array has rows of the shape {rows.shape[1:]}")
        return rows
    ids, offsets = mapped(f"{column.name}.ids", dtype), mapped(f"{column.name}.offsets", _OFFSETS)
    if ids.ndim != 1 or offsets.ndim != 1 or not len(offsets) or offsets[0] or offsets[-1] != len(ids):
        raise _DamagedCacheError(f"{column.name}.offsets does not fit {column.name}.ids")
    if np.any(offsets[1:] < offsets[:-1]):
        raise _DamagedCacheError(f"{column.name}.offsets decreases")
    return RaggedIds(ids, offsets)


class _ArrayFile:
    """An array file to append to, with a running checksum."""

    def __init__(self, file: BinaryIO, dtype: str, shape: Sequence[int] = ()) -> None:
        """shape: of one row."""
        self._file = file
        self._digest = hashlib.sha256()
        self._dtype = dtype
        self._shape = tuple(shape)

    def append(self, values: np.ndarray) -> None:
        """Write rows [n, *shape]; raises ValueError if they have another shape."""
        if values.shape[1:] != self._shape:
            raise ValueError(f"rows of shape {values.shape[1:]} after rows of shape {self._shape}")
        data = np.ascontiguousarray(values, self._dtype).tobytes()
        self._digest.update(data)
        self._file.write(data)

    def entry(self) -> dict[str, Any]:
        """Return the file's entry in meta.json."""
        return {"dtype": self._dtype, "shape": list(self._shape), "sha256": self._digest.hexdigest()}


def _build(
    folder: Path,
    parts: Mapping[str, Any],
    source: Source,
    tokenizer: Tokenizer,
    columns: Sequence[Column],
    show: bool,
) -> None:
    """Write a cache beside its final place, then move it there; leave nothing behind on failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    building = folder.with_name(f".building-{folder.name}-{uuid.uuid4().hex}")
    building.mkdir()
    try:
        with _bar(source.num_examples(parts["split"]), show) as advance:
            chunks = source.chunks(parts["split"], _chunk_size(columns))
            files = _write_arrays(building, parts["split"], chunks, tokenizer, columns, advance)
        meta = {"key": json_sha256(parts), "parts": parts, "files": files}
        text = json.dumps(meta | {"sha256": json_sha256(meta)}, indent=1)
        (building / "meta.json").write_text(text, encoding="utf-8")
        try:
            building.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Another process was faster; its arrays are the same.
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _chunk_size(columns: Sequence[Column]) -> int:
    """Return the number of examples that are encoded together."""
    nbytes = sum(math.prod(column.shape) for column in columns if isinstance(column, ArrayColumn))
    return max(1, min(_CHUNK, _CHUNK_BYTES // max(nbytes, 1)))


def encode_in_memory(
    features: Mapping[str, Sequence[Any]], columns: Sequence[Column], tokenizer: Tokenizer
) -> EncodedSplit:
    """Encode examples in memory, without a cache.

    Args:
      features: for each feature name, one value per example.
    Raises: DataError if a feature is missing, or a column cannot hold a value.
    """
    split = Split({name: list(values) for name, values in features.items()})
    arrays: dict[str, RaggedIds | np.ndarray] = {}
    for column in columns:
        encoded, dtype = _encoded(column, split, tokenizer), column.stored_dtype(tokenizer)
        if isinstance(encoded, np.ndarray):
            arrays[column.name] = exact(encoded, dtype, column.feature)
        else:
            arrays[column.name] = RaggedIds(exact(encoded.ids, dtype, column.feature), encoded.offsets)
    return EncodedSplit(arrays, tokenizer.special_ids, tokenizer.source.special_ids, TokenKinds(tokenizer))


def _bar(total: int, show: bool) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    return progress_bar("tokenizing", total) if show else contextlib.nullcontext(lambda _: None)


def _write_arrays(
    building: Path,
    split_name: str,
    chunks: Iterator[Split],
    tokenizer: Tokenizer,
    columns: Sequence[Column],
    advance: Callable[[int], None],
) -> dict[str, dict[str, Any]]:
    """Encode chunk by chunk, so that memory does not grow with the corpus; return the files' entries."""
    num_ids = dict.fromkeys((column.name for column in columns), 0)
    num_chunks = num_examples = 0
    files: dict[str, _ArrayFile] = {}
    with contextlib.ExitStack() as stack:

        def append(name: str, values: np.ndarray, dtype: str) -> None:
            if name not in files:
                files[name] = _ArrayFile(stack.enter_context((building / name).open("wb")), dtype, values.shape[1:])
            files[name].append(values)

        for chunk in chunks:
            for column in columns:
                name, dtype = column.name, column.stored_dtype(tokenizer)
                try:
                    encoded = _encoded(column, chunk, tokenizer)
                except BadValueError as error:
                    place = f"split '{split_name}', example {num_examples + error.index + 1:,}"
                    raise DataError(f"{place}: {error}") from error
                if isinstance(encoded, np.ndarray):
                    append(f"{name}.array", exact(encoded, dtype, column.feature), dtype)
                    continue
                append(f"{name}.ids", exact(encoded.ids, dtype, column.feature), dtype)
                if not num_chunks:
                    append(f"{name}.offsets", np.zeros(1, np.int64), _OFFSETS)
                append(f"{name}.offsets", num_ids[name] + encoded.offsets[1:], _OFFSETS)
                num_ids[name] += len(encoded.ids)
            num_chunks += 1
            num_examples += chunk.num_examples
            kill_point("inside_token_cache", num_chunks)
            advance(chunk.num_examples)
    return {name: file.entry() for name, file in files.items()}


def _encoded(column: Column, chunk: Split, tokenizer: Tokenizer) -> EncodedTexts | np.ndarray:
    """Return a column of some examples; raises DataError for a missing feature, ValueError for a faulty column."""
    if column.feature not in chunk.features:
        raise DataError(
            f"the corpus has no feature '{column.feature}', which column '{column.name}' needs; it has "
            f"{', '.join(chunk.features)}"
        )
    encoded = column.encode(chunk.features[column.feature], tokenizer)
    if column.ragged == isinstance(encoded, np.ndarray):
        expected = "ids and offsets" if column.ragged else "an array"
        raise ValueError(f"column '{column.name}': encode returned {type(encoded).__name__}, expected {expected}")
    count = len(encoded) if isinstance(encoded, np.ndarray) else len(encoded.offsets) - 1
    if count != chunk.num_examples:
        raise ValueError(f"column '{column.name}': encode returned {count} rows for {chunk.num_examples} values")
    return encoded


def _discard(folder: Path, check: Callable[[Path], Any]) -> None:
    """Remove a damaged cache. If another process has replaced it meanwhile, put the new one back.

    check: opens a folder; raises _DamagedCacheError if it is damaged.
    """
    aside = folder.with_name(f".building-{folder.name}-{uuid.uuid4().hex}")
    try:
        os.rename(folder, aside)
    except FileNotFoundError:
        return
    with contextlib.suppress(_DamagedCacheError, OSError):  # OSError: another process has built a third one
        check(aside)
        os.rename(aside, folder)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(directory: Path) -> None:
    """Remove the remains of killed builds."""
    for folder in directory.glob(".building-*"):
        try:
            newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
        except OSError:  # its owner has just moved or removed it
            continue
        if time.time() - newest > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
