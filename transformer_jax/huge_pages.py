"""Huge memory pages for the heap, where Linux grants them to programs that ask.

XLA for CPU takes the buffers of every step anew from malloc, which for large ones maps fresh memory each time; with
pages of 4 KiB the kernel's work on page faults took a sixth to a quarter of a training step (benchmarks/README.md).
glibc can ask for huge pages, but reads that wish only when a process starts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
TUNABLE = "glibc.malloc.hugetlb"
RESTARTED = "TRANSFORMER_JAX_RESTARTED"
"""The process that has been restarted already; its number survives that, and the variable what drops the other one."""
_POLICY = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def environment_with_huge_pages(environment: Mapping[str, str], policy: str) -> dict[str, str] | None:
    """The environment that makes glibc ask for huge pages, or None where that changes nothing.

    Args:
      environment: of the process.
      policy: the kernel's, "always [madvise] never" with brackets around what is on.
    """
    before = environment.get(VARIABLE, "")
    restarted = environment.get(RESTARTED) == str(os.getpid())
    if "[madvise]" not in policy or TUNABLE in before or restarted:
        return None
    return {**environment, VARIABLE: f"{before}:{TUNABLE}=1".lstrip(":"), RESTARTED: str(os.getpid())}


def restart_with_huge_pages() -> None:
    """Replaces this process by itself, with the same arguments, if that gets it huge pages.

    Call it first: what the process has done by then is lost, or done twice.
    """
    try:
        policy = _POLICY.read_text()
    except OSError:  # no Linux, or one without huge pages
        return
    environment = environment_with_huge_pages(os.environ, policy)
    if environment is not None and sys.executable:
        with contextlib.suppress(OSError):  # slower, but as it is
            os.execve(sys.executable, sys.orig_argv, environment)
