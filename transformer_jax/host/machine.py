"""The processor of this machine."""

from __future__ import annotations

import os
import platform

from transformer_jax.readers import read_text


def processor_facts() -> list[str]:
    """Return lines that identify the processor, such as `model name : ...`; without /proc, Python's own description."""
    try:
        lines = read_text("/proc/cpuinfo", errors="replace").splitlines()
    except OSError:
        lines = [platform.processor()]
    return sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))} or set(lines))


def processor() -> str:
    """Return the processor's name, or else its architecture, with the number of cores that this process may use."""
    names = [line.partition(":")[2].strip() for line in processor_facts() if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return f"{cores} x {names[0] if names else platform.processor() or platform.machine()}"
