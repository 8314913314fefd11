"""The tasks masked_lm, span_corruption and denoising: batches, scores, generation and refusals."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from corruption_support import ARCHITECTURES, LINES, MASK, SENTINELS, WithMarks, config_of, corpus, parts
from data_support import prepared
from support import slow_but

from transformer_jax.config import DecodeConfig, EvaluationConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.data.tokenizers.token_kinds import TokenKinds
from transformer_jax.data.tokenizers.tokenizer import SPACE
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.models.architecture import ARCHITECTURES as MODELS
from transformer_jax.models.architecture import Model, init_params
from transformer_jax.tasks.batches.corruption import span_sizes
from transformer_jax.tasks.batches.of_split import evaluation_batches, training_batches
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.lines import Line
from transformer_jax.training.hyper import split as split_config
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

every_task = pytest.mark.parametrize("task", ARCHITECTURES)
every_batching = pytest.mark.parametrize("batching", ["buckets", "packed", "windows"])


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "corpus"


def texts_of(task, batch):
    """Return the uncorrupted texts of a batch, found from its arrays alone; check masks, weights and ends."""
    found = []
    for row in range(len(batch["row_ids"])):
        get = {name: array[row] for name, array in batch.items()}
        segments = get.get("inputs_segment_ids", get["inputs_mask"].astype(int))
        assert ((segments > 0) == get["inputs_mask"]).all()
        if task == "masked_lm":
            whole = get["inputs"].copy()
            used = get["weights"] > 0
            assert len({*get["places"][used].tolist()}) == used.sum()
            whole[get["places"][used]] = get["targets"][used]
            assert not {*get["targets"][used].tolist()} & {0, 1, 3, MASK}
            assert not (np.isin(np.delete(get["inputs"], get["places"][used]), (MASK, *SENTINELS))).any()
            parts = [whole[segments == n].tolist() for n in range(1, segments.max(initial=0) + 1)]
            assert all((part[0], part[-1]) == (3, 1) for part in parts)
            found += [part[1:-1] for part in parts]
            continue
        of_targets = get.get("targets_segment_ids", (get["weights"] > 0).astype(int))
        for n in range(1, segments.max(initial=0) + 1):
            source, target = get["inputs"][segments == n].tolist(), get["targets"][of_targets == n].tolist()
            assert get["decoder_inputs"][of_targets == n].tolist() == [1, *target[:-1]]
            assert source[-1] == target[-1] == 1
            if task == "denoising":
                assert (source[0], target[0]) == (3, 3)
                assert len(source) <= len(target)
                found.append(target[1:-1])
                continue
            spans, current = {}, []
            for id in target[:-1]:
                if id in SENTINELS:
                    spans[id] = current = []
                else:
                    current.append(id)
            found.append([token for id in source[:-1] for token in spans.get(id, [id])])
    return found


SIZES = {"masked_lm": 22, "denoising": 22, "span_corruption": 26}
"""Tokens of text of the longest example, beside start, end and sentinels."""


@every_task
@pytest.mark.parametrize("batching", ["buckets", "packed"])
def test_training_sees_every_text_once_an_epoch(folder, task, batching):
    config = config_of(folder, task, {"batching": batching})
    plan = training_batches(config, corpus(config, folder).splits["train"])
    batches = [plan.batch(step) for step in range(plan.batches_per_epoch)]
    assert sorted(text for batch in batches for text in texts_of(task, batch)) == parts(SIZES[task])
    assert plan.left_out.count == 0


@every_task
@every_batching
def test_a_batch_follows_from_seed_step_and_row(folder, task, batching):
    """Parts of a batch are those of the whole one, as several processes make them; shapes are those of `inspect`."""
    config = config_of(folder, task, {"batching": batching})
    split = corpus(config, folder).splits["train"]
    plan, again = (training_batches(config, split) for _ in range(2))
    other = training_batches(dataclasses.replace(config, seed=1), split)
    epoch = plan.batches_per_epoch
    for step in (3, 0):
        batch = plan.batch(step)
        for rows in (slice(0, 1), slice(2, 5), slice(None)):
            part = again.batch(step, rows)
            assert part.keys() == batch.keys()
            for name, array in batch.items():
                np.testing.assert_array_equal(part[name], array[rows], err_msg=name)
        assert not all(np.array_equal(x, y) for x, y in zip(batch.values(), other.batch(step).values(), strict=True))
        later = plan.batch(step + epoch)
        assert not np.array_equal(batch["inputs"], later["inputs"])
        shape = plan.shape(step)
        widths = dict(shape.widths)
        if task == "masked_lm":
            widths["targets"] = batch["targets"].shape[1]
        template = TASKS[task].batch_template(config, shape.rows, widths)
        assert {n: (a.shape, a.dtype) for n, a in batch.items()} == {n: (t.shape, t.dtype) for n, t in template.items()}
    if batching != "packed":
        widest = {name: max(dict(shape.widths)[name] for shape in plan.shapes) for name in dict(plan.shapes[0].widths)}
        declared = TASKS[task].widths(config, config.data.max_length)
        assert widest.items() <= dict(declared).items()


@every_task
def test_windows_are_parts_of_the_stream(folder, task):
    config = config_of(folder, task, {"batching": "windows"})
    plan = training_batches(config, corpus(config, folder).splits["train"])
    stream = [id for line in LINES * 4 for id in (*(4 + byte for byte in line.encode()), 1)]
    around = "".join(chr(id) for id in stream)
    for step in range(3):
        for text in texts_of(task, plan.batch(step)):
            assert len(text) == SIZES[task]
            assert "".join(map(chr, text)) in around
    if task == "masked_lm":  # ends of documents are special tokens, so none is predicted
        assert all((plan.batch(step)["targets"][plan.batch(step)["weights"] > 0] != 1).all() for step in range(3))


@every_task
@every_batching
def test_an_evaluation_is_of_every_token_and_always_the_same(folder, task, batching):
    """The batches, and the number of the training step, have no part in it."""
    by_example = []
    for tokens in (512, 96):
        evaluation = EvaluationConfig(tokens_per_batch=tokens)
        config = config_of(folder, task, {"batching": batching, "row_multiple": 4}, evaluation=evaluation)
        split = corpus(config, folder).splits["valid"]
        rows, texts = {}, []
        for batch, examples in evaluation_batches(config, split):
            texts += [text for text in texts_of(task, batch) if text]
            for row, example in enumerate(examples.tolist()):
                if example >= 0:
                    here = batch["inputs"][row][batch["inputs_mask"][row]].tolist()
                    rows[example] = here, batch["targets"][row][batch["weights"][row] > 0].tolist()
        by_example.append(rows)
        whole = parts(SIZES[task])
        if batching == "windows":
            stream = [id for line in LINES * 4 for id in (*(4 + byte for byte in line.encode()), 1)]
            whole = sorted(stream[i : i + SIZES[task]] for i in range(0, len(stream), SIZES[task]))
        assert sorted(texts) == whole
    assert by_example[0] == by_example[1]
    assert sorted(by_example[0]) == list(range(len(by_example[0])))


@pytest.mark.parametrize("task", slow_but("masked_lm", ARCHITECTURES))
def test_a_step_lowers_the_loss_and_scores_are_those_of_the_batches(folder, task):
    """The loss of masked tokens is computed from all logits here, not from those of the masked places alone."""
    config = config_of(folder, task)
    data = corpus(config, folder)
    static, hyper = split_config(config)
    state, step = init_state(static, hyper), jax.jit(make_train_step(static))
    batch = training_batches(config, data.splits["train"]).batch(0)
    losses = []
    for _ in range(4):
        state, metrics = step(state, batch, hyper)
        losses.append(float(metrics["nll"]))
    assert losses[-1] < losses[0]
    scores = TASKS[task].score(Evaluator(config, data), state.params, "valid", True).metrics
    head = TASKS[task].head(config.task, config.model)
    model = Model(MODELS[config.model.architecture].module(config.model, head), state.params)

    @jax.jit
    def log_probs(batch):
        return jax.nn.log_softmax(model.outputs(model.features(batch, None, {}), batch))

    nats = count = correct = 0.0
    for batch, _ in evaluation_batches(config, data.splits["valid"]):
        found, used = np.asarray(log_probs(batch)), batch["weights"] > 0
        if task == "masked_lm":
            found = np.take_along_axis(found, batch["places"][..., None], axis=1)
        gold = batch["targets"][used]
        nats -= found[used][np.arange(len(gold)), gold].sum()
        correct += (found[used].argmax(-1) == gold).sum()
        count += used.sum()
    counted = "masked" if task == "masked_lm" else "tokens"
    assert scores[counted] == count
    assert scores["loss"] == pytest.approx(nats / count, rel=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(nats / count), rel=1e-4)
    assert scores["accuracy"] == pytest.approx(100 * correct / count)
    assert {spec.name for spec in TASKS[task].measured(config)} == set(scores)


def test_words_begin_where_the_tokenizer_writes_a_space():
    class Pieces(ByteTokenizer):
        def __init__(self, *tokens):
            super().__init__()
            self._tokens = tokens

        @property
        def vocab_size(self):
            return len(self._tokens)

        def tokens(self, ids):
            return [self._tokens[id] for id in ids]

    spaces = TokenKinds(Pieces("<pad>", f"{SPACE}the", "re", f"{SPACE}end.", ".", "?!", "a.b"))
    assert spaces.begins_word.tolist() == [False, True, False, True, False, False, False]
    assert spaces.ends_sentence.tolist() == [False, False, False, True, True, True, False]
    assert TokenKinds(Pieces("[PAD]", "the", "##re", "##", "x")).begins_word.tolist() == [True, True, False, True, True]
    assert TokenKinds(Pieces("<pad>", "the", "re")).begins_word.all()


def test_fields_of_the_section():
    """Rates and units are those of the papers unless set; a task that does not read them has none."""
    for task, rate, whole in (("masked_lm", 0.15, False), ("span_corruption", 0.15, None), ("denoising", 0.3, True)):
        section = ExperimentConfig(
            model=ModelConfig(architecture=ARCHITECTURES[task]), task=TaskConfig(name=task)
        ).resolved()
        assert (section.task.mask_rate, section.task.whole_word) == (rate, whole)
        assert section.resolved() == section
        assert section.with_derived_unset().task == TaskConfig(name=task)
    assert ExperimentConfig().resolved().task == TaskConfig()


@pytest.mark.parametrize(
    ("task", "fields", "problem"),
    [
        ("masked_lm", {"mask_rate": 0.0}, r"task\.mask_rate=0\.0: expected more than 0"),
        ("span_corruption", {"mask_rate": 1.0}, r"task\.mask_rate=1\.0: expected less than 1"),
        ("span_corruption", {"mean_span_length": 0.5}, r"task\.mean_span_length=0\.5: a span has at least 1 token"),
        ("span_corruption", {"whole_word": True}, r"task\.whole_word=True has no effect with name='span_corruption'"),
        ("masked_lm", {"mean_span_length": 4.0}, r"task\.mean_span_length=4\.0 has no effect with name='masked_lm'"),
        (
            "masked_lm",
            {"random_share": 0.6, "keep_share": 0.5},
            r"random_share=0\.6 and keep_share=0\.5 are more than 1",
        ),
        ("masked_lm", {"permute_sentences": 0.5}, r"permute_sentences=0\.5 has no effect with name='masked_lm'"),
    ],
)
def test_fields_that_are_refused(folder, task, fields, problem):
    with pytest.raises(ConfigError, match=problem):
        config_of(folder, task, fields=fields)


@every_task
def test_other_configs_that_are_refused(folder, task):
    with pytest.raises(ConfigError, match=rf"evaluation\.context=3 has no effect with task\.name='{task}'"):
        config_of(folder, task, evaluation=EvaluationConfig(context=3))
    with pytest.raises(ConfigError, match=rf"'decoder_only' cannot be trained with task\.name='{task}', which trains"):
        ExperimentConfig(model=ModelConfig(architecture="decoder_only"), task=TaskConfig(name=task)).resolved()


@every_task
def test_a_window_without_room_for_text(folder, task):
    config = config_of(folder, task, {"max_length": 2})
    split = corpus(config, folder).splits["train"]
    if task == "span_corruption":  # one token and its end
        assert max(len(text) for text in texts_of(task, training_batches(config, split).batch(0))) == 1
        return
    problem = rf"^config: data\.max_length=2 leaves no token of text beside the special tokens of task\.name='{task}'"
    with pytest.raises(ConfigError, match=problem):
        training_batches(config, split)


def test_tokenizers_without_marks(folder):
    for task in ("masked_lm", "denoising"):
        config = config_of(folder, task, model={"vocab_size": 260})
        split = prepared(config, folder / "plain", tokenizer=ByteTokenizer()).splits["train"]
        with pytest.raises(DataError, match=rf"^task\.name='{task}' needs a mask, and the tokenizer has no such token"):
            training_batches(config, split)
    config = config_of(folder, "span_corruption", {"max_length": 512, "tokens_per_batch": 8192})
    with pytest.raises(
        DataError, match=r"needs 28 sentinels for sequences of max_length=512, and the tokenizer has 12, <extra_id_0>"
    ):
        training_batches(config, corpus(config, folder).splits["train"])
    without = prepared(config, folder / "plain", tokenizer=ByteTokenizer()).splits["train"]
    with pytest.raises(
        DataError, match=r"needs 28 sentinels .*, and the tokenizer has 0, <extra_id_0> and so on; lower"
    ):
        training_batches(config, without)


def test_tokens_that_a_tokenizer_must_have(folder):
    assert TASKS["masked_lm"].added_tokens(config_of(folder, "masked_lm")) == ("<mask>",)
    assert TASKS["denoising"].added_tokens(config_of(folder, "denoising")) == ("<mask>",)
    config = config_of(folder, "span_corruption", {"max_length": 512, "tokens_per_batch": 8192})
    names = TASKS["span_corruption"].added_tokens(config)
    assert (names[0], names[-1], len(names)) == ("<extra_id_0>", "<extra_id_27>", int(span_sizes(568, 0.15, 3.0).spans))


def test_names_of_marks_in_a_text_become_their_ids(folder):
    """A space in front of a mark belongs to what it stands for."""
    bytes_of = lambda text: [4 + byte for byte in text.encode()]  # noqa: E731
    for task, text, expected in (
        ("span_corruption", "a <extra_id_0> b<extra_id_1>", [*bytes_of("a"), 272, *bytes_of(" b"), 271, 1]),
        ("denoising", "<mask> b <mask>", [3, MASK, *bytes_of(" b"), MASK, 1]),
        ("denoising", "ab", [3, *bytes_of("ab"), 1]),
    ):
        config = config_of(folder, task)
        generator = TASKS[task].generator(config, {}, WithMarks())
        assert generator.encode_sources([text]) == [expected]


def test_outputs_have_the_names_of_sentinels(folder):
    generator = TASKS["span_corruption"].generator(config_of(folder, "span_corruption"), {}, WithMarks())
    ids = lambda text: [4 + byte for byte in text.encode()]  # noqa: E731
    rows = [[272, *ids(" a b"), 271, *ids("c"), 1, 270], ids(" a b"), [MASK]]
    assert generator.decode(rows) == ["<extra_id_0> a b <extra_id_1> c", " a b", "<mask>"]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["span_corruption", "denoising"])
def test_generation_from_corrupted_text(folder, task):
    config = config_of(folder, task, decode=DecodeConfig(max_new_tokens=5, min_length=4))
    generator = TASKS[task].generator(config, init_params(config.model, 0), WithMarks())
    outputs = generator.generate_chunk([Line("a <extra_id_0> b <mask>"), Line("")])
    assert [len(line.outputs) for line in outputs] == [1, 0]
    assert len(outputs[0].outputs[0].ids) >= 4
