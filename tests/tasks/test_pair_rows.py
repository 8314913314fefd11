"""Translation by a decoder alone: rows, loss, search and limits."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import forward, random_params

from transformer_jax.config import DataConfig, DecodeConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.batching import BatchShape, Rows
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.tokenizers import train_tokenizer
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.attention import attention_maps
from transformer_jax.tasks.batches.pair_rows import Constant, Joined
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.tasks.trained.row_translator import RowTranslator

EOS, START = 1, 3
SOURCES, TARGETS = [[5, 6, EOS], [7, EOS]], [[8, EOS], [9, 10, 11, EOS]]


def ragged(rows):
    return RaggedIds(np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]))


def config(source_mask="causal", model=None, **data):
    sizes = {"vocab_size": 290, "emb_dim": 16, "num_decoder_layers": 1, "dropout_rate": 0.0}
    if (model or {}).get("architecture") != "recurrent":
        sizes |= {"num_heads": 2, "mlp_dim": 24, "architecture": "decoder_only"}
    return ExperimentConfig(
        model=ModelConfig(**sizes | (model or {})),
        task=TaskConfig(source_mask=source_mask),
        data=DataConfig(**{"max_length": 8, "tokens_per_batch": 64, "row_multiple": 2} | data),
        decode=DecodeConfig(max_extra_length=3),
    ).resolved()


def arrays(settings, examples, counts, width, packed=False):
    split = EncodedSplit({"inputs": ragged(SOURCES), "targets": ragged(TARGETS)}, OWN_SPECIAL_IDS)
    counts = np.array(counts)
    rows = Rows(np.array(examples), counts, np.arange(len(counts), dtype=np.int32), packed)
    return TASKS["translation"].arrays(settings, split, rows, BatchShape(len(counts), (("targets", width),)), 0)


def test_joined_columns():
    joined = Joined(ragged(SOURCES), ragged(TARGETS))
    assert joined.lengths.tolist() == [5, 6]
    assert len(joined) == 2
    assert joined.take(np.array([1, -1, 0]), 7, 2).tolist() == [
        [7, EOS, 9, 10, 11, EOS, 2],
        [2] * 7,
        [5, 6, EOS, 8, EOS, 2, 2],
    ]
    assert Constant(ragged(SOURCES), 4).take(np.array([1, 0]), 3).tolist() == [[4, 4, 0], [4, 4, 4]]
    with pytest.raises(ValueError, match="a row of 6 ids does not fit into width 5"):
        joined.take(np.array([0, 1]), 5)


def test_rows():
    batch = arrays(config(), [0, 1], [1, 1], 7)
    assert batch["targets"].tolist() == [[5, 6, EOS, 8, EOS, 0, 0], [7, EOS, 9, 10, 11, EOS, 0]]
    assert batch["decoder_inputs"].tolist() == [[START, 5, 6, EOS, 8, EOS, 0], [START, 7, EOS, 9, 10, 11, EOS]]
    assert batch["weights"].tolist() == [[0, 0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 0]]
    assert batch["targets_mask"].sum(1).tolist() == [5, 6]
    assert "prefix_mask" not in batch
    assert "inputs" not in batch


def test_the_prefix_ends_with_the_token_that_predicts_the_first_of_the_target():
    batch = arrays(config("prefix"), [0, 1], [1, 1], 7)
    assert batch["prefix_mask"].tolist() == [[True] * 4 + [False] * 3, [True] * 3 + [False] * 4]
    packed = arrays(config("prefix"), [0, 1], [2], 12, packed=True)
    assert packed["prefix_mask"].tolist() == [[True] * 4 + [False] + [True] * 3 + [False] * 4]
    assert packed["targets_segment_ids"].tolist() == [[1] * 5 + [2] * 6 + [0]]
    assert packed["decoder_inputs"].tolist() == [[START, 5, 6, EOS, 8, START, 7, EOS, 9, 10, 11, START]]


def test_a_pair_that_is_too_long_is_counted_and_never_cut():
    """Each side is short enough; together they are not."""
    settings = config(max_length=5)
    split = EncodedSplit({"inputs": ragged(SOURCES), "targets": ragged(TARGETS)}, OWN_SPECIAL_IDS)
    plan = TASKS["translation"].training_batches(settings, split)
    assert (plan.num_examples, plan.left_out.count) == (1, 1)
    evaluated = TASKS["translation"].evaluation_batches(settings, split, 64, None)
    assert sorted(i for _, examples in evaluated for i in examples if i >= 0) == [0, 1]
    with pytest.raises(ValueError, match="a row of 6 ids does not fit into width 5"):
        arrays(settings, [1], [1], 5)


# Outputs.


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([f"{n} {n * 7 % 60}" for n in range(60)], "bpe", 290)


def translator_of(settings, tokenizer, **decode):
    params = jax.tree.map(lambda p: 2.0 * p, random_params(settings.model, 3))
    settings = dataclasses.replace(settings, decode=DecodeConfig(**{"max_extra_length": 3} | decode))
    return RowTranslator(settings, params, tokenizer)


RECURRENT = {"architecture": "recurrent", "num_encoder_layers": 0}
CASES = [
    pytest.param("causal", {}, id="causal"),
    pytest.param("prefix", {"position_encoding": "relative"}, id="prefix"),
    pytest.param("causal", RECURRENT, id="recurrent", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("prompts", [(None, None, None), ("44", "5 8 3", "7")], ids=["", "prompts"])
@pytest.mark.parametrize(("mask", "model"), CASES)
def test_greedy_outputs_are_the_likeliest_tokens_of_the_training_pass(tokenizer, mask, model, prompts):
    """So source and mask are those of training; lines of different lengths share a batch.

    The beginning of an output, if it is given, is read as an output is: it does not see what follows it.
    """
    translator = translator_of(config(mask, model), tokenizer)
    lines = ["12 7", "3 44 5 8", "9"]
    found = translator.generate_chunk([Line(*line) for line in zip(lines, prompts, strict=True)])
    for text, prompt, output in zip(lines, prompts, found, strict=True):
        (begin,) = translator.encode([prompt or ""])
        ids = [*begin, *output.outputs[0].ids]
        assert output.text.startswith(prompt or "")
        split = EncodedSplit(
            {"inputs": ragged(translator.encode_sources([text])), "targets": ragged([ids])}, OWN_SPECIAL_IDS
        )
        rows = Rows(np.zeros(1, np.int64), np.ones(1, np.int64), np.zeros(1, np.int32), False)
        source = len(split.take("inputs", np.zeros(1, int), 40)[0].nonzero()[0])
        shape = BatchShape(1, (("targets", source + len(ids)),))
        batch = TASKS["translation"].arrays(translator.config, split, rows, shape, None)
        logits = np.array(forward(translator.config.model, translator.params, batch))[0, source:]
        logits[:, 0] = -np.inf  # no padding
        assert logits.argmax(-1)[len(begin) :].tolist() == ids[len(begin) :]
        assert len(ids) - len(begin) <= source + 3


def test_a_wide_beam_finds_the_best_output(tokenizer):
    settings = config("prefix", {"position_encoding": "rotary"})
    forbidden = ",".join(str(i) for i in range(290) if i not in (EOS, 20, 21))
    fields = {"max_new_tokens": 3, "max_extra_length": 50, "forbidden_ids": forbidden, "length_penalty": "none"}
    fields |= {"at_limit": "end"}
    translator = translator_of(settings, tokenizer, beam_size=8, **fields)
    (output,) = translator.generate_chunk([Line("12 7")])
    source, best = translator.encode_sources(["12 7"])[0], {}
    for length in range(3):
        for text in itertools.product((20, 21), repeat=length):
            ids = [*text, EOS]
            read = jnp.array([[START, *source, *ids[:-1]]], jnp.int32)
            batch = {"decoder_inputs": read, "prefix_mask": jnp.arange(read.shape[1])[None] <= len(source)}
            logits = jax.nn.log_softmax(forward(settings.model, translator.params, batch)[0, len(source) :])
            best[tuple(ids)] = float(logits[np.arange(len(ids)), ids].sum())
    assert tuple(output.outputs[0].ids) == max(best, key=best.__getitem__)
    assert output.outputs[0].score == pytest.approx(max(best.values()), abs=1e-4)


def test_prompts_and_losses(tokenizer):
    translator = translator_of(config(), tokenizer)
    free, given = (translator.generate_chunk([Line("12 7", prompt)])[0] for prompt in (None, "44"))
    begin = translator.encode(["44"])[0]
    assert given.outputs[0].ids != free.outputs[0].ids
    assert given.text.startswith("44")
    assert len(begin) >= 1
    losses = translator.loss([("12 7", "7 12"), ("3", "44 5 6")])
    expected = [len(ids) + 1 for ids in translator.encode(["7 12", "44 5 6"])]
    assert losses.tokens.tolist() == expected
    alone = translator.loss([("3", "44 5 6")])
    assert losses.nll[1] == pytest.approx(alone.nll[0], rel=1e-5)


def test_texts_that_cannot_be_translated(tokenizer):
    learned = translator_of(config(model={"position_encoding": "learned", "max_length": 12}), tokenizer)
    (output,) = learned.generate_chunk([Line("1 2 3 4 5 6 7 8 9 1 2 3 4")])
    assert "too many: the learned position table has model.max_length=12 rows" in output.problem
    with pytest.raises(DataError, match=r"pair 1: \d+ tokens .* model\.max_length=12 rows"):
        learned.loss([("1 2 3 4 5 6", "4 5 6 7 8 9")])


def test_attention_of_a_row(tokenizer):
    translator = translator_of(config("prefix"), tokenizer)
    maps = attention_maps(translator, "12 7", "7 12")
    source = len(translator.encode_sources(["12 7"])[0])
    weights = maps.weights["decoder_self_attention"][0, 0]
    assert weights.shape == (len(maps.read),) * 2
    assert maps.read[0] == "<s>"
    assert weights[0, source] > 0  # the start id sees the end of the source, and nothing after it
    assert not weights[: source + 1, source + 1 :].any()


@pytest.mark.parametrize(
    ("model", "task", "message"),
    [
        ({}, {}, "source_mask='prefix' has no effect with model.architecture='encoder_decoder', only with 'deco"),
        (RECURRENT, {}, "source_mask='prefix' has no effect with model.architecture='recurrent'"),
        ({"architecture": "decoder_only"}, {"name": "language_model"}, "has no effect with name='language_model'"),
    ],
)
def test_masks_that_are_not_read(model, task, message):
    with pytest.raises(ConfigError) as error:
        ExperimentConfig(model=ModelConfig(**model), task=TaskConfig(source_mask="prefix", **task)).resolved()
    assert message in str(error.value)
