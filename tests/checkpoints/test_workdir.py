import dataclasses
import errno
import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.checkpoints.manifest import Manifest, seal
from transformer_jax.checkpoints.workdir import config_differences, config_of_run, open_workdir, read_stored_config
from transformer_jax.config import ExperimentConfig, OptimizerConfig
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.host.files import with_checksum

CONFIG = {
    "seed": 0,
    "model": {"num_heads": 8, "dropout_rate": 0.1, "norm": "layernorm"},
    "training": {"num_train_steps": 1000, "shape": (1, 2)},
}


def changed(**values):
    config = json.loads(json.dumps(CONFIG))
    for name, value in values.items():
        section, _, field = name.partition("__")
        config[section][field] = value
    return config


def test_makes_the_directory_and_its_config_and_reopens_it(tmp_path):
    path = tmp_path / "a" / "b"
    for _ in range(2):
        with open_workdir(path, CONFIG) as workdir:
            assert workdir.path == path
            assert workdir.checkpoints == path / "checkpoints"
            workdir.write_config()
        assert read_stored_config(path) == json.loads(json.dumps(CONFIG))
    assert sorted(entry.name for entry in path.iterdir()) == [".lock", "config.json"]


def claim(path, config=CONFIG, **options):
    with open_workdir(path, config, **options) as workdir:
        workdir.write_config()


def test_opening_does_not_claim_the_directory(tmp_path):
    """A process that dies while it prepares its data leaves the directory free for any config."""
    open_workdir(tmp_path, CONFIG).close()
    assert read_stored_config(tmp_path) is None
    claim(tmp_path, changed(model__num_heads=4))
    open_workdir(tmp_path, CONFIG, allow_config_change=True).close()
    assert read_stored_config(tmp_path) == changed(model__num_heads=4)


def test_an_unchanged_config_is_not_written_again(tmp_path):
    claim(tmp_path)
    before = (tmp_path / "config.json").stat().st_ino
    claim(tmp_path)
    assert (tmp_path / "config.json").stat().st_ino == before


def test_another_config_is_refused_field_by_field(tmp_path):
    path = tmp_path / "run"
    claim(path)
    before = (path / "config.json").read_bytes()
    other = changed(model__num_heads=4, model__dropout_rate=0.2, training__num_train_steps=2000, model__new="x")
    del other["model"]["norm"]
    with pytest.raises(ConfigError) as caught:
        open_workdir(path, other)
    assert str(caught.value) == (
        f"{path}: another config is in use here\n"
        "  - model.num_heads: 8 in run, 4 now\n"
        "  - model.dropout_rate: 0.1 in run, 0.2 now\n"
        '  - model.new: absent in run, "x" now\n'
        "  - training.num_train_steps: 1000 in run, 2000 now\n"
        '  - model.norm: "layernorm" in run, absent now\n'
        "Choose another --workdir, or resume here with the new values: "
        "transformer-jax train ... --allow_config_change"
    )
    assert (path / "config.json").read_bytes() == before
    open_workdir(path, CONFIG).close()  # the refusal has released the lock


def test_a_config_without_fields_that_were_added_later_is_the_same_config(tmp_path):
    config = ExperimentConfig().to_dict()
    before = {name: dict(fields) if isinstance(fields, dict) else fields for name, fields in config.items()}
    del before["decode"]
    before["evaluation"].pop("context")
    open_workdir(tmp_path, config).check_config(before, "checkpoint 5")
    config["decode"] = {**config["decode"], "max_extra_length": 7}
    with pytest.raises(ConfigError, match=r"\n  - decode\.max_extra_length: 50 in checkpoint 5, 7 now\n"):
        open_workdir(tmp_path / "b", config).check_config(before, "checkpoint 5")


def test_an_allowed_change_is_reported_and_stored(tmp_path, caplog):
    claim(tmp_path)
    with caplog.at_level(logging.WARNING):
        claim(tmp_path, changed(model__num_heads=4), allow_config_change=True)
    assert "model.num_heads: 8 in" in caplog.text
    assert read_stored_config(tmp_path) == changed(model__num_heads=4)
    with pytest.raises(ConfigError, match=r"model\.num_heads: 4 in"):
        open_workdir(tmp_path, CONFIG)


def test_a_config_found_elsewhere_is_refused_too(tmp_path):
    with open_workdir(tmp_path, changed(model__num_heads=4)) as workdir:
        workdir.check_config(changed(model__num_heads=4), "checkpoint 5")
        with pytest.raises(ConfigError) as caught:
            workdir.check_config(CONFIG, "checkpoint 5")
    first, line, last = str(caught.value).split("\n")
    assert first == f"{tmp_path}: another config is in use here"
    assert line == "  - model.num_heads: 8 in checkpoint 5, 4 now"
    assert last.endswith("transformer-jax train ... --allow_config_change")


def test_the_same_change_is_reported_once(tmp_path, caplog):
    claim(tmp_path)
    with (
        caplog.at_level(logging.WARNING),
        open_workdir(tmp_path, changed(model__num_heads=4), allow_config_change=True) as workdir,
    ):
        workdir.check_config(CONFIG, "checkpoint 5")
        assert len(caplog.records) == 1
        workdir.check_config(changed(model__num_heads=2), "checkpoint 5")
    assert "model.num_heads: 2 in checkpoint 5, 4 now" in caplog.records[1].getMessage()


def test_intervals_of_logs_and_checkpoints_may_change(tmp_path, caplog):
    config = ExperimentConfig().resolved()
    intervals = {"log_every_steps": 7, "eval_every_steps": 8, "checkpoint_every_steps": 9, "keep_last": 4}
    other = dataclasses.replace(config, training=dataclasses.replace(config.training, **intervals)).to_dict()
    claim(tmp_path, config.to_dict())
    with caplog.at_level(logging.WARNING):
        claim(tmp_path, other)
    [record] = caplog.records
    assert "resuming the same training\n  - training.log_every_steps: 100 in" in record.getMessage()
    assert read_stored_config(tmp_path) == other


def test_with_a_patience_the_interval_of_validations_decides_when_training_ends(tmp_path):
    config = ExperimentConfig().resolved()
    first, second = (
        dataclasses.replace(config, training=dataclasses.replace(config.training, patience=2, eval_every_steps=every))
        for every in (50, 60)
    )
    claim(tmp_path, first.to_dict())
    with pytest.raises(ConfigError, match=r"another config is in use here\n  - training.eval_every_steps: 50 in"):
        claim(tmp_path, second.to_dict())


def test_equal_configs_do_not_differ():
    assert config_differences(CONFIG, json.loads(json.dumps(CONFIG)), "x") == {}


@pytest.mark.parametrize(("old", "new"), [(1, 1.0), (1, True), (0, False), (None, 0), ("1", 1), ([1], [1.0])])
def test_a_change_of_type_is_a_difference_only_where_json_shows_it(old, new):
    lines = list(config_differences({"a": old}, {"a": new}, "x").values())
    assert lines == ([] if old == [1] else [f"a: {json.dumps(old)} in x, {json.dumps(new)} now"])


def test_a_file_in_the_way_is_named_and_kept(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run" / "1"):
        with pytest.raises(CheckpointError, match=rf"cannot be a work directory, {tmp_path}/file is a file"):
            open_workdir(path, CONFIG)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_cannot_be_created():
    if not Path("/proc/self").exists():
        pytest.skip("no /proc")
    with pytest.raises(CheckpointError, match=r"/proc/run: cannot be made: "):
        open_workdir("/proc/run", CONFIG)


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(errno.EACCES, "Permission denied", args[0])

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError, match=r"cannot be written: Permission denied"):
        open_workdir(tmp_path, CONFIG)


def test_a_failing_write_keeps_the_old_config(tmp_path, monkeypatch):
    claim(tmp_path)

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(CheckpointError, match=r"config.json: could not be written: No space left on device"):
            claim(tmp_path, changed(model__num_heads=4), allow_config_change=True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", "config.json"]
    open_workdir(tmp_path, CONFIG).close()


# What config.json says is checked.

REAL = ExperimentConfig(optimizer=OptimizerConfig(learning_rate=0.01)).resolved()


def real(**fields):
    """Return a valid config with other values of some fields, SECTION__FIELD."""
    config = json.loads(json.dumps(REAL.to_dict()))
    for name, value in fields.items():
        section, _, field = name.rpartition("__")
        (config[section] if section else config)[field] = value
    return config


def run_of(path, config, checkpoint=None, step=5):
    """Write a work directory with a config and, if given, a checkpoint of a config; return config.json."""
    claim(path, config)
    if checkpoint is not None:
        folder = path / "checkpoints" / str(step)
        folder.mkdir(parents=True)
        seal(folder, Manifest(step, {"config": checkpoint}, None, {}).to_bytes(), {})
    return path / "config.json"


def replaced(file, before, after):
    data = file.read_bytes()
    assert data.count(before) == 1
    file.write_bytes(data.replace(before, after))


def without_a_checksum(file, **fields):
    """Write config.json as a user could."""
    file.write_text(json.dumps(real(**fields), indent=2))


RATE = b'"learning_rate": 0.01'
CHANGES = {
    # name: (what is done to config.json, with a checkpoint, without one); None: the config is used
    "nothing": (lambda file: None, None, None),
    "digit": (
        lambda file: replaced(file, RATE, b'"learning_rate": 0.03'),
        "optimizer.learning_rate: 0.01 in checkpoint 5, 0.03 in config.json",
        "there is no checkpoint to compare it with. Delete it and name the config again",
    ),
    "digit of an interval": (
        lambda file: replaced(file, b'"log_every_steps": 100', b'"log_every_steps": 101'),
        "training.log_every_steps: 100 in checkpoint 5, 101 in config.json",
        "does not match its checksum",
    ),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[:300]), "is damaged (", "is damaged ("),
    "cut to nothing": (lambda file: file.write_bytes(b""), "is damaged (", "is damaged ("),
    "of another run": (
        lambda file: file.write_text(json.dumps(with_checksum(real(seed=1)))),
        "or a run with --allow_config_change ended before its next checkpoint\n  - seed: 0 in checkpoint 5, 1 in con",
        None,  # nothing there contradicts it
    ),
    "without its checksum": (
        without_a_checksum,
        "so it was edited or is damaged",
        "so it was edited or is damaged",
    ),
    "another seed without a checksum": (
        lambda file: without_a_checksum(file, seed=1),
        "\n  - seed: 0 in checkpoint 5, 1 in config.json\nDelete the file to resume with the config of checkpoint 5",
        "so it was edited or is damaged",
    ),
    "checksum of another file": (
        lambda file: file.write_text(json.dumps(real() | {"checksum": with_checksum(real(seed=1))["checksum"]})),
        "so it was edited or is damaged\nDelete the file",
        "so it was edited or is damaged",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_changed_config_is_not_believed(tmp_path, kind, has_checkpoint):
    change, with_checkpoint, without = CHANGES[kind]
    file = run_of(tmp_path, real(), real() if has_checkpoint else None)
    change(file)
    before = file.read_bytes()
    message = with_checkpoint if has_checkpoint else without
    if message is None:
        found, config = config_of_run(tmp_path)
        assert (found, config) == (file, {n: v for n, v in json.loads(before).items() if n != "checksum"})
    else:
        with pytest.raises(CheckpointError) as caught:
            config_of_run(tmp_path)
        assert message in str(caught.value)
        assert str(caught.value).startswith(f"{file}: ")
    assert file.read_bytes() == before


def test_without_config_json_the_config_is_that_of_the_newest_checkpoint(tmp_path, caplog):
    file = run_of(tmp_path, real(), real())
    run_of(tmp_path, real(), real(seed=2), step=10)
    run_of(tmp_path, real(), real(seed=3), step=20)
    (tmp_path / "checkpoints" / "20" / "record.json").write_text("{}")
    file.unlink()
    assert config_of_run(tmp_path) == (tmp_path / "checkpoints" / "10", real(seed=2))
    assert f"{tmp_path}: has no config.json; using the config of checkpoint 10" in caplog.text
    assert config_of_run(tmp_path / "nowhere") is None


def test_a_change_that_the_user_allows_is_no_edit(tmp_path):
    """A run that is killed between the change and its next checkpoint."""
    run_of(tmp_path, real(), real())
    claim(tmp_path, real(seed=1), allow_config_change=True)
    with pytest.raises(CheckpointError, match=r"seed: 0 in checkpoint 5, 1 in config.json\n.*--allow_config_change"):
        config_of_run(tmp_path)
    assert config_of_run(tmp_path, allow_config_change=True)[1] == real(seed=1)


@pytest.mark.parametrize("content", ["", '{"seed": 0', "[1]", "\xff"])
def test_a_damaged_config_is_named_and_kept(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config.json: is damaged \(.*delete it to have it written again"):
        open_workdir(tmp_path, CONFIG)
    assert (tmp_path / "config.json").read_bytes() == content.encode("latin-1")


def test_a_missing_config_is_none(tmp_path):
    assert read_stored_config(tmp_path) is None


HOLD = """
import sys, time
sys.path.insert(0, sys.argv[2])
from transformer_jax.checkpoints.workdir import open_workdir
workdir = open_workdir(sys.argv[1], {})
assert not {"jax", "orbax", "orbax.checkpoint"} & set(sys.modules), "slow imports"
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_locked_out_until_the_first_dies(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), str(Path(__file__).parents[2])], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=rf"{tmp_path}: in use by process {holder.pid} on "):
            open_workdir(tmp_path, {})
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    open_workdir(tmp_path, {}).close()


def test_the_lock_holds_within_one_process_too(tmp_path):
    with open_workdir(tmp_path, {}), pytest.raises(CheckpointError, match=f"in use by process {os.getpid()} on"):
        open_workdir(tmp_path, {})
    open_workdir(tmp_path, {}).close()


def test_a_child_does_not_inherit_the_lock(tmp_path):
    with open_workdir(tmp_path, {}):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        open_workdir(tmp_path, {}).close()
    finally:
        child.kill()
        child.wait()


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch, caplog):
    def no_locks(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with caplog.at_level(logging.WARNING):
        claim(tmp_path)
    assert "its file system has no locks" in caplog.text
    assert read_stored_config(tmp_path) is not None
