"""The task language_model: batches, scores, continuations, and the probability of given texts."""

import dataclasses
import functools
import math

import jax
import numpy as np
import pytest
from data_support import prepared
from support import random_params

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    TaskConfig,
)
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.lines import Line

TASK = TASKS["language_model"]
LINES = ["the cat sat", "a dog", "", "one two three four five six seven eight nine ten", "x"]


def config_of(folder, data=(), model=(), **sections):
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in LINES * 4))
    sizes = {"vocab_size": 260, "emb_dim": 16, "num_heads": 2, "num_decoder_layers": 2, "norm_position": "pre"}
    files = {"source": "text", "format": "documents", "dir": str(folder), "train_split": "text", "valid_split": "text"}
    limits = {"tokenizer": "byte", "max_length": 16, "tokens_per_batch": 512, "test_split": ""}
    if dict(data).get("batching") == "packed":
        limits["packed_length"] = 64
    return ExperimentConfig(
        model=ModelConfig(
            **{"architecture": "decoder_only", "position_encoding": "rotary", "max_length": 64} | sizes | dict(model)
        ),
        task=TaskConfig(name="language_model"),
        data=DataConfig(**files | limits | dict(data)),
        **sections,
    ).resolved()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "corpus"


def distributions(config, params, ids, prefix=0):
    """Return log P of every next token after the start id and `ids`, [len(ids) + 1, V], by one pass over all.

    Args:
      prefix: number of inputs that attend to each other in both directions.
    """
    read = np.zeros((1, config.model.max_length), np.int32)  # no token sees those after it
    read[0, : len(ids) + 1] = [config.model.decoder_start_id, *ids]
    model = dataclasses.replace(config.model, decoder_start_id=0)
    is_prefix = np.arange(read.shape[1])[None] < prefix
    return np.asarray(_distributions(model, params, read, is_prefix))[: len(ids) + 1]


@functools.partial(jax.jit, static_argnums=0)
def _distributions(model, params, read, is_prefix):
    batch = {"decoder_inputs": read, "prefix_mask": is_prefix}
    logits = ARCHITECTURES["decoder_only"].module(model).apply({"params": params}, batch)
    return jax.nn.log_softmax(logits[0])


def log_probs(config, params, ids):
    """Return log P of each of `ids` after the start id and those before it."""
    return distributions(config, params, ids[:-1])[np.arange(len(ids)), ids]


def ids_of(*texts):
    """Return bytes as the tokenizer of bytes numbers them, each text with its end-of-sequence."""
    return [id for text in texts for id in [*(4 + byte for byte in text.encode()), 1]]


@pytest.mark.parametrize("batching", ["buckets", "packed", "windows"])
def test_scores_are_of_the_whole_text(folder, batching):
    """Words and bytes too: a file with one document per line has as many bytes as they have."""
    config = config_of(folder, {"batching": batching, "max_length": 64})
    data, params = prepared(config, folder / "run"), random_params(config.model, 1)
    scores = TASK.score(Evaluator(config, data), params, "valid", True).metrics
    texts = LINES * 4
    if batching == "windows":
        whole, nats = ids_of(*texts), 0.0
        for first in range(0, len(whole), 64):  # windows do not see those before them, but the token before theirs
            before = whole[first - 1] if first else 3
            shifted = dataclasses.replace(config, model=dataclasses.replace(config.model, decoder_start_id=before))
            nats -= log_probs(shifted, params, whole[first : first + 64]).sum()
    else:
        nats = -sum(log_probs(config, params, ids_of(text)).sum() for text in texts)
    size = (folder / "text.txt").stat().st_size
    words = sum(len(text.split()) + 1 for text in texts)
    assert (scores["tokens"], scores["words"], scores["bytes"]) == (size, words, size)
    assert scores["loss"] == pytest.approx(nats / size, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(nats / size), rel=1e-4)
    assert scores["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-3)
    assert scores["bits_per_byte"] == pytest.approx(nats / size / math.log(2), rel=1e-5)


def test_context_makes_windows_see_more(folder):
    """With all but one token as context, every token is scored as by a pass over the last tokens of that number."""
    size = 12
    config = config_of(folder, evaluation=EvaluationConfig(max_length=size, context=size - 1))
    data, params = prepared(config, folder / "run"), random_params(config.model, 1)
    scores = TASK.score(Evaluator(config, data), params, "valid", True).metrics
    nats = 0.0
    for text in LINES:
        ids = ids_of(text)
        nats -= log_probs(config, params, ids[:size]).sum()
        for end in range(size + 1, len(ids) + 1):
            before = dataclasses.replace(config.model, decoder_start_id=ids[end - size - 1])
            nats -= log_probs(dataclasses.replace(config, model=before), params, ids[end - size : end])[-1]
    assert scores["loss"] == pytest.approx(4 * nats / scores["tokens"], rel=1e-5)


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_training_sees_every_token_once_an_epoch(folder, batching):
    """Long documents are cut, and a part reads the token before it."""
    config = config_of(folder, {"batching": batching})
    split = prepared(config, folder / "run").splits["train"]
    plan = training_batches(config, split)
    pairs = []
    for step in range(plan.batches_per_epoch):
        batch = plan.batch(step)
        real = batch["weights"] > 0
        pairs += zip(batch["decoder_inputs"][real].tolist(), batch["targets"][real].tolist(), strict=True)
    expected = []
    for text in LINES * 4:
        ids = ids_of(text)
        expected += zip([3, *ids[:-1]], ids, strict=True)
    assert sorted(pairs) == sorted(expected)
    assert plan.left_out.count == 0


@pytest.mark.parametrize(
    ("position_encoding", "beam_size"),
    [
        ("rotary", 1),
        *(
            pytest.param(encoding, size, marks=pytest.mark.slow)
            for encoding, size in [("sinusoidal", 3), ("learned", 1), ("relative", 3), ("none", 1)]
        ),
    ],
)
def test_prompts_of_unequal_lengths_continue_as_alone(folder, position_encoding, beam_size):
    """In one batch; the greedy one as by whole passes without a cache."""
    decode = DecodeConfig(beam_size=beam_size, max_new_tokens=9)
    model = {"position_encoding": position_encoding, "max_length": 32}
    config = config_of(folder, model=model, decode=decode)
    generator = language_model(config, folder)
    prompts = ["the c", "", "one two three", "z"]
    together = generator.generate_chunk([Line(prompt) for prompt in prompts])
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = generator.generate_chunk([Line(prompt)])
        assert alone.outputs[0].ids == output.outputs[0].ids
        assert output.text.startswith(prompt)
        if beam_size == 1:
            ids = ids_of(prompt)[:-1]
            for id in output.outputs[0].ids:
                assert int(np.argmax(distributions(config, generator.params, ids)[-1][1:])) + 1 == id  # 0 is padding
                ids.append(id)


def language_model(config, folder):
    tokenizer = prepared(config, folder / "run").tokenizer
    return LanguageModel(config, random_params(config.model, 5), tokenizer)


def test_a_length_beyond_a_learned_table(folder):
    """It is a problem of the line before anything runs; other encodings go on."""
    decode = DecodeConfig(max_new_tokens=10)
    learned = language_model(
        config_of(folder, model={"position_encoding": "learned", "max_length": 16}, decode=decode), folder
    )
    fits, too_long = learned.generate_chunk([Line("123456"), Line("1234567")])
    assert fits.problem is None
    assert fits.outputs
    assert too_long.problem == (
        "its 7 tokens and 10 new ones exceed the positions of the model, model.max_length=16; shorten it, or set "
        "decode.max_new_tokens"
    )
    with pytest.raises(DataError, match="prompt 1: its 7 tokens"):
        learned.continue_all(["1234567"])
    none_fits = dataclasses.replace(learned.config, decode=DecodeConfig())  # max_extra_length is 50
    for check in (LanguageModel.check_limit, lambda model: model.generate_chunk([Line("1")])):
        with pytest.raises(
            ConfigError, match=r"decode\.max_extra_length=50: so many new tokens exceed .*=16; set decode"
        ):
            check(dataclasses.replace(learned, config=none_fits))
    rotary = language_model(
        config_of(folder, model={"max_length": 16}, decode=DecodeConfig(max_new_tokens=30, min_length=25)), folder
    )
    (text,) = rotary.continue_all(["1234567"])
    assert text.startswith("1234567")


@pytest.mark.parametrize("end", [True, False])
def test_log_probabilities_of_texts(folder, end):
    config = config_of(folder)
    generator = language_model(config, folder)
    texts = ["ab", "", "the cat sat on the", "b"]  # one is longer than data.max_length
    scores, of_tokens = generator.score(texts, end=end), generator.token_log_probs(texts, end=end)
    for text, log_prob, tokens, found in zip(texts, *scores, of_tokens, strict=True):
        ids = ids_of(text) if end else ids_of(text)[:-1]
        assert tokens == len(ids)
        assert found.ids == ids
        assert found.tokens == generator.tokenizer.tokens(ids)
        assert found.log_probs.sum() == pytest.approx(log_prob, rel=1e-5, abs=1e-6)
        expected = np.zeros(0)
        for first in range(0, len(ids), 16):
            before = ids[first - 1] if first else 3
            shifted = dataclasses.replace(config, model=dataclasses.replace(config.model, decoder_start_id=before))
            expected = np.append(expected, log_probs(shifted, generator.params, ids[first : first + 16]))
        np.testing.assert_allclose(found.log_probs, expected, rtol=1e-5, atol=1e-6)
        assert log_prob == pytest.approx(expected.sum(), rel=1e-5, abs=1e-6)
    assert scores.loss == pytest.approx(-scores.log_probs.sum() / scores.tokens.sum())


def prefix_config(folder, data=(), **sections):
    config = config_of(folder, data, **sections)
    return dataclasses.replace(config, task=TaskConfig(name="language_model", prefix="random"))


@pytest.mark.parametrize("batching", ["buckets", "packed", "windows"])
def test_a_prefix_is_not_predicted(folder, batching):
    """In every text the prefix comes first, with one more input than targets that have no weight."""
    config = prefix_config(folder, {"batching": batching})
    plan = training_batches(config, prepared(config, folder / "run").splits["train"])
    whole = training_batches(
        dataclasses.replace(config, task=TaskConfig(name="language_model")),
        prepared(config, folder / "run").splits["train"],
    )
    shares = []
    for step in range(6):
        batch, unmasked = plan.batch(step), whole.batch(step)
        np.testing.assert_array_equal(batch["targets"], unmasked["targets"])
        segments = batch.get("targets_segment_ids", (unmasked["weights"] > 0).astype(np.int32))
        for row, segment in {
            (r, s) for r, s in zip(*[x.ravel() for x in (np.indices(segments.shape)[0], segments)], strict=True) if s
        }:
            of_text = segments[row] == segment
            prefix, weights = batch["prefix_mask"][row][of_text], batch["weights"][row][of_text]
            k = int((weights == 0).sum())
            assert weights.tolist() == [0.0] * k + [1.0] * (len(weights) - k)
            assert prefix.tolist() == [True] * (k + 1) + [False] * (len(weights) - k - 1)
            shares.append(k / len(weights))
        part = plan.batch(step, slice(2, 5))
        for name, array in part.items():
            np.testing.assert_array_equal(array, batch[name][2:5])
    assert 0.25 < np.mean(shares) < 0.6


def test_prefixes_of_an_evaluation_are_those_of_the_examples(folder):
    """They do not depend on batches; scores are those of the rest of each text alone."""
    scores = []
    for tokens in (512, 64):
        config = prefix_config(folder, evaluation=EvaluationConfig(tokens_per_batch=tokens))
        data = prepared(config, folder / "run")
        scores.append(TASK.score(Evaluator(config, data), random_params(config.model, 1), "valid", True).metrics)
    assert scores[0]["tokens"] == scores[1]["tokens"] < (folder / "text.txt").stat().st_size
    assert scores[0]["loss"] == pytest.approx(scores[1]["loss"], rel=1e-6)
    assert {spec.name for spec in TASK.measured(config)} == set(scores[0])


@pytest.mark.parametrize("position_encoding", ["learned", pytest.param("relative", marks=pytest.mark.slow)])
def test_a_prefix_is_read_in_both_directions(folder, position_encoding):
    """Continuations of prompts of unequal lengths, as by whole passes with the mask of training."""
    model = {"position_encoding": position_encoding, "max_length": 32}
    config = prefix_config(folder, model=model, decode=DecodeConfig(max_new_tokens=6))
    generator, prompts = language_model(config, folder), ["the c", "", "one two three", "z"]
    causal = language_model(dataclasses.replace(config, task=TaskConfig(name="language_model")), folder)
    for prompt, output in zip(prompts, generator.generate_chunk([Line(p) for p in prompts]), strict=True):
        ids = ids_of(prompt)[:-1]
        for id, log_prob in zip(output.outputs[0].ids, output.outputs[0].log_probs, strict=True):
            found = distributions(config, generator.params, ids, len(prompt) + 1)[-1]
            assert int(np.argmax(found[1:])) + 1 == id
            assert log_prob == pytest.approx(found[id], abs=1e-5)
            ids.append(id)
    both = [[o.outputs[0].log_probs for o in g.generate_chunk([Line(p) for p in prompts])] for g in (generator, causal)]
    assert both[0] != both[1]


@pytest.mark.slow
def test_beams_with_a_prefix_fit_into_the_cache(folder):
    """A beam of one hypothesis after the other, over several stages of the cache, equals greedy search."""
    decode = DecodeConfig(max_new_tokens=150, min_length=140)
    generator = language_model(prefix_config(folder, decode=decode), folder)
    wide = dataclasses.replace(
        generator,
        config=dataclasses.replace(generator.config, decode=dataclasses.replace(decode, beam_size=2, num_best=2)),
    )
    lines = [Line("the c"), Line("a longer prompt")]
    assert [len(o.outputs[0].ids) >= 140 for o in generator.generate_chunk(lines)] == [True, True]
    assert [len(o.outputs) for o in wide.generate_chunk(lines)] == [2, 2]


def test_scores_need_texts(folder):
    with pytest.raises(DataError, match="texts: there are none"):
        language_model(config_of(folder), folder).score([])


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        (
            {"model": {"architecture": "encoder_decoder"}},
            r"'encoder_decoder' cannot be trained with task\.name='language_model', which trains decoder_only",
        ),
        (
            {"evaluation": EvaluationConfig(context=16)},
            r"evaluation\.context=16 leaves no token to score in windows of 16 tokens",
        ),
        (
            {
                "model": {"position_encoding": "learned", "max_length": 16},
                "evaluation": EvaluationConfig(max_length=17),
            },
            r"evaluation\.max_length=17 exceeds the learned position table",
        ),
    ],
)
def test_configs_that_are_refused(folder, sections, problem):
    with pytest.raises(ConfigError, match=problem):
        config_of(folder, **sections)


def test_translation_has_no_windows():
    with pytest.raises(
        ConfigError, match=r"data\.batching='windows': task\.name='translation' can only use buckets, packed"
    ):
        ExperimentConfig(data=DataConfig(batching="windows")).resolved()


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_documents_that_may_not_be_cut(folder, batching):
    config = config_of(folder, {"batching": batching, "cut_documents": False})
    with pytest.raises(
        DataError,
        match=r"^data\.cut_documents=false: 4 of 20 training documents have more than data\.max_length=16 tokens; "
        r"the first is document 4 with 49\.",
    ):
        training_batches(config, prepared(config, folder / "run").splits["train"])
    longer = config_of(folder, {"batching": batching, "cut_documents": False, "max_length": 49})
    assert training_batches(longer, prepared(longer, folder / "run").splits["train"]).batches_per_epoch
    with pytest.raises(ConfigError, match=r"data\.cut_documents=False has no effect with batching='windows'"):
        config_of(folder, {"batching": "windows", "cut_documents": False})


def test_one_text_in_place_of_several(folder):
    model = language_model(config_of(folder), folder)
    for method, name in ((model.continue_all, "prompts"), (model.score, "texts")):
        with pytest.raises(DataError, match=rf"^{name}: one text in place of a list"):
            method("a dog")
