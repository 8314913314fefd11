"""Lines of a text file, checked and read a block at a time.

Files are UTF-8, or in another `data.encoding`; plain or .gz. Only LF or CR LF ends a line (U+2028 and similar
characters are text), and a line keeps its spaces. Nothing is repaired or left out: bytes that are not text raise a
DataError with their place.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import hashlib
import io
import itertools
import logging
import stat
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import close_names
from transformer_jax.errors import DataError
from transformer_jax.readers import open_file
from transformer_jax.readers.archives import CompressedError, open_gzip
from transformer_jax.readers.files import MAX_BYTES, MAX_LINE_BYTES

MAX_LINE_CHARACTERS = 100_000
"""Longest line of a document: longer ones are hardly text, and would fill the memory."""
_NAMED_LINES = 5  # line numbers that an error message lists
_BLOCK_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class Contents(NamedTuple):
    """The content of a file, after decompression. ends_line: whether its last line has a line end."""

    sha256: str
    num_lines: int
    ends_line: bool


class TextFile:
    """One file, which is read at its first use. Methods raise DataError if it cannot be read or is damaged."""

    def __init__(self, path: Path, allow_empty: bool = False, errors: str = "strict", encoding: str = "utf-8") -> None:
        """Keep the path; the file is opened at its first use.

        Args:
          allow_empty: accept empty and long lines, for text that does not have one sentence per line.
          errors: `surrogateescape` keeps bytes that are not UTF-8; `strict` refuses them.
          encoding: a value of `data.encoding`.
        """
        self.path = path
        self._allow_empty = allow_empty
        self._errors = errors
        self._encoding = encoding

    @functools.cached_property
    def contents(self) -> Contents:
        """Digest and number of lines; raises DataError for an empty file, and for bytes that are not UTF-8."""
        digest, num_lines, size, last = hashlib.sha256(), 0, 0, b""
        decoder = codecs.getincrementaldecoder(self._encoding)(self._errors)
        as_utf8 = None if self._encoding == "utf-8" else _Utf8Test()
        with _opened(self.path) as file:
            while block := file.read(_BLOCK_BYTES):
                self._try(decoder, block, False)
                digest.update(block)
                num_lines += block.count(b"\n")
                # A byte order mark alone is not text.
                text = block.removeprefix(codecs.BOM_UTF8) if not size else block
                size += len(text)
                last = block[-1:]
                if as_utf8 is not None:
                    as_utf8.see(text)
        self._try(decoder, b"", True)
        if not size:
            raise DataError(f"{self.path} is empty")
        if as_utf8 is not None and as_utf8.is_likely():
            _warn_of_utf8(self.path, self._encoding)
        return Contents(digest.hexdigest(), num_lines + (last != b"\n"), last == b"\n")

    def blocks(self) -> Iterator[list[str]]:
        """Yield the lines in order, some at a time; raise DataError also if the file changes meanwhile."""
        expected, digest = self.contents, hashlib.sha256()
        yield from self._read(digest.update)
        if digest.hexdigest() != expected.sha256:
            raise DataError(f"{self.path} has changed while it was being read")

    def _read(self, see: Callable[[bytes], None]) -> Iterator[list[str]]:
        """Yield blocks of lines. see: called with the bytes of each block."""
        most = MAX_BYTES if self._allow_empty else MAX_LINE_BYTES  # a corpus of characters may be one line
        offset, number = 0, 0
        with _opened(self.path) as file:
            while content := file.read(_BLOCK_BYTES):
                rest = b"" if content.endswith(b"\n") else file.readline(most)
                if len(rest) == most:
                    line = number + content.count(b"\n") + 1
                    raise DataError(f"{self.path}, line {line} has more than {most:,} bytes: it is not text")
                content += rest
                see(content)
                block = self._decoded(content, offset, number)
                self._check(block, number)
                yield block
                offset, number = offset + len(content), number + len(block)

    def _try(self, decoder: codecs.IncrementalDecoder, block: bytes, final: bool) -> None:
        """Raise DataError if the bytes are not UTF-8; to name the line, read the file again."""
        try:
            decoder.decode(block, final)
        except UnicodeDecodeError as error:
            for _ in self._read(lambda _: None):
                pass
            raise DataError(f"{self.path}: not UTF-8: {error.reason}") from error

    def _decoded(self, content: bytes, offset: int, number: int) -> list[str]:
        """Return the lines of a block. offset: bytes before it; number: lines before it."""
        start = len(codecs.BOM_UTF8) if not offset and content.startswith(codecs.BOM_UTF8) else 0
        try:
            text = content[start:].decode(self._encoding, self._errors)
        except UnicodeDecodeError as error:
            position = start + error.start
            line = number + content.count(b"\n", 0, position) + 1
            raise DataError(
                f"{self.path}, line {line}: not UTF-8 at byte {offset + position} of the file "
                f"(0x{content[position]:02x}): {error.reason}; if it is Latin-1, set data.encoding=latin-1"
            ) from error
        lines = text.removesuffix("\n").split("\n")
        return [line.removesuffix("\r") for line in lines] if "\r" in text else lines

    def _check(self, block: list[str], before: int) -> None:
        """Raise DataError for a bad line of a block. before: lines before the block."""
        for number, line in enumerate(block, before + 1):
            if len(line) > MAX_LINE_CHARACTERS and not self._allow_empty:
                raise DataError(
                    f"{self.path}, line {number} has {len(line)} characters, more than {MAX_LINE_CHARACTERS}:"
                    " too long for one sentence; split or remove it"
                )
            if "\0" in line and self._errors == "strict":
                raise DataError(f"{self.path}, line {number} has a NUL byte: it is not text, or not UTF-8")
        if self._allow_empty:
            return
        empty = [n for n, line in enumerate(block, before + 1) if not line.strip()]
        if empty:
            named = ", ".join(map(str, empty[:_NAMED_LINES])) + (", ..." if len(empty) > _NAMED_LINES else "")
            raise DataError(
                f"{self.path} has empty lines (line {named}): remove them (of a pair of files, the same lines of both)"
            )


def text_lines(file: TextFile) -> Iterator[str]:
    """Return the lines of a file."""
    return itertools.chain.from_iterable(file.blocks())


class _Utf8Test:
    """A test whether a file, seen block by block, is UTF-8 with characters beyond ASCII.

    An encoding such as Latin-1 has a character for every byte, so it reads such a file without an error. Text that is
    really Latin-1 is hardly ever UTF-8: every letter with an accent would have to be followed by certain signs.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._is_ascii, self._is_utf8 = True, True

    def see(self, block: bytes, final: bool = False) -> None:
        self._is_ascii = self._is_ascii and block.isascii()
        if self._is_utf8 and not self._is_ascii:
            try:
                self._decoder.decode(block, final)
            except UnicodeDecodeError:
                self._is_utf8 = False

    def is_likely(self) -> bool:
        """Return the result; to be called after the last block."""
        self.see(b"", final=True)
        return self._is_utf8 and not self._is_ascii


@functools.cache
def _warn_of_utf8(path: Path, encoding: str) -> None:
    """Warn of a file that is probably UTF-8; once per file, which may be a part of several splits."""
    logger.warning(
        "%s: is read with data.encoding=%s, but is probably UTF-8, where a letter with an accent is two bytes; set "
        "data.encoding=utf-8",
        path,
        encoding,
    )


def find(folder: Path, name: str) -> Path:
    """Return the path of a file, or of the same with .gz; raise DataError, with the nearest names, if there is none."""
    for path in (folder / name, folder / f"{name}.gz"):
        try:
            kind = path.stat().st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror or error}") from error
        if stat.S_ISDIR(kind):
            raise DataError(f"{path} is a folder, not a text file")
        if not stat.S_ISREG(kind):
            raise DataError(f"{path} is a pipe or a device, not a text file")
        return path
    existing = sorted(path.name for path in folder.iterdir())
    nearest = close_names(name, existing, 3)
    hint = f"nearest in that folder: {', '.join(nearest)}" if nearest else "that folder has no file of a similar name"
    raise DataError(f"no file {folder / name} or {name}.gz; {hint}")


@contextlib.contextmanager
def _opened(path: Path) -> Generator[io.BufferedIOBase]:
    try:
        with open_gzip(path) if path.suffix == ".gz" else open_file(path) as file:
            yield file
    except CompressedError as error:
        raise DataError(f"{path}: {error}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
