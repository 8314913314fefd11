"""Versions of the libraries that a result depends on."""

from __future__ import annotations

import importlib.metadata
import platform

from transformer_jax import __version__

_LIBRARIES = (
    *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("sentencepiece", "tokenizers", "sacrebleu", "sacremoses"),
)


def own_version() -> str:
    """Return the version of this package."""
    return __version__


def library_versions() -> dict[str, str]:
    """Return the installed versions by distribution name, with this package's own and Python's."""
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"transformer_jax": __version__, "python": platform.python_version(), **versions}
