"""Parallel text files: what is read, and what is refused in words that help."""

import gzip
from pathlib import Path

import pytest

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import Split, load_source
from transformer_jax.data.sources.text import MAX_LINE_CHARACTERS, TextSource
from transformer_jax.errors import DataError

PREFIXES = {"train": "train", "valid": "val", "test": "test"}
ENGLISH = {"train": "a dog\ntwo cats\n", "val": "a house\n", "test": "a tree\na car\n"}
GERMAN = {"train": "ein Hund\nzwei Katzen\n", "val": "ein Haus\n", "test": "ein Baum\nein Auto\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for locale, texts in (("en", ENGLISH), ("de", GERMAN)):
        for prefix, text in texts.items():
            (tmp_path / f"{prefix}.{locale}").write_bytes(text.encode())
    return tmp_path


def source_in(folder: Path) -> TextSource:
    return TextSource(str(folder), "en", "de", PREFIXES)


def error_of(folder: Path, split: str = "train") -> str:
    with pytest.raises(DataError) as raised:
        source_in(folder).split(split)
    return str(raised.value)


def test_reads_all_splits(folder):
    source = source_in(folder)
    assert source.split_names == ("train", "valid", "test")
    assert source.split("train") == Split(["a dog", "two cats"], ["ein Hund", "zwei Katzen"], None)
    assert source.split("valid") == Split(["a house"], ["ein Haus"], None)
    assert source.split("test").targets == ["ein Baum", "ein Auto"]


def test_load_source_reads_the_config(folder):
    config = DataConfig(source="text", dir=str(folder), source_locale="de", target_locale="en", valid_split="val")
    source = load_source(config)
    assert source.split("valid") == Split(["ein Haus"], ["a house"], None)
    assert source.split_names == ("train", "valid", "test")
    assert load_source(DataConfig(source="text", dir=str(folder), valid_split="")).split_names == ("train", "test")


def test_gz_is_found_and_the_exact_name_goes_first(folder):
    (folder / "val.en").unlink()
    (folder / "val.en.gz").write_bytes(gzip.compress(b"a hut\n"))
    (folder / "train.en.gz").write_bytes(gzip.compress(b"never read\n"))
    source = source_in(folder)
    assert source.split("valid").inputs == ["a hut"]
    assert source.split("train").inputs == ["a dog", "two cats"]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb", ["a", "b"]),  # no newline at the end
        (b"a\r\nb\r\n", ["a", "b"]),
        (b" a\t\n b \n", [" a\t", " b "]),  # spaces belong to the line
        ("a\u2028b\x0c\x85c\nd\re\n".encode(), ["a\u2028b\x0c\x85c", "d\re"]),  # only newlines end lines
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),  # byte order mark
        ("a" * MAX_LINE_CHARACTERS + "\nä\n", ["a" * MAX_LINE_CHARACTERS, "ä"]),
    ],
)
def test_lines(folder, content, lines):
    (folder / "train.en").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert source_in(folder).split("train").inputs == lines


def test_fingerprint_is_of_the_contents(folder):
    first = source_in(folder).fingerprint()
    assert set(first) == {"sha256", "versions"}
    assert len(first["sha256"]) == 64
    plain = folder / "train.de"
    (folder / "train.de.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert source_in(folder).fingerprint() == first
    (folder / "train.de.gz").write_bytes(gzip.compress(b"ein Hund\nzwei Hunde\n"))
    assert source_in(folder).fingerprint() != first
    swapped = TextSource(str(folder), "de", "en", PREFIXES)
    assert swapped.fingerprint() != source_in(folder).fingerprint()


def test_missing_file_names_the_nearest(folder):
    with pytest.raises(DataError) as raised:
        TextSource(str(folder), "en", "de", {"train": "trian"})
    assert str(raised.value).startswith(
        f"no file {folder / 'trian.en'} or trian.en.gz; nearest in that folder: train.en"
    )
    with pytest.raises(DataError, match="no file of a similar name"):
        TextSource(str(folder), "en", "de", {"train": "zzzzzzzzzzzzzzzz"})


def test_missing_folder(folder):
    with pytest.raises(DataError, match=r"data\.dir=.*nowhere.*does not exist"):
        TextSource(str(folder / "nowhere"), "en", "de", PREFIXES)
    with pytest.raises(DataError, match="is not a folder"):
        TextSource(str(folder / "train.en"), "en", "de", PREFIXES)
    with pytest.raises(DataError, match=r"data\.dir is not set"):
        load_source(DataConfig(source="text"))


def test_a_folder_in_place_of_a_file(folder):
    (folder / "val.de").unlink()
    (folder / "val.de").mkdir()
    with pytest.raises(DataError, match=r"val\.de is a folder, not a text file"):
        source_in(folder)


def test_unknown_split(folder):
    with pytest.raises(DataError, match=r"'test_longer'.*train, valid, test"):
        source_in(folder).split("test_longer")


def test_different_line_counts(folder):
    (folder / "train.de").write_text("ein Hund\n")
    message = error_of(folder)
    assert f"{folder / 'train.en'} has 2 lines but {folder / 'train.de'} has 1" in message


def test_invalid_utf8_names_line_and_byte(folder):
    (folder / "train.de").write_bytes("größe\n".encode() + "Käse\n".encode("latin-1"))
    message = error_of(folder)
    assert message.startswith(f"{folder / 'train.de'}, line 2: not UTF-8 at byte 9 of the file (0xe4)")
    (folder / "train.de").write_bytes(b"\xef\xbb\xbfa\nb\xff\n")
    assert "line 2: not UTF-8 at byte 6 of the file (0xff)" in error_of(folder)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_empty_file(folder, content):
    (folder / "test.de").write_bytes(content)
    assert error_of(folder, "test") == f"{folder / 'test.de'} is empty"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a dog\n\n", "has 1 empty line (line 2)"),
        (b"\na dog\n", "has 1 empty line (line 1)"),
        (b"\n", "has 1 empty line (line 1)"),
        (b"a\n \t\r\nb\n\xe3\x80\x80\n", "has 2 empty lines (line 2, 4)"),
        (b"\n" * 9, "has 9 empty lines (line 1, 2, 3, 4, 5, ...)"),
    ],
)
def test_empty_lines(folder, content, told):
    (folder / "train.en").write_bytes(content)
    assert f"{folder / 'train.en'} {told}" in error_of(folder)


def test_a_line_of_a_million_characters(folder):
    (folder / "train.de").write_text("ein Hund\n" + "x" * 1_000_000 + "\n")
    assert error_of(folder).startswith(f"{folder / 'train.de'}, line 2 has 1000000 characters, more than 100000")


@pytest.mark.parametrize("damage", ["truncated", "not gzip", "flipped"])
def test_damaged_gz(folder, damage):
    content = gzip.compress(GERMAN["train"].encode() * 50)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0xFF
    (folder / "train.de").unlink()
    damaged = {"truncated": content[:-9], "not gzip": b"ein Hund\n", "flipped": bytes(flipped)}[damage]
    (folder / "train.de.gz").write_bytes(damaged)
    assert error_of(folder).startswith(f"{folder / 'train.de.gz'} is a damaged or incomplete .gz file")


@pytest.mark.parametrize("name", ["train.de", "train.de.gz"])
def test_no_permission(folder, monkeypatch, name):
    """The tests may run as root, who may read everything: refuse in place of the system."""
    (folder / "train.de").rename(folder / name)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    source = source_in(folder)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(gzip, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read .*train\.(en|de\.gz): Permission denied"):
        source.split("train")
