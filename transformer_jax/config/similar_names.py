"""Names that are similar to a misspelled one."""

from __future__ import annotations

import difflib
import typing


def nearest(name: str, known: typing.Iterable[str], likeness: float = 0.5) -> str:
    """Return " (did you mean 'X'?)", or an empty text if no known name is similar; `likeness` as in `close_names`."""
    matches = close_names(name, known, 1, likeness)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def close_names(name: str, known: typing.Iterable[str], count: int, likeness: float = 0.5) -> list[str]:
    """Return up to `count` known names that are similar to a misspelled one, the most similar first.

    Args:
      likeness: lowest similarity of a returned name; 1 means equal.
    """
    return difflib.get_close_matches(name, list(known), n=count, cutoff=likeness)
