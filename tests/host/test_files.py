"""Atomic writes, locks and hashes of files."""

import errno
import fcntl
import json
import os
import subprocess

import pytest

from transformer_jax.cli.resumable import ResumableFile
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.host.files import (
    is_finite,
    json_text,
    replace_file,
    sha256_of,
    try_lock,
    with_checksum,
    without_checksum,
    write_atomically,
)


def test_write_atomically_replaces(tmp_path):
    for content in (b"one", b"two"):
        write_atomically(tmp_path / "f", content)
        assert (tmp_path / "f").read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]
    (tmp_path / "g").write_bytes(b"")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "g").stat().st_mode


def test_two_writes_at_once_are_both_whole(tmp_path, monkeypatch):
    """The second starts and ends while the first is running."""
    fsync, contents = os.fsync, []

    def slow(descriptor):
        monkeypatch.setattr(os, "fsync", fsync)
        write_atomically(tmp_path / "f", b"the second")
        contents.append((tmp_path / "f").read_bytes())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    write_atomically(tmp_path / "f", b"one")
    contents.append((tmp_path / "f").read_bytes())
    assert contents == [b"the second", b"one"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch, error):
    def fail(descriptor):
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((CheckpointError, KeyboardInterrupt)):
        write_atomically(tmp_path / "f", b"one")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_raises_the_system_error_and_keeps_the_old_content(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(b"old")

    def no_space(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left on device"):
        replace_file(tmp_path / "f", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"f": b"old"}


def test_a_lock_belongs_to_one_descriptor_until_it_is_closed(tmp_path):
    with (tmp_path / "f").open("ab") as first, (tmp_path / "f").open("ab") as second:
        assert (try_lock(first), try_lock(second.fileno())) == ("locked", "in use")
        first.close()
        assert try_lock(second) == "locked"


def test_a_child_process_does_not_inherit_a_lock(tmp_path):
    with (tmp_path / "f").open("ab") as file:
        assert try_lock(file) == "locked"
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with (tmp_path / "f").open("ab") as file:
            assert try_lock(file) == "locked"
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_not_an_error(tmp_path, monkeypatch, code):
    def no_locks(*args):
        raise OSError(code, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (tmp_path / "f").open("ab") as file:
        assert try_lock(file) == "no locks"


def test_another_failure_of_locking_is_raised(tmp_path, monkeypatch):
    def broken(*args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with (tmp_path / "f").open("ab") as file, pytest.raises(OSError, match="Input/output error"):
        try_lock(file)


def test_sha256_is_of_the_content(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_of(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"a": NAN, "b": [INF, (-INF, 1.5)]}, '{"a": null, "b": [null, [null, 1.5]]}'),
        ({"é\udcff": "x\ud83d"}, '{"é\\\\udcff": "x\\\\ud83d"}'),
        ([1, True, None, "é"], '[1, true, null, "é"]'),
    ],
)
def test_json_is_valid_and_can_be_encoded(values, text):
    assert json_text(values) == text
    assert json_text(values).encode()
    assert json.loads(json_text(values, ascii=True)) == json.loads(text)
    assert json_text(values, ascii=True).isascii()
    # The checksum is that of what is written.
    assert without_checksum(json.loads(json_text(with_checksum({"v": values})))) == {"v": json.loads(text)}


def test_finite_values():
    assert is_finite({"a": [1, ("x", 2.0)], "b": None})
    for bad in (NAN, [1.0, INF], {"a": {"b": (-INF,)}}):
        assert not is_finite(bad)


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    """Renaming a file onto `/dev/null` would remove the device, for root."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link"):
        with pytest.raises(CheckpointError, match="could not be written: it is a pipe or a device"):
            write_atomically(tmp_path / name, b"x")
        with pytest.raises(ConfigError, match="cannot be replaced: it is a pipe or a device"):
            ResumableFile(tmp_path / name, "--output_file=x", force=True)
    assert (tmp_path / "pipe").is_fifo()
    assert len([*tmp_path.iterdir()]) == 2
