"""Parallel text files: how they are read, and clear messages for files that are refused."""

import gzip
import hashlib
import os
import re
from pathlib import Path

import pytest
from data_support import pair_texts

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import lines, load_source
from transformer_jax.data.sources.lines import MAX_LINE_CHARACTERS
from transformer_jax.data.sources.source import joined
from transformer_jax.data.sources.text import TextSource
from transformer_jax.errors import DataError

ENGLISH = {"train": "a dog\ntwo cats\n", "val": "a house\n", "test": "a tree\na car\n"}
GERMAN = {"train": "ein Hund\nzwei Katzen\n", "val": "ein Haus\n", "test": "ein Baum\nein Auto\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for locale, texts in (("en", ENGLISH), ("de", GERMAN)):
        for prefix, text in texts.items():
            (tmp_path / f"{prefix}.{locale}").write_bytes(text.encode())
    return tmp_path


def source_in(folder: Path, **fields) -> TextSource:
    values = {"source": "text", "dir": str(folder), "valid_split": "val"} | fields
    return TextSource(DataConfig(**values))


def error_of(folder: Path, split: str = "train") -> str:
    with pytest.raises(DataError) as raised:
        source_in(folder).split(split)
    return str(raised.value)


def test_reads_all_splits(folder):
    source = source_in(folder)
    assert source.split_names == ("train", "valid", "test")
    assert source.split("train") == pair_texts(["a dog", "two cats"], ["ein Hund", "zwei Katzen"])
    assert source.split("valid") == pair_texts(["a house"], ["ein Haus"])
    assert source.split("test").features["targets"] == ["ein Baum", "ein Auto"]


def test_load_source_reads_the_config(folder):
    config = DataConfig(source="text", dir=str(folder), source_locale="de", target_locale="en", valid_split="val")
    source = load_source(config)
    assert source.split("valid") == pair_texts(["ein Haus"], ["a house"])
    assert source.split_names == ("train", "valid", "test")
    assert load_source(DataConfig(source="text", dir=str(folder), valid_split="")).split_names == ("train", "test")


def test_gz_is_found_and_the_exact_name_goes_first(folder):
    (folder / "val.en").unlink()
    (folder / "val.en.gz").write_bytes(gzip.compress(b"a hut\n"))
    (folder / "train.en.gz").write_bytes(gzip.compress(b"never read\n"))
    source = source_in(folder)
    assert source.split("valid").features["inputs"] == ["a hut"]
    assert source.split("train").features["inputs"] == ["a dog", "two cats"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb", ["a", "b"]),  # no newline at the end
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb\n", ["a", "b"]),  # mixed line ends
        (b" a\t\n b \n", [" a\t", " b "]),  # spaces are part of the line
        ("a\u2028b\x0c\x85c\nd\re\n".encode(), ["a\u2028b\x0c\x85c", "d\re"]),  # only newlines end lines
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),  # byte order mark
        ("a" * MAX_LINE_CHARACTERS + "\nä\n", ["a" * MAX_LINE_CHARACTERS, "ä"]),
    ],
)
def test_lines(folder, content, expected):
    (folder / "train.en").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert source_in(folder).split("train").features["inputs"] == expected


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
    swapped = source_in(folder, source_locale="de", target_locale="en")
    assert swapped.fingerprint() != source_in(folder).fingerprint()


def test_missing_file_names_the_nearest(folder):
    with pytest.raises(DataError) as raised:
        source_in(folder, train_split="trian")
    assert str(raised.value).startswith(
        f"no file {folder / 'trian.en'} or trian.en.gz; nearest in that folder: train.en"
    )
    with pytest.raises(DataError, match="no file of a similar name"):
        source_in(folder, train_split="zzzzzzzzzzzzzzzz")


def test_missing_folder(folder):
    with pytest.raises(
        DataError, match=r"data\.dir=.*nowhere.*does not exist; .*transformer-jax prepare --dataset=CONFIG"
    ):
        source_in(folder / "nowhere")
    with pytest.raises(DataError, match="is not a folder"):
        source_in(folder / "train.en")
    with pytest.raises(DataError, match=r"data\.dir is not set"):
        load_source(DataConfig(source="text"))


def test_a_folder_in_place_of_a_file(folder):
    (folder / "val.de").unlink()
    (folder / "val.de").mkdir()
    with pytest.raises(DataError, match=r"val\.de is a folder, not a text file"):
        source_in(folder)


def test_parts_of_the_examples(folder):
    """They divide the examples in order, and belong to the fingerprint; of several prefixes each has its own part."""
    for locale, word in (("en", "a"), ("de", "b")):
        (folder / f"ten.{locale}").write_text("".join(f"{word} {i}\n" for i in range(10)))
    source = source_in(folder, train_split="ten[:90%], train", valid_split="ten[90%:]", test_split="ten[25%:50%]")
    inputs = {name: source.split(name).features["inputs"] for name in source.split_names}
    assert inputs["train"] == [*(f"a {i}" for i in range(9)), "a dog", "two cats"]
    assert source.split("valid") == pair_texts(["a 9"], ["b 9"])
    assert inputs["test"] == ["a 2", "a 3", "a 4"]
    assert [source.num_examples(name) for name in source.split_names] == [11, 1, 3]
    digests = {
        source_in(folder, train_split=part, valid_split="val", test_split="").fingerprint()["sha256"]
        for part in ("ten", "ten[:90%]", "ten[10%:]", "ten[:]")
    }
    assert len(digests) == 3  # of ten and ten[:] the same
    for part, message in (("ten[:9]", "expected NAME, or a part of it"), ("ten[9%:9%]", "from 9 % to 9 % is empty")):
        with pytest.raises(DataError, match=rf"data\.valid_split='{re.escape(part)}': .*{message}"):
            source_in(folder, valid_split=part)


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
        (b"a dog\n\n", "has empty lines (line 2)"),
        (b"\na dog\n", "has empty lines (line 1)"),
        (b"\n", "has empty lines (line 1)"),
        (b"a\n \t\r\nb\n\xe3\x80\x80\n", "has empty lines (line 2, 4)"),
        (b"\n" * 9, "has empty lines (line 1, 2, 3, 4, 5, ...)"),
    ],
)
def test_empty_lines(folder, content, told):
    (folder / "train.en").write_bytes(content)
    (folder / "train.de").write_bytes(b"Text\n" * content.count(b"\n"))
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
    assert error_of(folder).startswith(f"{folder / 'train.de.gz'}: it is damaged or incomplete: ")


@pytest.mark.parametrize("name", ["train.de", "train.de.gz"])
def test_no_permission(folder, monkeypatch, name):
    """The tests may run as root, who may read everything, so reading is made to fail."""
    (folder / "train.de").rename(folder / name)

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    source = source_in(folder)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read .*train\.(en|de\.gz): Permission denied"):
        source.split("train")


def test_nul_bytes(folder):
    (folder / "train.en").write_bytes("a dog\ntwo cats\n".encode("utf-16-le"))
    (folder / "train.de").write_bytes(b"ein Hund\nzwei Katzen\n\x00")
    assert "train.en, line 1 has a NUL byte" in error_of(folder).replace(str(folder) + "/", "")


def test_a_file_that_changes_while_it_is_read(folder):
    source = source_in(folder)
    assert source.num_examples("train") == 2
    (folder / "train.de").write_text("ein Hund\nzwei Kater\n")
    with pytest.raises(DataError, match=r"train\.de has changed while it was being read"):
        source.split("train")


def test_several_files_make_one_split(folder):
    source = source_in(folder, train_split="train, test")
    expected = pair_texts(["a dog", "two cats", "a tree", "a car"], ["ein Hund", "zwei Katzen", "ein Baum", "ein Auto"])
    assert source.split("train") == expected
    assert source.num_examples("train") == 4
    assert source.fingerprint() != source_in(folder).fingerprint()
    (folder / "test.de").write_text("ein Baum\n")
    with pytest.raises(DataError, match=r"test\.en has 2 lines but .*test\.de has 1"):
        source_in(folder, train_split="train,test").split("train")


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_chunks_are_the_split_in_parts(folder, size):
    source = source_in(folder, train_split="train,test")
    chunks = list(source.chunks("train", size))
    assert [chunk.num_examples for chunk in chunks] == [size] * (4 // size) + ([4 % size] if 4 % size else [])
    assert joined(chunks) == source.split("train")


def test_blocks_of_a_large_file_join_to_its_lines(folder, monkeypatch):
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 64)
    texts = {locale: [f"{locale} {i} ä\u2028" + "x" * (i % 90) for i in range(300)] for locale in ("en", "de")}
    for locale, rows in texts.items():
        (folder / f"train.{locale}").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode())
    source = source_in(folder)
    assert source.split("train") == pair_texts(texts["en"], texts["de"])
    assert source.num_examples("train") == 300
    bad = "\n".join(texts["de"]).encode() + b"\n\xff\n"
    (folder / "train.de").write_bytes(bad)
    (folder / "train.en").write_bytes(b"x\n" * 301)
    assert f"train.de, line 301: not UTF-8 at byte {len(bad) - 2} of the file (0xff)" in error_of(folder)


@pytest.mark.parametrize(
    ("content", "encoding", "is_told"),
    [
        ("größe\n".encode(), "latin-1", True),
        (b"plain\n" * 9 + "Käse\n".encode(), "latin-1", True),
        ("größe\n".encode("latin-1"), "latin-1", False),
        ("größe\n".encode() + "Käse\n".encode("latin-1"), "latin-1", False),
        ("größe\n".encode() + b"half of a letter \xc3", "latin-1", False),
        (b"\xef\xbb\xbfplain\n", "latin-1", False),
        ("größe\n".encode(), "utf-8", False),
    ],
)
def test_a_file_that_is_probably_utf_8_is_named_once(tmp_path, monkeypatch, caplog, content, encoding, is_told):
    """The result stays that of the encoding, whatever the blocks are in which the file is read."""
    monkeypatch.setattr(lines, "_BLOCK_BYTES", 4)
    (tmp_path / "train.txt").write_bytes(content)
    for _ in range(2):  # as a file of which two splits have a part
        file = lines.TextFile(tmp_path / "train.txt", encoding=encoding)
        read = "".join(f"{line}\n" for line in lines.text_lines(file))
        assert read.rstrip("\n") == content.removeprefix(b"\xef\xbb\xbf").decode(encoding).rstrip("\n")
    told = [record.getMessage() for record in caplog.records]
    expected = f"{tmp_path / 'train.txt'}: is read with data.encoding=latin-1, but is probably UTF-8"
    assert [message.partition(":")[0] for message in told] == [expected.partition(":")[0]] * is_told
    assert all(message.startswith(expected) and message.endswith("set data.encoding=utf-8") for message in told)


def test_tsv(folder):
    (folder / "train.tsv").write_text("ein Hund\ta dog\tx\nzwei Katzen\ttwo cats\ty\n")
    fields = {"format": "tsv", "valid_split": "", "test_split": ""}
    assert source_in(folder, **fields).split("train") == pair_texts(["ein Hund", "zwei Katzen"], ["a dog", "two cats"])
    turned = source_in(folder, **fields, input_feature="2", target_feature="1")
    assert turned.split("train") == pair_texts(["a dog", "two cats"], ["ein Hund", "zwei Katzen"])
    third = source_in(folder, **fields, target_feature="3")
    assert third.split("train") == pair_texts(["ein Hund", "zwei Katzen"], ["x", "y"])


def test_jsonl(folder):
    content = '{"en": "a\\ndog", "de": "ein Hund", "n": 1}\n{"de": "Käse", "en": "cheese"}\n'
    (folder / "train.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    fields = {"format": "jsonl", "valid_split": "", "test_split": ""}
    assert source_in(folder, **fields).split("train") == pair_texts(["a\ndog", "cheese"], ["ein Hund", "Käse"])
    turned = source_in(folder, **fields, input_feature="de", target_feature="en")
    assert turned.split("train").features["inputs"] == ["ein Hund", "Käse"]


@pytest.mark.parametrize(
    ("format", "line", "problem"),
    [
        ("tsv", "one", "expected at least 2 columns, got 1"),
        ("tsv", "one\t \tthree", "column 2 is empty"),
        ("jsonl", '{"en": "a"', "not JSON"),
        ("jsonl", '["a", "b"]', "expected a JSON object, got list"),
        ("jsonl", '{"en": "a", "fr": "b"}', "no key 'de'; there are: en, fr"),
        ("jsonl", '{"en": 7, "de": "b"}', "'en' is int, not text"),
        ("jsonl", '{"en": " ", "de": "b"}', "'en' is empty"),
        ("jsonl", r'{"en": "a\ud800", "de": "b"}', "'en' has the character U+D800, which is not text"),
        ("jsonl", r'{"en": "a\u0000", "de": "b"}', "'en' has the character U+0000, which is not text"),
        ("jsonl", "[" * 90_000, "not JSON"),
    ],
)
def test_a_bad_line_is_named(folder, format, line, problem):
    good = {"tsv": "a\tb", "jsonl": '{"en": "a", "de": "b"}'}[format]
    (folder / f"train.{format}").write_text(f"{good}\n{line}\n")
    with pytest.raises(DataError) as raised:
        source_in(folder, format=format, valid_split="", test_split="").split("train")
    assert str(raised.value).startswith(f"{folder / f'train.{format}'}, line 2: {problem}")


@pytest.mark.parametrize(
    ("column", "problem"),
    [("0", "columns are counted from 1"), ("-1", "no column '-1'; there are a, b"), ("1.5", "no column '1.5'")],
)
def test_a_tsv_column_is_a_number_or_a_name_of_the_first_line(folder, column, problem):
    (folder / "train.tsv").write_text("a\tb\n")
    with pytest.raises(DataError, match=rf"train\.tsv, line 1: {problem}"):
        source_in(folder, format="tsv", valid_split="", test_split="", input_feature=column).split("train")


def test_the_selected_column_is_in_the_fingerprint(folder):
    (folder / "train.tsv").write_text("a\tb\n")
    (folder / "train.jsonl").write_text('{"en": "a", "de": "b"}\n')
    one = {"valid_split": "", "test_split": ""}
    fields = [
        {"format": "tsv"},
        {"format": "tsv", "input_feature": "2", "target_feature": "1"},
        {"format": "jsonl"},
        {"format": "jsonl", "source_locale": "de", "target_locale": "en"},
    ]
    # Checkpoints contain it, so it must not change.
    text = "\n".join(["tsv ['1', '2'] False", "train " + hashlib.sha256(b"a\tb\n").hexdigest()])
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert source_in(folder, **one, format="tsv").fingerprint()["sha256"] == expected
    digests = {source_in(folder, **one, **taken).fingerprint()["sha256"] for taken in fields}
    assert len(digests) == len(fields)
    named = source_in(folder, **one, format="tsv", input_feature="1", target_feature="2")
    assert named.fingerprint() == source_in(folder, **one, format="tsv").fingerprint()
