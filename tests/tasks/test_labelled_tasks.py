"""Classification, tagging and answers: their batches, their losses and their scores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_support import prepared
from labelled_support import (
    ANSWERS,
    CONTEXTS,
    FEATURES,
    LABELS,
    QUESTIONS,
    TAGS,
    TEXTS,
    WORDS,
    Corpus,
    config,
    data_of,
)

from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.data import sources
from transformer_jax.data.alignment import align
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.labels import LABELS_FILE, parse_labels, read_labels
from transformer_jax.data.tokenizers import train_tokenizer
from transformer_jax.data.tokenizers.tokenizer import SpecialIds
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.evaluator import Evaluator, make_validate
from transformer_jax.evaluation.loading import Loaded
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.evaluation.significance import compare_statistics
from transformer_jax.models.architecture import ARCHITECTURES, Model, init_params
from transformer_jax.nn.dropout import Dropout, DropoutRates
from transformer_jax.tasks.batches.answer_spans import Windows, best_answers, best_span, window_losses, windows_of
from transformer_jax.tasks.batches.of_split import evaluation_batches, training_batches
from transformer_jax.tasks.classification import cut_sizes
from transformer_jax.tasks.metrics.answers import best_over, exact_match, word_f1
from transformer_jax.tasks.metrics.chunks import count_chunks
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.head_outputs import best_classes, log_softmax, outputs_of_split
from transformer_jax.tasks.trained.loss_sums import split_for_evaluation
from transformer_jax.tasks.trained.predictor import Answerer, Classifier, Problem, Tagger
from transformer_jax.training.hyper import split

PREDICTORS = {"classification": Classifier, "tagging": Tagger, "span_qa": Answerer}
PAIRS = {"source": "text", "dir": "unused", "format": "tsv", "second_feature": "3"}
every_task = pytest.mark.parametrize("task", PREDICTORS)


def params_of(settings: ExperimentConfig):
    return init_params(settings.model, 1, TASKS[settings.task.name].head(settings.task, settings.model))


def architecture_module(settings: ExperimentConfig):
    head = TASKS[settings.task.name].head(settings.task, settings.model)
    return ARCHITECTURES[settings.model.architecture].module(settings.model, head)


def arrays_of(settings, data, split="train"):
    """Return the arrays of every example, without padding, in the order of the examples."""
    rows = {}
    for batch, examples in evaluation_batches(settings, data.splits[split]):
        for row, example in enumerate(examples):
            if example >= 0:
                rows[int(example)] = {name: np.asarray(x[row]) for name, x in batch.items()}
    return [rows[i] for i in range(len(rows))]


def shown(data, row):
    """Return the tokens of a row without padding."""
    ids = row.get("inputs", row.get("decoder_inputs"))
    return data.tokenizer.tokens(ids[row["inputs_mask"]])


# Batches.


def test_texts_stand_between_marks(tmp_path):
    settings = config("classification")
    data = data_of(settings, tmp_path)
    assert data.labels == ("bad", "good", "mixed")
    for row, text, label in zip(arrays_of(settings, data), TEXTS, LABELS, strict=True):
        assert shown(data, row) == ["<s>", *text.split(), "</s>"]
        assert data.labels[row["targets"]] == label
        assert row["weights"] == 1
        assert "types" not in row


def test_pairs_have_types(tmp_path):
    settings = config("classification", data=PAIRS, model={"token_types": 2})
    data = data_of(settings, tmp_path)
    row = arrays_of(settings, data)[1]
    assert shown(data, row) == ["<s>", "a", "dull", "film", "</s>", "no", "no", "</s>"]
    assert row["types"][:9].tolist() == [0, 0, 0, 0, 0, 1, 1, 1] + [0] * (len(row["types"]) > 8)


def test_a_decoder_begins_with_its_start_id(tmp_path):
    settings = config("classification", model={"architecture": "decoder_only", "decoder_start_id": 2}, pooling="last")
    data = data_of(settings, tmp_path)
    row = arrays_of(settings, data)[0]
    assert shown(data, row) == ["<unk>", "a", "fine", "film", "</s>"]
    assert "inputs" not in row


def test_long_texts_are_left_out_or_cut(tmp_path):
    """Without `cut_texts`, training leaves them out and counts them, and an evaluation scores them whole."""
    whole, cut = (config("classification", data={"max_length": 6, "cut_texts": cut}) for cut in (False, True))
    data = data_of(whole, tmp_path)
    plan = training_batches(whole, data.splits["train"])
    assert (plan.num_examples, plan.left_out.count) == (5, 1)
    assert len(shown(data, arrays_of(whole, data)[3])) == 8
    plan = training_batches(cut, data.splits["train"])
    assert (plan.num_examples, plan.left_out.count) == (6, 0)
    assert shown(data, arrays_of(cut, data)[3]) == ["<s>", "so", "dull", "and", "long", "</s>"]
    counts = [TASKS["classification"].num_over_length(Evaluator(settings, data), "valid") for settings in (whole, cut)]
    assert counts == [1, 0]


def test_pairs_are_cut_as_by_bert():
    """Token by token from the longer text; from the second one if both are equally long."""
    for room in (6, 7):
        sizes = np.array([(a, b) for a in range(12) for b in range(12)])
        expected = []
        for a, b in sizes.tolist():
            while a + b > room:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            expected.append((a, b))
        np.testing.assert_array_equal(np.stack(cut_sizes(list(sizes.T), room), -1), expected)


@pytest.mark.parametrize("kind", ["words", "unigram", "bpe", "byte_bpe", "char", "byte"])
def test_every_word_has_a_first_token(kind):
    """The tokens are those of the joined words, and a word's tokens spell it."""
    sentences = [*WORDS, ["don", "'t", "\u00fc\u00df", "12,5", "\u2603"], ["x"]]
    letters = {letter for words in WORDS for letter in " ".join(words)}
    size = {"words": 12, "char": len(letters) + 4, "byte": 260}.get(kind, 280)
    tokenizer = train_tokenizer([" ".join(words) for words in WORDS * 30], kind, size)
    ids, firsts = align(sentences, tokenizer)
    joined = tokenizer.encode_batch([" ".join(words) for words in sentences])
    np.testing.assert_array_equal(ids.ids, joined.ids)
    np.testing.assert_array_equal(ids.offsets, joined.offsets)
    for number, words in enumerate(sentences):
        row = ids.ids[ids.offsets[number] : ids.offsets[number + 1]]
        places = firsts.ids[firsts.offsets[number] : firsts.offsets[number + 1]]
        assert len(places) == len(words)
        assert (np.diff(places) > 0).all()
        for word, a, b in zip(words, places, [*places[1:], len(row)], strict=True):
            text = tokenizer.decode(row[a:b]).strip()
            known = {"words": word in tokenizer.tokens(range(size)), "char": {*word} <= letters}
            assert text == word or not known.get(kind, True)


def test_a_word_without_a_token_gets_unk():
    tokenizer = train_tokenizer(["a b"] * 9, "words", 6)
    ids, firsts = align([["a", "\u2003", "b"]], tokenizer)  # an em space is no word of this tokenizer
    assert tokenizer.tokens(ids.ids) == ["a", "<unk>", "b"]
    assert firsts.ids.tolist() == [0, 1, 2]


def test_the_first_token_of_a_word_has_its_tag(tmp_path):
    settings = config("tagging")
    data = data_of(settings, tmp_path)
    assert data.labels == ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
    for row, words, tags in zip(arrays_of(settings, data), WORDS, TAGS, strict=True):
        assert shown(data, row) == ["<s>", *words, "</s>"]
        assert np.flatnonzero(row["weights"]).tolist() == list(range(1, len(words) + 1))
        assert [data.labels[i] for i in row["targets"][1 : len(words) + 1]] == tags


@pytest.mark.parametrize(("max_length", "stride"), [(8, 1), (9, 2), (10, 3), (11, 100), (16, 4)])
def test_windows_cover_a_context(tmp_path, max_length, stride):
    """Every token is in a window. They begin `stride` tokens apart, at most half a window; the last may be nearer."""
    settings = config("span_qa", data={"max_length": max_length}, question_length=4, stride=stride)
    contexts = [" ".join(CONTEXTS[0].split()[:n]) for n in range(1, 10)]
    count = len(contexts)
    features = {
        "questions": [" ".join(["what"] * (1 + n % 4)) for n in range(count)],
        "contexts": contexts,
        "answers": [["the"]] * count,
        "answer_starts": [[0]] * count,
    }
    data = data_of(settings, tmp_path, features)
    windows = windows_of(settings, data.splits["train"])
    assert windows.lengths.max() <= max_length
    for n, context in enumerate(contexts):
        size, room = len(context.split()), max_length - 3 - (1 + n % 4)
        step, own = min(stride, max(room // 2, 1)), windows.questions == n
        firsts, ends = windows.firsts[own], windows.ends[own]
        expected = [0]
        while expected[-1] + room < size:
            expected.append(expected[-1] + step)
        assert firsts.tolist() == [min(first, max(size - room, 0)) for first in expected]
        assert ends.tolist() == [min(first + room, size) for first in firsts]
        assert {token for a, b in zip(firsts, ends, strict=True) for token in range(a, b)} == {*range(size)}
    rows = arrays_of(settings, data)
    for row, window in zip(rows, range(len(rows)), strict=True):
        n = windows.questions[window]
        part = contexts[n].split()[windows.firsts[window] : windows.ends[window]]
        assert shown(data, row) == ["<s>", *features["questions"][n].split(), "</s>", *part, "</s>"]
        start, end = row["targets"]
        if windows.firsts[window] == 0:
            assert shown(data, row)[start : end + 1] == ["the"]
        else:
            assert (start, end) == (0, 0)  # the answer is outside of the window
        assert row["weights"].tolist() == [1, 1]


def test_an_answer_is_found_where_the_logits_point(tmp_path):
    """From characters to tokens, and back from the targets' tokens to the characters."""
    settings = config("span_qa", data={"max_length": 10}, question_length=4, stride=3)
    data = data_of(settings, tmp_path)
    split = data.splits["train"]
    windows = windows_of(settings, split)
    logits = []
    for length, targets in zip(windows.lengths, windows.targets, strict=True):
        row = np.zeros((length, 2))
        row[targets, [0, 1]] = 5.0
        logits.append(row)
    for answer, texts, context in zip(
        best_answers(settings.task, split, windows, logits, CONTEXTS), ANSWERS, CONTEXTS, strict=True
    ):
        assert answer.text == texts[0] == context[answer.first : answer.end]
        assert answer.score == 10.0


def test_the_best_span_is_that_of_a_search_over_all():
    rng = np.random.default_rng(0)
    for size, longest in ((1, 1), (5, 2), (9, 4), (6, 30)):
        logits = rng.normal(size=(size, 2))
        spans = {(i, j): logits[i, 0] + logits[j, 1] for i in range(size) for j in range(i, min(i + longest, size))}
        best = max(spans, key=lambda span: spans[span])
        assert best_span(logits, longest) == (*best, pytest.approx(spans[best]))


def test_answers_without_a_place_do_not_train(tmp_path):
    settings = config("span_qa")
    features = FEATURES["span_qa"] | {"answer_starts": [[-1, 0], [-1], [0, 3]]}
    data = data_of(settings, tmp_path, features)
    plan = training_batches(settings, data.splits["train"])
    assert plan.num_examples == 2
    first, second, _ = arrays_of(settings, data)
    assert shown(data, first)[slice(first["targets"][0], first["targets"][1] + 1)] == ["the", "film"]
    assert second["weights"].tolist() == [0, 0]
    metrics = Evaluator(settings, data).score(params_of(settings), "valid").metrics
    assert metrics["questions"] == 3


def test_a_question_that_is_too_long_is_refused(tmp_path):
    settings = config("span_qa", question_length=3)
    data = data_of(settings, tmp_path)
    with pytest.raises(DataError, match=r"2 of 3 questions have more than task\.question_length=3 tokens; the"):
        training_batches(settings, data.splits["train"])


# Labels.


def test_labels_of_the_training_split_are_stored(tmp_path):
    settings = config("classification")
    data = data_of(settings, tmp_path)
    assert read_labels(tmp_path / LABELS_FILE) == data.labels
    assert parse_labels(data.side_files()[LABELS_FILE]) == data.labels
    assert set(TASKS["classification"].side_files(data)) == {"tokenizer.model", LABELS_FILE}
    with pytest.raises(ConfigError, match=r"task\.num_labels=2: the training split has 3 labels: bad, good, mixed"):
        data_of(config("classification", num_labels=2), tmp_path)
    (tmp_path / LABELS_FILE).write_text("{}")
    with pytest.raises(DataError, match=rf"{tmp_path}: labels\.json is damaged"):
        data_of(settings, tmp_path)


@pytest.mark.parametrize(
    ("task", "changed", "message"),
    [
        (
            "classification",
            {"targets": ["good"] * 6},
            "all 6 training examples have the label 'good', so there is noth",
        ),
        (
            "tagging",
            {"tags": [["O"] * len(words) for words in WORDS]},
            "all words of the 3 training examples have the tag 'O', so there is nothing to learn; check data.train",
        ),
    ],
)
@pytest.mark.parametrize("num_labels", [1, 2])
def test_training_refuses_a_single_label(tmp_path, task, changed, message, num_labels):
    settings, corpus = config(task, num_labels=num_labels), Corpus(train=FEATURES[task] | changed)
    with pytest.raises(DataError, match=message):
        prepared(settings, tmp_path, source=corpus, needed=("train",))


def test_a_checkpoint_with_a_single_label_can_be_resumed_and_scored(tmp_path):
    settings = config("classification", num_labels=1)
    data = data_of(settings, tmp_path, {"inputs": TEXTS, "targets": ["good"] * 6})
    assert data.labels == ("good",)
    prepared(settings, tmp_path, data.tokenizer, source=data.source, needed=("train",), labels=data.labels)


def test_labels_that_are_numbers_are_sorted_by_value(tmp_path):
    features = {"inputs": TEXTS, "targets": ["10", "2", "1", "1", "2", "10"]}
    assert data_of(config("classification"), tmp_path, features).labels == ("1", "2", "10")


@pytest.mark.parametrize(
    ("task", "changed", "message"),
    [
        (
            "classification",
            {"targets": ["good", "gold", *LABELS[2:]]},
            r"example 2: the label 'gold' is not in the tra",
        ),
        ("tagging", {"tags": [*TAGS[:2], ["B-ORG"] * 6]}, r"example 3: the label 'B-ORG' is not in the"),
    ],
)
def test_a_label_only_in_another_split_is_named(tmp_path, task, changed, message):
    settings = config(task)
    data = data_of(settings, tmp_path)
    source = Corpus(train=FEATURES[task], valid=FEATURES[task] | changed)
    data = dataclasses.replace(
        data, splits=data.splits.__class__(source, data.tokenizer, data.splits._columns, tmp_path / "cache", None)
    )
    with pytest.raises(DataError, match=rf"split 'valid', {message}"):
        data.splits["valid"]


def test_tags_of_no_scheme_are_refused_before_training(tmp_path):
    settings = config("tagging", num_labels=2)
    features = {"words": [["a", "b"]], "tags": [["X-a", "O"]], "inputs": ["a b"]}
    data = data_of(settings, tmp_path, features)
    with pytest.raises(DataError, match=r"the tag 'X-a' is neither O nor B-TYPE"):
        make_validate(settings, data)
    plain = config("tagging", num_labels=2, chunks=False)
    make_validate(plain, data_of(plain, tmp_path, features))


@pytest.mark.parametrize(
    ("task", "fields", "message"),
    [
        ("classification", {"class_weights": "1,x"}, r"task\.class_weights='1,x': expected positive numbers"),
        ("classification", {"class_weights": "1,-1,1"}, r"expected positive numbers"),
        ("classification", {"class_weights": "1,2"}, r"has 2 weights for num_labels=3"),
        ("classification", {"stride": 4}, r"stride=4 has no effect with name='classification', only with 'span_qa'"),
        ("span_qa", {"data": {"max_length": 9}}, r"data\.max_length=9 leaves no room for a context beside"),
        (
            "tagging",
            {"data": {"batching": "packed"}},
            r"data\.batching='packed': task\.name='tagging' can only use",
        ),
        (
            "classification",
            {"model": {"architecture": "decoder_only"}},
            r"task\.pooling='first' with model\.architecture='decoder_only': the first token does not see the text",
        ),
        ("tagging", {"model": {"architecture": "decoder_only"}}, r"cannot be trained with task\.name='tagging'"),
    ],
)
def test_bad_fields(task, fields, message):
    with pytest.raises(ConfigError, match=message):
        config(task, **fields)


# Losses and scores.


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_class_weights_are_in_the_training_loss_alone(tmp_path, task):
    number = {"classification": 3, "tagging": 5}[task]
    weighted = config(task, class_weights=",".join(str(i + 1) for i in range(number)))
    balanced = config(task, class_weights="balanced")
    data = data_of(weighted, tmp_path)
    labels = [data.labels.index(x) for row in FEATURES[task]["targets"] for x in row.split()]
    count = np.bincount(labels)
    for settings, of_class in ((weighted, np.arange(1.0, 1 + number)), (balanced, len(labels) / (number * count))):
        plan = training_batches(settings, data.splits["train"])
        seen = np.zeros(number)
        for step in range(plan.batches_per_epoch):
            batch = plan.batch(step)
            kept = batch["weights"] > 0
            np.testing.assert_allclose(batch["weights"][kept], of_class[batch["targets"][kept]], rtol=1e-6)
            seen += np.bincount(batch["targets"][kept], minlength=number)
        np.testing.assert_array_equal(seen, count)
        assert all(set(np.unique(row["weights"])) <= {0.0, 1.0} for row in arrays_of(settings, data))


@every_task
def test_labels_and_tags_have_dropout_before_the_output_layer(tmp_path, task):
    """The loss of training is that of the head with this dropout; answers have none, and neither have evaluations."""
    fields = {} if task == "span_qa" else {"model": {"head_dropout_rate": 0.5}}
    settings = config(task, **fields)
    data = data_of(settings, tmp_path)
    batch = {n: jnp.asarray(x) for n, x in training_batches(settings, data.splits["train"]).batch(0).items()}
    model = Model(architecture_module(settings), params_of(settings))
    hyper = split_for_evaluation(settings).hyper
    rates = [DropoutRates(), split(settings).hyper.dropout, DropoutRates(head=0.5)]
    losses = [
        float(TASKS[task].loss(settings.task, model, batch, dropout, hyper)["loss"])
        for dropout in (None, *(Dropout(jnp.uint32(2), batch["row_ids"], rate) for rate in rates))
    ]
    assert losses[0] == losses[1] != 0
    assert (losses[2] != losses[0]) == (losses[3] != losses[0]) == (task != "span_qa")
    assert losses[2] == losses[3]


@every_task
def test_scores_are_those_of_the_outputs(tmp_path, task):
    """They equal a plain computation from the logits, the sums of their statistics, and the loss of `Task.loss`."""
    settings = config(task, data={"max_length": 16}, stride=2) if task == "span_qa" else config(task)
    data = data_of(settings, tmp_path)
    evaluator, params = Evaluator(settings, data), params_of(settings)
    scores = evaluator.score(params, "valid")
    assert {spec.name for spec in TASKS[task].measured(settings)} <= {*scores.metrics}
    sums = evaluator.sums(params, "valid")
    assert scores.metrics["loss"] == pytest.approx(sums["nll"] / sums["weight"], rel=1e-5)
    predictor = PREDICTORS[task](settings, params, data.tokenizer, data.labels)
    if task == "classification":
        predicted = [prediction.label for prediction in predictor.predict(TEXTS)]
        assert scores.outputs == predicted
        right = np.mean([a == b for a, b in zip(predicted, LABELS, strict=True)])
        assert scores.metrics["accuracy"] == pytest.approx(100 * right)
        assert sum(row["examples"] for row in scores.metrics["by_label"].values()) == len(TEXTS)
    elif task == "tagging":
        predicted = [prediction.tags for prediction in predictor.predict(WORDS)]
        assert scores.outputs == [" ".join(tags) for tags in predicted]
        counts = [count for a, b in zip(TAGS, predicted, strict=True) for count in count_chunks(a, b).values()]
        right, of_predicted, true = np.sum(counts, axis=0)
        assert scores.metrics["f1"] == pytest.approx(200 * right / (of_predicted + true))
        assert scores.metrics["words"] == 12
    else:
        answers = [answer.text for answer in predictor.predict(list(zip(QUESTIONS, CONTEXTS, strict=True)))]
        assert scores.outputs == answers
        for name, score in (("exact_match", exact_match), ("f1", word_f1)):
            values = [best_over(score, *pair) for pair in zip(answers, ANSWERS, strict=True)]
            assert scores.metrics[name] == pytest.approx(100 * np.mean(values))
    statistics = TASKS[task].statistics(evaluator, params, "valid")
    found = TASKS[task].from_sums({name: values.sum(0) for name, values in statistics.items()})
    assert {name: scores.metrics[name] for name in found} == pytest.approx({k: float(v) for k, v in found.items()})
    other = TASKS[task].statistics(evaluator, jax.tree.map(lambda x: x + 0.3, params), "valid")
    compared = compare_statistics(TASKS[task], [statistics, other], samples=20)
    assert set(compared.scores) == {spec.name for spec in TASKS[task].measured(settings) if spec.direction}


@pytest.mark.parametrize("fields", [{}, {"data": PAIRS}], ids=["one text", "pairs"])
def test_an_evaluation_of_files_warns_of_tabs_in_single_texts(tmp_path, caplog, fields):
    settings = config("classification", **fields)
    data = data_of(settings, tmp_path, FEATURES["classification"] | {"inputs": ["a\tfilm", "a\tjoy", *TEXTS[2:]]})
    loaded = Loaded(settings, {}, data.tokenizer, (1,), None, tmp_path, None, data.labels)
    of_files = Scorer(loaded, Evaluator(settings, data), tmp_path, sources.TestFiles("valid", "more.txt"))
    of_corpus = dataclasses.replace(of_files, files=None)
    of_corpus.warn_of_tabs(["valid"])
    assert not caplog.records
    of_files.warn_of_tabs(["valid"])
    warned = "valid: 2 texts have a tab; the model reads one text, with the tab in it" in caplog.text
    assert warned == (not fields)


def test_padding_does_not_change_a_loss(tmp_path):
    """The logits of padding are left out of the softmax over the tokens of a window."""
    settings = config("span_qa")
    data = data_of(settings, tmp_path)
    params = params_of(settings)
    one_row = dataclasses.replace(settings, data=dataclasses.replace(settings.data, row_multiple=1))
    tight = dataclasses.replace(one_row, evaluation=dataclasses.replace(one_row.evaluation, tokens_per_batch=16))
    sums = [Evaluator(s, data).sums(params, "valid") for s in (settings, tight)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-5)


# Predictions.


@every_task
def test_predictions_name_bad_examples(tmp_path, task):
    settings = config(task, model={"position_encoding": "learned", "max_length": 16})
    data = data_of(settings, tmp_path)
    predictor = PREDICTORS[task](settings, params_of(settings), data.tokenizer, data.labels)
    assert predictor.predict([]) == []
    assert task in TASKS
    with pytest.raises(DataError, match="one text in place of a list"):
        predictor.predict("text")
    long = "a " * 17
    good, bad, problem = {
        "classification": ("a film", [" ", ("a", "b"), long], ["has no text", "2 texts; the model", "19 tokens with"]),
        "tagging": (["a", "film"], ["", ["a", " "], long], ["has no words", "has an empty word", "19 tokens with"]),
        "span_qa": (
            ("who ?", long),
            ["who ?", ("who ?", " "), ("a a a a a a a", "a")],
            ["expected a pair of a question and a context", "has no context", "its question has 7 tokens, more than"],
        ),
    }[task]
    found = predictor.attempt([good, bad[0], bad[1], good, bad[2]])
    assert [isinstance(x, Problem) for x in found] == [False, True, True, False, True]
    assert found[0] == found[3]
    assert str(found[0])[:20] == str(predictor.predict([good])[0])[:20]
    for prediction, text in zip([found[1], found[2], found[4]], problem, strict=True):
        assert prediction.text.startswith(text)
    with pytest.raises(DataError, match=r"example 2: "):
        predictor.predict([good, bad[0]])
    layers = predictor.config.model.num_encoder_layers
    assert f"{type(predictor).__name__}: encoder_only of {layers} layer" in repr(predictor)


def test_probabilities_are_those_of_the_logits(tmp_path):
    settings = config("classification")
    data = data_of(settings, tmp_path)
    params = params_of(settings)
    logits = np.stack(outputs_of_split(Evaluator(settings, data), params, "valid")).astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for label, row in zip(
        Classifier(settings, params, data.tokenizer, data.labels).predict(TEXTS), expected, strict=True
    ):
        np.testing.assert_allclose([label.probabilities[name] for name in data.labels], row, rtol=1e-5)
        assert label.probability == max(label.probabilities.values())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_no_class_and_no_answer(bad):
    logits = np.zeros((3, 4))
    logits[0, 2], logits[1, 3] = 5.0, bad
    assert best_classes(log_softmax(logits)).tolist() == [2, -1, 0]
    assert log_softmax(logits)[0] == pytest.approx(logits[0] - np.log(np.exp(logits[0]).sum()))
    # Three windows of two questions, each of two tokens; one logit of the second window is not a number.
    ones = np.ones(3, np.int64)
    windows = Windows(np.array([0, 0, 1]), 0 * ones, 2 * ones, 2 * ones, np.array([[2, 3], [0, 0], [2, 2]]))
    of_windows = [np.zeros((5, 2)) for _ in range(3)]
    of_windows[1][3, 0] = bad
    nll, weight = window_losses(windows, of_windows)
    assert np.isnan(nll).tolist() == [False, True, False]
    spans = RaggedIds(np.array([0, 2, 0, 2]), np.array([0, 2, 4]))
    ends = RaggedIds(np.array([1, 3, 1, 3]), np.array([0, 2, 4]))
    split = EncodedSplit({"token_starts": spans, "token_ends": ends}, SpecialIds())
    task = TaskConfig(name="span_qa", max_answer_length=2)
    first, second = best_answers(task, split, windows, of_windows, ["a b", "c d"])
    assert (first.text, np.isnan(first.score)) == ("", True)
    assert (second.text, second.first, second.end, second.score) == ("c", 0, 1, 0.0)
    assert weight[2] == 2
