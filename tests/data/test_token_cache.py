"""The token cache: its content, when it is rebuilt, and that it is either complete or absent."""

import errno
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from data_support import EOS_ID, pair_texts
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.data import token_cache
from transformer_jax.data.columns import RaggedIds, TextColumn
from transformer_jax.data.sources.source import divided
from transformer_jax.data.token_cache import open_split
from transformer_jax.data.tokenizers import EncodedTexts, train_tokenizer
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.errors import DataError
from transformer_jax.host.files import json_sha256

COLUMNS = (TextColumn("inputs", "inputs"), TextColumn("targets", "targets"))
TEXTS = pair_texts(
    [f"the old dog sees {n} cats" for n in range(50)],
    ["", *(f"der alte Hund sieht {n} Katzen" + " und Vögel" * (n % 3) for n in range(49))],
)
FINGERPRINT = {"sha256": "abc", "versions": {"babel": "2"}}


class FakeSource:
    """A corpus whose splits all are the result of `read`."""

    split_names = ("train", "valid/a", "valid_a")

    def __init__(self, read, fingerprint):
        self._read, self._fingerprint, self._texts = read, fingerprint, None

    def num_examples(self, name):
        self._texts = self._texts or self._read()
        return self._texts.num_examples

    def chunks(self, name, size):
        return divided(self.split(name), size)

    def split(self, name):
        self.num_examples(name)
        return self._texts

    def fingerprint(self, split=None):
        return self._fingerprint


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*TEXTS.features["inputs"], *TEXTS.features["targets"]], "bpe", 300)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(token_cache, "_CHUNK", 7)


@pytest.fixture
def open_cache(tmp_path, tokenizer):
    """Return a function that opens the cache and counts how often the text was read."""

    def call(tokenizer=tokenizer, fingerprint=FINGERPRINT, split="train", texts=TEXTS, columns=COLUMNS, **kwargs):
        def read():
            call.reads += 1
            return texts() if callable(texts) else texts

        return open_split(tmp_path, FakeSource(read, fingerprint), split, tokenizer, columns, **kwargs)

    call.reads = 0
    return call


def assert_holds_texts(split, tokenizer):
    for name, texts in TEXTS.features.items():
        lengths = split.lengths(name)
        expected = [[*tokenizer.encode_batch([text]).ids.tolist(), EOS_ID] for text in texts]
        assert lengths.dtype == np.int32
        assert lengths.tolist() == [len(row) for row in expected]
        width = max(map(len, expected))
        rows = np.arange(len(texts))
        assert split.take(name, rows, width).tolist() == [row + [0] * (width - len(row)) for row in expected]
    assert split.num_examples == TEXTS.num_examples


def test_contains_the_tokenized_text_with_eos(open_cache, tokenizer):
    assert_holds_texts(open_cache(), tokenizer)


def test_second_open_reads_the_files(open_cache, tokenizer, tmp_path):
    open_cache()
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert_holds_texts(open_cache(), tokenizer)
    assert open_cache.reads == 1
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == files


def test_ids_take_two_bytes_where_they_can(open_cache, tmp_path):
    split = open_cache()
    (ids,) = tmp_path.rglob("inputs.ids")
    assert ids.stat().st_size == 2 * split.lengths("inputs").sum()


def test_large_vocabularies_keep_their_ids(open_cache, tokenizer):
    class Large(SentencePieceTokenizer):
        sha256 = "large"
        vocab_size = SentencePieceTokenizer.vocab_size

        def encode_batch(self, texts):
            return EncodedTexts(np.full(len(texts), 69_999, np.int32), np.arange(len(texts) + 1))

    large = Large(tokenizer.model_bytes)
    Large.vocab_size = 70_000
    split = open_cache(large)
    assert split.take("inputs", np.array([3]), 2).tolist() == [[69_999, EOS_ID]]


def test_a_build_is_reported_and_opening_is_not(open_cache):
    said = []
    for _ in range(2):
        open_cache(say=said.append)
        assert said == ["tokenizing train (50 examples)"]


def test_another_corpus_split_or_tokenizer_is_another_cache(open_cache, tokenizer):
    other = train_tokenizer([*TEXTS.features["inputs"], *TEXTS.features["targets"]], "bpe", 301)
    variants = [
        {},
        {"tokenizer": other},
        {"fingerprint": {**FINGERPRINT, "sha256": "abd"}},
        {"fingerprint": {**FINGERPRINT, "versions": {"babel": "3"}}},
        {"split": "valid/a"},
        {"split": "valid_a"},
    ]
    for variant in variants:
        open_cache(**variant)
    assert open_cache.reads == len(variants)
    for variant in variants:
        open_cache(**variant)
    open_cache(fingerprint=dict(reversed(FINGERPRINT.items())))
    assert open_cache.reads == len(variants)


def truncate(path):
    os.truncate(path, path.stat().st_size - 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, os.remove])
@pytest.mark.parametrize("name", ["inputs.ids", "inputs.offsets", "targets.ids", "targets.offsets", "meta.json"])
def test_damage_is_found_reported_and_repaired(open_cache, tokenizer, tmp_path, caplog, damage, name):
    open_cache()
    (path,) = tmp_path.rglob(name)
    intact = path.read_bytes()
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert_holds_texts(open_cache(), tokenizer)
    assert open_cache.reads == 2
    (record,) = caplog.records
    assert re.search(rf"{re.escape(str(path.parent))} is damaged .*rebuilding", record.getMessage())
    assert path.read_bytes() == intact
    assert [p.name for p in tmp_path.iterdir()] == [path.parent.name]


@pytest.mark.parametrize("dtype", ["O", "|O", [["a", "O"]]])
def test_bytes_are_not_taken_for_objects_of_python(open_cache, tokenizer, tmp_path, caplog, dtype):
    """The description of the files is whole, but somebody else has written it."""
    open_cache()
    (path,) = tmp_path.rglob("meta.json")
    meta = {name: value for name, value in json.loads(path.read_text()).items() if name != "sha256"}
    meta["files"]["inputs.offsets"]["dtype"] = dtype
    path.write_text(json.dumps(meta | {"sha256": json_sha256(meta)}))
    with caplog.at_level(logging.WARNING):
        assert_holds_texts(open_cache(), tokenizer)
    assert open_cache.reads == 2
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_build_leaves_nothing(open_cache, tokenizer, tmp_path, error):
    class Interrupted(SentencePieceTokenizer):
        calls = 0

        def encode_batch(self, texts):
            self.calls += 1
            if self.calls > 4:
                assert len(list(tmp_path.rglob("*.ids"))) == 2, "the build had not begun"
                raise error
            return tokenizer.encode_batch(texts)

    with pytest.raises(error):
        open_cache(Interrupted(tokenizer.model_bytes))
    assert list(tmp_path.iterdir()) == []
    assert_holds_texts(open_cache(), tokenizer)


def test_the_remains_of_a_killed_build_are_not_a_cache_and_are_removed_later(open_cache, tokenizer, tmp_path):
    for name, age in (("killed", 10_000), ("running", 0)):
        folder = tmp_path / f".building-train-{name}"
        folder.mkdir()
        (folder / "inputs.ids").write_bytes(b"12")
        for path in (folder / "inputs.ids", folder):
            os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert_holds_texts(open_cache(), tokenizer)
    assert [p.name for p in tmp_path.glob(".building-*")] == [".building-train-running"]


def test_two_builds_at_once(open_cache, tokenizer, tmp_path):
    """The second build starts and ends while the first is running."""

    class Slow(SentencePieceTokenizer):
        nested = None

        def encode_batch(self, texts):
            if self.nested is None:
                self.nested = open_cache(tokenizer)
            return tokenizer.encode_batch(texts)

    slow = Slow(tokenizer.model_bytes)
    assert_holds_texts(open_cache(slow), tokenizer)
    assert_holds_texts(slow.nested, tokenizer)
    assert open_cache.reads == 2
    (folder,) = tmp_path.iterdir()
    assert not folder.name.startswith(".")


def test_a_cache_that_another_has_just_built_is_used(open_cache, tokenizer, tmp_path):
    """It appears between the check and the build; it is neither built again nor removed."""

    def texts():
        open_cache()
        (built,) = tmp_path.iterdir()
        texts.inode = built.stat().st_ino
        return TEXTS

    said = []
    assert_holds_texts(open_cache(texts=texts, say=said.append), tokenizer)
    assert said == []
    assert [folder.stat().st_ino for folder in tmp_path.iterdir()] == [texts.inode]


@pytest.mark.parametrize("found", [FileNotFoundError, token_cache._DamagedCacheError])
def test_a_cache_that_another_has_just_repaired_stays(open_cache, tokenizer, tmp_path, monkeypatch, found):
    """Whatever the first check found, the cache is good by the time that it would be replaced."""
    open_cache()
    (folder,) = tmp_path.iterdir()
    inode, finds, really = folder.stat().st_ino, [found("before")], token_cache._open

    def open_once_too_early(*args):
        if finds:
            raise finds.pop()
        return really(*args)

    monkeypatch.setattr(token_cache, "_open", open_once_too_early)
    said = []
    assert_holds_texts(open_cache(say=said.append), tokenizer)
    assert said == []
    assert [(path, path.stat().st_ino) for path in tmp_path.iterdir()] == [(folder, inode)]


def test_a_full_disk_is_named_and_leaves_nothing(open_cache, tmp_path, monkeypatch):
    def append(self, values, calls=[]):  # noqa: B006
        calls.append(values)
        if len(calls) > 8:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(token_cache._ArrayFile, "append", append)
    with pytest.raises(DataError, match=rf"{re.escape(str(tmp_path))}.*'train'.*No space left.*data\.cache_dir"):
        open_cache()
    assert list(tmp_path.iterdir()) == []


def test_a_cache_folder_that_is_a_file(tmp_path, tokenizer):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write the token cache"):
        open_split(tmp_path / "file", FakeSource(lambda: TEXTS, FINGERPRINT), "train", tokenizer, COLUMNS)


def test_an_empty_split(open_cache):
    with pytest.raises(DataError, match="split 'train' is empty"):
        open_cache(texts=pair_texts([], []))


def test_a_changed_corpus_is_reported(open_cache, tmp_path):
    said = []
    open_cache()
    (folder,) = tmp_path.iterdir()
    open_cache(fingerprint={**FINGERPRINT, "sha256": "abd"}, say=said.append)
    assert said == [f"tokenizing train (50 examples); {folder} is for another corpus"]


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 60_000), max_size=9), min_size=1, max_size=12),
    data=st.data(),
    extra=st.integers(0, 5),
)
def test_take_equals_a_loop(rows, data, extra):
    ragged = RaggedIds(np.array(list(itertools.chain(*rows)), np.uint16), np.cumsum([0, *map(len, rows)]))
    indices = data.draw(st.lists(st.integers(-1, len(rows) - 1), max_size=20))
    chosen = [rows[i] if i >= 0 else [] for i in indices]
    width = max(map(len, chosen), default=0) + extra
    taken = ragged.take(np.array(indices, np.int32), width)
    assert taken.dtype == np.int32
    assert taken.shape == (len(indices), width)
    assert taken.tolist() == [row + [0] * (width - len(row)) for row in chosen]


def test_take_never_cuts():
    ragged = RaggedIds(np.arange(1, 6), np.array([0, 2, 5]))
    assert ragged.take(np.array([0]), 2).tolist() == [[1, 2]]
    with pytest.raises(ValueError, match="3 ids does not fit into width 2"):
        ragged.take(np.array([0, 1]), 2)


BUILD = """
import sys, pathlib
from transformer_jax.config import DataConfig
from transformer_jax.data import token_cache
from transformer_jax.data.columns import TextColumn
from transformer_jax.data.sources import load_source
from transformer_jax.data.tokenizers import train_tokenizer

token_cache._CHUNK = 100
folder = pathlib.Path(sys.argv[1])
source = load_source(DataConfig(source="text", dir=str(folder), valid_split="", test_split=""))
tokenizer = train_tokenizer(source.split("train").features["inputs"], "words", 14)
columns = [TextColumn(name, name) for name in ("inputs", "targets")]
split = token_cache.open_split(folder / "cache", source, "train", tokenizer, columns)
print(int(split.lengths("inputs").sum()), split.take("inputs", range(3), 4).tolist())
"""


def build_elsewhere(folder, **environment):
    """Open the cache in another process."""
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, str(folder)], stdout=subprocess.PIPE, text=True, env=os.environ | environment
    )


def test_processes_that_are_killed_and_that_build_at_once(tmp_path):
    for locale in ("en", "de"):
        (tmp_path / f"train.{locale}").write_text("".join(f"{n % 10} {n % 7}\n" for n in range(2000)))
    killed = build_elsewhere(tmp_path, TRANSFORMER_JAX_KILL_AT="inside_token_cache:7")
    assert killed.communicate()[0] == ""
    assert killed.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "cache").iterdir()
    assert left.name.startswith(".building-train-")
    together = [build_elsewhere(tmp_path) for _ in range(2)]
    printed = [process.communicate()[0] for process in together]
    assert [process.returncode for process in together] == [0, 0]
    assert printed == ["6000 [[4, 4, 1, 0], [5, 5, 1, 0], [6, 6, 1, 0]]\n"] * 2
    (cache,) = set((tmp_path / "cache").iterdir()) - {left}
    assert re.fullmatch("train-[0-9a-f]{16}", cache.name)
