"""The worker process within a cluster's job: it is started there, and saves a checkpoint when the job must end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import transformer_jax
from transformer_jax.host.files import open_own_file

_SAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def python_path() -> str:
    """Return a PYTHONPATH with this package, so that workers find it in any folder, even if it is not installed.

    The folder of installed packages is left out: Python finds it, and in PYTHONPATH it would come before Python's own
    modules.
    """
    root = str(Path(transformer_jax.__file__).parent.parent)
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return os.pathsep.join(filter(None, ["" if root in installed else root, os.environ.get("PYTHONPATH", "")]))


def start_worker(
    command: Sequence[str], output: Path, environment: Mapping[str, str], note: str = "", cwd: str | None = None
) -> subprocess.Popen[bytes]:
    """Start the worker with the Python of this process.

    Args:
      command: command line made by the sweep; its first word, the sweep's Python, is replaced.
      output: file to which the note, then stdout and stderr are appended.
      environment: variables in addition to those of this process.
      cwd: current folder of the worker, to which relative paths refer; by default that of this process.
    """
    with open_own_file(output) as file:
        file.write(note.encode())
        file.flush()
        return subprocess.Popen(
            [sys.executable, *command[1:]],
            env={**os.environ, **environment, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=cwd,
        )


def run_worker(command: Sequence[str], output: Path) -> int:
    """Run the worker to its end and return its exit code; a signal to this process makes the worker save and exit.

    This process forwards every such signal as SIGTERM, at which the worker saves. Some clusters send the signal to all
    processes of a job; the worker therefore ignores SIGUSR2, which would kill it.
    """
    process: subprocess.Popen[bytes] | None = None
    asked = False

    def save(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if process is not None:
            process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, save) for number in _SAVE if number != signal.SIGUSR2}
    before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the worker inherits this
    try:
        process = start_worker(command, output, {})
        signal.signal(signal.SIGUSR2, save)
        if asked:
            process.send_signal(signal.SIGTERM)
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
