"""Huge memory pages for the heap, on Linux systems that give them to programs on request.

XLA:CPU allocates the buffers of every step with malloc, which maps new memory for each large buffer. With pages of
4 KiB, page faults took a sixth to a quarter of the time of a training step (benchmarks/README.md). glibc can request
huge pages, but reads this setting only when a process starts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from transformer_jax.readers import read_text

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
RESTARTED = "TRANSFORMER_JAX_RESTARTED"
"""Variable with the PID of the process that has already restarted itself.

exec keeps the PID, so a match means "do not restart again", even if a wrapper has removed GLIBC_TUNABLES.
"""
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def environment_with_huge_pages(environment: Mapping[str, str], policy: str) -> dict[str, str] | None:
    """Return the environment with which glibc requests huge pages; None if that would change nothing.

    Args:
      environment: of the process.
      policy: the kernel's setting, as in "always [madvise] never"; brackets mark the active choice.
    """
    before = environment.get(VARIABLE, "")
    restarted = environment.get(RESTARTED) == str(os.getpid())
    if "[madvise]" not in policy or TUNABLE in before or restarted:
        return None
    return {**environment, VARIABLE: f"{before}:{TUNABLE}=1".lstrip(":"), RESTARTED: str(os.getpid())}


def restart_with_huge_pages() -> None:
    """Restart this process with the same arguments, if that gives it huge pages.

    Call it first in a program: work done before it is lost or done twice.
    """
    try:
        policy = read_text(_POLICY)
    except OSError:  # not Linux, or Linux without huge pages
        return
    environment = environment_with_huge_pages(os.environ, policy)
    if environment is not None and sys.executable:
        with contextlib.suppress(OSError):  # continue without huge pages, only slower
            os.execve(sys.executable, sys.orig_argv, environment)
