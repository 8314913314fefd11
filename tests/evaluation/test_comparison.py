"""`compare`: from checkpoints to a table, and which translations it makes."""

import dataclasses
import hashlib
import json
import logging
import shutil
from unittest import mock

import jax
import pytest
from data_support import pair_texts
from run_support import copy_of_trained, snapshot

from transformer_jax.checkpoints.checksums import by_path, checksums
from transformer_jax.config import TaskConfig
from transformer_jax.data.datasets import Data
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation import scoring as evaluation_run
from transformer_jax.evaluation.comparison import compare
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.evaluation.fingerprint import fingerprint
from transformer_jax.evaluation.scoring import Scorer, evaluate
from transformer_jax.tasks.metrics.text_bootstrap import paired_bootstrap
from transformer_jax.tasks.task import TASKS, MetricSpec, Task
from transformer_jax.tasks.trained.lines import LineOutputs, Output
from transformer_jax.tasks.translation import Translation

METRICS = ("sacrebleu", "chrf")

pytestmark = pytest.mark.slow  # tests/cli/test_compare.py has a fast one


@pytest.fixture
def folder(tmp_path):
    return copy_of_trained(tmp_path / "copy")


@pytest.fixture
def run(folder):
    return folder / "run"


@pytest.fixture
def older(run):
    return run / "checkpoints" / "5"


@pytest.fixture
def translated(monkeypatch):
    """Make the decoder right on half of a split, or less for other parameters; yield (split, beam_size) of calls."""
    calls, seen = [], []

    def outputs(task, evaluator, params, split):
        model = fingerprint(evaluator.data.tokenizer, (evaluator.config.model, params))
        if model not in seen:
            seen.append(model)
        calls.append((split, evaluator.config.decode.beam_size))
        targets = evaluator.data.text(split).features["targets"]
        right = len(targets) // (2 + seen.index(model))
        lines = [*targets[:right], *(f"12 {line}" for line in targets[right:])]
        return [LineOutputs(n, [Output(line, [], [], 0.0, True)]) for n, line in enumerate(lines, start=1)]

    monkeypatch.setattr(Translation, "outputs", outputs)
    return calls


def cells(line):
    return [cell.strip() for cell in line.replace("┃", "│").strip("│ ").split("│")]


def lines_of(file):
    return file.read_text().splitlines()


def loads(monkeypatch, change):
    """Change the loaded checkpoint, without changing its name and step."""
    load = evaluation_run.load
    monkeypatch.setattr(evaluation_run, "load", lambda path, overrides, **options: change(load(path, overrides)))


def with_one_parameter_changed(loaded):
    leaves, structure = jax.tree_util.tree_flatten(loaded.params)
    leaves[0] = leaves[0].at[(0,) * leaves[0].ndim].add(1e-4)
    return loaded._replace(params=jax.tree_util.tree_unflatten(structure, leaves))


def with_config(section, **values):
    def change(loaded):
        changed = dataclasses.replace(getattr(loaded.config, section), **values)
        return loaded._replace(config=dataclasses.replace(loaded.config, **{section: changed}))

    return change


def test_the_table_follows_from_the_translations(folder, run, older, translated, capsys):
    results = compare([run, older], ["test", "valid"], samples=50, seed=3)
    out = capsys.readouterr().out.splitlines()
    assert list(results) == ["test", "valid"]
    for split, result in results.items():
        systems = [lines_of(run / "evaluation" / path) for path in (f"{split}.txt", f"step_5/{split}.txt")]
        assert systems[0] != systems[1]
        references = lines_of(folder / f"{split}.de")
        assert result == paired_bootstrap(systems, references, samples=50, seed=3)
        scores = [
            json.loads((run / "evaluation" / path).read_text()) for path in (f"{split}.json", f"step_5/{split}.json")
        ]
        for metric in METRICS:
            assert [score.score for score in result.scores[metric]] == [metrics[metric] for metrics in scores]
        top = next(number for number, line in enumerate(out) if cells(line)[0] == f"{split}, {len(references)} pairs")
        second = result.scores["chrf"][1]
        assert cells(out[top + 2])[0] == str(run)
        assert cells(out[top + 3])[0] == str(older)
        assert cells(out[top + 3])[-2:] == [f"{second.difference:+.2f}", f"{second.p_value:.4f}"]
    assert out[-2:] == [f"{metric}: {results['test'].signatures[metric]}" for metric in METRICS]
    assert "|bs:50|seed:3|" in out[-1]


def test_the_compared_pairs_are_the_encoded_ones(run, older, translated, monkeypatch, capsys):
    """A source may count pairs that it leaves out; copies of the parameters are freed after each split."""
    freed = []
    monkeypatch.setattr(Evaluator, "forget", lambda evaluator: freed.append(evaluator))
    monkeypatch.setattr("transformer_jax.data.sources.text.TextSource.num_examples", lambda source, split: 99)
    compare([run, older], samples=5)
    captured = capsys.readouterr()
    assert "test, 11 pairs" in captured.out
    assert captured.err.count("generating outputs of 11 examples") == 2
    assert len({id(evaluator) for evaluator in freed}) == 2
    evaluate(run, ["test", "valid"])
    assert len([evaluator for evaluator in freed if evaluator is freed[-1]]) == 2


def test_the_files_are_those_of_evaluate(run, older, translated, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    compare([run, older])
    evaluate(other, ["test"])
    evaluate(other / "checkpoints" / "5", ["test"])
    assert snapshot(run / "evaluation") == snapshot(other / "evaluation")
    assert len(snapshot(run / "evaluation")) == 5  # one of them a folder


def test_nothing_is_translated_twice(run, older, translated, capsys):
    evaluate(run, ["test"])
    assert len(translated) == 1
    capsys.readouterr()
    first = compare([run, older])
    assert len(translated) == 2
    err = capsys.readouterr().err
    assert f"test: {run}/evaluation/test.txt is reused: it was made with the same parameters and settings\n" in err
    assert f"test: generating outputs of 11 examples into {run}/evaluation/step_5/test.txt\n" in err
    before = snapshot(run)
    assert compare([run, older]) == first
    assert len(translated) == 2
    assert capsys.readouterr().err.count("is reused") == 2
    assert snapshot(run) == before


def test_the_same_checkpoint_twice(run, translated, capsys, caplog):
    with caplog.at_level(logging.WARNING, "transformer_jax"):
        result = compare([run, run, run / "checkpoints" / "8"])["test"]
    assert len(translated) == 2  # the newest, and step 8 by its path
    for metric in METRICS:
        assert [score.difference for score in result.scores[metric]] == [None, 0.0, 0.0]
        assert [score.p_value for score in result.scores[metric][1:]] == [1 / 1001, 1 / 1001]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"test: {name} scores the same as {run} on every resample (sacrebleu, chrf); the p-value in parentheses is "
        "meaningless"
        for name in (run, run / "checkpoints" / "8")
    ]
    assert capsys.readouterr().out.count("      +0.00 │ (0.0010) ") == 4


def test_overrides_apply_to_all_and_translate_again(run, older, translated):
    first = compare([run, older])
    compare([run, older], overrides={"decode.beam_size": 3})
    assert translated == [("test", 1), ("test", 1), ("test", 3), ("test", 3)]
    assert compare([run, older]) == first  # the files belong to one setting
    assert translated[4:] == [("test", 1), ("test", 1)]


def test_scores_without_translations_do_not_make_old_translations_valid(run, translated, monkeypatch):
    """With parameters so close that the loss does not show the difference."""
    evaluate(run, ["test"])
    before = json.loads((run / "evaluation" / "test.json").read_text())
    loads(monkeypatch, with_one_parameter_changed)
    evaluate(run, ["test"], generate=False)
    after = json.loads((run / "evaluation" / "test.json").read_text())
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-4)
    assert "sacrebleu" not in after
    compare([run, run])
    assert len(translated) == 2


def test_scores_without_translations_keep_reusable_translations(run, translated):
    evaluate(run, ["test"])
    evaluate(run, ["test"], generate=False)
    compare([run, run])
    assert len(translated) == 1


@pytest.mark.parametrize("change", ["cut", "deleted"])
def test_kept_scores_without_their_translations_are_named(run, caplog, change):
    evaluate(run, ["test"])
    text = run / "evaluation" / "test.txt"
    text.write_bytes(text.read_bytes()[:-3]) if change == "cut" else text.unlink()
    evaluate(run, ["test"], generate=False)
    assert f"{text}: is missing or was changed: it does not have the outputs whose scores are kept" in caplog.text


# Reuse of translations, without a comparison.


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Return a scorer, and the translations in its folder."""
    run = copy_of_trained(tmp_path_factory.mktemp("scored") / "copy") / "run"
    lines = [f"line {number}" for number in range(11)]
    translations = [LineOutputs(n, [Output(line, [], [], 0.0, True)]) for n, line in enumerate(lines, start=1)]
    scorer = Scorer.from_checkpoint(run)
    with mock.patch.object(Translation, "outputs", return_value=translations):
        scorer.score("test")
    return scorer, lines


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda loaded: loaded, True),
        (with_one_parameter_changed, False),
        (with_config("model", norm_epsilon=1e-3), False),  # the same parameters in another model
        (with_config("decode", beam_size=2), False),
        (with_config("decode", max_extra_length=9), False),
        (with_config("evaluation", average_checkpoints=2), False),
        (with_config("evaluation", tokens_per_batch=4096), False),
        (lambda loaded: loaded._replace(steps=(5,)), False),
        (lambda loaded: loaded._replace(corpus={**loaded.corpus, "sha256": "0" * 64}), False),
        (lambda loaded: loaded._replace(corpus={**loaded.corpus, "versions": {"x": "1"}}), True),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_changes_that_need_new_translations(scored, change, same):
    scorer, lines = scored
    changed = dataclasses.replace(scorer, loaded=change(scorer.loaded))
    assert changed.earlier_outputs("test") == (lines if same else None)
    assert changed.earlier_outputs("valid") is None


def change_scores(**changes):
    def change(folder):
        scores = json.loads((folder / "test.json").read_text()) | changes
        (folder / "test.json").write_text(
            json.dumps({key: value for key, value in scores.items() if value is not None})
        )

    return change


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "test.txt").write_text("12\n" * 11),
        lambda folder: (folder / "test.txt").write_bytes((folder / "test.txt").read_bytes()[:-3]),
        lambda folder: (folder / "test.txt").unlink(),
        lambda folder: (folder / "test.json").unlink(),
        lambda folder: (folder / "test.json").write_text('{"fingerprint"'),
        lambda folder: (folder / "test.json").write_bytes(b"\xff"),
        lambda folder: (folder / "test.json").write_text("[]"),
        *(change_scores(**{name: None}) for name in ("fingerprint", "translations_sha256", "corpus", "decode")),
        change_scores(split="valid"),
    ],
    ids=lambda spoil: None,
)
def test_changed_translation_files_are_not_reused(scored, tmp_path, spoil):
    """Edited, or of an evaluation interrupted between two files."""
    scorer, lines = scored
    copied = dataclasses.replace(scorer, folder=shutil.copytree(scorer.folder, tmp_path / "copied"))
    assert copied.earlier_outputs("test") == lines
    spoil(copied.folder)
    assert copied.earlier_outputs("test") is None


def test_lines_are_split_where_they_were_joined(run, translated, monkeypatch):
    text = "a\u2028b\x85c\rd"
    translation = LineOutputs(1, [Output(text, [], [], 0.0, True)])
    monkeypatch.setattr(Translation, "outputs", lambda *_: [translation] * 11)
    first = compare([run, run])
    assert lines_of(run / "evaluation" / "test.txt") == ["a b c d"] * 11
    monkeypatch.setattr(Translation, "outputs", None)
    assert compare([run, run]) == first


# Errors are raised before anything is translated.


def test_a_pair_that_is_too_long_for_one_model(run, older, translated, monkeypatch):
    checked = []

    def check(evaluator, split):
        checked.append(split)
        if len(checked) == 2:
            raise DataError("split 'test', pair 3")

    monkeypatch.setattr(Evaluator, "check", check)
    with pytest.raises(DataError, match="pair 3"):
        compare([run, older])
    assert translated == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:2], "one", *lines[3:]], r": pair 3 has '\d[\d ]*' and 'one'$"),
        (lambda lines: lines[:-1], r": pair 11 has '\d[\d ]*' and nothing$"),
        (lambda lines: [*lines, "more"], r": pair 12 has nothing and 'more'$"),
    ],
)
def test_other_references(run, older, translated, monkeypatch, change, message):
    text, known = Data.text, []

    def other_text(data, split):
        found = text(data, split)
        if not any(data is other for other in known):
            known.append(data)
        if data is known[0]:
            return found
        targets = change(found.features["targets"])
        return pair_texts((found.features["inputs"] * 2)[: len(targets)], targets)

    monkeypatch.setattr(Data, "text", other_text)
    with pytest.raises(DataError, match=rf"split 'test' of {run} and of {older} has different references.*{message}"):
        compare([run, older])
    assert translated == []


def test_token_corpora_are_compared_as_text(folder, run, older, translated, monkeypatch):
    loads(monkeypatch, with_config("data", text_form="moses_bpe"))
    monkeypatch.setattr("transformer_jax.data.text_form.readable", lambda line, data: line.replace(" ", ""))
    result = compare([run, older], ["test"], samples=5)["test"]
    systems = [lines_of(run / "evaluation" / path) for path in ("test.txt", "step_5/test.txt")]
    assert not any(" " in line for lines in systems for line in lines)
    references = [line.replace(" ", "") for line in lines_of(folder / "test.de")]
    assert result == paired_bootstrap(systems, references, samples=5)
    assert "tokenized_bleu" in json.loads((run / "evaluation" / "test.json").read_text())


@pytest.mark.parametrize(("count", "splits"), [(0, ["test"]), (1, ["test"]), (2, [])])
def test_nothing_to_compare(run, count, splits):
    with pytest.raises(ConfigError, match=rf"{count} checkpoints, {len(splits)} splits: expected two checkpoints"):
        compare([run] * count, splits)


def test_different_decode_configs_are_reported(run, older, translated, monkeypatch, caplog):
    shorter = with_config("decode", max_extra_length=7)
    loads(monkeypatch, lambda loaded: shorter(loaded) if loaded.name else loaded)
    with caplog.at_level(logging.WARNING, "transformer_jax"):
        compare([run, older])
    (record,) = [record for record in caplog.records if "max_extra_length" in record.getMessage()]
    message = f"decode.max_extra_length is 8 in {run} and 7 in {older}; --decode.max_extra_length=... sets both"
    assert record.getMessage() == message


def test_different_rules_of_scores_are_an_error(run, older, translated, monkeypatch):
    other_rule = with_config("task", best_reference="rouge1")
    loads(monkeypatch, lambda loaded: other_rule(loaded) if loaded.name else loaded)
    message = (
        rf"task\.best_reference is each in {run} and rouge1 in {older}, .*; --task\.best_reference=\.\.\. sets both"
    )
    with pytest.raises(ConfigError, match=message):
        compare([run, older])
    assert translated == []


class Plain(Translation):
    """A task scored by its loss, and compared by the losses of its examples."""

    metrics = (MetricSpec("loss", "min", heading="loss"), MetricSpec("accuracy", "max", "%", "accuracy", "{:.1f}"))
    compares_outputs = False
    score = Task.score

    def references(self, config, data, split):
        return None


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setitem(TASKS._registered, "plain", Plain())
    return with_config("task", name="plain")


def test_a_task_without_outputs_is_compared_by_its_losses(run, older, translated, plain, monkeypatch, capsys):
    loads(monkeypatch, plain)
    result = compare([run, older], samples=50)["test"]
    assert translated == []
    assert not (run / "evaluation").exists()  # nothing to reuse
    out = capsys.readouterr().out.splitlines()
    statistics = ["mean ± 95 %", "difference", "p-value"]
    assert cells(out[1]) == ["test, 11 pairs", "loss", *statistics, "accuracy %", *statistics]
    assert cells(out[4])[1] == f"{result.scores['loss'][1].score:.4f}"
    assert out[-2:] == ["loss: bs:50|seed:12345", "accuracy: bs:50|seed:12345"]
    assert not [line for line in out if line.startswith("decode of")]  # nothing is generated
    evaluate(run, ["test"])
    metrics = json.loads((run / "evaluation" / "test.json").read_text())
    assert metrics["task"] == dataclasses.asdict(TaskConfig(name="plain"))
    assert not (run / "evaluation" / "test.txt").exists()
    assert result.scores["loss"][0].score == pytest.approx(metrics["loss"], rel=1e-5)


def test_a_task_without_a_direction_is_not_compared(run, older, plain, monkeypatch):
    loads(monkeypatch, plain)
    monkeypatch.setattr(Plain, "metrics", (MetricSpec("loss", heading="loss"),))
    with pytest.raises(DataError, match="task 'plain': none of its metrics has a direction"):
        compare([run, older])
    monkeypatch.setattr(Plain, "metrics", (MetricSpec("luck", "max"),))
    with pytest.raises(DataError, match="split 'test': no metric with a direction follows from its statistics"):
        compare([run, older], samples=5)


def test_different_tasks_are_not_compared(run, older, translated, plain, monkeypatch):
    loads(monkeypatch, lambda loaded: plain(loaded) if loaded.name else loaded)
    with pytest.raises(ConfigError, match=rf"{run} has task 'translation' and {older} task 'plain'"):
        compare([run, older])


def test_without_references_the_corpora_are_the_same(run, older, translated, plain, monkeypatch):
    def change(loaded):
        corpus = loaded.corpus | {"sha256": "0" * 64} if loaded.name else loaded.corpus
        return plain(loaded)._replace(corpus=corpus)

    loads(monkeypatch, change)
    monkeypatch.setattr(evaluation_run, "_check_corpus", lambda loaded, data: None)
    with pytest.raises(DataError, match="have different corpora"):
        compare([run, older])


def test_a_fingerprint_is_that_of_the_model_without_defaults(scored):
    """So that a field which is added later, with its default, leaves the fingerprint as it is."""
    loaded = scored[0].loaded
    model = loaded.config.model
    defaults = {field.name: field.default for field in dataclasses.fields(model)}
    fields = {name: value for name, value in dataclasses.asdict(model).items() if value != defaults[name]}
    assert {"emb_dim", "vocab_size"} <= fields.keys()
    assert "activation" not in fields
    digest = hashlib.sha256(loaded.tokenizer.sha256.encode())
    digest.update(json.dumps([fields, checksums(by_path(loaded.params))], sort_keys=True).encode())
    assert fingerprint(loaded.tokenizer, (model, loaded.params)) == digest.hexdigest()
    same = dataclasses.replace(model, recurrent_implementation="cudnn")
    assert fingerprint(loaded.tokenizer, (same, loaded.params)) == digest.hexdigest()
    other = dataclasses.replace(model, architecture="decoder_only")
    assert fingerprint(loaded.tokenizer, (other, loaded.params)) != digest.hexdigest()
