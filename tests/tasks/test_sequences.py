"""Arrays of batches of text: masks and weights follow from lengths, whatever the ids of padding and ends."""

import numpy as np
import pytest
from data_support import FakeSource

from transformer_jax.config import DataConfig, EvaluationConfig, ExperimentConfig, ModelConfig
from transformer_jax.data.batching import BatchShape, Rows
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.sources import Split
from transformer_jax.data.token_cache import open_split
from transformer_jax.data.tokenizers import EncodedSpans, EncodedTexts, SpecialIds, Tokenizer
from transformer_jax.data.tokenizers.tokenizer import ModelBytes, concatenated
from transformer_jax.tasks.batches.of_split import evaluation_batches, training_batches
from transformer_jax.tasks.batches.sequences import sequence_to_sequence_arrays, shift_right
from transformer_jax.tasks.task import TASKS

START = 7


class Letters(ModelBytes):
    """Ids as in RoBERTa and GPT-2: "!" is token 0, padding is 1 and eos is 2."""

    special_ids = SpecialIds(pad=1, eos=2, bos=START)
    vocab_size = 16

    def encode_batch(self, texts) -> EncodedTexts:
        return concatenated([[0 if letter == "!" else 8 + ord(letter) - ord("a") for letter in text] for text in texts])

    def encode_spans(self, texts) -> EncodedSpans:
        places = np.array([[i, i + 1] for text in texts for i in range(len(text))], np.int32).reshape(-1, 2)
        return EncodedSpans(*self.encode_batch(texts), places)

    def decode(self, ids):
        return "".join("!" if i == 0 else chr(ord("a") + i - 8) for i in ids)

    def decode_batch(self, rows):
        return [self.decode(row) for row in rows]

    def tokens(self, ids):
        return [self.decode([i]) for i in ids]


TEXTS = {
    "inputs": ["!", "ab!", "!!!!", "a", "!b", "", "ba", "!a!", "b!"] * 3,
    "targets": ["a!", "!", "ba", "!!!", "!", "!b!", "", "!!", "a"] * 3,
}


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    columns = TASKS["translation"].columns(ExperimentConfig())
    tokenizer = Letters(b"letters")
    assert isinstance(tokenizer, Tokenizer)
    return open_split(tmp_path_factory.mktemp("cache"), FakeSource(Split(TEXTS)), "train", tokenizer, columns)


def config(**data):
    limits = {"tokens_per_batch": 64, "max_length": 8, "row_multiple": 4}
    return ExperimentConfig(
        model=ModelConfig(vocab_size=16, decoder_start_id=START),
        data=DataConfig(**limits | data),
        evaluation=EvaluationConfig(tokens_per_batch=64),
    )


def pairs_of(batch):
    """Return the pairs of a batch, found by masks and weights; check all other values."""
    pairs = []
    for row in range(len(batch["row_ids"])):
        mask, weights = batch["inputs_mask"][row], batch["weights"][row]
        assert set(weights.tolist()) <= {0.0, 1.0}
        for name, real in (("inputs", mask), ("targets", weights > 0)):
            assert (batch[name][row][~real] == 1).all()
            if f"{name}_segment_ids" in batch:
                assert ((batch[f"{name}_segment_ids"][row] > 0) == real).all()
        segments = batch.get("inputs_segment_ids")
        numbers = range(1, segments[row].max() + 1) if segments is not None else [1] * bool(mask.any())
        for number in numbers:
            here = mask if segments is None else segments[row] == number
            there = weights > 0 if segments is None else batch["targets_segment_ids"][row] == number
            source, target = batch["inputs"][row][here].tolist(), batch["targets"][row][there].tolist()
            assert batch["decoder_inputs"][row][there].tolist() == [START, *target[:-1]]
            assert (source.pop(), target.pop()) == (2, 2)
            letters = Letters(b"")
            pairs.append((letters.decode(source), letters.decode(target)))
    return pairs


EXPECTED = sorted(zip(TEXTS["inputs"], TEXTS["targets"], strict=True))


@pytest.mark.parametrize("batching", [{}, {"batching": "packed", "packed_length": 16}])
def test_a_token_with_id_0_counts_and_padding_with_another_id_does_not(split, batching):
    plan = training_batches(config(**batching), split)
    batches = [plan.batch(step) for step in range(plan.batches_per_epoch)]
    assert any((batch["targets"][batch["weights"] > 0] == 0).any() for batch in batches)
    assert sorted(pair for batch in batches for pair in pairs_of(batch)) == EXPECTED
    num_tokens = sum(map(len, TEXTS["inputs"])) + sum(map(len, TEXTS["targets"])) + 2 * len(EXPECTED)
    assert sum(batch["inputs_mask"].sum() + batch["weights"].sum() for batch in batches) == num_tokens


def test_evaluation_makes_the_same_arrays(split):
    evaluation = evaluation_batches(config(), split)
    batches = [batch for batch, _ in evaluation]
    assert sorted(pair for batch in batches for pair in pairs_of(batch)) == EXPECTED
    types = {name: array.dtype.name for name, array in batches[0].items()}
    ids = dict.fromkeys(("inputs", "decoder_inputs", "targets", "row_ids"), "int32")
    assert types == ids | {"inputs_mask": "bool", "weights": "float32"}


def test_a_tokenizer_without_padding():
    ragged = RaggedIds(np.array([5, 0, 2, 6, 2]), np.array([0, 3, 5]))
    split = EncodedSplit({"inputs": ragged, "targets": ragged}, SpecialIds(eos=2))
    rows = Rows(np.array([1, -1, 0]), np.ones(3, np.int32), np.arange(4, 7, dtype=np.int32), packed=False)
    shape = BatchShape(8, (("inputs", 3), ("targets", 4)))
    batch = sequence_to_sequence_arrays(split, rows, shape, START)
    assert batch["inputs"].tolist() == [[6, 2, 0], [0, 0, 0], [5, 0, 2]]
    assert batch["inputs_mask"].tolist() == [[True, True, False], [False] * 3, [True] * 3]
    assert batch["weights"].tolist() == [[1, 1, 0, 0], [0] * 4, [1, 1, 1, 0]]
    assert batch["decoder_inputs"].tolist() == [[START, 6, 2, 0], [START, 0, 0, 0], [START, 5, 0, 2]]
    assert batch["row_ids"].tolist() == [4, 5, 6]


def test_long_examples_are_not_truncated():
    ragged = RaggedIds(np.array([5, 4, 2, 6, 2]), np.array([0, 3, 5]))
    split = EncodedSplit({"inputs": ragged, "targets": ragged}, SpecialIds(eos=2))
    shape = BatchShape(1, (("inputs", 4), ("targets", 4)))
    row_ids = np.zeros(1, np.int32)
    packed = Rows(np.array([0, 1]), np.array([2]), row_ids, packed=True)
    with pytest.raises(ValueError, match="a row of 5 tokens does not fit into width 4"):
        sequence_to_sequence_arrays(split, packed, shape, START)
    alone = Rows(np.array([0]), np.array([1]), row_ids, packed=False)
    with pytest.raises(ValueError, match="does not fit into width 2"):
        sequence_to_sequence_arrays(split, alone, BatchShape(1, (("inputs", 2), ("targets", 4))), START)


def test_shift_right():
    ids = np.array([[4, 5, 6, 1, 1], [8, 0, 9, 0, 1]], np.int32)
    assert shift_right(ids, 3).tolist() == [[3, 4, 5, 6, 1], [3, 8, 0, 9, 0]]
    segments = np.array([[1, 1, 1, 0, 0], [1, 1, 2, 2, 0]], np.int32)
    shifted = shift_right(ids, 3, segments)
    assert shifted.tolist() == [[3, 4, 5, 3, 1], [3, 8, 3, 9, 3]]
    assert shifted.dtype == np.int32
