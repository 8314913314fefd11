"""Every call into Orbax.

The free functions of Orbax's v1 API, and not its `training.Checkpointer`, which (orbax-checkpoint 0.12.8) skips saves
without a word unless told otherwise, cannot be constructed once a metrics file of any old step is damaged, and deletes
old steps in place, so that a crash leaves half of one under its final name.
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
    """Arrays that are being written."""

    def result(self) -> None:
        """Waits until all of them are in the folder, under its name; raises whatever went wrong."""
        ...


class _QuietOrbax(logging.Filter):
    """Drops what Orbax logs through absl, and what asyncio logs about tasks of Orbax.

    When one write of a save fails, Orbax asks none of the others what became of it, and asyncio tells of each. What
    went wrong arrives as an exception, which the store turns into a message.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != "asyncio":
            return not record.pathname.startswith(_ORBAX_FOLDER)
        failure = record.exc_info[1] if record.exc_info else None
        return _ORBAX_FOLDER not in record.getMessage() + "".join(traceback.format_exception(failure))


class _QuietTensorStore:
    """In place of sys.unraisablehook: drops the tracebacks of writes that end after a save has failed.

    When one write of a save fails, Orbax (0.12.8) closes the event loop that waits for the others. Each of those, when
    it ends, has TensorStore call the loop from a thread of its own, which has no way to raise what that raises.
    """

    def __init__(self, otherwise: Callable[[Any], Any]) -> None:
        self._otherwise = otherwise

    def __call__(self, unraisable: Any) -> None:
        start = unraisable.exc_traceback
        from_outside = unraisable.object is None and start is not None  # no Python code has made the call
        if not (
            from_outside
            and isinstance(unraisable.exc_value, RuntimeError)
            and str(unraisable.exc_value) == "Event loop is closed"
            and start.tb_frame.f_code.co_name == "call_soon_threadsafe"
        ):
            self._otherwise(unraisable)


def silence_orbax() -> None:
    """Keeps Orbax's progress lines and tracebacks off stderr; other users of absl and asyncio keep theirs."""
    for logger in (logging.getLogger("absl"), logging.getLogger("asyncio")):
        if not any(isinstance(f, _QuietOrbax) for f in logger.filters):
            logger.addFilter(_QuietOrbax())
    if not isinstance(sys.unraisablehook, _QuietTensorStore):
        sys.unraisablehook = _QuietTensorStore(sys.unraisablehook)


def _context(partial_load: bool = False) -> ocp.Context:
    context = ocp.Context()
    # Made in the background, a folder that cannot be made (full disk) leaves threads that keep the process from
    # exiting for 20 minutes.
    context.asynchronous.create_directories_asynchronously = False
    context.pytree.loading.partial_load = partial_load
    return context


def start_writing(folder: Path, state: Any) -> Writing:
    """Starts writing arrays; returns once `state` may be donated or overwritten. Raises whatever Orbax does.

    On CPU Orbax does not copy the arrays but refers to their buffers, and the runtime answers a donation of such a
    buffer with a new one, so that here too what is written is the state of this moment (tests/checkpoints/ checks).
    """
    with _context(), jax.transfer_guard("allow"):
        return ocp.save_checkpointables_async(str(folder), {STATE: _without_empty_fields(state)})


def read(folder: Path, template: Any, partial: bool = False) -> Any:
    """The arrays of a checkpoint as `template` (ShapeDtypeStructs with shardings) describes them, not yet verified.

    With `partial`, `template` may name only some of the stored arrays. Raises CheckpointError.
    """
    try:
        with _context(partial), jax.transfer_guard("allow"):
            state = ocp.load_checkpointables(str(folder), {STATE: _without_empty_fields(template)})[STATE]
        return _with_empty_fields(jax.block_until_ready(state), template)
    except Exception as error:  # Orbax, TensorStore and JAX raise a dozen types
        raise CheckpointError(f"{folder}: the arrays cannot be read: {reason(error)}") from error


def _without_empty_fields(state: Any) -> Any:
    """Return a NamedTuple without those of its fields that are empty dicts; anything else as it is.

    Orbax stores an entry for an empty dict and does not load a checkpoint that lacks it. So a state can get a field
    that is empty by default, and checkpoints from before still load.
    """
    if not hasattr(state, "_fields"):
        return state
    fields = {name: value for name, value in state._asdict().items() if not (isinstance(value, dict) and not value)}
    return collections.namedtuple(type(state).__name__, fields)(**fields)


def _with_empty_fields(stored: Any, template: Any) -> Any:
    """Return what `_without_empty_fields` was made of, from the template that had the fields."""
    if not hasattr(template, "_fields"):
        return stored
    return type(template)(*(getattr(stored, name, {}) for name in template._fields))


def with_shardings(template: Any) -> Any:
    """The template as ShapeDtypeStructs; leaves without a sharding get this process's first device.

    Without a sharding Orbax would take the one of the devices that the checkpoint was saved on.
    """
    default = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])

    def with_sharding(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None) or default)

    return jax.tree.map(with_sharding, template)


def reason(error: BaseException) -> str:
    """An error of a reader or writer in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip()
    if match := re.search(r": ([^:]+) \[os_error_code=", text):  # TensorStore's: a ValueError with the path in it
        return match[1]
    first_line = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first_line[:200]}"
