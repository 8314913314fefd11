"""Regular expressions of the user: refused if they cannot be a part of a longer one, or could take unbounded time."""

from __future__ import annotations

import re

MAX_REPETITIONS = 4
"""Most `*`, `+`, `?` and `{m,n}` of a pattern that can match in several ways. With n of them, the time can grow as the
n-th power of the length."""

_REPETITION = re.compile(r"(?:[*+?]|\{(?P<least>\d*)(?P<comma>,(?P<most>\d*))?\})[?+]?")


def check_pattern(pattern: str) -> None:
    """Check a regular expression.

    Raises: ValueError, whose text says why, if it is none, has flags for the whole pattern, such as `(?i)`, repeats a
    group that has a choice or a repetition inside, or has more than `MAX_REPETITIONS`.
    """
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"'{pattern}' is not a regular expression: {error}; it cannot contain commas") from error
    try:
        re.compile(f"(?:{pattern})(?:/|$)")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"'{pattern}' cannot be a part of a longer regular expression: {error}; write (?i:...) in place of (?i)..."
        ) from error
    _check_time(pattern)


def _check_time(pattern: str) -> None:
    """Raise ValueError if trying all ways to match could take more than polynomial time, or a high power."""
    counts = [0]  # by open group: the repetitions in it that can match in several ways
    choices = [False]  # by open group: whether there are alternatives in it
    ways = 0  # of the item before this place, if it is a group that can match in several ways
    item = ""
    place = 0
    while place < len(pattern):
        character, repetition = pattern[place], _REPETITION.match(pattern, place)
        if character == "(":
            counts.append(0)
            choices.append(False)
            place, item, ways = place + (2 if pattern.startswith("(?", place) else 1), "", 0
        elif character == ")":
            inside, has_choice = counts.pop(), choices.pop()
            ways, item = inside + has_choice, ""
            counts[-1] += inside
            choices[-1] |= has_choice
            place += 1
        elif repetition and repetition[0] != "{}":
            most = _most(repetition)
            if ways and most is None:
                raise ValueError(
                    f"'{pattern}' repeats a group that has a choice or a repetition inside, which could take forever; "
                    "leave out the inner or the outer repetition"
                )
            is_fixed = repetition["least"] is not None and repetition["comma"] is None
            place = repetition.end()
            counts[-1] += ways * max((most or 0) - 1, 0) + (not is_fixed and not _ends_itself(pattern, place, item))
            item, ways = "", 0
        else:
            choices[-1] |= character == "|"
            end = _end_of_item(pattern, place)
            place, item, ways = end, pattern[place:end], 0
    if counts[0] > MAX_REPETITIONS:
        raise ValueError(
            f"'{pattern}' has {counts[0]} repetitions, such as * and ?, counting one in a repeated group as often as "
            f"it is repeated; at most {MAX_REPETITIONS} are allowed, since more could take forever. Use several "
            "patterns, or a set that excludes the next character, as in [^/]*/"
        )


def _most(repetition: re.Match[str]) -> int | None:
    """Return how often an item is repeated at most; None if there is no limit."""
    if repetition[0][0] == "?":
        return 1
    if repetition["least"] is None:
        return None
    text = repetition["most"] if repetition["comma"] else repetition["least"]
    return int(text) if text else None


def _ends_itself(pattern: str, place: int, item: str) -> bool:
    """Return whether the repetition of an item before this place can match in one way only.

    It can if the next character is a fixed one that the item does not match: then no shorter repetition is possible.
    Spaces and `#` do not count, since `(?x:...)` skips them.
    """
    end = _end_of_item(pattern, place) if place < len(pattern) else place
    following = pattern[place:end] or "/"  # see `check_pattern`
    is_fixed = re.fullmatch(r"[^][(){}*+?.|^$\\\s#]|\\[^\w\s]", following) is not None
    if not (item and is_fixed) or _REPETITION.match(pattern, end):
        return False
    return re.fullmatch(item, following[-1], re.IGNORECASE) is None


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
