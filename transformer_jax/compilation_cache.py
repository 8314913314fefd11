"""Compiled programs on disk, so that the second run of a command does not compile them again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from transformer_jax.machine import processor_facts

_MIN_COMPILE_SECONDS = 0.2


def use_compilation_cache() -> None:
    """Has JAX keep compiled programs in ~/.cache/transformer_jax, or $XDG_CACHE_HOME/transformer_jax.

    What JAX_COMPILATION_CACHE_DIR says, and what a program has set, goes before; JAX_ENABLE_COMPILATION_CACHE=false
    turns it off. Call it before anything is compiled.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:  # ty: ignore[missing-attribute]
        return
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(home):  # nobody knows where home is
        return
    jax.config.update("jax_compilation_cache_dir", str(Path(home) / "transformer_jax" / f"xla-{_processor()}"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)


def _processor() -> str:
    """Tells processors apart: a program for one may have instructions that another in the same cluster lacks."""
    return hashlib.sha256("\n".join(processor_facts()).encode()).hexdigest()[:12]
