"""Flags to run a command as one of several processes, and the end of such a process."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from absl import flags

from transformer_jax.cli.arguments import Arguments, choice_flag, integer, text
from transformer_jax.cli.failures import lost_process, user_message
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.terminal import be_silent

if TYPE_CHECKING:
    from transformer_jax.parallel.processes import Job

NAMES = ("coordinator", "num_processes", "process_id")


def process_flags(values: flags.FlagValues) -> None:
    text(values, "coordinator", "HOST:PORT of process 0, the same for all processes; only with several processes")
    integer(values, "num_processes", "number of processes", None, 1)
    integer(values, "process_id", "number of this process, from 0", None, 0)
    choice_flag(
        values,
        "cluster",
        "read these three flags from the environment of a job of this cluster",
        "none",
        ("none", "slurm"),
    )


def job_of(arguments: Arguments) -> Job | None:
    """Return the job that the flags describe; None for a single process.

    Raises: ConfigError if the flags do not fit together.
    """
    from transformer_jax.parallel.processes import Job, slurm_job

    given: dict[str, Any] = {name: arguments.flags[name].value for name in NAMES}
    named = [f"--{name}" for name, value in given.items() if value is not None]
    if arguments.flags.cluster == "slurm":
        if named:
            raise ConfigError(f"--cluster=slurm cannot be combined with {', '.join(named)}; pass one or the other")
        return slurm_job(os.environ)
    if not named:
        return None
    if missing := [f"--{name}" for name, value in given.items() if value is None]:
        raise ConfigError(f"{', '.join(named)} without {', '.join(missing)}: several processes need all three")
    return Job(given["coordinator"], given["num_processes"], given["process_id"])


@contextlib.contextmanager
def in_job(job: Job | None) -> Generator[None]:
    """Run the body as one process of a job, or as a single process if there is no job.

    A process of a job that fails does not wait for the others, which may be waiting for it, but exits at once. The
    others exit when they notice: at the next exchange of numbers with it, or when its heartbeat is missing.
    """
    if job is None:
        yield
        return
    import jax

    from transformer_jax.parallel.processes import start

    start(job)
    if job.process_id:  # process 0 prints the warnings
        logging.getLogger("transformer_jax").setLevel(logging.ERROR)
        be_silent()
    try:
        yield
        jax.distributed.shutdown()
    except KeyboardInterrupt:
        _end(job, "interrupted", exit_codes.INTERRUPTED)
    except Exception as error:
        if lost := lost_process(error):
            _end(
                job,
                "error: another process of the job has exited or cannot be reached; restart all processes to resume "
                f"from the newest checkpoint ({lost})",
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
    os._exit(code)  # skips the clean-up, which would wait for the others
