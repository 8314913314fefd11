"""metrics.jsonl: how each reader treats a whole, a growing and a damaged file."""

import math
import zlib

import pytest

from transformer_jax.errors import DataError
from transformer_jax.metrics_file import (
    cut_back,
    format_line,
    last_step,
    last_value,
    read_lines,
    readable_lines,
    values_by_step,
)

LINES = [
    {"step": 1, "split": "train", "loss": 3.0},
    {"step": 1, "split": "valid", "loss": 2.5},
    {"step": 2, "split": "train", "loss": None},
    {"step": 2, "split": "valid", "loss": 2},
]
TEXT = "".join(format_line(line["step"], line["split"], line) for line in LINES)
DAMAGED = ['{"step": 3, "spl', "7", "[1]", '{"split": "train"}', "\x00"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(TEXT)
    return path


def test_lines_are_read_as_they_were_written(tmp_path):
    text = format_line(1, "train", {"loss": 1 / 3, "norm": math.nan, "scale": -math.inf, "name": "x"})
    (tmp_path / "f").write_text(text)
    line = {"step": 1, "split": "train", "loss": 1 / 3, "norm": None, "scale": None, "name": "x"}
    assert read_lines(tmp_path / "f") == readable_lines(tmp_path / "f") == [line]


def test_a_missing_file_has_no_lines(tmp_path):
    file = tmp_path / "metrics.jsonl"
    cut_back(file, 0)
    assert (read_lines(file), readable_lines(file), last_step(file), last_value(file, "loss")) == ([], [], 0, None)
    assert not file.exists()


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_line_is_an_error_or_skipped(file, damage):
    file.write_text(TEXT + damage)
    with pytest.raises(DataError, match=f"{file}: line 5 is damaged or was cut short"):
        read_lines(file)
    assert read_lines(file, may_be_growing=True) == readable_lines(file) == LINES
    assert last_step(file) == 2
    assert last_value(file, "loss") == (2, 2)
    cut_back(file, 2)
    assert file.read_text() == TEXT


@pytest.mark.parametrize("damage", DAMAGED)
def test_only_the_last_line_may_be_half_written(file, damage):
    file.write_text(damage + "\n" + TEXT)
    with pytest.raises(DataError, match="line 1 is damaged"):
        read_lines(file, may_be_growing=True)
    assert readable_lines(file) == LINES


def test_a_finished_run_may_not_have_a_line_without_a_split(file):
    file.write_text('{"step": 1}\n')
    with pytest.raises(DataError, match="line 1 is damaged"):
        read_lines(file)


def test_cutting_back_keeps_the_lines_up_to_the_step_byte_for_byte(file):
    text = '{"step":1,  "split": "train"}'  # with another space than `format_line` writes
    line = f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}\n'
    file.write_text(line + TEXT)
    cut_back(file, 1)
    assert file.read_text() == line + "".join(TEXT.splitlines(keepends=True)[:2])


def test_values_by_step_are_of_one_split_and_numbers_only(file):
    assert values_by_step(read_lines(file), "train/loss") == {1: 3.0}
    assert values_by_step(read_lines(file), "valid/loss") == {1: 2.5, 2: 2.0}
    assert values_by_step(read_lines(file), "valid/accuracy") == {}
    others = [{"step": i, "split": "valid", "loss": x} for i, x in enumerate([True, False, "1", None, [1.0], 4, 5.0])]
    assert values_by_step(others, "valid/loss") == {5: 4.0, 6: 5.0}


def test_the_last_value_is_read_from_the_end_of_a_long_file(file):
    assert last_value(file, "accuracy") is None
    long = format_line(3, "valid", {"text": "x" * 180_000})
    file.write_text(long + TEXT.splitlines(keepends=True)[2] + long)
    assert last_value(file, "loss") == (2, None)
    file.write_text(TEXT + long * 2)
    assert last_value(file, "loss") is None


def checked_lines(folder, count=5):
    path = folder / "metrics.jsonl"
    path.write_text(
        "".join(format_line(step, "train", {"loss": step / 7, "seconds": 1.5}) for step in range(1, count + 1))
    )
    return path


def test_no_changed_character_goes_unnoticed(tmp_path):
    file = checked_lines(tmp_path, 1)
    [line] = readable_lines(file)
    text = file.read_text()
    for position in range(len(text) - 1):
        for other in '0x"}':
            if other != text[position]:
                file.write_text(text[:position] + other + text[position + 1 :])
                assert readable_lines(file) in ([], [line]), (position, other)
                with pytest.raises(DataError, match="line 1 is damaged"):
                    read_lines(file)


def test_damaged_lines_in_the_middle_are_marked_and_the_old_file_is_kept(tmp_path):
    file = checked_lines(tmp_path)
    first, second, _, *others = file.read_text().splitlines(keepends=True)
    damaged = "".join([first, second.replace("0", "1"), "\x00\n", *others])
    file.write_text(damaged)
    assert cut_back(file, 4) == [2, 3]
    assert [(line["step"], line["split"], line.get("lines")) for line in read_lines(file)] == [
        (1, "train", None),
        (1, "damaged", 2),
        (4, "train", None),
    ]
    assert (tmp_path / "metrics.jsonl.damaged").read_text() == damaged
    assert cut_back(file, 4) == []


def test_a_line_without_a_checksum_is_damaged(file):
    with file.open("a") as opened:
        opened.write('{"step": 3, "split": "train", "loss": 1.0}\n')
    assert readable_lines(file) == LINES
    with pytest.raises(DataError, match="is damaged"):
        read_lines(file)


def test_a_line_whose_split_is_no_text_is_damaged(tmp_path):
    for split in ("[1]", "null", '{"a": 1}', "5"):
        text = f'{{"step": 1, "split": {split}, "loss": 1.0}}'
        (tmp_path / "m").write_text(f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}\n')
        assert readable_lines(tmp_path / "m") == []
        with pytest.raises(DataError, match="line 1 is damaged"):
            read_lines(tmp_path / "m")
