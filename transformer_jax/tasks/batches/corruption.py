"""Corruption of texts that a model learns to undo: masked tokens, spans with sentinels, infilling.

All functions treat several texts at once, as ids [n, W] with lengths [n]; ids behind a text's length are ignored. The
randomness of a text follows from its key alone (`random_bits.keys`), so it does not depend on the texts beside it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from transformer_jax.tasks.batches.random_bits import uniform

Ids = Int[np.ndarray, "n W"]
Flags = Bool[np.ndarray, "n W"]
Lengths = Int[np.ndarray, " n"]
Keys = UInt64[np.ndarray, " n"]

# Numbers of independent draws of a text's key.
_CHOSEN, _ACTION, _REPLACEMENT, _NOISE, _NON_NOISE, _SENTENCES, _PLACES, _LENGTHS = range(8)


class TextRows(NamedTuple):
    """Texts of new lengths: ids int32 [n, W'], and lengths int64 [n]."""

    ids: np.ndarray
    lengths: np.ndarray


def first_places(starts: Flags) -> Int[np.ndarray, "n W"]:
    """Return, for every place, the last place up to it that is a start; place 0 is one."""
    return np.maximum.accumulate(np.where(starts, np.arange(starts.shape[1]), 0), axis=1)


def word_starts(ids: Ids, begins_word: Bool[np.ndarray, " V"], is_special: Bool[np.ndarray, " V"]) -> Flags:
    """Return where words begin: by id, at a special token, behind one, and at the beginning of a text."""
    special = is_special[ids]
    starts = begins_word[ids] | special
    starts[:, 1:] |= special[:, :-1]
    starts[:, :1] = True
    return starts


# Masked language models.


class Masked(NamedTuple):
    """Corrupted ids int32 [n, W], and whether a token is to be predicted, bool [n, W]."""

    ids: np.ndarray
    chosen: np.ndarray


def mask_tokens(
    ids: Ids,
    maskable: Flags,
    keys: Keys,
    *,
    rate: float,
    mask_id: int,
    random_ids: Int[np.ndarray, " R"],
    random_share: float = 0.1,
    keep_share: float = 0.1,
    starts: Flags | None = None,
) -> Masked:
    """Choose tokens to predict, each with probability `rate`, and replace most of them (Devlin et al. 2019, 3.1).

    A chosen token becomes `mask_id`, with probability `random_share` one of `random_ids`, with `keep_share` it stays.

    Args:
      maskable: bool [n, W], False for special tokens and padding. random_ids: the ids of text.
      starts: bool [n, W], where words begin; then the words are chosen, and with one all of its tokens that are
        maskable. Default: every token by itself.
    """
    width = ids.shape[1]
    number = uniform(keys, _CHOSEN, width)
    if starts is not None:
        number = np.take_along_axis(number, first_places(starts), axis=1)
    chosen = maskable & (number < rate)
    action = uniform(keys, _ACTION, width)
    random = random_ids[(uniform(keys, _REPLACEMENT, width) * len(random_ids)).astype(np.int64)]
    new = np.where(action < random_share, random, np.where(action < random_share + keep_share, ids, mask_id))
    return Masked(np.where(chosen, new, ids).astype(np.int32), chosen)


def most_chosen(width: int, rate: float) -> int:
    """Return a number of tokens that Bernoulli choice of `width` tokens exceeds less than once in 10^9 texts.

    It is the smallest multiple of 8 with a Chernoff bound exp(-width KL(share, rate)) < 10^-9, and at most `width`.
    """

    def log_bound(count: int) -> float:
        share = count / width
        rest = 0.0 if share == 1.0 else (1.0 - share) * math.log((1.0 - share) / (1.0 - rate))
        return -width * (share * math.log(share / rate) + rest)

    first = 8 * (int(width * rate) // 8 + 1)
    return next((count for count in range(first, width, 8) if log_bound(count) < math.log(1e-9)), width)


# Span corruption (T5).


class SpanSizes(NamedTuple):
    """Numbers of tokens of a text, int64 like its length: noise, spans of noise, and both sides with their ends."""

    noise: np.ndarray
    spans: np.ndarray
    inputs: np.ndarray
    targets: np.ndarray


def span_sizes(lengths: int | Int[np.ndarray, "*n"], rate: float, mean_span_length: float) -> SpanSizes:
    """Return the sizes of texts of these lengths: round(rate L) tokens of noise in round(noise / mean) spans.

    At least one token is noise and one is not; a text of one token has no noise. `inputs` has the other tokens, a
    sentinel per span and an end; `targets` the noise, a sentinel per span and an end (Raffel et al. 2020, 3.1.4; code:
    `random_spans_helper`). Halves are rounded to even numbers.
    """
    lengths = np.asarray(lengths, np.int64)
    noise = np.clip(np.round(lengths * rate).astype(np.int64), 1, np.maximum(lengths - 1, 1))
    noise = np.where(lengths < 2, 0, noise)
    spans = np.maximum(np.round(noise / mean_span_length).astype(np.int64), 1)
    spans = np.minimum(spans, np.minimum(noise, lengths - noise))
    return SpanSizes(noise, spans, lengths - noise + spans + 1, noise + spans + 1)


def longest_text(width: int, rate: float, mean_span_length: float) -> int:
    """Return the greatest length of a text whose corrupted inputs and targets both have at most `width` tokens."""
    lengths = np.arange(1, 2 * width + 2)
    sizes = span_sizes(lengths, rate, mean_span_length)
    fits = np.maximum(sizes.inputs, sizes.targets) <= width
    return int(lengths[fits][-1]) if fits.any() else 0


class SpanPair(NamedTuple):
    """The two sides of texts with corrupted spans."""

    inputs: TextRows
    targets: TextRows


def corrupt_spans(
    ids: Ids,
    lengths: Lengths,
    keys: Keys,
    *,
    rate: float,
    mean_span_length: float,
    sentinels: Int[np.ndarray, " K"],
    end_id: int,
) -> SpanPair:
    """Replace spans by sentinels; the targets are the sentinels, each with its span behind it (Raffel et al. 2020).

    Noise and other tokens are divided into the same number of parts, all divisions being equally likely. The parts
    alternate, and the first is not noise. Span k becomes `sentinels[k]`. Both sides end in `end_id`. For sizes see
    `span_sizes`.
    """
    noise = noise_mask(lengths, keys, ids.shape[1], rate, mean_span_length)
    other = (np.arange(ids.shape[1]) < lengths[:, None]) & ~noise
    of_targets = other & noise.any(1, keepdims=True)  # a text of one token has no noise
    return SpanPair(
        _with_sentinels(ids, noise, other, sentinels, end_id),
        _with_sentinels(ids, of_targets, noise, sentinels, end_id),
    )


def noise_mask(lengths: Lengths, keys: Keys, width: int, rate: float, mean_span_length: float) -> Flags:
    """Return where texts have noise, bool [n, width]; see `corrupt_spans`."""
    noise, spans, _, _ = span_sizes(lengths, rate, mean_span_length)
    noise_starts = _part_starts(noise, spans, uniform(keys, _NOISE, width))
    other_starts = _part_starts(lengths - noise, spans, uniform(keys, _NON_NOISE, width))
    # Token j that is not noise, of part s, has all noise of the parts before s in front of it.
    part = np.cumsum(other_starts, axis=1) - 1
    before = np.zeros((len(lengths), width), np.int64)
    row, place = np.nonzero(noise_starts)
    before[row, (np.cumsum(noise_starts, axis=1) - 1)[row, place]] = place
    other = np.arange(width) < (lengths - noise)[:, None]
    row, place = np.nonzero(other)
    result = np.arange(width) < lengths[:, None]
    result[row, place + before[row, np.maximum(part[row, place], 0)]] = False
    return result


def _part_starts(items: Lengths, parts: Lengths, number: Float[np.ndarray, "n W"]) -> Flags:
    """Return where `parts` non-empty parts of `items` items begin; all divisions are equally likely."""
    width = number.shape[1]
    column = np.arange(width)
    inner = (column > 0) & (column < items[:, None])
    order = np.argsort(np.where(inner, number, 2.0), axis=1, kind="stable")
    starts = np.zeros(number.shape, bool)
    np.put_along_axis(starts, order, column < parts[:, None] - 1, axis=1)
    starts[:, :1] = (items > 0)[:, None]
    return starts


def _with_sentinels(ids: Ids, replaced: Flags, kept: Flags, sentinels: Int[np.ndarray, " K"], end_id: int) -> TextRows:
    """Return texts with a sentinel for every run of replaced tokens, and the end."""
    begins = replaced.copy()
    begins[:, 1:] &= ~replaced[:, :-1]
    number = np.maximum(np.cumsum(begins, axis=1) - 1, 0)
    tokens = np.where(begins, sentinels[np.minimum(number, len(sentinels) - 1)] if len(sentinels) else 0, ids)
    return _compacted(tokens, kept | begins, end_id)


def _compacted(tokens: Ids, kept: Flags, end_id: int | None = None) -> TextRows:
    """Return the kept tokens of every row, moved together, and an end behind them."""
    counts = kept.sum(1)
    end = 0 if end_id is None else 1
    result = np.zeros((len(tokens), (int(counts.max(initial=0)) + end)), np.int32)
    row, place = np.nonzero(kept)
    result[row, (np.cumsum(kept, axis=1) - 1)[row, place]] = tokens[row, place]
    if end_id is not None:
        result[np.arange(len(tokens)), counts] = end_id
    return TextRows(result, counts + end)


# Denoising (BART).


def permute_sentences(ids: Ids, lengths: Lengths, keys: Keys, ends: Flags, share: float = 1.0) -> Ids:
    """Return texts whose sentences have another order (Lewis et al. 2020, section 2.2).

    Args:
      ends: bool [n, W], tokens that end a sentence; of several in a row, the last one does. A text ends one too.
      share: of the sentences of a text, ceil(share * sentences) are drawn, and change places among themselves.
    """
    width = ids.shape[1]
    real = np.arange(width) < lengths[:, None]
    ends = ends & real
    starts = np.zeros_like(real)
    starts[:, 1:] = ends[:, :-1] & ~ends[:, 1:]
    starts[:, :1] = True
    starts &= real
    sentence = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
    counts = starts.sum(1)
    most = int(counts.max(initial=1))
    column = np.arange(most)
    first, second = uniform(keys, _SENTENCES, 2 * most).reshape(len(ids), most, 2).transpose(2, 0, 1)
    is_sentence = column < counts[:, None]
    rank = np.argsort(np.argsort(np.where(is_sentence, first, 2.0), axis=1, kind="stable"), axis=1, kind="stable")
    drawn = is_sentence & (rank < np.ceil(share * counts)[:, None])
    # Sentences that are not drawn come behind the drawn ones in both orders, and so keep their places.
    new = np.argsort(np.where(drawn, second, 2.0 + column), axis=1, kind="stable")
    old = np.argsort(np.where(drawn, column / most, 2.0 + column), axis=1, kind="stable")
    place_of = np.empty_like(new)
    np.put_along_axis(place_of, new, old, axis=1)
    order = np.where(real, np.take_along_axis(place_of, sentence, axis=1), most) * width + np.arange(width)
    return np.take_along_axis(ids, np.argsort(order, axis=1), axis=1)


def infill(
    ids: Ids,
    lengths: Lengths,
    keys: Keys,
    starts: Flags,
    *,
    rate: float,
    mean_span_length: float,
    mask_id: int,
    random_ids: Int[np.ndarray, " R"],
    random_share: float = 0.1,
) -> TextRows:
    """Replace spans of words by one mask each (Lewis et al. 2020, section 2.2); the result is never longer.

    The lengths of spans are Poisson numbers, drawn until they sum to ceil(rate * words), the last one being cut. A span
    of length 0 inserts a mask. The spans lie in a random order between the words that remain; all arrangements are
    equally likely, and spans do not overlap. (In fairseq they may, so that fewer words are masked.) With probability
    `random_share`, a span becomes one of `random_ids` instead of a mask.

    A text has at most as many spans of length 0 as makes it no longer than before; further ones are left out.

    Args:
      starts: bool [n, W], where words begin.
    """
    n, width = ids.shape
    column = np.arange(width)
    real = column < lengths[:, None]
    starts = starts & real
    starts[:, :1] = real[:, :1]
    words = starts.sum(1)
    wanted = np.ceil(rate * words - 1e-9).astype(np.int64)
    span_lengths, spans = _span_lengths(keys, wanted, mean_span_length, width)
    # Slots: a span each, or a remaining word each.
    slots = words - wanted + spans
    order = np.argsort(np.where(column < slots[:, None], uniform(keys, _PLACES, width), 2.0), axis=1, kind="stable")
    consumed = (column < slots[:, None]).astype(np.int64)
    is_span = np.zeros((n, width), bool)
    of_span = column < spans[:, None]
    np.put_along_axis(is_span, order, of_span, axis=1)
    np.put_along_axis(
        consumed, order, np.where(of_span, span_lengths, np.take_along_axis(consumed, order, axis=1)), axis=1
    )
    first_word = np.cumsum(consumed, axis=1) - consumed
    word = np.maximum(np.cumsum(starts, axis=1) - 1, 0)
    size_of_word = np.zeros((n, width + 1), np.int64)
    np.add.at(size_of_word, (np.nonzero(real)[0], word[real]), 1)
    is_word = (column < slots[:, None]) & ~is_span
    written = np.where(is_word, np.take_along_axis(size_of_word, np.minimum(first_word, width), axis=1), is_span)
    begin = np.cumsum(written, axis=1) - written
    new_lengths = written.sum(1)
    result = np.zeros((n, int(new_lengths.max(initial=0))), np.int32)
    # Words that remain, token by token.
    place_of_word = np.full((n, width + 1), -1, np.int64)
    row, slot = np.nonzero(is_word)
    place_of_word[row, first_word[row, slot]] = begin[row, slot]
    moved = np.take_along_axis(place_of_word, word, axis=1)
    row, place = np.nonzero(real & (moved >= 0))
    within = column - first_places(starts)
    result[row, moved[row, place] + within[row, place]] = ids[row, place]
    row, slot = np.nonzero(is_span)
    random = random_ids[(uniform(keys, _REPLACEMENT, width) * len(random_ids)).astype(np.int64)]
    filler = np.where(uniform(keys, _ACTION, width) < random_share, random, mask_id)
    result[row, begin[row, slot]] = filler[row, slot]
    return TextRows(result, new_lengths)


def _span_lengths(keys: Keys, wanted: Lengths, mean: float, width: int) -> tuple[Int[np.ndarray, "n W"], Lengths]:
    """Return Poisson numbers that sum to `wanted`, [n, width], and their number; those behind it are 0."""
    table = _poisson_table(mean)
    draws = int(1.5 * wanted.max(initial=0) / mean) + 16
    while True:
        lengths = np.searchsorted(table, uniform(keys, _LENGTHS, draws), side="right").astype(np.int64)
        total = np.cumsum(lengths, axis=1)
        if (total[:, -1] >= wanted).all():
            break
        draws *= 2
    before = total - lengths
    used = before < wanted[:, None]  # up to the first with which the sum is reached
    lengths = np.where(used, np.minimum(lengths, wanted[:, None] - before), 0)
    positive = (used & (lengths > 0)).sum(1)
    empty = used & (lengths == 0)
    used &= ~empty | (np.cumsum(empty, axis=1) <= (wanted - positive)[:, None])
    spans = used.sum(1)
    result = np.zeros((len(keys), width), np.int64)
    row, place = np.nonzero(used)
    result[row, (np.cumsum(used, axis=1) - 1)[row, place]] = lengths[row, place]
    return result, spans


def _poisson_table(mean: float) -> Float[np.ndarray, " k"]:
    """Return P(number <= k) for k = 0, 1, ..., until all but 10^-12 is reached."""
    term, total, table = math.exp(-mean), 0.0, []
    while not table or table[-1] < 1.0 - 1e-12:
        total += term
        table.append(total)
        term *= mean / len(table)
        if term < 1e-300:
            break
    return np.array(table[:-1] if len(table) > 1 else table)
