"""Rows of keys and values: what is drawn, how far answers are from their pairs, and that answers alone count."""

import dataclasses
import hashlib
import json
import os
import signal

import jax
import numpy as np
import pytest
from data_support import prepared
from hypothesis import given
from hypothesis import strategies as st
from run_support import assert_same_run, at, run_main
from support import random_params

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data import sources
from transformer_jax.data.sources import load_source, open_test_set
from transformer_jax.data.sources.recall import draw
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.evaluation.task_baselines import why_no_baselines
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.task import TASKS, validation_metrics
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.training import loop

SPLITS = ("train", "valid", "test")
SMALL = {
    "num_train_pairs": 100,
    "num_eval_pairs": 20,
    "recall_pairs": 3,
    "recall_questions": 3,
    "recall_keys": 6,
    "recall_gap": 2,
    "recall_length": 18,
}


def data_config(**fields):
    return DataConfig(**{"source": "recall", "tokenizer": "words", **SMALL, **fields})


def config_of(model=(), task=(), **fields):
    data = data_config(**{"tokens_per_batch": 512, "max_length": 24, **fields})
    sizes = {"emb_dim": 8, "num_heads": 2, "num_decoder_layers": 1, "vocab_size": data.recall_vocab_size()}
    return ExperimentConfig(
        model=ModelConfig(architecture="decoder_only", **{**sizes, **dict(model)}),
        task=TaskConfig(name="language_model", **dict(task)),
        data=data,
    ).resolved()


def rows_of(split="train", **fields):
    """Return the words of every row of a split, and the places of its answers."""
    features = load_source(data_config(**fields)).split(split).features
    words = [text.split(" ") for text in features["inputs"]]
    return [(row, np.flatnonzero(marks)) for row, marks in zip(words, features["answers"], strict=True)]


def pairs_of(row, pairs):
    """Return the pairs of a row in their order."""
    told = row[: 2 * pairs]
    return list(zip(told[::2], told[1::2], strict=True))


@given(
    pairs=st.integers(1, 5),
    questions=st.integers(1, 5),
    more_keys=st.integers(1, 4),
    gap=st.integers(0, 6),
    after=st.integers(0, 5),
    order=st.sampled_from(["shuffled", "kept"]),
)
def test_an_answer_is_the_value_of_its_key_at_the_asked_distance(pairs, questions, more_keys, gap, after, order):
    questions = min(questions, pairs)
    length = 2 * (pairs + questions) + gap + after
    fields = {"recall_pairs": pairs, "recall_keys": pairs + more_keys, "recall_gap": gap, "recall_order": order}
    fields |= {"recall_questions": questions}
    for row, answers in rows_of("valid", num_eval_pairs=10, recall_length=length, **fields):
        told = pairs_of(row, pairs)
        assert len(row) == length
        assert len({key for key, _ in told}) == pairs
        asked = [(row[place - 1], row[place]) for place in answers]
        assert len({*asked}) == len(asked) == questions
        assert {*asked} <= {*told}
        assert order == "shuffled" or asked == told[:questions]
        fillers = {*range(2 * pairs, 2 * pairs + gap), *range(length - after, length)}
        assert {place for place, word in enumerate(row) if word == "_"} == fillers
        distances = [place - 1 - (2 * told.index(pair) + 1) for place, pair in zip(answers, asked, strict=True)]
        assert min(distances) >= gap + 1
        assert max(distances) <= gap + 2 * (pairs + questions) - 3
        assert order == "shuffled" or {*distances} == {gap + 2 * pairs - 1}


def test_both_bounds_of_the_distance_are_reached():
    distances = {
        place - 1 - row.index(row[place])
        for row, answers in rows_of(recall_pairs=2, recall_questions=2, recall_keys=60, recall_length=12)
        for place in answers
        if row.count(row[place]) == 2
    }
    assert (min(distances), max(distances)) == (3, 7)


def test_rows_are_the_same_everywhere():
    """Literals: another machine, or another version of NumPy, must draw the same."""
    first = [" ".join(row) for row, _ in rows_of()[:2]]
    assert first == [
        "k3 v4 k5 v1 k1 v2 _ _ k5 v1 k1 v2 k3 v4 _ _ _ _",
        "k1 v3 k2 v1 k5 v0 _ _ k1 v3 k2 v1 k5 v0 _ _ _ _",
    ]
    texts = "".join(
        f"{text}\n" for split in SPLITS for text in load_source(data_config()).split(split).features["inputs"]
    )
    assert hashlib.sha256(texts.encode()).hexdigest()[:16] == "5a37b6abd6ab2f47"


def test_gap_length_and_order_change_no_pair():
    def told(**fields):
        return [pairs_of(row, 3) for row, _ in rows_of(**fields)]

    def asked(**fields):
        return [[row[place] for place in answers] for row, answers in rows_of(**fields)]

    longer = {"recall_gap": 5, "recall_length": 30}
    assert told() == told(**longer) == told(recall_order="kept")
    assert asked() == asked(**longer) != asked(recall_order="kept")


def test_a_smaller_corpus_begins_a_larger_one_in_chunks_of_any_size():
    source = load_source(data_config(num_train_pairs=1500))
    whole = source.split("train").features["inputs"]
    assert len({*whole}) > 1400
    assert whole[:100] == load_source(data_config()).split("train").features["inputs"]
    chunks = [chunk.features for chunk in source.chunks("train", 700)]
    assert [len(chunk["inputs"]) for chunk in chunks] == [700, 700, 100]
    assert [text for chunk in chunks for text in chunk["inputs"]] == whole


def test_no_pairs_of_a_row_are_in_two_splits():
    """There are so few different rows that most of them are drawn for every split."""
    few = {
        "recall_pairs": 2,
        "recall_questions": 2,
        "recall_keys": 4,
        "recall_length": 8,
        "num_train_pairs": 2000,
        "num_eval_pairs": 1000,
    }
    drawn = [
        {tuple(pairs) for pairs in np.concatenate([block.keys, block.values], 1).tolist()}
        for block in (draw(number, 0, 2, 4) for number in range(3))
    ]
    assert len(drawn[0] & drawn[1] & drawn[2]) > 150
    kept = [{tuple(pairs_of(row, 2)) for row, _ in rows_of(split, **few | {"recall_gap": 0})} for split in SPLITS]
    assert min(map(len, kept)) > 20
    assert not kept[0] & kept[1] | kept[0] & kept[2] | kept[1] & kept[2]


def test_keys_values_and_order_are_uniform_and_independent():
    blocks = [draw(0, part, 3, 5) for part in range(20)]
    keys, values, order = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    rows = len(keys)
    assert [len({*row}) for row in keys[:200].tolist()] == [3] * 200
    for joint, count in (
        ((keys * [1, 5, 25]).sum(1), 60),  # 5 * 4 * 3 choices of keys
        ((values * [1, 5, 25]).sum(1), 125),
        ((order * [1, 3, 9]).sum(1), 6),
        (keys[:, 0] + 5 * values[:, 0] + 25 * order[:, 0], 75),
        (keys[:, 2] + 5 * values[:, 0] + 25 * order[:, 1], 75),
    ):
        found = np.unique(joint, return_counts=True)[1]
        assert len(found) == count
        assert np.abs(found - rows / count).max() < 5 * (rows / count) ** 0.5


def test_a_test_set_has_the_rows_of_test_with_another_gap():
    source = load_source(data_config(test_sets="near=0,far=6"))
    assert source.split_names == (*SPLITS, "near", "far")
    of_test, near, far = (source.split(name).features["inputs"] for name in ("test", "near", "far"))
    assert len(far) == source.num_examples("far") == 20
    for name, texts, gap in (("test", of_test, 2), ("near", near, 0), ("far", far, 6)):
        rows = [text.split(" ") for text in texts]
        assert {len(row) for row in rows} == {18}
        assert {tuple(row[6 : 6 + gap]) for row in rows} == {("_",) * gap}
        assert all(row[6 + gap].startswith("k") for row in rows)
        assert source.split(name).features["answers"] == [[0] * (6 + gap) + [0, 1] * 3 + [0] * (6 - gap)] * 20
    words = [[text.replace("_", "").split() for text in texts] for texts in (of_test, near, far)]
    assert words[0] == words[1] == words[2]


def test_the_fingerprint_is_that_of_the_rows():
    def digest(split=None, **fields):
        return load_source(data_config(**fields)).fingerprint(split)["sha256"]

    others = [
        {"num_train_pairs": 101},
        {"num_eval_pairs": 21},
        {"recall_pairs": 4},
        {"recall_questions": 2},
        {"recall_keys": 7},
        {"recall_gap": 3},
        {"recall_length": 19},
        {"recall_order": "kept"},
    ]
    assert len({digest(), *(digest(**fields) for fields in others)}) == 1 + len(others)
    both = {"test_sets": "near=0,far=6"}
    assert digest() == digest("valid") == digest(**both)
    assert len({digest(), digest("near", **both), digest("far", **both)}) == 3
    assert digest("far", **both) == digest("x", test_sets="x=6", num_train_pairs=101)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recall_pairs": 0}, r"data\.recall_pairs=0: expected at least 1"),
        ({"recall_pairs": 7, "recall_length": 64}, r"data\.recall_pairs=7 needs as many different keys; recall_keys=6"),
        ({"recall_questions": 0}, r"data\.recall_questions=0: expected at least 1"),
        ({"recall_questions": 4}, r"data\.recall_questions=4 exceeds recall_pairs=3; each key is asked for once"),
        ({"recall_keys": 1, "recall_pairs": 1}, r"data\.recall_keys=1: expected at least 2"),
        ({"recall_gap": -1}, r"data\.recall_gap=-1: expected at least 0"),
        (
            {"recall_length": 13},
            r"data\.recall_gap=2 with recall_pairs=3 and .*=3 makes rows of 14 words; recall_length=13",
        ),
        (
            {"test_sets": "far=7"},
            r"data\.test_sets: far=7 with recall_pairs=3 and .* makes rows of 19 words; recall_leng",
        ),
        ({"test_sets": "far=-1"}, r"data\.test_sets: far='-1': with source='recall', a test set is a number"),
        ({"test_sets": "far=9999999999"}, r"data\.test_sets: far='9999999999': with source='recall', a test set is"),
        ({"test_sets": "far"}, r"data\.test_sets='far': expected NAME=SPLIT"),
        ({"recall_order": "sorted"}, r"data\.recall_order='sorted': expected one of shuffled, kept"),
        ({"max_length": 18}, r"data\.max_length=18 cannot hold the recall_length=18 words of a row and its end"),
        ({"tokenizer": "char"}, r"data\.tokenizer='char': source='recall' needs 'words'"),
        ({"batching": "windows"}, r"data\.batching='windows' cuts rows of source='recall' anywhere"),
        ({"model": {"vocab_size": 16}}, r"model\.vocab_size=16 is less than the 17 ids of data\.source='recall' with"),
        ({"task": {"prefix": "random"}}, r"task\.prefix='random' cannot be used with data\.source='recall'"),
        ({"source": "embedded"}, r"data\.recall_pairs=3 has no effect with source='embedded', only with 'recall'"),
    ],
)
def test_configs_that_cannot_be(fields, message):
    with pytest.raises(ConfigError, match=message):
        config_of(**fields)


def test_other_tasks_and_windows_that_cut_rows_are_refused():
    config = config_of()
    evaluation = dataclasses.replace(config.evaluation, max_length=18)
    with pytest.raises(ConfigError, match=r"evaluation\.max_length=18 cuts rows of data\.recall_length=18 words"):
        dataclasses.replace(config, evaluation=evaluation).resolved()
    whole = dataclasses.replace(config.evaluation, max_length=19)
    assert dataclasses.replace(config, evaluation=whole).resolved().evaluation.max_length == 19
    model = ModelConfig(architecture="encoder_only", vocab_size=17)
    with pytest.raises(ConfigError, match=r"has rows for task\.name='language_model', not 'masked_lm'"):
        dataclasses.replace(config, model=model, task=TaskConfig(name="masked_lm")).resolved()


def test_too_few_different_rows():
    with pytest.raises(DataError, match=r"recall_keys=2, data\.recall_pairs=1: too few different rows for the split"):
        [rows_of(split, recall_keys=2, recall_pairs=1, recall_questions=1) for split in SPLITS]


def test_an_unknown_split():
    for read in (lambda source: source.num_examples("tets"), lambda source: source.split("tets")):
        with pytest.raises(DataError, match=r"no split 'tets'; there are train, valid, test \(did you mean 'test'"):
            read(load_source(data_config()))


def test_files_and_baselines_are_refused():
    with pytest.raises(ConfigError, match=r"--input=x\.txt: a file does not say .* --data\.test_sets=more=GAP"):
        open_test_set(data_config(), sources.TestFiles("more", "x.txt"), has_targets=False)
    assert "right in 1 of data.recall_keys=6 cases" in why_no_baselines(config_of())


def test_a_row_without_filler_needs_no_id_for_it(tmp_path):
    config = config_of(recall_gap=0, recall_length=12)
    assert config.model.vocab_size == prepared(config, tmp_path).tokenizer.vocab_size == 2 * 6 + 4


@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_the_loss_counts_the_answers_alone(tmp_path, batching):
    config = config_of(batching=batching, **{"packed_length": 48} if batching == "packed" else {})
    data = prepared(config, tmp_path)
    plan = training_batches(config, data.splits["train"])
    seen = []
    for step in range(plan.batches_per_epoch):
        batch = plan.batch(step)
        words = np.array([data.tokenizer.tokens(row) for row in batch["targets"]])
        segments = batch.get("targets_segment_ids", batch["targets_mask"].astype(int))
        np.testing.assert_array_equal(segments > 0, batch["targets_mask"])
        for row, number in {(r, n) for r, n in zip(*np.nonzero(segments), strict=False) for n in [segments[r, n]]}:
            own = segments[row] == number
            text, weights = words[row][own], batch["weights"][row][own]
            assert text[-1] == "</s>"
            assert len(text) == 19
            assert np.flatnonzero(weights).tolist() == [9, 11, 13]  # after 3 pairs, 2 fillers and a question each
            assert {*weights.tolist()} == {0.0, 1.0}
            seen.append(" ".join(text[:-1]))
        assert not batch["weights"][~batch["targets_mask"]].any()
    assert sorted(seen) == sorted(data.text("train").features["inputs"])
    template = TASKS["language_model"].batch_template(config, len(batch["targets"]), {"targets": words.shape[1]})
    assert {n: (a.shape, a.dtype) for n, a in batch.items()} == {n: (t.shape, t.dtype) for n, t in template.items()}


def test_scores_are_those_of_the_answers(tmp_path):
    """The loss and the accuracy of every answer, computed in NumPy from the logits of single rows."""
    config = config_of()
    data, params = prepared(config, tmp_path), random_params(config.model)
    found = Evaluator(config, data).score(params, "test").metrics
    assert found.keys() == {"loss", "perplexity", "accuracy", "tokens"}
    assert {spec.name for spec in validation_metrics(config, generate=True)} == {*found}
    rows = data.splits["test"].take("ids", np.arange(20), 19)
    inputs = np.concatenate([np.full((20, 1), config.model.decoder_start_id), rows[:, :-1]], 1)
    module = ARCHITECTURES["decoder_only"].module(config.model)
    outputs = jax.jit(module.apply)({"params": params}, {"decoder_inputs": inputs.astype(np.int32)})
    logits = np.asarray(outputs, np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    answers = np.array([9, 11, 13])
    nll = -np.take_along_axis(log_probs[:, answers], rows[:, answers, None], -1)
    assert found["loss"] == pytest.approx(nll.mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx(100 * (logits[:, answers].argmax(-1) == rows[:, answers]).mean())
    assert found["tokens"] == 60


def test_a_text_alone_has_no_marked_answers(tmp_path):
    config = config_of()
    data = prepared(config, tmp_path)
    model = LanguageModel(config, random_params(config.model), data.tokenizer)
    (text,) = data.text("test").features["inputs"][:1]
    assert model.score([text]).tokens.tolist() == [19]


CONFIG = """
from transformer_jax.config import *


def get_config(arg=""):
    return ExperimentConfig(
        model=ModelConfig(**{model!r}),
        task=TaskConfig(name="language_model"),
        data=DataConfig(**{data!r}),
        optimizer=OptimizerConfig(schedule="constant", learning_rate={rate}, warmup_steps=20),
        training=TrainingConfig(label_smoothing=0.0, **{training!r}),
    ).to_config_dict()
"""


def write_config(folder, training, model=(), rate=1e-2, **fields):
    config = config_of(model={"dropout_rate": 0.0, **dict(model)}, **fields)
    values = {
        name: {f.name: v for f in dataclasses.fields(part) if (v := getattr(part, f.name)) != f.default}
        for name, part in (("model", config.model), ("data", config.data))
    }
    folder.mkdir()
    (folder / "tiny.py").write_text(CONFIG.format(**values, training=training, rate=rate))
    return folder


def train(folder):
    return run_main(["train", f"--config={folder / 'tiny.py'}", f"--workdir={folder / 'run'}"])


@pytest.mark.slow
def test_two_layers_of_attention_learn_to_recall(tmp_path):
    """A guess among the 4 values of a row is right in about a third of the cases, or in half by exclusion."""
    steps = {"num_train_steps": 250, "log_every_steps": 250, "eval_every_steps": 250, "checkpoint_every_steps": 250}
    row = {"recall_pairs": 4, "recall_questions": 2, "recall_keys": 8, "recall_gap": 0, "recall_length": 12}
    sizes = {"num_train_pairs": 20_000, "num_eval_pairs": 200, "max_length": 13, "tokens_per_batch": 832}
    model = {"emb_dim": 64, "mlp_dim": 128, "num_decoder_layers": 2, "norm_position": "pre", "tie_output": False}
    folder = write_config(
        tmp_path / "learns", steps, model | {"position_encoding": "relative"}, rate=4e-3, **row | sizes
    )
    assert train(folder) == 0
    found = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["accuracy"] for line in found if line["split"] == "valid"][-1] > 90


@pytest.mark.slow
def test_a_stopped_run_ends_like_the_whole_one_and_is_scored_at_other_gaps(tmp_path, monkeypatch, capsys):
    steps = {"num_train_steps": 8, "log_every_steps": 3, "eval_every_steps": 4, "checkpoint_every_steps": 5}
    whole, stopped = (write_config(tmp_path / name, steps) for name in ("whole", "stopped"))
    assert train(whole) == 0
    with monkeypatch.context() as patch:
        patch.setattr(loop, "kill_point", at("after_batch", 6, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        assert train(stopped) == 143
    assert train(stopped) == 0
    assert "resuming" in capsys.readouterr().err
    assert_same_run(stopped, whole, 8)
    flags = [f"--checkpoint={whole / 'run'}", "--data.test_sets=same=2,far=6", "--splits=test,same,far"]
    assert run_main(["evaluate", *flags]) == 0
    scores = [
        json.loads((whole / "run" / "evaluation" / f"{name}.json").read_text()) for name in ("test", "same", "far")
    ]
    assert [score["tokens"] for score in scores] == [60] * 3
    assert scores[0]["loss"] == scores[1]["loss"] != scores[2]["loss"]
    assert run_main(["inspect", f"--checkpoint={whole / 'run'}"]) == 0
    assert (
        run_main(["generate", f"--checkpoint={whole / 'run'}", "--text=k1 v2 k0 v3 k0", "--decode.max_new_tokens=2"])
        == 0
    )
