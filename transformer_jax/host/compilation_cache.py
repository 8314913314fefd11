"""Cache of compiled programs on disk, so that a second run of a command does not compile again."""

from __future__ import annotations

import hashlib

from transformer_jax.host.files import user_cache
from transformer_jax.host.machine import processor_facts

_MIN_COMPILE_SECONDS = 0.2


def use_compilation_cache() -> None:
    """Make JAX store compiled programs in ~/.cache/transformer_jax, or $XDG_CACHE_HOME/transformer_jax.

    JAX_COMPILATION_CACHE_DIR, or a folder that the program has set, takes precedence. The setting
    JAX_ENABLE_COMPILATION_CACHE=false turns the cache off. Call this function before anything is compiled.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:  # ty: ignore[missing-attribute]
        return
    folder = user_cache()
    if folder is None:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder / f"xla-{_processor()}"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_SECONDS)


def _processor() -> str:
    """Return a hash of the processor: another one in the same cluster may lack instructions of a compiled program."""
    return hashlib.sha256("\n".join(processor_facts()).encode()).hexdigest()[:12]
