"""Classification of exceptions: errors that the user can fix get a message, defects of the program a traceback."""

from __future__ import annotations

import errno
import re

from transformer_jax.errors import UserError

# Errors of the machine that the user can fix, wherever they are raised.
_MACHINE = {
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "EMFILE", "ENFILE"),
        *("ENAMETOOLONG", "ELOOP", "EISDIR", "ENOTDIR", "ENXIO"),
    )
    if hasattr(errno, name)
}
# Parts of the messages by which JAX's collectives and its coordination service report that a process is gone.
_LOST = re.compile(
    r"Gloo|NCCL|[Bb]arrier|coordination|UNAVAILABLE|DEADLINE_EXCEEDED|[Hh]eartbeat|[Cc]onnection (closed|r)"
)


def user_message(error: BaseException) -> str | None:
    """Return the message for the user; None if the error is a defect of the program and needs its traceback."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _MACHINE:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    if _of_runtime(error) and "RESOURCE_EXHAUSTED" in str(error):
        first_line = str(error).strip().partition("\n")[0]
        return (
            f"the device has too little memory: {first_line[:200]}; set a smaller data.tokens_per_batch, or see the "
            'section "Memory" of docs/scaling.md'
        )
    return None


def lost_process(error: BaseException | None) -> str:
    """Return the message of JAX's runtime if the error was caused by a process that is gone; otherwise "".

    The causes of the error are searched too: a failed save, for example, may be caused by a lost process.
    """
    while error is not None:
        if _of_runtime(error) and _LOST.search(str(error)):
            return str(error).strip().partition("\n")[0][:300]
        error = error.__cause__ or error.__context__
    return ""


def _of_runtime(error: BaseException) -> bool:
    return type(error).__name__ == "JaxRuntimeError"  # by name, so as not to import JAX here
