"""Corruption of texts: what changes and what does not, at the rates of the papers, from the keys alone."""

import itertools
import math

import numpy as np
import pytest

from transformer_jax.tasks.batches.corruption import (
    corrupt_spans,
    infill,
    longest_text,
    mask_tokens,
    most_chosen,
    noise_mask,
    permute_sentences,
    span_sizes,
    word_starts,
)
from transformer_jax.tasks.batches.random_bits import keys, uniform

MASK, END, FIRST, VOCABULARY = 5, 1, 10, 1000
RANDOM_IDS = np.arange(FIRST, VOCABULARY)
SENTINELS = np.arange(999, 899, -1)


def texts(*lengths, seed=0):
    """Return ids [n, W] of texts of these lengths, with ids of text behind their ends too, lengths and keys."""
    lengths = np.array(lengths)
    ids = np.random.default_rng(seed).integers(FIRST, 800, (len(lengths), lengths.max()))
    return ids, lengths, keys(seed, np.arange(len(lengths)))


def assert_share(count, total, share, sigmas=5):
    """Check a number of successes by the standard deviation of a binomial distribution."""
    assert abs(count - total * share) < sigmas * math.sqrt(total * share * (1 - share)), (count / total, share)


def test_random_numbers_are_splitmix64():
    """The first outputs of the reference implementation from the seed 1234567; then statistics of many keys."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    found = uniform(np.array([1234567], np.uint64), 0, 4)[0]
    assert found.tolist() == [(x >> 11) * 2.0**-53 for x in expected]
    numbers = uniform(keys(3, np.arange(500)), 2, 400)
    np.testing.assert_array_equal(numbers[:, :7], uniform(keys(3, np.arange(500)), 2, 7))
    assert_share((numbers < 0.15).sum(), numbers.size, 0.15)
    for other in (uniform(keys(3, np.arange(500)), 1, 400), numbers.T.reshape(500, 400), np.roll(numbers, 1, 0)):
        assert abs(np.corrcoef(numbers.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(numbers.size)
    assert len({int(x) for x in keys(np.repeat(np.arange(50), 50), np.tile(np.arange(50), 50))}) == 2500
    assert (keys(1, 2, np.arange(3)) != keys(2, 1, np.arange(3))).all()


@pytest.mark.parametrize(("rate", "random_share", "keep_share"), [(0.15, 0.1, 0.1), (0.3, 0.0, 0.25)])
def test_masked_tokens(rate, random_share, keep_share):
    ids, _, text_keys = texts(*[500] * 400)
    maskable = np.arange(500) % 5 > 0
    shares = {"random_share": random_share, "keep_share": keep_share}
    given = {"rate": rate, "mask_id": MASK, "random_ids": RANDOM_IDS} | shares
    new, chosen = mask_tokens(ids, np.broadcast_to(maskable, ids.shape), text_keys, **given)
    assert not chosen[:, ~maskable].any()
    np.testing.assert_array_equal(new[~chosen], ids[~chosen])
    of_chosen, total = new[chosen], int(chosen.sum())
    assert_share(total, 400 * 400, rate)
    assert_share((of_chosen == MASK).sum(), total, 1 - random_share - keep_share)
    kept = (of_chosen == ids[chosen]).sum()
    assert_share(kept, total, keep_share + random_share / len(RANDOM_IDS))
    assert set(np.unique(of_chosen)) <= {MASK, *RANDOM_IDS}
    # Neighbours are chosen independently, and so are the same places of other texts.
    both = (chosen[:, 1::5] & chosen[:, 2::5]).sum() + (chosen[1:, 1::5] & chosen[:-1, 1::5]).sum()
    assert_share(both, chosen[:, 1::5].size + chosen[1:, 1::5].size, rate**2)
    assert chosen.sum(1).max() <= most_chosen(500, rate) < 500


def test_a_text_does_not_depend_on_its_batch():
    """Alone, among others or with more padding."""
    ids, lengths, text_keys = texts(60, 7, 33)
    more = np.pad(ids, ((0, 0), (0, 9)), constant_values=77)
    starts = np.random.default_rng(1).random(more.shape) < 0.5
    ends = np.random.default_rng(2).random(more.shape) < 0.2

    def all_of(rows, width):
        part, of_rows, k, s = more[rows, :width], lengths[rows], text_keys[rows], starts[rows, :width]
        spans = {"rate": 0.15, "mean_span_length": 3.0}
        words = {"mask_id": MASK, "random_ids": RANDOM_IDS}
        masked = mask_tokens(part, np.arange(width) < of_rows[:, None], k, rate=0.15, **words)
        results = [*corrupt_spans(part, of_rows, k, **spans, sentinels=SENTINELS, end_id=END)]
        results.append(infill(part, of_rows, k, s, **spans, **words))
        moved = permute_sentences(part, of_rows, k, ends[rows, :width])
        found = [[row[:n].tolist() for row, n in zip(*result, strict=True)] for result in results]
        return [*found, *([row[:n].tolist() for row, n in zip(x, of_rows, strict=True)] for x in (masked.ids, moved))]

    together = all_of(slice(0, 3), 69)
    for row in range(3):
        alone = all_of(slice(row, row + 1), int(lengths[row]))
        assert alone == [[result[row]] for result in together]


def test_whole_words():
    ids, lengths, text_keys = texts(*[300] * 300)
    begins = np.zeros(VOCABULARY, bool)
    begins[::3] = True
    special = np.zeros(VOCABULARY, bool)
    special[[20, 21]] = True
    starts = word_starts(ids, begins, special)
    assert word_starts(np.array([[31, 30, 31, 20, 31, 31]]), begins, special).tolist() == [
        [True, True, False, True, True, False]
    ]
    maskable = (np.arange(300) < lengths[:, None]) & ~special[ids]
    words = {"mask_id": MASK, "random_ids": RANDOM_IDS, "random_share": 0.0, "keep_share": 0.0}
    new, chosen = mask_tokens(ids, maskable, text_keys, rate=0.2, starts=starts, **words)
    inside = ~starts & maskable
    assert (chosen[inside] == np.roll(chosen, 1, 1)[inside]).all()
    assert ((new == MASK) == chosen).all()
    of_text = starts & maskable
    assert_share(chosen[of_text].sum(), of_text.sum(), 0.2)


def test_room_for_predictions():
    for width, rate in itertools.product((8, 64, 128, 512), (0.15, 0.3)):
        most = most_chosen(width, rate)
        assert most % 8 == 0
        assert width * rate < most <= width
        tail = sum(math.comb(width, k) * rate**k * (1 - rate) ** (width - k) for k in range(most + 1, width + 1))
        assert tail < 1e-9
    assert most_chosen(512, 0.15) == 136


# Span corruption.


def test_sizes_of_t5():
    """568 tokens make inputs of 512 and targets of 114; at a rate of 1/2 both sides are as long as the limit allows."""
    assert longest_text(512, 0.15, 3.0) == 568
    assert [int(x) for x in span_sizes(568, 0.15, 3.0)] == [85, 28, 512, 114]
    half = span_sizes(longest_text(512, 0.5, 3.0), 0.5, 3.0)
    assert max(half.inputs, half.targets) == 512
    assert [[int(x) for x in span_sizes(n, 0.15, 3.0)] for n in (1, 2, 20)] == [
        [0, 0, 2, 1],
        [1, 1, 3, 3],
        [3, 1, 19, 5],
    ]
    assert longest_text(1, 0.15, 3.0) == 0
    many = span_sizes(np.arange(1, 300), 0.9, 1.0)
    assert (many.spans <= np.minimum(many.noise, np.arange(1, 300) - many.noise)).all()


def test_noise_is_a_random_division():
    """Every division into non-empty parts is equally likely; the first part is not noise, the last one is."""
    n = 20_000
    mask = noise_mask(np.full(n, 6), keys(4, np.arange(n)), 8, 0.5, 1.5)
    assert not mask[:, 6:].any()
    assert (mask.sum(1) == 3).all()
    found = {}
    for row in mask[:, :6]:
        name = "".join(str(int(x)) for x in row)
        found[name] = found.get(name, 0) + 1
    assert sorted(found) == ["001011", "001101", "010011", "011001"]
    for count in found.values():
        assert_share(count, n, 0.25)


def test_spans_become_sentinels_and_back():
    ids, lengths, text_keys = texts(568, 1, 2, 3, 40, 0, 17, 568)
    inputs, targets = corrupt_spans(
        ids, lengths, text_keys, rate=0.15, mean_span_length=3.0, sentinels=SENTINELS, end_id=END
    )
    sizes = span_sizes(lengths, 0.15, 3.0)
    for row, length in enumerate(lengths):
        source = inputs.ids[row, : inputs.lengths[row]].tolist()
        target = targets.ids[row, : targets.lengths[row]].tolist()
        assert (source.pop(), target.pop()) == (END, END)
        used = SENTINELS[: sizes.spans[row]].tolist()
        assert [id for id in source if id >= 899] == [id for id in target if id >= 899] == used
        spans = {}
        for id in target:
            if id >= 899:
                spans[id] = current = []
            else:
                current.append(id)
        assert all(spans.values())
        assert source[:1] == ids[row, : min(length, 1)].tolist()
        whole = [token for id in source for token in spans.get(id, [id])]
        assert whole == ids[row, :length].tolist()
        if length:
            assert (len(source) + 1, len(target) + 1) == (sizes.inputs[row], sizes.targets[row])


# Denoising.


def infilled(words, n, rate=0.3, mean=3.0, random_share=0.1, seed=7):
    """Return texts of distinct tokens, each a word, infilled."""
    ids = np.arange(2000, 2000 + words) + np.zeros((n, 1), np.int64)
    given = {"rate": rate, "mean_span_length": mean, "mask_id": MASK, "random_ids": RANDOM_IDS}
    return infill(
        ids, np.full(n, words), keys(seed, np.arange(n)), np.ones(ids.shape, bool), random_share=random_share, **given
    )


def test_infilling_masks_its_share_of_words_in_poisson_spans():
    new, lengths = infilled(200, 1000)
    real = np.arange(new.shape[1]) < lengths[:, None]
    kept = real & (new >= 2000)
    assert (kept.sum(1) == 140).all()
    assert (np.diff(np.where(kept, new, 0), axis=1)[kept[:, 1:] & kept[:, :-1]] > 0).all()
    fillers = real & ~kept
    assert_share((new[fillers] == MASK).sum(), fillers.sum(), 0.9)
    # Lengths of the spans: those of spans alone between two words.
    counts = np.zeros(12, int)
    for row, length in zip(new, lengths, strict=True):
        padded = [1999, *row[:length].tolist(), 2200]
        for before, filler, after in zip(padded, padded[1:], padded[2:], strict=False):
            if filler < 1999 and before >= 1999 and after >= 1999:
                counts[min(after - before - 1, 11)] += 1
    poisson = [math.exp(-3) * 3**k / math.factorial(k) for k in range(11)]
    # A text's last span is cut, so only the shares of short ones are those of the distribution.
    assert abs(counts[0] / counts.sum() - poisson[0]) < 0.015
    for k in range(2, 7):
        assert abs(counts[k] / counts.sum() - poisson[k]) < 0.03, k
    masks = fillers.sum(1)
    assert abs(masks.mean() - 60 / 3 - 0.5) < 1.0


def test_infilled_places_prefer_no_side():
    """Only at both ends are words lost less often: a span begins there or it does not reach them."""
    n = 20_000
    new, _ = infilled(40, n)
    lost = n - np.array([(new == 2000 + word).sum() for word in range(40)])
    assert lost.sum() == n * 12
    for one, other in zip(lost, lost[::-1], strict=True):
        assert abs(one - other) < 5 * math.sqrt(2 * n * 0.3 * 0.7)
    assert (np.abs(lost[8:-8] / n - 0.32) < 0.02).all()
    assert (lost[[0, -1]] < lost[8:-8].min()).all()


@pytest.mark.parametrize("mean", [0.1, 1.0, 12.0])
@pytest.mark.parametrize("words", [1, 2, 5, 60])
def test_infilled_texts_are_never_longer(words, mean):
    new, lengths = infilled(words, 300, mean=mean)
    assert (lengths <= words).all()
    assert (lengths >= 1).all()
    kept = (np.arange(new.shape[1]) < lengths[:, None]) & (new >= 2000)
    assert (kept.sum(1) == words - math.ceil(0.3 * words)).all()


def test_infilling_keeps_words_whole():
    ids, lengths, text_keys = texts(90, 40, 0)
    ids = ids * 0 + np.arange(2000, 2090)
    starts = np.random.default_rng(3).random(ids.shape) < 0.4
    starts[:, 0] = True
    new = infill(ids, lengths, text_keys, starts, rate=0.3, mean_span_length=3.0, mask_id=MASK, random_ids=RANDOM_IDS)
    for row, length in enumerate(lengths):
        words = [w.tolist() for w in np.split(ids[row, :length], np.flatnonzero(starts[row, :length])[1:])]
        kept = set(new.ids[row, : new.lengths[row]].tolist())
        assert all(set(word) <= kept or not set(word) & kept for word in words)
        gone = sum(not set(word) & kept for word in words if word)
        assert gone == math.ceil(0.3 * int(starts[row, :length].sum()))


def test_sentences_change_their_order():
    text = [11, 12, 9, 13, 9, 9, 14, 15, 16]  # 9 is a full stop; the last sentence has none
    sentences = [(11, 12, 9), (13, 9, 9), (14, 15, 16)]
    n = 6000
    ids = np.tile(np.array([*text, 99]), (n, 1))
    new = permute_sentences(ids, np.full(n, 9), keys(5, np.arange(n)), ids == 9)
    assert (new[:, 9] == 99).all()
    counts = {}
    for row in new[:, :9].tolist():
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    assert sorted(counts) == sorted(sum(order, ()) for order in itertools.permutations(sentences))
    for count in counts.values():
        assert_share(count, n, 1 / 6)
    # Of three sentences, two change places among themselves, half of the time.
    part = permute_sentences(ids, np.full(n, 9), keys(6, np.arange(n)), ids == 9, share=0.5)
    same = (part == ids).all(1).sum()
    assert_share(same, n, 0.5)
    moved = {tuple(row) for row in part[:, :9].tolist()}
    assert len(moved) == 4
    np.testing.assert_array_equal(permute_sentences(ids, np.full(n, 9), keys(6, np.arange(n)), ids == 9, 0.0), ids)
