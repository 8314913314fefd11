"""The flags by which a command runs as one of several processes, and how such a process ends."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax import exit_codes
from transformer_jax.cli.arguments import Arguments, choice_flag, integer, text
from transformer_jax.cli.failures import lost_process, user_message
from transformer_jax.errors import ConfigError

if TYPE_CHECKING:
    from transformer_jax.parallel.processes import Job

NAMES = ("coordinator", "num_processes", "process_id")


def process_flags(values: flags.FlagValues) -> None:
    text(values, "coordinator", "HOST:PORT of process 0, if there are several; the same for all")
    integer(values, "num_processes", "how many there are", None, 1)
    integer(values, "process_id", "which this is, from 0", None, 0)
    choice_flag(values, "cluster", "where the three are taken from instead", "none", ("none", "slurm"))


def job_of(arguments: Arguments) -> Job | None:
    """The job that the flags describe; None for a process of its own.

    Raises: ConfigError for flags that do not go together.
    """
    from transformer_jax.parallel.processes import Job, slurm_job

    given: dict[str, Any] = {name: arguments.flags[name].value for name in NAMES}
    named = [f"--{name}" for name, value in given.items() if value is not None]
    if arguments.flags.cluster == "slurm":
        if named:
            raise ConfigError(f"--cluster=slurm says what {', '.join(named)} would say; give one or the other")
        return slurm_job(os.environ)
    if not named:
        return None
    if missing := [f"--{name}" for name, value in given.items() if value is None]:
        raise ConfigError(f"{', '.join(named)} without {', '.join(missing)}: several processes need all three")
    return Job(given["coordinator"], given["num_processes"], given["process_id"])


@contextlib.contextmanager
def joined(job: Job | None) -> Generator[None]:
    """The body runs as one process of a job, together with all others, or by itself if there is no job.

    A process that fails in a job does not wait for the others, who may be waiting for it, but ends at once, and so do
    they when they notice: where they exchange numbers with it, or for lack of its heartbeat.
    """
    if job is None:
        yield
        return
    import jax

    from transformer_jax.parallel.processes import start

    start(job)
    if job.process_id:  # what process 0 says is said
        logging.getLogger("transformer_jax").setLevel(logging.ERROR)
    try:
        yield
        jax.distributed.shutdown()
    except KeyboardInterrupt:
        _end(job, "interrupted", exit_codes.INTERRUPTED)
    except Exception as error:
        if lost := lost_process(error):
            _end(
                job,
                "error: another process of the job has ended or cannot be reached; start them all again to go on from "
                f"the newest checkpoint ({lost})",
                exit_codes.LOST_PROCESS,
            )
        if message := user_message(error):
            _end(job, f"error: {message}", exit_codes.USER_ERROR)
        _end(job, traceback.format_exc(), exit_codes.DEFECT)


def _end(job: Job, message: str, code: int) -> None:
    from transformer_jax.parallel.processes import farewell

    print(f"transformer-jax: process {job.process_id} of {job.num_processes}: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    farewell(job)
    os._exit(code)  # without the clean-up, which waits for the others
