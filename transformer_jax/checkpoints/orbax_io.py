"""Every call into Orbax.

This module uses the free functions of Orbax's v1 API, not its `training.Checkpointer`. In orbax-checkpoint 0.12.8 that
class skips saves silently by default, cannot be constructed if a metrics file of any old step is damaged, and deletes
old steps in place, so that a crash leaves half of a checkpoint under its final name.
"""

import collections
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import orbax.checkpoint
from orbax.checkpoint import v1 as ocp

from transformer_jax.errors import CheckpointError

STATE = "state"
_ORBAX_FOLDER = f"{orbax.checkpoint.__path__[0]}{os.sep}"


@runtime_checkable
class Writing(Protocol):
    """A write of arrays in progress."""

    def result(self) -> None:
        """Wait until all arrays are in the folder and it has its name; raises the error of the write."""
        ...


class _QuietOrbax(logging.Filter):
    """A filter that drops the log records of Orbax, and those of asyncio about tasks of Orbax.

    If one write of a save fails, Orbax does not collect the results of the others, and asyncio logs each of them. The
    failure itself arrives as an exception, which the store turns into a message.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != "asyncio":
            return not record.pathname.startswith(_ORBAX_FOLDER)
        failure = record.exc_info[1] if record.exc_info else None
        return _ORBAX_FOLDER not in record.getMessage() + "".join(traceback.format_exception(failure))


class _QuietTensorStore:
    """A replacement of sys.unraisablehook that drops the tracebacks of writes that end after a save has failed.

    If one write of a save fails, Orbax (0.12.8) closes the event loop that waits for the others. When another write
    ends, TensorStore calls the closed loop from one of its threads, where the exception cannot be raised.
    """

    def __init__(self, otherwise: Callable[[Any], Any]) -> None:
        self._otherwise = otherwise

    def __call__(self, unraisable: Any) -> None:
        start = unraisable.exc_traceback
        from_outside = unraisable.object is None and start is not None  # not called by Python code
        if not (
            from_outside
            and isinstance(unraisable.exc_value, RuntimeError)
            and str(unraisable.exc_value) == "Event loop is closed"
            and start.tb_frame.f_code.co_name == "call_soon_threadsafe"
        ):
            self._otherwise(unraisable)


def silence_orbax() -> None:
    """Keep Orbax's progress lines and tracebacks off stderr; log records of other libraries stay."""
    for logger in (logging.getLogger("absl"), logging.getLogger("asyncio")):
        if not any(isinstance(f, _QuietOrbax) for f in logger.filters):
            logger.addFilter(_QuietOrbax())
    if not isinstance(sys.unraisablehook, _QuietTensorStore):
        sys.unraisablehook = _QuietTensorStore(sys.unraisablehook)


_IN_FLIGHT = 256 * 1024**2


def _context(state: Any, partial_load: bool = False) -> ocp.Context:
    """Return Orbax's settings for a state: arrays, or shapes and types."""
    context = ocp.Context()
    # Orbax holds copies of all arrays that it is reading or writing. It needs room for the largest.
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)]
    limit = max([_IN_FLIGHT, *(size + 1 for size in sizes)])
    context.memory.read_concurrent_bytes = context.memory.write_concurrent_bytes = limit
    # If Orbax creates folders in the background and fails (full disk), its threads keep the process from exiting for 20
    # minutes.
    context.asynchronous.create_directories_asynchronously = False
    context.pytree.loading.partial_load = partial_load
    return context


def start_writing(folder: Path, state: Any) -> Writing:
    """Start writing arrays; returns when `state` may be donated or overwritten. Raises the errors of Orbax.

    On CPU, Orbax does not copy the arrays but holds references to their buffers. If such a buffer is donated, the
    runtime allocates a new one, so that on CPU too the state at the time of the call is written (tests/checkpoints/
    checks this).
    """
    with _context(state), jax.transfer_guard("allow"):
        return ocp.save_checkpointables_async(str(folder), {STATE: _without_empty_fields(state)})


def read(folder: Path, template: Any, partial: bool = False) -> Any:
    """Return the arrays of a checkpoint as described by `template` (ShapeDtypeStructs with shardings), not verified.

    With `partial`, `template` may name only some of the stored arrays. Raises CheckpointError.
    """
    try:
        with _context(template, partial), jax.transfer_guard("allow"):
            state = ocp.load_checkpointables(str(folder), {STATE: _without_empty_fields(template)})[STATE]
        return _with_empty_fields(jax.block_until_ready(state), template)
    except Exception as error:  # Orbax, TensorStore and JAX raise a dozen types
        raise CheckpointError(f"{folder}: the arrays cannot be read: {reason_of(error)}") from error


def _without_empty_fields(state: Any) -> Any:
    """Return a NamedTuple without the fields that are empty dicts; anything else unchanged.

    Orbax stores an entry for an empty dict and does not load a checkpoint without it. Leaving such fields out allows a
    new field that is empty by default: older checkpoints still load.
    """
    if not hasattr(state, "_fields"):
        return state
    fields = {name: value for name, value in state._asdict().items() if not (isinstance(value, dict) and not value)}
    return collections.namedtuple(type(state).__name__, fields)(**fields)


def _with_empty_fields(stored: Any, template: Any) -> Any:
    """Return the NamedTuple with the empty fields of the template again: the inverse of `_without_empty_fields`."""
    if not hasattr(template, "_fields"):
        return stored
    return type(template)(*(getattr(stored, name, {}) for name in template._fields))


def with_shardings(template: Any) -> Any:
    """Return the template as ShapeDtypeStructs; leaves without a sharding get this process's first device.

    Without a sharding, Orbax would use that of the devices on which the checkpoint was saved.
    """
    default = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None) or default)

    return jax.tree.map(with_sharding, template)


def reason_of(error: BaseException) -> str:
    """Return a short description of an error of a reader or writer."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip()
    # A ValueError of TensorStore has paths before the operating system's message, and details in brackets behind it.
    if "[os_error_code=" in text and (match := re.search(r": ([^:\[]+) \[\w+=", text)):
        return match[1]
    first_line = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first_line[:200]}"
