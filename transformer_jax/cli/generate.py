"""Translate lines of text from stdin to stdout, in their order.

    transformer-jax generate --checkpoint=runs/first < in.txt > out.txt

Text is UTF-8 whatever the locale says. Line n of the output translates line n of the input; an empty line stays
empty. A line that the model cannot take whole is an error that names it. A translation that reaches the limit, its
source's pieces and --evaluation.max_extra_length more or what the model has room for, ends there; a warning says how
many did.
"""

import contextlib
import io
import logging
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from absl import flags

from transformer_jax.cli import exit_codes
from transformer_jax.cli.arguments import Arguments, checkpoint_flag, path_flag, switch
from transformer_jax.cli.streams import NamedFile
from transformer_jax.errors import ConfigError, DataError

OVERRIDES = ("evaluation",)

_NAMED_LINES = 5  # line numbers that the warning lists

logger = logging.getLogger(__name__)


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    path_flag(values, "input", "file to read instead of stdin")
    path_flag(values, "output", "file to write instead of stdout; appears when all of it is written")
    switch(values, "force", "replace the output file if it exists")


def run(arguments: Arguments) -> int:
    checkpoint = Path(arguments.required("checkpoint"))
    values = arguments.flags
    with contextlib.ExitStack() as files:
        # Both are opened before the model is loaded: a wrong name is told at once.
        source, name = _open_input(values.input, files)
        output = files.enter_context(_open_output(values.output, values.force))

        from transformer_jax.evaluation.translate import Translator, on_one_line

        translator, unfinished = Translator.from_checkpoint(checkpoint, arguments.overrides), []
        for chunk in translator.translate(decoded_lines(source, name)):
            output.writelines(on_one_line(line).encode("utf-8") + b"\n" for line in chunk.lines)
            unfinished += chunk.unfinished
        output.flush()
    if unfinished:
        logger.warning(
            "translations that reached the length limit and end there: %d (line %s); "
            "--evaluation.max_extra_length=N sets how many pieces more than its source one may have",
            len(unfinished),
            ", ".join(map(str, unfinished[:_NAMED_LINES])) + (", ..." if len(unfinished) > _NAMED_LINES else ""),
        )
    return exit_codes.OK


def decoded_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of UTF-8 as text, without line ends and a leading byte order mark.

    Args:
      lines: split at \\n; name: what an error calls their source.
    Raises: DataError naming the first line that is not UTF-8.
    """
    for number_, line in enumerate(lines, start=1):
        try:
            decoded = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number_}: not valid UTF-8 (byte {error.object[error.start]:#04x} at column "
                f"{error.start + 1}); convert the text to UTF-8 first"
            ) from None
        if number_ == 1:
            decoded = decoded.removeprefix("\ufeff")
        yield decoded.removesuffix("\n").removesuffix("\r")


def _open_input(path: str | None, files: contextlib.ExitStack) -> tuple[Iterable[bytes], str]:
    if path is None:
        return sys.stdin.buffer, "stdin"
    try:
        return files.enter_context(open(path, "rb")), path
    except OSError as error:
        raise DataError(f"--input={path}: {error.strerror}") from error


@contextlib.contextmanager
def _open_output(path: str | None, force: bool) -> Generator[BinaryIO]:
    """Where translations go: stdout, or a file that replaces `path` once all of it is written."""
    if path is None:
        yield sys.stdout.buffer
        return
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"--output={path}: is a folder")
    if target.exists() and not force:
        raise ConfigError(f"--output={path}: exists already; --force replaces it")
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        file = io.BufferedWriter(NamedFile(partial, "xb", f"--output={path}"))
    except OSError as error:
        raise ConfigError(f"--output={path}: cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
