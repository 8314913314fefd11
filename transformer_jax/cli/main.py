"""Entry point: finds the command, runs it, and turns errors into a message and an exit code."""

from __future__ import annotations

import importlib.metadata
import io
import logging
import platform
import sys
import traceback
from collections.abc import Sequence

from transformer_jax.cli.arguments import parse, trusted_modules
from transformer_jax.cli.failures import user_message
from transformer_jax.cli.help import COMMANDS, command_help, command_module, program_help
from transformer_jax.cli.streams import STDOUT, name_stdout, open_closed_streams, release_stdout
from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.terminal import printable, signs_of_life
from transformer_jax.registry import blamed
from transformer_jax.trust import command as trusting_nothing
from transformer_jax.trust import trust_modules


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
      argv: the command and its flags; default those of this process.
    Returns: the exit code, one of `exit_codes`.
    Raises: the exception, if it is a defect of the program and not an error that the user can fix.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("transformer-jax: interrupted", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and error.filename == STDOUT:  # the reader has closed the pipe
            return exit_codes.BROKEN_PIPE
        message = user_message(error)
        if message is None and (names := blamed(error)):  # in code of the user, who needs its traceback
            traceback.print_exc()
            message = f"{', '.join(names)}: {type(error).__name__}: {error}"
        if message is None:
            raise
        return _report(message, argv)
    finally:
        release_stdout()


def _dispatch(argv: list[str]) -> int:
    if not argv:
        print(program_help(), file=sys.stderr)
        return exit_codes.USER_ERROR
    name, rest = argv[0], argv[1:]
    if name in ("-h", "--help", "--helpfull", "help"):
        print(program_help())
    elif name == "--version":
        print(_version())
    elif name not in COMMANDS:
        kind = "flag" if name.startswith("-") else "command"
        hint = nearest(name, [*COMMANDS, "--help", "--version"])
        raise ConfigError(f"unknown {kind} '{name}'{hint}; commands are {', '.join(COMMANDS)}")
    elif asked := {"-h", "--help", "--helpfull"}.intersection(rest):
        print(command_help(name, full="--helpfull" in asked))
    else:
        command = command_module(name)
        with trusting_nothing():
            arguments = parse(command, f"transformer-jax {name}", rest)
            trust_modules(trusted_modules(arguments.flags), "--trust")
            with signs_of_life():
                return command.run(arguments)
    return exit_codes.OK


def _version() -> str:
    version = importlib.metadata.version
    return (
        f"transformer-jax {version('transformer-jax')} (jax {version('jax')}, flax {version('flax')}, "
        f"Python {platform.python_version()})"
    )


def _report(message: str, argv: list[str]) -> int:
    if "--debug" in argv:
        traceback.print_exc()
    print(f"transformer-jax: error: {printable(message)}", file=sys.stderr)
    return exit_codes.USER_ERROR


class _Messages(logging.Handler):
    """A handler that prints warnings of this package in the form of its errors."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"transformer-jax: {record.levelname.lower()}: {printable(self.format(record))}", file=sys.stderr)


def _prepare_streams() -> None:
    logger = logging.getLogger("transformer_jax")
    if not any(isinstance(handler, _Messages) for handler in logger.handlers):
        logger.addHandler(_Messages())
    open_closed_streams()
    name_stdout()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show must not be an error
            stream.reconfigure(errors="backslashreplace")
