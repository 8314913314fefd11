"""Translate lines of text from stdin to stdout, in their order.

    transformer-jax generate --checkpoint=runs/first < in.txt > out.txt

Text is UTF-8 whatever the locale says. Line n of the output translates line n of the input; an empty line stays
empty. A line that the model cannot take whole is an error that names it; nothing is cut.
"""

import contextlib
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from absl import flags

from transformer_jax.cli import exit_codes
from transformer_jax.cli.arguments import Arguments, checkpoint_flag, number, switch, text
from transformer_jax.errors import ConfigError, DataError

OVERRIDES = ()


def define(values: flags.FlagValues) -> None:
    checkpoint_flag(values)
    text(values, "input", "file to read instead of stdin")
    text(values, "output", "file to write instead of stdout; appears when all of it is written")
    switch(values, "force", "replace the output file if it exists")
    number(values, "average_checkpoints", "average the parameters of this many newest checkpoints")


def run(arguments: Arguments) -> int:
    checkpoint = Path(arguments.required("checkpoint"))
    values = arguments.flags
    with contextlib.ExitStack() as files:
        # Both are opened before the model is loaded: a wrong name is told at once.
        source, name = _open_input(values.input, files)
        output = files.enter_context(_open_output(values.output, values.force))

        from transformer_jax.evaluation.translate import Translator

        translator = Translator.from_checkpoint(checkpoint, values.average_checkpoints)
        for translation in translator.translate(decoded_lines(source, name)):
            # A model may generate a line break; line n of the output has to stay line n of the input.
            line = translation.replace("\r", " ").replace("\n", " ")
            output.write(line.encode("utf-8") + b"\n")
        output.flush()
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
        file = partial.open("xb")
    except OSError as error:
        raise ConfigError(f"--output={path}: cannot be written: {error.strerror}") from error
    try:
        with file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
