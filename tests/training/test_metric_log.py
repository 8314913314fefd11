"""metrics.jsonl and TensorBoard events."""

import errno
import os
import re
import struct

import pytest
from log_support import fill_disk, log_of
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter

from transformer_jax.errors import CheckpointError
from transformer_jax.metrics_file import CLOCK_FIELDS, format_line, read_lines


def written(folder):
    return read_lines(folder / "metrics.jsonl")


def events_of(folder):
    """Return every event of every file, in TensorBoard's order of the files."""
    result = []
    for path in sorted((folder / "tensorboard").iterdir()):
        assert "tfevents" in path.name
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            result.append(Event.FromString(data[12 : 12 + length]))
            data = data[12 + length + 4 :]
    return result


def scalars(folder):
    return [(e.step, v.tag, v.simple_value) for e in events_of(folder) for v in e.summary.value]


def test_lines_are_appended_as_they_come(tmp_path):
    with log_of(tmp_path, 0) as log:
        log.write(1, "train", {"loss": 2.5, "tokens": 7})
        assert written(tmp_path) == [{"step": 1, "split": "train", "loss": 2.5, "tokens": 7}]
        assert scalars(tmp_path) == [(1, "train/loss", 2.5), (1, "train/tokens", 7.0)]
        log.write(2, "valid", {"loss": 0.1})
    assert written(tmp_path)[1] == {"step": 2, "split": "valid", "loss": 0.1}


def test_numbers_come_back_exactly(tmp_path):
    with log_of(tmp_path, 0) as log:
        log.write(1, "train", {"loss": 1 / 3, "tiny": 5e-324})
    assert written(tmp_path) == [{"step": 1, "split": "train", "loss": 1 / 3, "tiny": 5e-324}]


def test_only_numbers_become_scalars(tmp_path):
    metrics = {"loss": 1.0, "signature": "nrefs:1", "families": {"dates": {"pairs": 3}}}
    with log_of(tmp_path, 0) as log:
        log.write(1, "valid", metrics)
    assert written(tmp_path) == [{"step": 1, "split": "valid", **metrics}]
    assert scalars(tmp_path) == [(1, "valid/loss", 1.0)]


@pytest.mark.parametrize(("step", "kept"), [(0, []), (5, [3, 4]), (8, [3, 4, 6, 8, 8]), (9, [3, 4, 6, 8, 8])])
def test_a_resumed_run_cuts_off_the_lines_after_its_step(tmp_path, step, kept):
    with log_of(tmp_path, 0) as log:
        for each in (3, 4, 6, 8, 8):
            log.write(each, "train", {"loss": float(each)})
    with log_of(tmp_path, step) as log:
        assert [line["step"] for line in written(tmp_path)] == kept
        log.write(10, "train", {"loss": 0.0})
    assert [line["step"] for line in written(tmp_path)] == [*kept, 10]


@pytest.mark.parametrize("rest", ['{"step": 4, "spl', '{"step": 4', "\x00\x00\x00", "7", "[1]", '{"split": "train"}'])
def test_an_incomplete_last_line_is_dropped_and_a_damaged_one_is_named(tmp_path, rest, caplog):
    good, new = format_line(3, "train", {}), format_line(6, "train", {})
    (tmp_path / "metrics.jsonl").write_text(good + rest)
    with log_of(tmp_path, 5) as log:
        log.write(6, "train", {})
    assert (tmp_path / "metrics.jsonl").read_text() == good + new
    assert not caplog.records
    (tmp_path / "metrics.jsonl").write_text(good + rest + "\n" + new)
    with log_of(tmp_path, 6):
        pass
    assert (tmp_path / "metrics.jsonl").read_text() == good + format_line(3, "damaged", {"lines": 1}) + new
    assert "metrics.jsonl: damaged lines were removed: 2" in caplog.text


def test_tensorboard_hides_the_steps_that_are_repeated(tmp_path):
    """By a SessionLog event in its own file, as TensorBoard's writers do."""
    for step in (0, 5):
        with log_of(tmp_path, step) as log:
            log.write(step + 3, "train", {"loss": float(step)})
    first, second = events_of(tmp_path)[:3], events_of(tmp_path)[3:]
    for step, (version, session, scalar) in ((0, first), (5, second)):
        assert version.file_version == "brain.Event:2"
        assert (session.session_log.status, session.step) == (SessionLog.START, step + 1)
        assert (scalar.step, scalar.summary.value[0].simple_value) == (step + 3, step)
        assert scalar.wall_time >= session.wall_time > 1.7e9


def test_records_have_the_framing_of_tensorboardx(tmp_path):
    with log_of(tmp_path, 0) as log:
        log.write(1, "train", {"loss": 2.5})
    reference = RecordWriter(str(tmp_path / "reference"))
    for event in events_of(tmp_path):
        reference.write(event.SerializeToString())
    reference.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert path.read_bytes() == (tmp_path / "reference").read_bytes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_is_one_clear_error(tmp_path):
    log = log_of(tmp_path, 0)
    log.write(1, "train", {"loss": 1.0})
    fill_disk(log, "jsonl")
    message = f"{tmp_path / 'metrics.jsonl'}: could not be written: {os.strerror(errno.ENOSPC)}"
    with pytest.raises(CheckpointError, match=re.escape(message)), log:
        log.write(2, "train", {"loss": 1.0})  # leaving the block raises no second error
    assert [line["step"] for line in written(tmp_path)] == [1]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_stops_tensorboard_too(tmp_path):
    log = log_of(tmp_path, 0)
    fill_disk(log, "tensorboard")
    with pytest.raises(CheckpointError, match=r"tensorboard/events.*: could not be written: No space left"), log:
        log.write(2, "train", {"loss": 1.0})


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: .*Is a directory"):
        log_of(tmp_path, 0)
    (tmp_path / "metrics.jsonl").rmdir()
    (tmp_path / "tensorboard").touch()
    with pytest.raises(CheckpointError, match=r"tensorboard: .*File exists"):
        log_of(tmp_path, 0)


def test_clock_fields_are_those_that_the_loop_measures():
    assert CLOCK_FIELDS == ("seconds", "tokens_per_s")
