"""The command in a report recreates the configs of that report."""

import dataclasses
import json
import shlex

import pytest
from report_support import STUDY, write_study, write_trial, write_workdir

from transformer_jax.cli import sweep as sweep_command_of_cli
from transformer_jax.cli.arguments import parse
from transformer_jax.cli.sweep_stages import given_by
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.grid_from_results import config_of_variant, derived_differences, values_by_name
from transformer_jax.sweeps.report.reproduction import (
    command_note,
    differing_fields,
    exact_config,
    sweep_command,
    versions,
)
from transformer_jax.sweeps.report.sentences import notes
from transformer_jax.sweeps.results import TRIALS, Given, claim_sweep, given_of
from transformer_jax.sweeps.search import make_search
from transformer_jax.sweeps.search.random import random_search
from transformer_jax.sweeps.search.search import SearchOptions, Space
from transformer_jax.sweeps.study import NOWHERE, Axis, Range, load_study
from transformer_jax.sweeps.study_json import declaration_of
from transformer_jax.sweeps.trials import grid


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return collect(*write_workdir(tmp_path_factory.mktemp("study")))


def test_the_command_recreates_the_trials(results):
    program, name, *words = shlex.split(sweep_command(results))
    assert (program, name) == ("transformer-jax", "sweep")
    arguments = parse(sweep_command_of_cli, "transformer-jax sweep", words)
    assert arguments.required("study") == "experiments/heads"
    assert arguments.overrides == {"model.mlp_dim": "40"}  # without derived fields and settings of the study
    trials = grid(results.study, arguments.overrides).trials
    assert [values_by_name(trial.config) for trial in trials] == [
        values_by_name(trial.trial.config) for trial in results.trials
    ]


@pytest.mark.parametrize("config", [None, "my configs/other.py:big"])
def test_the_command_has_the_arguments_as_they_were_given(results, config):
    """Paths too, so that it works in the folder where the sweep was run."""
    given = Given("deep/er/my study", "runs/of it's $HOME", config, ["--config.data.dir=a $b c"])
    study = results.study
    if config:  # a report does not run the code of another baseline
        study = dataclasses.replace(study, baseline="/gone/other.py", folder=NOWHERE)
    changed = dataclasses.replace(results, given=given, study=study)
    program, name, *words = shlex.split(sweep_command(changed))
    assert (program, name) == ("transformer-jax", "sweep")
    found = parse(sweep_command_of_cli, "transformer-jax sweep", words)
    assert (found.flags.study, found.flags.workdir, found.flags.config) == given[:3]
    # The baseline is found: the overrides that make the configs. Else those of the sweep.
    assert found.overrides == ({"data.dir": "a $b c"} if config else {"model.mlp_dim": "40"})
    assert "In the folder where sweep was run" in command_note(changed)


def test_sweep_records_its_arguments(tmp_path, monkeypatch):
    words = ["--study=some/heads", "--workdir=my runs/x", "--config.model.mlp_dim=40", "--pretraining.data.dir=$a b"]
    given = given_by(parse(sweep_command_of_cli, "transformer-jax sweep", words))
    overrides = ["--config.model.mlp_dim=40", "--pretraining.data.dir=$a b"]
    assert given == Given("some/heads", "my runs/x", None, overrides)
    workdir, folder = write_workdir(tmp_path)
    claim_sweep(workdir, folder, declaration_of(load_study(folder)), given=given)
    assert collect(workdir, folder).given == given
    monkeypatch.chdir(tmp_path)
    assert sweep_command(collect(workdir)).endswith(shlex.join(overrides))  # its baseline is code, which is not run


@pytest.mark.parametrize(
    "bad", [None, 3, {}, {"study": "a", "workdir": 1}, {"study": "a", "workdir": "b", "config": 2}]
)
def test_a_record_without_a_command_has_none(bad):
    assert given_of({"given": bad}) is None


def test_the_derived_defaults_that_the_axes_move(results):
    of_heads = ["model.num_heads"]
    expected = {"model.num_kv_heads": of_heads, "model.head_dim": of_heads, "model.value_head_dim": of_heads}
    assert derived_differences(results.variants) == expected
    first, *others = results.variants
    config = config_of_variant(first)
    own = dataclasses.replace(config, model=dataclasses.replace(config.model, num_kv_heads=1, head_dim=4))
    trial = dataclasses.replace(first.trials[0], trial=dataclasses.replace(first.trials[0].trial, config=own))
    changed = [dataclasses.replace(first, trials=(trial,)), *others]
    assert set(derived_differences(changed)) == {"model.num_kv_heads"}  # the other widths are not the derived ones
    assert derived_differences(results.variants[:1]) == {}


def test_a_changed_baseline_is_overridden(results, tmp_path):
    folder = write_study(tmp_path)
    file = tmp_path / "tiny.py"
    file.write_text(file.read_text().replace("emb_dim=16", "emb_dim=32"))
    command = sweep_command(dataclasses.replace(results, study=load_study(folder)))
    assert "--config.model.emb_dim=16" in command
    assert "head_dim" not in command  # it is derived


def test_no_command_if_none_recreates_the_configs(results, tmp_path):
    gone = dataclasses.replace(results.study, folder=tmp_path)
    assert sweep_command(dataclasses.replace(results, study=gone)) is None  # its baseline is not found
    first, *others = results.variants
    config = config_of_variant(first)
    odd = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, beta1=0.5))
    trial = dataclasses.replace(first.trials[0], trial=dataclasses.replace(first.trials[0].trial, config=odd))
    changed = dataclasses.replace(first, trials=(trial,))
    assert sweep_command(dataclasses.replace(results, variants=(changed, *others))) is None


DRAWN = STUDY.replace(
    'over("model.num_heads", 1, 2, 4, 8, 16)', 'Range("optimizer.learning_rate", 1e-5, 1e-1, log=True)'
)


def searched(root, options, num_drawn=3):
    """Return the results of a search over a learning rate, whose variants are the first random draws."""
    folder, workdir = write_study(root, text=DRAWN), root / "runs" / "heads"
    claim_sweep(workdir, folder)
    study, overrides = load_study(folder), {"data.cache_dir": str(workdir / "tokens"), "model.mlp_dim": "40"}
    make_search(study, overrides, options, workdir, 1).close()
    draws = random_search(Space(study, overrides), num_drawn, options.seed).next([])
    for trial in draws:
        write_trial(trial, study.metrics, workdir / TRIALS / trial.name, 0)
    return collect(workdir, folder)


def test_the_command_of_a_random_search_repeats_its_draws(tmp_path):
    results = searched(tmp_path, SearchOptions("random", 3, 7))
    words = shlex.split(sweep_command(results))[2:]
    flags = parse(sweep_command_of_cli, "transformer-jax sweep", words)
    values, overrides = flags.flags, flags.overrides
    (tmp_path / "again").mkdir()
    options = SearchOptions(values.search, values.num_trials, values.search_seed, values.pruner)
    again = make_search(results.study, overrides, options, tmp_path / "again", 1).next([])
    assert {t.name: values_by_name(t.config) for t in again} == {
        t.trial.name: values_by_name(t.trial.config) for t in results.trials
    }
    assert "trains the same configs" in command_note(results)
    other = dataclasses.replace(results.study, axes=(Range("optimizer.learning_rate", 1e-6, 1e-2, log=True),))
    assert sweep_command(dataclasses.replace(results, study=other)) is None  # another study draws other values


def test_the_command_of_tpe_says_that_it_may_draw_others(tmp_path):
    results = dataclasses.replace(
        searched(tmp_path, SearchOptions("random", 3, 7)), search=SearchOptions("tpe", 9, 7, "median")
    )
    flags = "--search=tpe --search_seed=7 --num_trials=9 --pruner=median --config.model.mlp_dim=40"
    assert sweep_command(results).endswith(flags)
    assert "the command does not repeat them" in command_note(results)
    unknown = dataclasses.replace(results, search=SearchOptions("tpe", None, 7))
    assert "--num_trials=3" in sweep_command(unknown)


def test_a_search_within_a_range_has_no_reference(results):
    study = dataclasses.replace(results.study, axes=(Range("model.num_heads", 1, 16),))
    said = notes(dataclasses.replace(results, study=study), [], [])
    assert "A search over a range has no reference, so there are no differences." in said
    assert not any("no trial here" in note for note in said)


def test_variants_without_trials(results):
    assert results.absent == {}
    values = {"one": {"model.num_heads": 1}, "default": {}, "none": {"model.dropout_rate": 0.0}}
    added = Axis("num_heads", {**results.study.axes[0].values, **values})
    study = dataclasses.replace(results.study, axes=(added,))
    changed = dataclasses.replace(results, study=study)
    assert changed.absent == {
        "num_heads=one": "num_heads=1",
        "num_heads=default": "num_heads=2",
        "num_heads=none": "",
    }
    said = notes(changed, [], [])
    assert "num_heads=default is the same experiment as num_heads=2." in said
    assert "num_heads=none has no trial here." in said


def test_differences_of_the_configs(results):
    follow = ["model.num_kv_heads", "model.head_dim", "model.value_head_dim"]
    assert differing_fields(results) == ["model.num_heads", *follow]


def test_exact_configs_have_every_field(results):
    config = json.loads(exact_config(results.variants[1]))
    expected = config_of_variant(results.variants[1]).to_dict()
    assert (expected.pop("seed"), expected["data"].pop("cache_dir")[-11:]) == (0, "token_cache")
    assert config == json.loads(json.dumps(expected))


def test_versions_are_counted(results):
    first = results.variants[0].trials[0]
    other = dataclasses.replace(first, result=dataclasses.replace(first.result, versions={"jax": "0.11"}))
    variants = (dataclasses.replace(results.variants[0], trials=(other,)), *results.variants[1:])
    found = versions(dataclasses.replace(results, variants=variants))
    assert found == {"jax 0.11": 1, "jax 0.10.2, python 3.11.9": 12}
