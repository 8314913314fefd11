"""Failures as the user sees them: a message for an expected error, a traceback for a defect of this program."""

from __future__ import annotations

import errno
import re

from transformer_jax.errors import UserError

# What the machine refuses is for the user to put right, wherever it happens.
_MACHINE = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM", "EIO", "EMFILE", "ENFILE")
    if hasattr(errno, name)
}
# How JAX's runtime tells that a process is gone: its collectives, its coordination service.
_LOST = re.compile(
    r"Gloo|NCCL|[Bb]arrier|coordination|UNAVAILABLE|DEADLINE_EXCEEDED|[Hh]eartbeat|[Cc]onnection (closed|r)"
)


def user_message(error: BaseException) -> str | None:
    """Return the message for an error; None if it is a defect of the program, which keeps its traceback."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _MACHINE:
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    if _of_runtime(error) and "RESOURCE_EXHAUSTED" in str(error):
        first_line = str(error).strip().partition("\n")[0]
        return (
            f"the device has too little memory: {first_line[:200]}; set a smaller data.tokens_per_batch, or "
            'another setting of the section "Memory" of docs/scaling.md'
        )
    return None


def lost_process(error: BaseException | None) -> str:
    """Return the message of JAX's runtime if an error, also that of a save, comes from a lost process; else ""."""
    while error is not None:
        if _of_runtime(error) and _LOST.search(str(error)):
            return str(error).strip().partition("\n")[0][:300]
        error = error.__cause__ or error.__context__
    return ""


def _of_runtime(error: BaseException) -> bool:
    return type(error).__name__ == "JaxRuntimeError"  # told by name, since JAX is not imported for an error's sake
