"""labels.json of a work directory against the labels of the checkpoint that a run resumes from."""

import pytest

from transformer_jax.data.labels import LABELS_FILE, labels_bytes
from transformer_jax.training.resume import restore_labels

LABELS = ("bad", "good", "10")
RIGHT = labels_bytes(LABELS)
DAMAGES = {
    "a letter": RIGHT.replace(b"bad", b"bat"),
    "a digit": RIGHT.replace(b"10", b"11"),
    "another order": labels_bytes(("good", "bad", "10")),
    "of another run": labels_bytes(("no", "yes")),
    "cut": RIGHT[:10],
    "empty": b"",
    "a list": b"[]",
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_named_and_written_again(tmp_path, caplog, kind):
    file = tmp_path / LABELS_FILE
    file.write_bytes(DAMAGES[kind])
    restore_labels(file, LABELS, 5)
    assert file.read_bytes() == RIGHT
    assert f"{file}: is not that of checkpoint 5" in caplog.text
    assert caplog.text.count("written again") == 1


def test_a_deleted_file_is_written_again(tmp_path, caplog):
    restore_labels(tmp_path / LABELS_FILE, LABELS, 5)
    assert (tmp_path / LABELS_FILE).read_bytes() == RIGHT
    assert caplog.text == ""


def test_the_right_file_stays(tmp_path, caplog):
    file = tmp_path / LABELS_FILE
    file.write_bytes(RIGHT)
    before = file.stat().st_ino
    restore_labels(file, LABELS, 5)
    assert (file.stat().st_ino, caplog.text) == (before, "")
