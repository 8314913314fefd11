"""The character rules of SentencePiece models, in the library `tokenizers`.

A rule replaces a character, or a character and the marks that follow it, such as `e` and U+0301 by `é`. SentencePiece
applies the longest rule at every place, from left to right. The library's `Precompiled` has the same table, but looks
up whole graphemes by their beginning, and so loses marks: it makes `fi` of the ligature with an acute accent. Here a
control character between two characters keeps them apart. Only where a rule has both, there is none, and NFKC joins
them.
"""

from __future__ import annotations

import functools
import re
import struct
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import ConfigError

_LEAF, _LABEL, _VALUE = 1 << 8, (1 << 31) | 0xFF, (1 << 31) - 1
_LONGEST = 256
_MARKER = "\ufff0"  # never assigned; breaks graphemes and stops compositions
_ESCAPE, _IS_KEPT, _IS_ESCAPE = "\ufdd0", "\ufdd1", "\ufdd2"  # stand for characters that NFKC must leave alone
_BETWEEN = "\u732b"  # between the keys of the check; no rule has it
# Characters that never join the one before or after them in a grapheme.
_ALONE = (
    r"[\x{0}-\x{c}\x{e}-\x{2ff}\x{370}-\x{482}\x{48a}-\x{52f}\x{2010}-\x{2027}\x{2030}-\x{205e}\x{20a0}-\x{20c0}"
    r"\x{2100}-\x{2bff}\x{3000}-\x{3029}\x{3041}-\x{3096}\x{309b}-\x{30ff}\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}"
    r"\x{ac00}-\x{d7a3}\x{ff01}-\x{ff60}]"
)


@functools.lru_cache(maxsize=4)
def read_rules(table: bytes) -> Mapping[str, str]:
    """Return what the rules of a SentencePiece model replace, and by what.

    The table has the size of a double-array trie of UTF-8 bytes, the trie, and the replacements, each ended by 0.

    Raises: ConfigError if it has another form.
    """
    if not table:
        return {}
    try:
        (size,) = struct.unpack_from("<I", table)
        units = np.frombuffer(table, "<u4", size // 4, 4)
        replacements = table[4 + size :]
        labels, below = units & _LABEL, _below(np.arange(len(units)), units)
        children: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        for place in np.flatnonzero((labels > 0) & (labels < 256)).tolist():
            children[place ^ int(labels[place])].append((bytes([labels[place]]), place))
        leaves, places = (units & _LEAF).tolist(), below.tolist()
        rules: dict[str, str] = {}
        nodes = [(places[0], b"")]
        while nodes:
            base, key = nodes.pop()
            if len(key) > _LONGEST:
                raise ValueError(f"a rule is longer than {_LONGEST} bytes")
            for byte, place in children.get(base, ()):
                nodes.append((places[place], key + byte))
                if leaves[place]:
                    start = int(units[places[place]]) & _VALUE
                    rules[(key + byte).decode()] = replacements[start : replacements.index(0, start)].decode()
    except (struct.error, IndexError, ValueError) as error:
        raise ConfigError(f"the character rules of the SentencePiece model are damaged: {error}") from error
    return rules


def _below(places: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return the places of the trie from which those of the next byte are found, int64."""
    units = units.astype(np.int64)
    return places ^ ((units >> 10) << ((units & 512) >> 6))


@functools.lru_cache(maxsize=4)
def rule_normalizers(table: bytes, symbols: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Return normalizers of the library that apply the rules of a table to a text that begins with a space.

    Rules for characters that are newer than the library's NFKC, such as outlined letters with accents, replace the
    characters alone and leave their marks.

    Args:
      symbols: texts that the rules leave alone.
    Raises: ConfigError, which names the rule, if they would do something else.
    """
    from tokenizers import Regex, normalizers

    rules = read_rules(table)
    if not rules:
        return ()
    longer = {key for key in rules if len(key) > 1}
    nfkc = normalizers.NFKC()
    kept = [
        character
        for character in map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x30000)))
        if not unicodedata.is_normalized("NFKC", character)
        and character not in rules
        and nfkc.normalize_str(character) != character
    ]
    deleted = next((c for c in map(chr, range(1, 32)) if rules.get(c) == "" and c not in "\t\n\r"), None)
    marker = deleted or _MARKER
    reserved = {marker, *(() if deleted else (_MARKER,)), _ESCAPE, _IS_KEPT, _IS_ESCAPE, _BETWEEN, " "}
    for key, value in rules.items():
        if (key != deleted and reserved & set(key)) or (reserved - {" "}) & set(value):
            raise ConfigError(_cannot(key, value))
    if bad := [character for character in kept if any(character in key for key in longer)]:
        key = next(key for key in longer if bad[0] in key)
        raise ConfigError(_cannot(key, rules[key]))

    before: list[Any] = []
    after: list[Any] = []
    for number, character in enumerate(kept):
        if not number:
            before.append(normalizers.Replace(_ESCAPE, _ESCAPE + _IS_ESCAPE))
            after.append(normalizers.Replace(_ESCAPE + _IS_ESCAPE, _ESCAPE))
        code = _ESCAPE + _IS_KEPT * (number + 1) + _IS_ESCAPE
        before.append(normalizers.Replace(character, code))
        after.insert(0, normalizers.Replace(code, character))
    if deleted is None:
        # Of 2k + 1 markers in a row k are the text's own.
        before_after = [normalizers.Replace(Regex(rf"{_MARKER}\K{_MARKER}"), "")]
        after = [*before_after, normalizers.Replace(Regex(f"{_MARKER}(?!{_MARKER})"), ""), *after]
    steps = [
        *before,
        normalizers.Replace(Regex(_boundary(longer, symbols)), marker),
        nfkc,
        normalizers.Precompiled(table),
        *after,
    ]
    for key, value in _wrong(rules, steps).items():
        if all(unicodedata.ucd_3_2_0.category(character) != "Cn" for character in key):
            raise ConfigError(_cannot(key, value))
    return tuple(steps)


def _cannot(key: str, value: str) -> str:
    return f"the character rules replace {key!r} by {value!r}, for which the library `tokenizers` has no normalizer"


def _wrong(rules: Mapping[str, str], steps: Sequence[Any]) -> dict[str, str]:
    """Return rules that the normalizers do not apply, of all for one or two characters and a part of the others."""
    from tokenizers import normalizers

    tested = [*(key for key in rules if len(key) < 3), *[key for key in rules if len(key) > 2][::16]]
    text = " " + _BETWEEN + _BETWEEN.join(tested)
    found = normalizers.Sequence(list(steps)).normalize_str(text).split(_BETWEEN)[1:]
    if len(found) != len(tested):
        return dict(rules)
    return {key: rules[key] for key, result in zip(tested, found, strict=True) if result != rules[key]}


def _boundary(keys: Collection[str], symbols: Collection[str]) -> str:
    """Return a pattern for the places between two characters that belong to no rule together.

    Between characters that never join, there need not be one.
    """
    place = rf"(?!\A)(?:(?<!{_ALONE})|(?!{_ALONE})(?!\z)|(?<=\r)|(?=\r))"
    if not keys:
        return place
    inside, following = _inside(keys)
    result = f"{place}(?!{inside})"
    if symbols:
        ends = "|".join(sorted(map(re.escape, symbols), key=len))
        result = f"(?:{result}|(?<={ends})(?={following}))"
    return result


def _inside(keys: Iterable[str]) -> tuple[str, str]:
    """Return a pattern for the places inside a key, and one for the characters that follow such places."""
    marks: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        marks[key[0]].add(key[1:])
    letters: dict[frozenset[str], set[str]] = defaultdict(set)  # that the same marks follow, such as all forms of an e
    for letter, rests in marks.items():
        letters[frozenset(rests)].add(letter)
    before: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for rests, firsts in letters.items():
        for rest in rests:
            for i in range(len(rest)):
                if i == len(rest) - 1 or rest[: i + 1] not in rests:
                    before[rest[i:]][rest[:i]] |= firsts
    choices: dict[str, set[str]] = defaultdict(set)
    for rest, starts in before.items():
        choices["|".join(_lookbehinds(starts))].add(rest)
    following = any_of({rest[0] for rest in before})
    every = "|".join(f"(?={any_of(rests)})(?:{behind})" for behind, rests in choices.items())
    return f"(?={following})(?:{every})", following


def _lookbehinds(starts: Mapping[str, Collection[str]]) -> list[str]:
    """Return patterns of what stands before a place: characters, and what follows them."""
    same: dict[tuple[str, int], set[str]] = defaultdict(set)
    for rest, firsts in sorted(starts.items()):
        same[any_of(firsts), len(rest)].add(rest)
    return [f"(?<={firsts}{any_of(rests) if length else ''})" for (firsts, length), rests in same.items()]


def any_of(texts: Iterable[str]) -> str:
    """Return a pattern for any of some texts, all of one length for a lookbehind; characters become a class."""
    texts = sorted(texts)
    if any(len(text) > 1 for text in texts):
        return f"(?:{'|'.join(''.join(map(_code, text)) for text in texts)})"
    ranges: list[list[int]] = []
    for place in map(ord, texts):
        if ranges and ranges[-1][1] == place - 1:
            ranges[-1][1] = place
        else:
            ranges.append([place, place])
    return f"[{''.join(_code(chr(a)) if a == b else f'{_code(chr(a))}-{_code(chr(b))}' for a, b in ranges)}]"


def _code(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
