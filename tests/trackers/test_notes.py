"""What trackers note for their next start."""

import os

import pytest

from transformer_jax.trackers.notes import recall, remember


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "\x00"])
def test_notes_that_cannot_be_read_count_as_none(tmp_path, content):
    remember(tmp_path, "mine", {"id": "a"})
    remember(tmp_path, "other", {"id": "b"})
    file = tmp_path / "trackers" / "mine.json"
    assert recall(tmp_path, "mine") == {"id": "a"}
    file.unlink() if content is None else file.write_text(content)
    assert recall(tmp_path, "mine") == {}
    assert recall(tmp_path, "other") == {"id": "b"}


def test_a_pipe_in_place_of_the_notes_is_not_waited_for(tmp_path):
    (tmp_path / "trackers").mkdir()
    os.mkfifo(tmp_path / "trackers" / "mine.json")
    assert recall(tmp_path, "mine") == {}
