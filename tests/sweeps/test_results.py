"""Files of trials: specifications and results."""

import dataclasses
import json
import os

import pytest

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.host.files import with_checksum
from transformer_jax.sweeps.results import (
    RESULT,
    SPEC,
    TRIALS,
    Result,
    check_trials,
    claim_sweep,
    held,
    is_running,
    read_result,
    read_spec,
    write_spec,
)
from transformer_jax.sweeps.study import Metric, Study, over
from transformer_jax.sweeps.trials import Trial

TRIAL = Trial({"num_heads": "2"}, 3, dataclasses.replace(ExperimentConfig().resolved(), seed=3))
METRICS = [Metric("test/loss", "min"), Metric("train/accuracy", "max")]
RESULT_OF_IT = Result({"num_heads": "2"}, 3, "finished", "", {"test/loss": 1.25}, 8, 2.5, 100, "1 x cpu", {"jax": "1"})


def test_a_spec_is_read_as_written(tmp_path):
    write_spec(tmp_path / "t", TRIAL, METRICS)
    assert read_spec(tmp_path / "t") == (TRIAL, METRICS, None, False)
    write_spec(tmp_path / "t", TRIAL, METRICS, examples=True)
    assert read_spec(tmp_path / "t").examples
    write_spec(tmp_path / "t", TRIAL, METRICS)


def test_a_trial_started_with_other_values_is_refused(tmp_path):
    write_spec(tmp_path, TRIAL, METRICS)
    model = dataclasses.replace(TRIAL.config.model, dropout_rate=0.3)
    changed = dataclasses.replace(TRIAL, config=dataclasses.replace(TRIAL.config, model=model))
    with pytest.raises(ConfigError, match=r"model.dropout_rate \(0.1 before, 0.3 now\); choose another --workdir"):
        write_spec(tmp_path, changed, METRICS)


def test_a_result_is_read_as_written(tmp_path):
    assert read_result(tmp_path) is None
    RESULT_OF_IT.write(tmp_path)
    assert read_result(tmp_path) == RESULT_OF_IT


@pytest.mark.parametrize("text", ["", '{"labels": {"num', "[]", '{"labels": {}}', "\x00"])
def test_a_truncated_result_is_named(tmp_path, text):
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(DataError, match=f"{tmp_path / RESULT}: .*; delete it; the trial is then scored again"):
        read_result(tmp_path)


def test_a_truncated_spec_is_named(tmp_path):
    write_spec(tmp_path, TRIAL, METRICS)
    (tmp_path / SPEC).write_text(json.dumps(with_checksum({"labels": {}})))
    with pytest.raises(DataError, match="lacks 'seed'"):
        read_spec(tmp_path)
    (tmp_path / SPEC).write_text(json.dumps({"labels": {}}))
    with pytest.raises(DataError, match="has no checksum"):
        read_spec(tmp_path)


def test_two_studies_do_not_share_a_work_directory(tmp_path):
    claim_sweep(tmp_path / "w", tmp_path / "positions")
    claim_sweep(tmp_path / "w", tmp_path / "positions")
    with pytest.raises(ConfigError, match="belongs to the study 'positions', not to 'num_heads'"):
        claim_sweep(tmp_path / "w", tmp_path / "num_heads")


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_file_in_the_place_of_the_work_directory(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"--workdir={tmp_path / name}: cannot be a folder"):
        claim_sweep(tmp_path / name, tmp_path / "positions")


def test_trials_of_another_study_of_the_name_are_refused_before_anything_runs(tmp_path):
    write_spec(tmp_path / TRIALS / "t", TRIAL, METRICS)
    folder = tmp_path / "heads"
    asked = {"question": "?", "baseline": "b.py", "metrics": tuple(METRICS)}
    check_trials(tmp_path, Study(axes=(over("model.num_heads", 1, 2),), **asked), folder)
    with pytest.raises(ConfigError, match=r"the axis 'num_heads' has no value '2' now"):
        check_trials(tmp_path, Study(axes=(over("model.num_heads", 1, 4),), **asked), folder)
    with pytest.raises(ConfigError, match="it has the axes num_heads, and the study has norm_position"):
        check_trials(tmp_path, Study(axes=(over("model.norm_position", "pre", "post"),), **asked), folder)


def test_a_locked_trial_is_running(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        assert not is_running(folder)
    with held(folders) as free:
        assert free
        assert all(map(is_running, folders))
        with held(folders[1:]) as again:
            assert not again
    assert not any(map(is_running, folders))


def test_a_work_directory_whose_path_is_not_utf_8(tmp_path):
    folder = tmp_path / os.fsdecode(b"w\xff")
    with pytest.raises(CheckpointError, match="the path is not UTF-8; rename"):
        claim_sweep(folder, tmp_path / "study")
    assert not folder.exists()
