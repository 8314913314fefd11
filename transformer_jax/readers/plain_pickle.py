"""Values that another library has pickled, without running code."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from transformer_jax.readers.files import read_bytes

_MAX_BYTES = 1 << 24


class _Plain(pickle.Unpickler):
    """Refuses every class and function, which are the only way in which a pickle runs code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is neither a text nor a number")


def read_plain_pickle(path: Path) -> Any:
    """Return pickled texts, numbers, lists, tuples, sets and mappings.

    Raises: OSError as `read_bytes`; ValueError if the file is damaged, or names a class or a function.
    """
    data = read_bytes(path, _MAX_BYTES)
    try:
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:  # damaged pickles raise a dozen types
        raise ValueError(f"it is not a pickle of plain values: {error}") from error
