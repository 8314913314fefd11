"""Errors of JAX's runtime, reported in the user's words."""

import errno

import jax
import pytest

from transformer_jax.cli.failures import lost_process, user_message
from transformer_jax.errors import CheckpointError

GONE = [
    "UNKNOWN: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer",
    "INTERNAL: Barrier failed because: task is set to ERROR",
    "UNAVAILABLE: Failed to send RPC to coordination service.",
    "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled system error",
]
NOT_GONE = [
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1000 bytes.",
    "INVALID_ARGUMENT: Executable expected parameter 0 of size 4 but got buffer with incompatible size 8",
    "UNIMPLEMENTED: no such kernel",
]


@pytest.mark.parametrize("text", GONE)
def test_a_process_that_is_gone(text):
    error = jax.errors.JaxRuntimeError(f"{text}\nmore")
    assert lost_process(error) == text
    assert user_message(error) is None
    failure = CheckpointError("5: could not be saved")
    failure.__cause__ = error
    assert lost_process(failure) == text


@pytest.mark.parametrize("text", NOT_GONE)
def test_other_errors_are_not_a_lost_process(text):
    assert lost_process(jax.errors.JaxRuntimeError(text)) == ""
    assert lost_process(RuntimeError(GONE[0])) == ""


def test_too_little_memory():
    message = user_message(jax.errors.JaxRuntimeError(NOT_GONE[0]))
    assert message is not None
    assert "too little memory: RESOURCE_EXHAUSTED: Out of memory" in message
    assert user_message(jax.errors.JaxRuntimeError(NOT_GONE[1])) is None


def test_the_machine_and_the_program():
    assert user_message(OSError(errno.ENOSPC, "No space left on device", "a")) == "a: No space left on device"
    assert user_message(CheckpointError("x")) == "x"
    assert user_message(OSError(errno.ENOENT, "No such file")) is None
    assert user_message(ValueError("x")) is None
