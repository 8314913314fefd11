"""The line that every start of a training leaves in its work directory."""

import json
import subprocess
import sys
import time

import pytest
from run_support import metric_lines, trained_folder

from transformer_jax.host.origin import git_state, masked
from transformer_jax.training import start_log
from transformer_jax.training.start_log import STARTS, record_start

FLAGS = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit, as the current folder."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("1")
    for words in (["init"], ["add", "file"], ["commit", "-m", "first"]):
        subprocess.run(["git", *FLAGS, *words], check=True, capture_output=True)
    return tmp_path


def commit_of(folder):
    found = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def test_the_state_of_a_repository(repository):
    (repository / "below").mkdir()
    clean = {"commit": commit_of(repository), "branch": "main", "has_changes": False}
    assert git_state(repository / "below") == clean
    (repository / "untracked").write_text("")
    assert git_state(repository) == clean
    (repository / "file").write_text("2")
    assert git_state(repository) == clean | {"has_changes": True}
    subprocess.run(["git", "checkout", "--detach"], check=True, capture_output=True)
    assert git_state(repository) == clean | {"has_changes": True, "branch": None}


def test_no_repository_no_git_and_a_slow_git_give_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    slow = tmp_path / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    began = time.monotonic()
    assert git_state(tmp_path, 0.05) is None
    assert time.monotonic() - began < 30
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert git_state(tmp_path) is None


def test_a_line_per_start(repository, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["transformer-jax", "train", "--workdir=a b"])
    monkeypatch.setenv("MY_TOKEN", "of the environment")
    record_start(repository, 0)
    record_start(repository, 7)
    text = (repository / STARTS).read_text()
    first, second = map(json.loads, text.splitlines())
    assert first.keys() == {"time", "step", "command", "version", "package", "folder"}
    assert (first["step"], second["step"]) == (0, 7)
    assert first["command"] == "transformer-jax train '--workdir=a b'"
    assert first["folder"]["commit"] == commit_of(repository)
    assert "of the environment" not in text


def test_a_file_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / STARTS).symlink_to(tmp_path / "elsewhere")
    record_start(tmp_path, 0)
    assert "it is a link" in caplog.text
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--config.data.dir=ftp://user:p@ss/w:ord@host:5432/db", "--config.data.dir=ftp://user:***@host:5432/db"),
        ("mysql://:word@host/db", "mysql://:***@host/db"),
        ("https://token@host/x", "https://***@host/x"),
        ("a://host/x?user=me&password=word&y=1", "'a://host/x?user=me&password=***&y=1'"),
        ("--config.model.class_token=True", "--config.model.class_token=True"),
        ("sqlite:///runs/search.db", "sqlite:///runs/search.db"),
        ("me@host:runs", "me@host:runs"),
    ],
)
def test_passwords_are_masked(word, shown):
    assert masked([word]).replace("'", "") == shown.replace("'", "")


def test_train_leaves_a_line():
    run = trained_folder() / "run"
    lines = (run / STARTS).read_text().splitlines()
    assert json.loads(lines[0])["step"] == 0
    assert start_log.STARTS not in {name for line in metric_lines(run) for name in line}
