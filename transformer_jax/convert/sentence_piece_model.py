"""A SentencePiece model as a model of the library `tokenizers`, which cuts every text into the same ids.

SentencePiece differs from the library as follows. Normalizers, cuts and scores make up for a difference; where they
cannot, an error names it:

- SentencePiece puts one space in front of every text, or behind it, or none. It may remove spaces at both ends and
  those that follow another.
- Its character rules are those of `character_rules`.
- It knows the names of control tokens and bytes, such as `</s>` and `<0x41>`, in no text. The library has them among
  its pieces, so texts with such names are changed where no piece can tell, or cut where no piece can be.
- BPE has no list of merges: two neighbours become the piece of the highest score that they spell.
- User-defined symbols are not merged, and in unigram models they have scores that are not in the file.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.convert.character_rules import any_of, read_rules, rule_normalizers
from transformer_jax.data.tokenizers.sentence_piece import PieceKind, SentencePieceTokenizer
from transformer_jax.data.tokenizers.tokenizer import SPACE
from transformer_jax.errors import ConfigError
from transformer_jax.readers import parse_json

_SCALE = float((1 << 29) + 1)
"""Factor of scores of unigram models, so that sums in float64 are rounded as SentencePiece's in float32.

A score w becomes 2^29 w + w. The float64 sum of such has the bits of the exact sum of the w in front, and behind them
the sum of the w, rounded where a float32 of that size is rounded. Two cuts with the same pieces in another order, such
as `. ..` and `.. .`, differ in this rounding alone, and SentencePiece chooses by it.
"""
_UNKNOWN = "\uffff"
"""Stands for a character that no piece has; never assigned."""
_BYTE = "<0x"
"""How the names of bytes begin; two digits and `>` follow."""


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The pieces of a model. names: those that no text contains. texts: of text, with scores. symbols: user-defined."""

    names: Mapping[str, PieceKind]
    texts: Mapping[str, float]
    symbols: tuple[str, ...]
    byte_fallback: bool

    @functools.cached_property
    def singles(self) -> frozenset[str]:
        """The pieces of one character."""
        return frozenset(piece for piece in (*self.texts, *self.symbols) if len(piece) == 1)

    @functools.cached_property
    def characters(self) -> frozenset[str]:
        """The characters of all pieces."""
        return frozenset(character for piece in (*self.texts, *self.symbols) for character in piece)

    @functools.cached_property
    def range(self) -> tuple[np.float32, np.float32]:
        """The lowest and the highest score of a piece that is not a symbol."""
        scores = np.array([*self.texts.values()], np.float32)
        return scores.min(), scores.max()

    @property
    def unknown_score(self) -> float:
        """The score of `<unk>`, the lowest of the others less 10."""
        return float(self.range[0] - np.float32(10))

    @functools.cached_property
    def symbol_scores(self) -> dict[str, float]:
        """The scores of user-defined symbols in SentencePiece 0.2.3, which follow from their lengths in bytes."""
        return {symbol: float(np.float32(0.1 * (len(symbol.encode()) - 1))) for symbol in self.symbols}

    @functools.cached_property
    def unknown_is_forced(self) -> bool:
        """Whether a unigram model never chooses between `<unk>` and a piece, so that its score does not matter.

        This is so if every character of a piece is a piece itself. Characters of a symbol need not be, if the symbol
        always has a better score than `<unk>` and no piece can overlap it.
        """
        if not self.singles.issuperset("".join(self.texts)):
            return False
        for symbol, score in self.symbol_scores.items():
            count = sum(character not in self.singles for character in symbol)
            better = score > count * self.unknown_score
            if count and not (better and not any(_overlap(symbol, other) for other in (*self.texts, *self.symbols))):
                return False
        return True

    def is_beaten(self, name: str) -> bool:
        """Return whether the characters of a name are pieces, and together better than `<unk>`."""
        known = self.texts.keys() & set(name) == set(name)
        return known and sum(self.texts[character] for character in name) > self.unknown_score + 1


def _overlap(symbol: str, other: str) -> bool:
    """Return whether, in some text, a piece can lie over one end of a symbol, or hold it."""
    if symbol == other:
        other = ""
    parts = range(1, min(len(symbol), len(other)))
    return symbol in other or any(symbol[:n] == other[-n:] or symbol[-n:] == other[:n] for n in parts)


def as_library_model(tokenizer: SentencePieceTokenizer) -> Any:
    """Return a Tokenizer of the library with the ids of a SentencePiece model, without special tokens.

    Raises: ConfigError, which names the property of the model for which the library has no counterpart.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pieces = _pieces_of(tokenizer)
    unigram = tokenizer.model_type == "unigram"
    hidden = _Hidden(pieces, unigram)
    splits: list[Any] = []
    if unigram:
        scores = _unigram_scores(tokenizer, pieces, hidden)
        model: Any = models.Unigram(scores, tokenizer.special_ids.required("unk"), pieces.byte_fallback)
    else:
        whole = any(len(symbol) > 1 for symbol in pieces.symbols)
        model = _bpe(tokenizer, pieces, whole)
        if whole:
            every = "|".join(map(re.escape, sorted(pieces.symbols, key=len, reverse=True)))
            splits.append(pre_tokenizers.Split(Regex(every), "isolated"))
    result = Tokenizer(model)
    steps = [*_normalizers(tokenizer, pieces), *[normalizers.Replace(Regex(p), _UNKNOWN) for p in hidden.changed]]
    if steps:
        result.normalizer = normalizers.Sequence(steps)
    if hidden.cuts:
        splits.append(pre_tokenizers.Split(Regex("|".join(hidden.cuts)), "merged_with_previous"))
    if splits:
        result.pre_tokenizer = pre_tokenizers.Sequence(splits) if len(splits) > 1 else splits[0]
    result.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *_without_added_space(tokenizer)]
    )
    return result


def _pieces_of(tokenizer: SentencePieceTokenizer) -> _Pieces:
    names, texts, symbols = {}, {}, []
    for piece, score, kind in tokenizer.all_pieces():
        if kind is PieceKind.UNUSED:
            raise ConfigError(_cannot(f"the unused piece {piece!r}, which never occurs in its output"))
        if kind is PieceKind.NORMAL:
            texts[piece] = score
        elif kind is PieceKind.USER_DEFINED:
            symbols.append(piece)
        else:
            names[piece] = kind
    if tokenizer.model_type == "word":
        raise ConfigError(_cannot("the type 'word', where a row of unknown words is one <unk>"))
    if spaced := [symbol for symbol in symbols if " " in symbol]:
        raise ConfigError(_cannot(f"the user-defined symbol {spaced[0]!r} with a space"))
    return _Pieces(names, texts, tuple(symbols), PieceKind.BYTE in names.values())


def _cannot(what: str) -> str:
    return f"the SentencePiece model has {what}; the library `tokenizers` cannot express this"


def _normalizers(tokenizer: SentencePieceTokenizer, pieces: _Pieces) -> list[Any]:
    """Return what changes a text before it is cut."""
    from tokenizers import Regex, normalizers

    spec = tokenizer.normalizer_spec
    space = SPACE if spec.escapes_spaces else " "
    behind = spec.adds_space and spec.space_behind
    before = spec.adds_space and not spec.space_behind
    rules = _rules(spec.character_rules, pieces.symbols)
    steps: list[Any] = []

    def replace(pattern: str, text: str) -> None:
        steps.append(normalizers.Replace(Regex(pattern), text))

    if spec.squeezes_spaces and behind:
        replace(rf"\A{_spaces(spec.character_rules)}+\z", "")  # such a text gets no space behind it
    if rules or behind:
        # The rules need a character in front; later a first space is the one that SentencePiece adds, or goes.
        steps += [normalizers.Prepend(" "), *rules]
    if behind:
        replace(r"(?<=[\s\S])\z", SPACE)
    if spec.squeezes_spaces:
        replace(r"\A +", "")
        replace(" {2,}", " ")
        replace(rf"[ {SPACE}]+(?={SPACE}\z)" if behind else rf"[ {space}]+\z", "")
        if before:
            steps.append(normalizers.Prepend(space))
    elif rules or behind:
        if not before:
            replace(r"\A ", "")
    elif before:
        steps.append(normalizers.Prepend(space))
    if spec.escapes_spaces:
        steps.append(normalizers.Replace(" ", SPACE))
    elif behind:
        replace(rf"{SPACE}\z", " ")
    return steps


def _rules(table: bytes, symbols: Sequence[str]) -> Sequence[Any]:
    """Return the normalizers of character rules, which leave user-defined symbols alone."""
    from tokenizers import normalizers

    if not table:
        return ()
    steps = rule_normalizers(table, tuple(sorted(symbols)))
    if steps and symbols:
        rules = normalizers.Sequence(list(steps))
        firsts = {key[0] for key in read_rules(table) if len(key) > 1}
        for symbol in symbols:
            if rules.normalize_str(" " + symbol) != " " + symbol:
                raise ConfigError(_cannot(f"the user-defined symbol {symbol!r} beside character rules that change it"))
            meeting = [other for other in symbols if any(symbol.endswith(other[:n]) for n in range(1, len(other)))]
            if symbol[-1] in firsts and meeting:
                pair = f"{symbol!r} and {meeting[0]!r}"
                raise ConfigError(_cannot(f"character rules and the user-defined symbols {pair}, which may overlap"))
    return steps


def _spaces(table: bytes) -> str:
    return any_of({" ", *(key for key, value in read_rules(table).items() if value == " ")})


def _without_added_space(tokenizer: SentencePieceTokenizer) -> list[Any]:
    """Return the decoder that takes a space off in front; as in SentencePiece, one behind a text stays."""
    from tokenizers import decoders

    spec = tokenizer.normalizer_spec
    return [decoders.Strip(" ", 1, 0)] if spec.adds_space or spec.squeezes_spaces else []


class _Hidden:
    """How names such as `</s>` in a text are kept apart from the tokens of these names.

    changed: patterns of a character that becomes an unknown one. cuts: patterns of a character behind which the text
    is cut. low: names that need a score lower than that of `<unk>`. Other names need nothing: merges never make them,
    or a unigram model prefers their characters.
    """

    def __init__(self, pieces: _Pieces, unigram: bool) -> None:
        self.changed: list[str] = []
        self.cuts: list[str] = []
        self._pieces, self._characters, self._singles = pieces, pieces.characters, pieces.singles
        self._longer = [piece for piece in (*pieces.texts, *pieces.symbols) if len(piece) > 1]
        self.low: list[str] = []
        self._unigram = unigram
        if not unigram and not any(len(symbol) > 1 for symbol in pieces.symbols):
            return
        of_bytes = [name for name, kind in pieces.names.items() if kind is PieceKind.BYTE]
        for name in pieces.names.keys() - {*of_bytes}:
            self._hide([name], len(name), lambda start, name=name: re.escape(name[start:]))
        if of_bytes:
            self._hide(of_bytes, len(_BYTE), lambda start: _BYTE[start:] + "[0-9A-F]{2}>")

    def _hide(self, names: Sequence[str], common: int, rest: Callable[[int], str]) -> None:
        """Hide names that have their first characters in common.

        Args:
          common: number of these characters. rest: returns the pattern of what follows a number of characters.
        """
        name = names[0]
        if len(name) == 1 or (self._unigram and all(map(self._pieces.is_beaten, names))):
            return
        unknown = [i for i in range(common) if name[i] not in self._characters]
        if unknown and not self._pieces.byte_fallback:
            i = unknown[0]
            self.changed.append(f"{_behind(name[:i])}{re.escape(name[i])}(?={rest(i + 1)})")
            return
        for i in range(1, common):
            if self._is_end_of_tokens(name, i):
                self.cuts.append(f"{_behind(name[: i - 1])}{re.escape(name[i - 1])}(?={rest(i)})")
                return
        if not (self._unigram and self._pieces.unknown_is_forced and self._singles.issuperset("".join(names))):
            raise ConfigError(_cannot(f"pieces that join all characters of {name!r}, the name of a token,"))
        self.low += names

    def _is_end_of_tokens(self, name: str, cut: int) -> bool:
        """Return whether a token ends at a place within a name, in every text."""
        known = {name[cut - 1], name[cut]} & self._singles
        if not known and not self._pieces.byte_fallback:
            return False  # two unknown neighbours are one token
        return not any(_spans(piece, name, cut) for piece in self._longer)


def _behind(text: str) -> str:
    return f"(?<={re.escape(text)})" if text else ""


def _spans(piece: str, name: str, cut: int) -> bool:
    """Return whether a piece can lie over a place within a name, in some text."""
    for i in range(1, len(piece)):
        start = cut - i  # of the piece, in the name
        overlap = range(max(start, 0), min(start + len(piece), len(name)))
        if all(piece[j - start] == name[j] for j in overlap):
            return True
    return False


def _unigram_scores(tokenizer: SentencePieceTokenizer, pieces: _Pieces, hidden: _Hidden) -> list[tuple[str, float]]:
    """Return every piece with its score, times `_SCALE`.

    Names of tokens have the score that gives `<unk>` its own: the library takes 10 off the lowest. If that is no choice
    between `<unk>` and pieces, they may have a lower one.
    """
    of_names = pieces.unknown_score * _SCALE + 10
    if hidden.low:
        of_names = math.floor(float(pieces.range[0]) * max(map(len, hidden.low)) - 11) * _SCALE
    scores = {PieceKind.NORMAL: pieces.texts, PieceKind.USER_DEFINED: pieces.symbol_scores}
    return [
        (piece, scores[kind][piece] * _SCALE if kind in scores else of_names)
        for piece, _, kind in tokenizer.all_pieces()
    ]


def with_exact_scores(model: bytes) -> bytes:
    """Return the JSON of a unigram model with scores that the library reads without rounding; others as they are.

    It reads the digits of a number as an integer, of at most 64 bits, and divides their float by a power of ten.
    """
    values = parse_json(model)
    vocabulary = values["model"]["vocab"]
    if not isinstance(vocabulary, list):
        return model
    values["model"]["vocab"] = None
    before, after = json.dumps(values, ensure_ascii=False).rsplit('"vocab": null', 1)
    listed = ", ".join(f"[{json.dumps(piece, ensure_ascii=False)}, {_digits(score)}]" for piece, score in vocabulary)
    return f'{before}"vocab": [{listed}]{after}'.encode()


def _digits(score: float) -> str:
    """Return digits and a negative power of ten whose quotient, of floats, is a score; or else its nearest."""
    sign = "-" if score < 0 else ""
    numerator, denominator = abs(score).as_integer_ratio()
    for power in range(20):
        digits = (numerator * 10**power + denominator // 2) // denominator
        if digits >= 1 << 63:
            break
        nearest = float(digits)
        for value in (nearest, math.nextafter(nearest, math.inf), math.nextafter(nearest, 0.0)):
            if value == int(value) and value / 10.0**power == abs(score):
                return f"{sign}{int(value)}e-{power}"
    return repr(score)


def _bpe(tokenizer: SentencePieceTokenizer, pieces: _Pieces, whole: bool) -> Any:
    """Return the model of pieces that are merged, or of single characters.

    Args:
      whole: a part of a text that is a piece need not be merged; for user-defined symbols, which are such parts.
    """
    from tokenizers import models

    ids = {piece: id for id, (piece, _, _) in enumerate(tokenizer.all_pieces())}
    merges = _merges(pieces.texts) if tokenizer.model_type == "bpe" else []
    fields = {
        "vocab": ids,
        "merges": merges,
        "unk_token": tokenizer.tokens([tokenizer.special_ids.required("unk")])[0],
        "fuse_unk": True,
        "byte_fallback": pieces.byte_fallback,
    }
    model = models.BPE(**fields)
    if whole:
        for piece in pieces.texts:
            if len(piece) > 1 and [token.value for token in model.tokenize(piece)] != [piece]:
                raise ConfigError(_cannot(f"user-defined symbols, and the piece {piece!r} that no merges make"))
        return models.BPE(**fields, ignore_merges=True)
    return model


def _merges(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges of a BPE model, which SentencePiece stores only as their results, best first.

    SentencePiece merges the two neighbours whose joint piece has the highest score, however it was made in training. So
    every way to make a piece of two others is a merge, of the rank of the piece. Of two equal pieces that share a
    neighbour, such as `aba` in `ab a ba`, it takes the left one: the merge with the longer first part comes first.
    """
    found = []
    for piece, score in scores.items():
        for cut in range(len(piece) - 1, 0, -1):
            left, right = piece[:cut], piece[cut:]
            if (left in scores or cut == 1) and (right in scores or len(right) == 1):
                if absent := [part for part in (left, right) if part not in scores]:
                    raise ConfigError(_cannot(f"the piece {piece!r}, but no piece for its character {absent[0]!r}"))
                found.append((-score, left, right))
    found.sort(key=lambda merge: merge[0])
    made: dict[float, str] = {}
    for score, left, right in found:
        if made.setdefault(score, left + right) != left + right:
            raise ConfigError(
                _cannot(f"the pieces {made[score]!r} and {left + right!r} of one score; which is merged first")
            )
    return [(left, right) for _, left, right in found]


def differing_text(tokenizer: SentencePieceTokenizer, model: Any) -> str | None:
    """Return a text that a model of the library cuts into other ids; None if there is none among some hundreds.

    In a unigram model, the same pieces in another order have the same score up to rounding. A text where rounding
    decides, in spite of `_SCALE`, does not count.
    """
    texts = _probes(tokenizer)
    ids, offsets = tokenizer.encode_batch(texts)
    for text, first, end in zip(texts, offsets[:-1], offsets[1:], strict=True):
        expected = ids[first:end].tolist()
        found = model.encode(text, add_special_tokens=False).ids
        if found != expected and not _equally_good(tokenizer, expected, found):
            return text
    return None


def _equally_good(tokenizer: SentencePieceTokenizer, expected: Sequence[int], found: Sequence[int]) -> bool:
    if tokenizer.model_type != "unigram":
        return False
    scores = {id: score for id, (_, score, kind) in enumerate(tokenizer.all_pieces()) if kind is PieceKind.NORMAL}
    texts = ["".join(tokenizer.tokens(ids)) for ids in (expected, found)]
    sums = [math.fsum(scores.get(id, 0.0) for id in ids) for ids in (expected, found)]
    return texts[0] == texts[1] and math.isclose(*sums, rel_tol=1e-6)


_ODD = (
    " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\u00ad", "\x00", "\x01",
    "\x7f", "\u00bd", "\ufb01", "\uff21\uff10", "\uff5e", "\u2460", "e\u0301", "\ufb01\u0301", "a\u0302\u0323",
    "a\u0323\u0302", "\u304b\u3099", "\uff76\uff9e", "\u1112\u1161\u11ab", "\ud55c", "\u0915\u093c", "\u05d9\u05b4",
    "\u732b", "\ue000", "\ufff0", "\ufdd0", "\uffff", "\U0001f600", "\U0001f468\u200d\U0001f469",
    "\U0001f1e9\U0001f1ea", "\u2581", "\u2581 ", " \u2581", "\u00df", "\u0130", "\u01c4",
    "<", ">", "</", "<0x41>", "<0x0A>", "...", "--", "0",
)  # fmt: skip


def _probes(tokenizer: SentencePieceTokenizer) -> list[str]:
    """Return texts of odd characters, of names of tokens, and of pieces in several orders; always the same."""
    pieces = [piece.replace(SPACE, " ") for piece, _, _ in tokenizer.all_pieces()]
    names = [piece for piece, _, kind in tokenizer.all_pieces() if kind not in (PieceKind.NORMAL, PieceKind.BYTE)]
    some = pieces[:: max(len(pieces) // 150, 1)]
    words = ["".join(pieces[(7 * i * i + 13 * i * j) % len(pieces)] for j in range(6)) for i in range(150)]
    odd = [*_ODD, *names[:50]]
    texts = ["", *odd, *some, *words]
    texts += [f"{a}{b}" for a, b in zip(odd, [*odd[7:], *odd[:7]], strict=True)]
    for i, text in enumerate(odd):
        texts += [f" {text} ", f"a{text}b", f"{some[i % len(some)]}{text}{some[-i % len(some)]} {text}{text}"]
    return texts
