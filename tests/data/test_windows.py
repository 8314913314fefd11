"""Windows of texts: what is counted, what stands before each token, and the random windows of training."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import BatchShape, Rows
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS
from transformer_jax.data.windows import WindowPlan, divided_into_windows, in_windows
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks.batches.windows import window_arrays

START_ID = 3
CONFIG = ExperimentConfig()


def split_of(*documents):
    """Return a split with the ids 100, 101, ... in documents of these lengths."""
    offsets = np.cumsum([0, *documents])
    ids = RaggedIds(np.arange(100, 100 + offsets[-1], dtype=np.uint16), offsets)
    return EncodedSplit({"ids": ids}, OWN_SPECIAL_IDS)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    size=st.integers(1, 12),
    data=st.data(),
)
def test_every_token_counts_once_after_enough_context(lengths, size, data):
    context = data.draw(st.integers(0, size - 1))
    starts = np.cumsum([0, *lengths])[:-1]
    firsts, sizes, of_context = divided_into_windows(starts, np.array(lengths), size, context)
    assert (sizes <= size).all()
    counted = [
        place
        for first, length, before in zip(firsts, sizes, of_context, strict=True)
        for place in range(first + before, first + length)
    ]
    assert counted == list(range(sum(lengths)))
    of_text = np.searchsorted(starts, firsts, side="right") - 1
    assert (firsts + sizes <= (starts + lengths)[of_text]).all()
    assert ((of_context == context) | (firsts == starts[of_text])).all()


def test_windows_within_documents():
    windows = in_windows(split_of(5, 0, 2), "ids", START_ID, 3, stream=False)
    rows = np.arange(windows.num_examples)
    assert windows.take("targets", rows, 3).tolist() == [[100, 101, 102], [103, 104, 0], [105, 106, 0]]
    assert windows.take("decoder_inputs", rows, 3).tolist() == [[3, 100, 101], [102, 103, 0], [3, 105, 0]]
    assert windows.values("text", rows).tolist() == [0, 0, 2]


def test_marks_of_counted_tokens_are_cut_like_the_tokens():
    split = split_of(5, 2)
    marks = RaggedIds(np.array([0, 1, 1, 1, 1, 1, 0], np.uint8), np.array([0, 5, 7]))
    marked = split.with_columns({"ids": split.ragged("ids"), "counted": marks})
    windows = in_windows(marked, "ids", START_ID, 3, 1, stream=False)
    rows = np.arange(windows.num_examples)
    assert windows.take("counted", rows, 3).tolist() == [[0, 1, 1], [1, 1, 1], [1, 0, 0]]
    lengths = windows.lengths("targets")
    shape = BatchShape(len(rows), (("targets", 3),))
    batch = window_arrays(CONFIG, windows, Rows(rows, np.ones_like(rows), rows, packed=False), shape, None)
    assert batch["weights"].tolist() == [[0, 1, 1], [0, 1, 1], [1, 0, 0]]  # window 2 begins with one of context
    assert batch["targets_mask"].sum(1).tolist() == lengths.tolist()
    others = split.with_columns({"ids": split.ragged("ids"), "counted": RaggedIds(marks.ids, np.array([0, 4, 7]))})
    with pytest.raises(DataError, match="text 1 has 5 tokens, but 4 numbers that say which ones count"):
        in_windows(others, "ids", START_ID, 3, stream=False)


def test_windows_of_the_stream_cross_the_ends_of_documents():
    windows = in_windows(split_of(2, 3), "ids", START_ID, 4, 1, stream=True)
    rows = np.arange(windows.num_examples)
    assert windows.take("targets", rows, 4).tolist() == [[100, 101, 102, 103], [103, 104, 0, 0]]
    assert windows.take("decoder_inputs", rows, 4).tolist() == [[3, 100, 101, 102], [102, 103, 0, 0]]
    assert windows.values("context", rows).tolist() == [0, 1]


def test_without_their_ends():
    windows = in_windows(split_of(3, 1, 2), "ids", START_ID, 8, stream=False, end=False)
    assert windows.take("targets", np.arange(2), 2).tolist() == [[100, 101], [104, 0]]
    assert windows.values("text", np.arange(2)).tolist() == [0, 2]


def test_tokens_of_the_context_have_no_weight():
    windows = in_windows(split_of(7), "ids", START_ID, 4, 2, stream=False)
    batch = next(iter(batches_of(windows)))
    assert batch["weights"].tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 0]]
    assert (batch["weights"] * batch["targets"]).sum() == sum(range(100, 107))


def batches_of(windows):
    from transformer_jax.data.batching import EvaluationBatches

    def arrays(rows, shape, step):
        rows = rows._replace(examples=np.arange(3), counts=np.ones(3, np.int32), row_ids=np.arange(3))
        return window_arrays(CONFIG, windows, rows, shape._replace(widths=(("targets", 4),)), step)

    lengths = {"targets": windows.lengths("targets")}
    return (batch for batch, _ in EvaluationBatches(lengths, arrays, tokens_per_batch=32, row_multiple=1))


def plan_of(split, seed=0, size=5, rows=4):
    limits = {"tokens_per_batch": rows * size, "size": size, "row_multiple": 2}
    return WindowPlan(split, "ids", functools.partial(window_arrays, CONFIG), seed=seed, **limits)


def test_random_windows_are_parts_of_the_text():
    plan = plan_of(split_of(30, 25))
    seen = set()
    for step in range(200):
        batch = plan.batch(step)
        first = batch["targets"][:, :1]
        np.testing.assert_array_equal(batch["targets"], first + np.arange(5))
        np.testing.assert_array_equal(batch["decoder_inputs"], batch["targets"] - 1)
        assert batch["weights"].all()
        seen |= {*first[:, 0].tolist()}
    assert seen == set(range(101, 151))  # each place that has a token before it and a whole window after it


def test_a_batch_follows_from_seed_and_step_alone():
    plan, again, other = (plan_of(split_of(500), seed) for seed in (1, 1, 2))
    for step in (7, 3, 0):
        whole = plan.batch(step)
        np.testing.assert_array_equal(whole["targets"], again.batch(step)["targets"])
        assert (whole["targets"] != other.batch(step)["targets"]).any()
        part = plan.batch(step, slice(1, 3))
        for name, array in part.items():
            np.testing.assert_array_equal(array, whole[name][1:3])
    assert (plan.batch(1)["targets"] != plan.batch(2)["targets"]).any()
    assert (plan.num_examples, plan.batches_per_epoch, plan.epoch(25), plan.epoch(24)) == (100, 25, 1, 0)


def test_a_text_shorter_than_a_window():
    with pytest.raises(DataError, match=r"5 tokens; .* needs more than a window of data\.max_length=5"):
        plan_of(split_of(5))
    plan_of(split_of(6)).batch(0)


def test_a_batch_without_room_for_its_rows():
    with pytest.raises(ConfigError, match=r"tokens_per_batch=5 cannot hold data\.row_multiple=2 windows"):
        plan_of(split_of(50), rows=1)
