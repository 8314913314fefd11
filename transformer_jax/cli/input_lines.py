"""The input of commands that read lines of text: of a file, of stdin, or one line from a flag."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import flags

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.readers import lines_of, open_file, open_stream
from transformer_jax.tasks.trained.lines import Line


def open_input(
    values: flags.FlagValues, only_lines: Sequence[str], files: contextlib.ExitStack
) -> tuple[Iterable[bytes], str]:
    """Return the lines of the flag --input, or of stdin, or the only line that another flag has; and their name.

    Args:
      only_lines: the flags whose value is the only line, such as `text`.
    Raises: ConfigError if several flags are given; DataError if the file cannot be opened.
    """
    given = {flag: value for flag in (*only_lines, "input") if (value := values[flag].value) is not None}
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(f'--{flag}' for flag in given)}: give one of them")
    for flag in given.keys() & set(only_lines):
        return [given[flag].encode(errors="surrogatepass")], f"--{flag}"
    return open_lines("input", values.input, files)


def open_lines(flag: str, path: str | None, files: contextlib.ExitStack) -> tuple[Iterable[bytes], str]:
    """Return the lines of a file, or of stdin, and its name; raise DataError, which names the flag, if it fails."""
    if path is None:
        if sys.stdin is None:
            raise DataError(f"stdin is closed; pass --{flag}=FILE, or give it the lines")
        return _bounded(sys.stdin.buffer, "stdin"), "stdin"
    try:
        return _bounded(files.enter_context(open_stream(path)), path), path
    except OSError as error:
        raise DataError(f"--{flag}={path}: {error.strerror}") from error


def _bounded(stream: Any, name: str) -> Iterator[bytes]:
    """Yield the lines of a stream; raise DataError, which names it, for one that does not end."""
    try:
        yield from lines_of(stream)
    except ValueError as error:
        raise DataError(f"{name}: {error}, too many for one line of text") from error


def num_lines(path: str | None) -> int | None:
    """Return the number of lines of a file; None for a stream, whose length is unknown."""
    if path is None or not os.path.isfile(path):
        return None
    with open_file(path) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def decoded_lines(lines: Iterable[bytes], prompts: Iterable[bytes] | None, done: int = 0) -> Iterator[Line]:
    """Yield the lines to translate, decoded from UTF-8, without line ends and a leading byte order mark.

    Args:
      lines: split at \\n; prompts: of all lines, including those that are done.
      done: number of lines before these.
    Raises: DataError if there are fewer prompts than lines.
    """
    given = None if prompts is None else itertools.islice(prompts, done, None)
    for number, raw in enumerate(lines, start=done + 1):
        line, problem = _decoded(raw, number)
        prompt = None
        if given is not None:
            raw_prompt = next(given, None)
            if raw_prompt is None:
                raise DataError(f"--prompts: has {number - 1} lines, but the input has more; give one per input line")
            prompt, prompt_problem = _decoded(raw_prompt, number)
            problem = problem or (prompt_problem and f"its prompt is {prompt_problem}")
        yield Line(line, prompt, problem)


def _decoded(raw: bytes, number: int) -> tuple[str, str | None]:
    """Return a line as text, and None; or an empty line, and the problem."""
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return "", f"not valid UTF-8 (byte {error.object[error.start]:#04x} at column {error.start + 1})"
    return (line.removeprefix("\ufeff") if number == 1 else line).removesuffix("\n").removesuffix("\r"), None
