"""Each metric is declared once, by its task; configs, searches and trials read the declarations."""

import ast
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax
from transformer_jax.config import DataConfig, ExperimentConfig, TaskConfig, TrainingConfig
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.metrics_file import CLOCK_FIELDS
from transformer_jax.tasks.task import (
    LOGGED_BY_CLOCK,
    TASKS,
    MetricSpec,
    best_metric,
    declared,
    training_metrics,
    validation_metrics,
)

PACKAGE = Path(transformer_jax.__file__).parent
OF_TRANSLATION_ALONE = {"exact_match", "tokenized_bleu", "sacrebleu", "chrf", "unfinished", "over_length"}
# Modules that write lines of translation metrics to their own files.
WRITERS = {
    "cli/generate.py": {"unfinished"},
    "cli/quickstart.py": {"exact_match", "sacrebleu"},
    "evaluation/scoring.py": {"over_length"},
    "host/versions.py": {"sacrebleu"},  # the library
}


def config(best="loss", **data):
    return ExperimentConfig(training=TrainingConfig(best_metric=best), data=DataConfig(**data))


def test_no_other_module_names_a_metric_of_translation():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        literals = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        if not name.startswith("tasks/") and (named := literals & OF_TRANSLATION_ALONE):
            found[name] = named
    assert {name: named for name, named in found.items() if not named <= WRITERS.get(name, set())} == {}
    assert set(WRITERS) <= set(found)


def test_a_task_declares_every_name_once():
    task = TASKS["translation"]
    for specs in (task.metrics, training_metrics(task)):
        names = [spec.name for spec in specs]
        assert len(names) == len(set(names))
    assert {spec.name for spec in LOGGED_BY_CLOCK} == set(CLOCK_FIELDS)
    assert {spec.name for spec in task.metrics} >= OF_TRANSLATION_ALONE


def test_training_and_evaluation_may_declare_the_same_name():
    task = TASKS["translation"]
    assert declared(task, "train/loss").heading == ""
    assert declared(task, "test/loss").heading == "loss"
    assert declared(task, "start/entropy") == MetricSpec("entropy")


def test_means_are_the_metrics_declared_for_training():
    task = TASKS["translation"]
    means = task.means({"loss": 6.0, "nll": 4.0, "correct": 1.0, "weight": 2.0})
    assert means == {"loss": 3.0, "nll": 2.0, "accuracy": 50.0}
    assert list(means) == [spec.name for spec in task.logged]


@pytest.mark.parametrize(
    ("name", "direction", "generates"), [("loss", "min", False), ("perplexity", "min", False), ("chrf", "max", True)]
)
def test_the_best_metric_has_the_declared_direction(name, direction, generates):
    spec = best_metric(config(name))
    assert (spec.name, spec.direction, spec.needs_generation) == (name, direction, generates)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sacreblue", r" \(did you mean 'sacrebleu'\?\)$"),
        ("tokens", ""),  # has no direction
        ("unfinished", ""),  # not logged
        ("tokenized_bleu", ""),  # not for text
    ],
)
def test_metrics_that_cannot_rank_checkpoints(name, hint):
    match = (
        f"training.best_metric='{name}': task 'translation' ranks .* loss, perplexity, accuracy, exact_match.*{hint}"
    )
    with pytest.raises(ConfigError, match=match):
        best_metric(config(name))


def test_a_corpus_of_tokens_has_scores_of_tokens():
    tokens = config("tokenized_bleu", text_form="moses_bpe")
    assert best_metric(tokens).direction == "max"
    names = [spec.name for spec in validation_metrics(tokens, generate=True)]
    assert names == ["loss", "perplexity", "accuracy", "tokens", "exact_match", "tokenized_bleu", "sacrebleu", "chrf"]
    assert [spec.name for spec in validation_metrics(tokens, generate=False)] == names[:4]


def test_a_config_is_refused_as_it_is_read(tmp_path):
    file = tmp_path / "c.py"
    file.write_text(
        "from transformer_jax.config import *\ndef get_config(arg=''): return ExperimentConfig().to_config_dict()\n"
    )
    assert read_config(str(file), {"training.best_metric": "chrf"}).training.best_metric == "chrf"
    with pytest.raises(ConfigError, match="did you mean 'exact_match'"):
        read_config(str(file), {"training.best_metric": "exact_mach"})


def test_an_unknown_task_is_named():
    other = dataclasses.replace(config(), task=TaskConfig(name="translatoin"))
    with pytest.raises(ConfigError, match=r"task.name='translatoin': .*did you mean 'translation'"):
        best_metric(other)


def test_declarations_are_readable_without_jax():
    code = (
        "import sys\nfrom transformer_jax.tasks.task import TASKS\nimport transformer_jax.sweeps.study\n"
        "assert TASKS['translation'].metrics\nprint(sorted({'jax', 'flax', 'sacrebleu'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
