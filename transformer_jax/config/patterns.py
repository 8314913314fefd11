"""Regular expressions of the user: refused if they cannot be a part of a longer one, or could take unbounded time."""

from __future__ import annotations

import re

MAX_REPETITIONS = 4
"""Most `*`, `+`, `?` and `{m,n}` of a pattern. With n of them, the time can grow as the n-th power of the length."""

_REPETITION = re.compile(r"(?:[*+?]|\{(?P<least>\d*)(?P<comma>,(?P<most>\d*))?\})[?+]?")


def check_pattern(pattern: str) -> None:
    """Check a regular expression.

    Raises: ValueError, whose text says why, if it is none, has flags for the whole pattern, such as `(?i)`, repeats a
    group that has a choice or a repetition inside, or has more than `MAX_REPETITIONS`.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'{pattern}' is no regular expression: {error}; it cannot contain commas") from error
    try:
        re.compile(f"(?:{pattern})(?:/|$)")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"'{pattern}' cannot be a part of a longer regular expression: {error}; write (?i:...) in place of (?i)..."
        ) from error
    _check_time(pattern)


def _check_time(pattern: str) -> None:
    """Raise ValueError if trying all ways to match could take more than polynomial time, or a high power."""
    inside = [False]  # by open group: whether something in it can match in several ways
    varies = False  # whether the item before this place is a group that can
    count = place = 0
    while place < len(pattern):
        character, repetition = pattern[place], _REPETITION.match(pattern, place)
        if character == "(":
            inside.append(False)
            place, varies = place + (2 if pattern.startswith("(?", place) else 1), False
        elif character == ")":
            varies = inside.pop()
            inside[-1] |= varies
            place += 1
        elif repetition and repetition[0] != "{}":
            least, most = repetition["least"], repetition["most"]
            is_fixed = least is not None and repetition["comma"] is None
            is_once = character == "?" or (is_fixed and int(least or 0) <= 1) or most in ("0", "1")
            if varies and not is_once:
                raise ValueError(
                    f"'{pattern}' repeats a group that has a choice or a repetition inside, which could take forever; "
                    "leave out the inner or the outer repetition"
                )
            count += not is_fixed
            inside[-1] |= not is_fixed
            place, varies = repetition.end(), False
        else:
            inside[-1] |= character == "|"
            place, varies = _end_of_item(pattern, place), False
    if count > MAX_REPETITIONS:
        raise ValueError(
            f"'{pattern}' has {count} repetitions, such as * and ?; at most {MAX_REPETITIONS} are allowed, since more "
            "could take forever; use several patterns"
        )


def _end_of_item(pattern: str, place: int) -> int:
    """Return the place after a character, an escape or a set such as `[^a-z]`."""
    if pattern[place] == "\\":
        return place + 2
    if pattern[place] != "[":
        return place + 1
    place += 2 if pattern.startswith("[^", place) else 1
    place += pattern.startswith("]", place)  # first, it is a character of the set
    while place < len(pattern) and pattern[place] != "]":
        place += 2 if pattern[place] == "\\" else 1
    return place + 1
