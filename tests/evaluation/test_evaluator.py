"""Scores of parameters on a split, against the formula written out."""

import dataclasses

import numpy as np
import pytest
from data_support import longest_of, pair_texts, prepared
from run_support import trained_config, trained_folder, translated
from support import as_batch, forward, random_params

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.evaluator import Evaluator, make_validate
from transformer_jax.tasks.metrics.text import translation_scores
from transformer_jax.tasks.task import TASKS, MetricSpec, Task
from transformer_jax.tasks.translation import Translation

TRANSLATION = TASKS["translation"]


@pytest.fixture(scope="module")
def config():
    return trained_config()


@pytest.fixture(scope="module")
def data(config):
    return prepared(config, trained_folder() / "run")


@pytest.fixture(scope="module")
def params(config):
    return random_params(config.model)


def replaced(config, section, **fields):
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **fields)})


def losses(config, data, params, split):
    """Return the scores that need no translation."""
    scores = Evaluator(config, data).score(params, split, generate=False)
    assert scores.outputs is None
    return scores.metrics


def by_hand(config, data, params, split):
    """Return loss, accuracy and tokens of all pairs in one array, from log-softmax in float64."""
    ids = data.splits[split]
    rows, width = np.arange(ids.num_examples), 24
    inputs, targets = (ids.take(name, rows, width) for name in ("inputs", "targets"))
    logits = np.asarray(forward(config.model, params, as_batch(inputs=inputs, targets=targets)), np.float64)
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    real = targets > 0
    chosen = np.take_along_axis(logp, targets[..., None], -1)[..., 0]
    correct = (logits.argmax(-1) == targets)[real]
    return -chosen[real].mean(), 100 * correct.mean(), real.sum()


@pytest.mark.parametrize("split", ["valid", "test"])
def test_losses_are_the_formula(config, data, params, split):
    loss, accuracy, tokens = by_hand(config, data, params, split)
    assert data.splits[split].num_examples % config.data.row_multiple  # there are rows of padding
    result = losses(config, data, params, split)
    assert result["loss"] == pytest.approx(loss, rel=1e-5)
    assert result["perplexity"] == pytest.approx(np.exp(loss), rel=1e-4)
    assert result["accuracy"] == pytest.approx(accuracy, abs=1e-4)
    assert result["tokens"] == tokens == data.splits[split].lengths("targets").sum()
    assert type(result["tokens"]) is int
    assert list(result) == ["loss", "perplexity", "accuracy", "tokens", "over_length"]
    assert loss > 3


def test_losses_do_not_depend_on_the_batches(config, data, params):
    whole = losses(config, data, params, "valid")
    for tokens_per_batch, row_multiple in ((64, 8), (16, 1)):
        other = replaced(config, "evaluation", tokens_per_batch=tokens_per_batch)
        other = replaced(other, "data", row_multiple=row_multiple)
        parts = losses(other, data, params, "valid")
        assert parts["tokens"] == whole["tokens"]
        assert parts["accuracy"] == pytest.approx(whole["accuracy"], rel=1e-6)
        assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-6)


def test_smoothing_and_dropout_are_for_training(config, data, params):
    other = replaced(config, "training", label_smoothing=0.3)
    other = replaced(other, "model", dropout_rate=0.5)
    plain = losses(config, data, params, "test")
    assert losses(other, data, params, "test") == pytest.approx(plain, rel=1e-6)


@pytest.mark.slow
def test_a_learned_table_as_long_as_the_longest_pair(config, data):
    """Widths of batches are rounded up, but not beyond the table."""
    ids = data.splits["valid"]
    longest = int(longest_of(ids).max())
    assert longest % 8  # otherwise rounding changes nothing
    fits = replaced(config, "model", position_encoding="learned", max_length=longest)
    params = random_params(fits.model)
    assert losses(fits, data, params, "valid")["tokens"] == ids.lengths("targets").sum()
    assert len(TRANSLATION.outputs(Evaluator(fits, data), params, "valid")) == ids.num_examples
    short = replaced(fits, "model", max_length=longest - 1)
    first = int(np.argmax(longest_of(ids) == longest))
    with pytest.raises(DataError, match=rf"split 'valid', example {first + 1}: {longest} tokens .*={longest - 1}"):
        losses(short, data, params, "valid")
    with pytest.raises(DataError, match="split 'valid', example"):
        make_validate(short, data)  # before training, not after its first hour


def test_an_unknown_split(config, data, params):
    with pytest.raises(DataError, match="no split 'tset'; there are train, valid, test"):
        losses(config, data, params, "tset")


class Fixed:
    """A corpus and its translations, some of which are right."""

    inputs = ("a", "b", "c", "d", "e")
    targets = ("der eine Satz", "der andere Satz", "noch ein Satz", "und einer", "fertig")
    lines = ("der eine Satz", "der andere Satz", "noch kein Satz", "", "fertig")
    families = ("x", "x", "y", "y", "y")


@pytest.fixture
def fixed(monkeypatch, config, data):
    def text(self, split):
        families = None if split == "test" else list(Fixed.families)
        return pair_texts(list(Fixed.inputs), list(Fixed.targets), families)

    monkeypatch.setattr(type(data), "text", text)
    monkeypatch.setattr(Translation, "outputs", lambda *_: translated(Fixed.lines, unfinished=(2, 4)))
    return Evaluator(config, data)


def test_translation_scores(fixed, params):
    scores, lines = fixed.score(params, "valid")
    assert lines == list(Fixed.lines)
    assert scores["exact_match"] == 60.0
    assert scores["unfinished"] == 2
    assert scores["families"] == {
        "x": {"exact_match": 100.0, "pairs": 2},
        "y": {"exact_match": pytest.approx(100 / 3), "pairs": 3},
    }
    assert 0 < scores["chrf"] < 100


def test_a_corpus_without_families_has_no_scores_for_them(fixed, params):
    assert "families" not in fixed.score(params, "test").metrics


class Tokens:
    """A corpus of Moses BPE tokens, and its translations."""

    targets = ("ein Mann , &quot; al@@ t &quot; .", "der Hund läuft zum Haus .")
    lines = ("Ein Mann , &quot; al@@ t &quot; .", "der H@@ und läuft zum Haus .")
    readable = ('Ein Mann, "alt".', "der Hund läuft zum Haus.")


@pytest.fixture
def tokens(monkeypatch, config, data):
    monkeypatch.setattr(type(data), "text", lambda *_: pair_texts(["a", "b"], list(Tokens.targets)))
    monkeypatch.setattr(Translation, "outputs", lambda *_: translated(Tokens.lines, unfinished=()))
    return Evaluator(replaced(config, "data", text_form="moses_bpe"), data)


def test_token_corpora_are_scored_as_tokens_and_as_text(tokens, params):
    scores, lines = tokens.score(params, "valid")
    assert lines == list(Tokens.readable)
    references = ['ein Mann, "alt".', "der Hund läuft zum Haus."]
    assert TRANSLATION.references(tokens.config, tokens.data, "valid") == references
    of_text = translation_scores(lines, references)
    assert {name: scores[name] for name in of_text if name != "exact_match"} == {
        name: value for name, value in of_text.items() if name != "exact_match"
    }
    assert of_text["sacrebleu"] < 95
    assert scores["tokenized_bleu"] == pytest.approx(100.0)  # equal except for case
    assert "case:lc" in scores["tokenized_bleu_signature"]
    assert scores["exact_match"] == 50.0


def test_plain_text_has_no_scores_of_tokens(fixed, params):
    assert "tokenized_bleu" not in fixed.score(params, "test").metrics


def test_validation_logs_scores_of_tokens(tokens, data, params):
    ranked = make_validate(replaced(tokens.config, "training", best_metric="sacrebleu"), data)(params)
    assert ranked["tokenized_bleu"] == pytest.approx(100.0)


def test_validation_translates_only_if_a_translation_metric_ranks(fixed, config, data, params):
    logged = {"loss", "perplexity", "accuracy", "tokens"}
    assert set(make_validate(config, data)(params)) == logged
    assert make_validate(config, data)(params) == {name: losses(config, data, params, "valid")[name] for name in logged}
    for metric in ("exact_match", "sacrebleu", "chrf"):
        ranked = make_validate(replaced(config, "training", best_metric=metric), data)(params)
        assert set(ranked) == logged | {"exact_match", "sacrebleu", "chrf"}
        assert ranked["exact_match"] == 60.0


# Tests that hold for every task.


def test_sums_by_example_add_up_to_those_of_the_split(config, data, params):
    evaluator = Evaluator(replaced(config, "evaluation", tokens_per_batch=64), data)
    whole, found = evaluator.sums(params, "valid"), evaluator.sums_by_example(params, "valid")
    np.testing.assert_array_equal(found["weight"], data.splits["valid"].lengths("targets"))  # in the order of the split
    assert {name: sums.sum() for name, sums in found.items()} == pytest.approx(whole, rel=1e-5)
    assert len({round(value, 3) for value in found["nll"]}) > 3


class Counting:
    """Counts how often a translator is made."""

    made = 0

    def __init__(self, config, params, tokenizer, others):
        Counting.made += 1

    def generate_chunk(self, lines):
        return translated([line.text for line in lines])


def test_a_translator_is_made_once_for_its_parameters(config, data, params, monkeypatch):
    monkeypatch.setattr("transformer_jax.tasks.trained.translator.Translator", Counting)
    evaluator = Evaluator(replaced(config, "training", best_metric="chrf"), data)
    for split in ("valid", "test", "valid"):
        evaluator.score(params, split)
    assert Counting.made == 1
    evaluator.score(dict(params), "valid")
    assert Counting.made == 2
    evaluator.validation(params)
    assert evaluator._made == []  # its memory is free for training


class Plain(Translation):
    """A task scored only by its loss."""

    metrics = (MetricSpec("loss", "min", heading="loss"), MetricSpec("accuracy", "max"), MetricSpec("luck", "max"))
    score = Task.score


def test_scores_of_a_task_are_its_means_unless_it_says_otherwise(config, data, params, monkeypatch):
    monkeypatch.setitem(TASKS._registered, "plain", Plain())
    plain = replaced(config, "task", name="plain")
    scores = Evaluator(plain, data).score(params, "valid")
    of_translation = losses(config, data, params, "valid")
    assert scores.metrics == {name: of_translation[name] for name in ("loss", "accuracy")}
    assert scores.outputs is None
    assert make_validate(plain, data)(params) == scores.metrics
    with pytest.raises(DataError, match=r"best_metric='luck': task 'plain' has measured loss, accuracy"):
        make_validate(replaced(plain, "training", best_metric="luck"), data)(params)
    with pytest.raises(ConfigError, match=r"best_metric='chrf': task 'plain' ranks .* loss, accuracy, luck"):
        make_validate(replaced(plain, "training", best_metric="chrf"), data)


def test_a_task_that_raises_is_named(config, data, params, monkeypatch):
    class Broken(Plain):
        def score(self, evaluator, params, split, generate):
            return 1 / 0

    monkeypatch.setitem(TASKS._registered, "broken", Broken())
    with pytest.raises(DataError, match=r"split 'valid': task\.name='broken': ZeroDivisionError: division by zero"):
        Evaluator(replaced(config, "task", name="broken"), data).score(params, "valid")
