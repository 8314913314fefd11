"""Files are read by one bounded function per kind; no other module of the package opens one for reading."""

import os
from pathlib import Path

import pytest

from transformer_jax.readers import open_file, parse_json, read_bytes, read_json_object, read_text
from transformer_jax.readers.json_values import MAX_DEPTH


@pytest.fixture
def pipe(tmp_path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("read", [open_file, read_bytes, read_text, read_json_object])
def test_pipes_devices_and_folders_are_refused_at_once(read, pipe, tmp_path):
    for path, message in ((pipe, "pipe or a device"), (Path("/dev/zero"), "pipe or a device"), (tmp_path, "directory")):
        with pytest.raises(OSError, match=message):
            read(path)


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 1,073,741,824 bytes"):
        read_bytes(tmp_path / "sparse")
    (tmp_path / "four").write_bytes(b"1234")
    assert read_bytes(tmp_path / "four", most=4) == b"1234"
    with pytest.raises(OSError, match="more than 3 bytes"):
        read_bytes(tmp_path / "four", most=3)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(MAX_DEPTH + 1), "nested deeper"),
        ('{"a":' * 70 + "1" + "}" * 70, "nested deeper"),
        (nested(100_000), "nested deeper"),
        ("[" * 100_000, "nested deeper"),
        ('"\\ud83d"', "half of a surrogate pair"),
        ('{"a": [{"b\\udE00": 1}]}', r"\\ude00"),
        ("1" * 5000, "limit"),
        ("{", "Expecting"),
        (b"\xff{}", "utf-8"),
    ],
)
def test_json_that_cannot_be_used_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (b"\xef\xbb\xbf{}", {}),
        ('"\\ud83d\\ude00"', "😀"),
        ("[" + "[]," * 100 + "[]]", [[]] * 101),
        (b'{"a": "\xc3\xbc"}', {"a": "ü"}),
    ],
)
def test_json_that_is_right_is_read(text, values):
    assert parse_json(text) == values


def test_the_deepest_allowed_json_is_read():
    assert str(parse_json(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


def test_a_json_file_without_an_object_is_refused(tmp_path):
    (tmp_path / "f").write_text("[1]")
    with pytest.raises(ValueError, match="a list, not an object"):
        read_json_object(tmp_path / "f")
