"""Plain text as documents: units, parts of a split, and bad files."""

import gzip
import os

import pytest

from transformer_jax.builtin import configs
from transformer_jax.config import DataConfig
from transformer_jax.config_file import read_config
from transformer_jax.data.columns import TextSizeColumn
from transformer_jax.data.sources import lines, load_source
from transformer_jax.data.tokenizers.words import train_words
from transformer_jax.errors import DataError

TEXT = "One line.\n two\n\n\nthree\nfour\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.txt").write_text(TEXT)
    (tmp_path / "valid.txt.gz").write_bytes(gzip.compress(b"a\r\n\r\nb"))
    (tmp_path / "books").mkdir()
    for name in ("b", "a"):
        (tmp_path / "books" / f"{name}.md").write_text(f"book {name}\n")
    return tmp_path


def texts(folder, split="train", **fields):
    values = {"source": "text", "format": "documents", "dir": str(folder), "test_split": ""} | fields
    source = load_source(DataConfig(**values))
    found = source.split(split).features["inputs"]
    assert source.num_examples(split) == len(found)
    assert [t for chunk in source.chunks(split, 1) for t in chunk.features["inputs"]] == found
    return found


@pytest.mark.parametrize(
    ("documents", "train", "valid"),
    [
        ("line", ["One line.", " two", "", "", "three", "four"], ["a", "", "b"]),
        ("blank_line", ["One line.\n two", "three\nfour"], ["a", "b"]),
        ("file", [TEXT], ["a\n\nb"]),
    ],
)
def test_units(folder, documents, train, valid):
    assert texts(folder, documents=documents) == train
    assert texts(folder, "valid", documents=documents) == valid


def test_parts_of_a_split(folder):
    for documents, whole in (("line", TEXT.split("\n")[:-1]), ("file", TEXT)):
        parts = {"train_split": "train[:70%]", "valid_split": "train[70%:]"}
        first, rest = (texts(folder, split, documents=documents, **parts) for split in ("train", "valid"))
        if documents == "file":
            first, rest = first[0], rest[0]
        assert len(first) == len(whole) * 70 // 100
        assert first + rest == whole


def test_several_files(folder):
    assert texts(folder, train_split="books/*.md", documents="file") == ["book a\n", "book b\n"]
    assert texts(folder, train_split="books/b.md,valid") == ["book b", "a", "", "b"]


def test_the_fingerprint_is_of_content_unit_and_parts(folder):
    def fingerprint(**fields):
        values = {"source": "text", "format": "documents", "dir": str(folder), "test_split": ""} | fields
        return load_source(DataConfig(**values)).fingerprint()["sha256"]

    others = ({"documents": "file"}, {"train_split": "train[:50%]"}, {"valid_split": ""}, {"train_split": "valid"})
    assert len({fingerprint(), *(fingerprint(**fields) for fields in others)}) == 5
    before = fingerprint()
    (folder / "valid.txt").write_bytes(gzip.decompress((folder / "valid.txt.gz").read_bytes()))
    (folder / "valid.txt.gz").unlink()
    assert fingerprint() == before


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"train_split": "train[50%:50%]"},
            r"data\.train_split='train\[50%:50%\]': the part from 50 % to 50 % is empty",
        ),
        ({"train_split": "train[:101%]"}, "beyond the end"),
        ({"train_split": "train[:10]"}, r"expected NAME, or a part of it such as NAME\[:90%\]"),
        ({"train_split": "train[x]"}, r"expected NAME, or a part of it such as NAME\[:90%\]"),
        ({"train_split": "*.rtf"}, "no file of .* matches"),
        ({"train_split": "trian"}, r"no file .*trian\.txt or trian\.txt\.gz; nearest in that folder: train\.txt"),
        ({"dir": "/nowhere"}, r"data\.dir='/nowhere' does not exist"),
        ({"dir": ""}, r"data\.dir is not set"),
    ],
)
def test_bad_splits(folder, fields, problem):
    with pytest.raises(DataError, match=problem):
        texts(folder, **fields)


def test_an_empty_text(folder):
    (folder / "train.txt").write_text("")
    with pytest.raises(DataError, match=r"train\.txt is empty"):
        texts(folder)


def test_bytes_that_are_no_utf8(folder):
    """Their place is named; the tokenizer of bytes takes them."""
    (folder / "train.txt").write_bytes(b"good\nb\xffd\n")
    with pytest.raises(DataError, match=r"train\.txt, line 2: not UTF-8 at byte 6 of the file \(0xff\)"):
        texts(folder)
    assert [t.encode("utf-8", "surrogateescape") for t in texts(folder, tokenizer="byte")] == [b"good", b"b\xffd"]


def counts(folder, vocab_size):
    """Return the words of the test split as the scores of `wikitext2` count them, its tokens, and those unknown."""
    config = read_config(str(configs()["wikitext2"]), {"data.dir": str(folder)})
    source = load_source(config.data)
    tokenizer = train_words(source.split("train").features["inputs"], vocab_size)
    found = source.split("test").features["inputs"]
    encoded = tokenizer.encode_batch(found)
    words = TextSizeColumn("words", "inputs").encode(found, tokenizer).sum()
    return int(words), len(encoded.ids) + len(found), int((encoded.ids == tokenizer.special_ids.unk).sum())


def test_ends_of_lines_are_words_of_wikitext(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_text(" \n = Title = \n \n One <unk> , two @-@ three \n")
    assert counts(tmp_path, 11) == (4 + 3 + 6, 4 + 3 + 6, 1)


@pytest.mark.slow
@pytest.mark.skipif("WIKITEXT2" not in os.environ, reason="set WIKITEXT2 to the folder of prepare --dataset=wikitext2")
def test_the_test_split_of_wikitext_2_has_the_published_words():
    words, tokens, _ = counts(os.environ["WIKITEXT2"], 33_280)
    assert words == tokens == 245_569


def test_files_that_a_pattern_nearly_matches_are_counted_and_named(tmp_path, caplog):
    for name in ("a.txt", "B.TXT", "c.txt.gz", "d.md"):
        (tmp_path / name).write_text("x\n")
    (tmp_path / "e.txt").mkdir()
    fields = {"source": "text", "format": "documents", "dir": str(tmp_path), "valid_split": "", "test_split": ""}
    assert load_source(DataConfig(**fields, train_split="*.txt")).num_examples("train") == 1
    assert (
        f"{tmp_path}: left out 3 of its files and folders, each of which is not a file, or matches '*.txt'"
        in caplog.text
    )
    assert caplog.text.strip().endswith(": B.TXT, c.txt.gz, e.txt/")
    with pytest.raises(DataError, match=r"no file of .* matches; it has d\.md"):
        load_source(DataConfig(**fields, train_split="*.MD"))


def test_a_corpus_may_be_one_long_line(tmp_path, monkeypatch):
    """text8 is one line of 100 MB; a sentence is not."""
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1 << 21)
    (tmp_path / "text8").write_bytes(b"a b " * (1 << 20))
    blocks = [*lines.TextFile(tmp_path / "text8", allow_empty=True).blocks()]
    assert [[len(line) for line in block] for block in blocks] == [[1 << 22]]
    with pytest.raises(DataError, match="line 1 has more than 2,097,152 bytes: it is not text"):
        list(lines.TextFile(tmp_path / "text8").blocks())
