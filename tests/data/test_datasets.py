"""From config to ids: which tokenizer is used, when it is trained, and which splits are tokenized when."""

import dataclasses
import json
import re

import numpy as np
import pytest
from data_support import EOS_ID, longest_of, pair_texts, prepared
from tokenizer_support import trained

from transformer_jax.config import DataConfig, DecodeConfig, ExperimentConfig, ModelConfig
from transformer_jax.data import dataset_tokenizers, datasets
from transformer_jax.data.columns import ScalarColumn, TextColumn
from transformer_jax.data.datasets import prepare_data
from transformer_jax.data.sources.source import divided
from transformer_jax.data.tokenizers import SpecialIds, check_decode_ids, train_tokenizer
from transformer_jax.errors import ConfigError, DataError

VOCAB_SIZE = 300


class FakeSource:
    """A small corpus that counts its reads."""

    def __init__(self):
        lines = [f"line {n} of {n * n % 31} and more" for n in range(120)]
        self.splits = {
            "train": pair_texts(lines[:100], [line.upper() for line in lines[:100]]),
            "valid": pair_texts(lines[100:], [line.upper() for line in lines[100:]]),
        }
        self.reads = []

    @property
    def split_names(self):
        return tuple(self.splits)

    def num_examples(self, name):
        return self.splits[name].num_examples

    def chunks(self, name, size):
        self.reads.append(name)
        return divided(self.splits[name], size)

    def split(self, name):
        self.reads.append(name)
        return self.splits[name]

    def fingerprint(self, split=None):
        return {"sha256": str(hash(str(self.splits))), "versions": {}}


@pytest.fixture
def source(monkeypatch):
    source = FakeSource()
    monkeypatch.setattr(datasets, "load_source", lambda config: source)
    return source


def config(vocab_size=VOCAB_SIZE, **data):
    data = {"tokenizer": "bpe", **data}
    return ExperimentConfig(model=ModelConfig(vocab_size=vocab_size), data=DataConfig(**data)).resolved()


def test_trains_the_tokenizer_once_and_tokenizes_on_demand(source, tmp_path):
    data = prepared(config(), tmp_path)
    assert source.reads == ["train"]
    assert list(data.splits) == ["train", "valid"]
    assert len(data.splits) == 2
    assert "valid" in data.splits
    assert "test" not in data.splits
    assert source.reads == ["train"], "looking at the names tokenised something"
    assert data.splits["valid"].num_examples == 20
    assert data.splits["valid"] is data.splits["valid"]
    assert source.reads == ["train", "valid"]

    again = prepared(config(), tmp_path)
    assert again.tokenizer.sha256 == data.tokenizer.sha256
    again.splits["valid"]
    assert source.reads == ["train", "valid"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["token_cache", "tokenizer.model"]


def test_ids_decode_to_the_text(source, tmp_path):
    data = prepared(config(), tmp_path)
    ids = data.splits["valid"]
    width = int(longest_of(ids).max())
    rows = np.arange(ids.num_examples)
    for name in ("inputs", "targets"):
        assert data.tokenizer.decode_batch(ids.take(name, rows, width)) == data.text("valid").features[name]
    assert (ids.take("inputs", rows, width) == EOS_ID).sum() == ids.num_examples


def test_a_given_tokenizer_is_used_and_not_stored(source, tmp_path):
    given = train_tokenizer(["other text, xyz", "zyx"], "bpe", 274)
    data = prepared(config(vocab_size=274), tmp_path, tokenizer=given)
    assert data.tokenizer is given
    data.splits["train"]
    assert [p.name for p in tmp_path.iterdir()] == ["token_cache"]
    assert prepared(config(vocab_size=280), tmp_path, tokenizer=given).tokenizer is given
    with pytest.raises(ConfigError, match=r"model\.vocab_size=273: the given tokenizer has 274 ids"):
        prepared(config(vocab_size=273), tmp_path, tokenizer=given)


def test_tokenizer_settings_come_from_the_config(source, tmp_path):
    shas = {
        prepared(config(**settings), tmp_path / str(i)).tokenizer.sha256
        for i, settings in enumerate([{}, {"tokenizer": "unigram"}, {"tokenizer_pairs": 100}])
    }
    assert len(shas) == 2, "100 pairs are all there are"
    lines = [f"{n} " + "qxz"[n % 2 :] * (n % 50) for n in range(400)]
    source.splits["train"] = pair_texts(lines, lines)
    shas = {
        prepared(config(**settings), tmp_path / f"more{i}").tokenizer.sha256
        for i, settings in enumerate([{}, {"tokenizer_pairs": 100}])
    }
    assert len(shas) == 2


def test_cache_dir(source, tmp_path):
    data = prepared(config(cache_dir=str(tmp_path / "elsewhere")), tmp_path / "work")
    data.splits["train"]
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["tokenizer.model"]
    names = sorted(path.name.partition("-")[0] for path in (tmp_path / "elsewhere").iterdir())
    assert names == ["tokenizer", "tokenizer", "train"]  # the second is its checksum


def test_a_changed_corpus_is_tokenized_again(source, tmp_path):
    prepared(config(), tmp_path).splits["train"]
    source.splits["train"] = pair_texts(["line 1"], ["LINE 1"])
    assert prepared(config(), tmp_path).splits["train"].num_examples == 1


def test_long_phases_are_reported_only_when_they_happen(source, tmp_path):
    lines = [f"line {n}" for n in range(1200)]
    source.splits["train"] = pair_texts(lines, lines)
    said = []
    for _ in range(2):
        prepared(config(), tmp_path, say=said.append).splits["valid"]
        assert said == ["training the tokenizer on 1,200 examples", "tokenizing valid (20 examples)"]
    said.clear()
    prepared(config(tokenizer_pairs=1000), tmp_path / "fewer", say=said.append).splits["train"]
    assert said == ["training the tokenizer on 1,000 examples", "tokenizing train (1,200 examples)"]


def test_unknown_split_lists_the_existing_ones(source, tmp_path):
    with pytest.raises(DataError, match="no split 'test'; there are train, valid"):
        prepared(config(), tmp_path).splits["test"]


def test_a_tokenizer_of_another_size_is_refused(source, tmp_path):
    prepared(config(), tmp_path)
    with pytest.raises(ConfigError, match=r"model\.vocab_size=310: .*tokenizer\.model has 300 ids"):
        prepared(config(vocab_size=310), tmp_path)


def test_a_damaged_tokenizer_file_is_named_and_kept(source, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=re.escape(str(path))):
        prepared(config(), tmp_path)
    assert path.read_bytes() == b"damaged"


def test_a_work_directory_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "file"))):
        prepared(config(), tmp_path / "file" / "work")


@pytest.mark.parametrize(
    ("num_pairs", "chosen"), [(4, [0, 2, 5, 7]), (10, list(range(10))), (1, [0]), (3, [0, 3, 6]), (7, None)]
)
@pytest.mark.parametrize("size", [1, 3, 4, 10, 100])
def test_training_pairs_are_spread_over_the_corpus(source, monkeypatch, num_pairs, chosen, size):
    """Whatever the size of the chunks that are read."""
    monkeypatch.setattr(dataset_tokenizers, "_SAMPLED_CHUNK", size)
    source.splits["train"] = pair_texts([f"s{n}" for n in range(10)], [f"t{n}" for n in range(10)])
    chosen = chosen or [n * 10 // num_pairs for n in range(num_pairs)]
    columns = [TextColumn(name, name) for name in ("inputs", "targets")]
    lines = list(dataset_tokenizers._sample(source, "train", columns, num_pairs))
    assert lines == [f"{side}{n}" for n in chosen for side in "st"]
    assert list(dataset_tokenizers._sample(source, "train", columns[1:], num_pairs)) == [f"t{n}" for n in chosen]


def test_a_vocabulary_file_is_used_and_nothing_trained(source, tmp_path, monkeypatch):
    words = ["line", "of", "LINE", "and", "more"]
    vocabulary = tmp_path / "dict.txt"
    vocabulary.write_text("".join(f"{word} 9\n" for word in words))
    given = config(9, tokenizer="words", vocabulary_file=str(vocabulary))
    said = []
    data = prepared(given, tmp_path / "work", say=said.append)
    assert source.reads == []
    assert said == []
    assert data.tokenizer.decode(range(4, 9)) == " ".join(words)
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["tokenizer.model"]
    vocabulary.unlink()
    assert prepared(given, tmp_path / "work").tokenizer.sha256 == data.tokenizer.sha256
    with pytest.raises(DataError, match=r"data\.vocabulary_file: cannot read .*dict\.txt"):
        prepared(given, tmp_path / "other")
    vocabulary.write_text("line\n")
    fewer = prepared(given, tmp_path / "fewer")
    assert fewer.tokenizer.vocab_size == 5
    assert prepared(given, tmp_path / "fewer").tokenizer.sha256 == fewer.tokenizer.sha256
    vocabulary.write_text("a\nb\nc\nd\ne\nf\n")
    with pytest.raises(ConfigError, match=r"model\.vocab_size=9: .*dict\.txt has 6 words"):
        prepared(given, tmp_path / "other")


@pytest.mark.parametrize("kind", ["byte_bpe", "words"])
def test_other_kinds_are_trained_and_stored(source, tmp_path, kind):
    given = config(270 if kind == "byte_bpe" else 40, tokenizer=kind)
    data = prepared(given, tmp_path)
    assert type(prepared(given, tmp_path).tokenizer) is type(data.tokenizer)
    assert data.splits["valid"].num_examples == 20


def test_side_files_are_the_tokenizer(source, tmp_path):
    data = prepared(config(), tmp_path)
    assert data.side_files() == {"tokenizer.model": (tmp_path / "tokenizer.model").read_bytes()}


@pytest.mark.parametrize(("prefix", "bad"), [("5,0", True), ("1", True), ("4,5", False), ("", False)])
def test_a_prefix_with_ids_that_no_output_has(source, tmp_path, prefix, bad):
    given = dataclasses.replace(config(), decode=DecodeConfig(prefix_ids=prefix))
    if not bad:
        prepared(given, tmp_path)
        return
    message = rf"decode\.prefix_ids={prefix} must not contain padding \(0\) or end-of-sequence \(1\)"
    with pytest.raises(ConfigError, match=message):
        prepared(given, tmp_path)
    assert source.reads == [], "before the tokenizer is trained"
    tokenizer = prepared(config(), tmp_path).tokenizer
    for directory, options in ((tmp_path, {}), (tmp_path / "other", {"tokenizer": tokenizer})):
        with pytest.raises(ConfigError, match=message):
            prepared(given, directory, **options)


def test_the_tokenizer_decides_which_ids_no_prefix_can_have():
    check_decode_ids(DecodeConfig(prefix_ids="0,1"), SpecialIds(eos=2))
    with pytest.raises(ConfigError, match=r"prefix_ids=0,2 must not contain end-of-sequence \(2\)$"):
        check_decode_ids(DecodeConfig(prefix_ids="0,2"), SpecialIds(eos=2))


def test_only_texts_train_the_tokenizer(source, tmp_path):
    columns = [TextColumn("a", "targets"), ScalarColumn("b", "inputs"), TextColumn("c", "targets", end=False)]
    data = prepare_data(config(270, tokenizer="byte_bpe"), columns, tmp_path)
    expected = train_tokenizer(source.splits["train"].features["targets"], "byte_bpe", 270)
    assert data.tokenizer.sha256 == expected.sha256


def separate(source_size=284, vocab_size=VOCAB_SIZE, **data):
    model = ModelConfig(vocab_size=vocab_size, source_vocab_size=source_size, share_embeddings=False)
    data = DataConfig(**{"tokenizer": "bpe", "separate_tokenizers": True} | data)
    return ExperimentConfig(model=model, data=data).resolved()


def test_separate_tokenizers_learn_from_their_side_alone(source, tmp_path):
    said = []
    data = prepared(separate(), tmp_path, say=said.append)
    assert said == ["training the source tokenizer on 100 examples", "training the target tokenizer on 100 examples"]
    texts = source.splits["train"].features
    expected = {"source_tokenizer.model": ("inputs", 284), "tokenizer.model": ("targets", 300)}
    assert data.side_files().keys() == expected.keys()
    for file, (side, size) in expected.items():
        assert data.side_files()[file] == train_tokenizer(texts[side], "bpe", size).model_bytes
        assert (tmp_path / file).read_bytes() == data.side_files()[file]
    split = data.splits["valid"]
    for name, tokenizer in (("inputs", data.tokenizer.source), ("targets", data.tokenizer)):
        text = source.splits["valid"].features[name][0]
        ids = split.take(name, np.array([0]), int(split.lengths(name)[0]))[0].tolist()
        assert ids == [*tokenizer.encode_batch([text]).ids, EOS_ID]
    source.reads.clear()
    (tmp_path / "source_tokenizer.model").unlink()  # the other one stays
    assert prepared(separate(), tmp_path).tokenizer.sha256 == data.tokenizer.sha256


def test_another_source_tokenizer_is_another_token_cache(source, tmp_path):
    one, other = (prepared(separate(size), tmp_path / str(size)) for size in (284, 292))
    for data in (one, other):
        data.splits["valid"]
    assert one.tokenizer.target.sha256 == other.tokenizer.target.sha256
    names = {next((tmp_path / size / "token_cache").iterdir()).name for size in ("284", "292")}
    assert len(names) == 2


def test_separate_tokenizers_are_shared_by_runs(source, tmp_path):
    given = separate(cache_dir=str(tmp_path / "shared"))
    one = prepared(given, tmp_path / "a").tokenizer.sha256
    source.reads.clear()
    assert prepared(given, tmp_path / "b").tokenizer.sha256 == one
    assert source.reads == []
    assert len(list((tmp_path / "shared").glob("tokenizer-*.model"))) == 2


def test_the_size_of_each_side_is_checked(source, tmp_path):
    tokenizer = prepared(separate(), tmp_path).tokenizer
    with pytest.raises(ConfigError, match=r"model\.source_vocab_size=292: .* has 284 ids"):
        prepared(separate(292), tmp_path)
    with pytest.raises(ConfigError, match=r"model\.vocab_size=310: .* has 300 ids"):
        prepared(separate(284, 310), tmp_path)
    # A given tokenizer may have fewer ids, but not more.
    assert prepared(separate(292, 310), tmp_path, tokenizer=tokenizer).tokenizer is tokenizer
    with pytest.raises(ConfigError, match=r"model\.source_vocab_size=283: the given tokenizer has 284 ids"):
        prepared(separate(283), tmp_path, tokenizer=tokenizer)
    with pytest.raises(ConfigError, match=r"model\.vocab_size=299: the given tokenizer has 300 ids"):
        prepared(separate(284, 299), tmp_path, tokenizer=tokenizer)


def test_a_vocabulary_file_with_holes_is_refused(source, tmp_path):
    path, values = tmp_path / "tokenizer.json", json.loads(trained("byte_bpe").model_bytes)
    vocabulary = values["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] += 2
    path.write_text(json.dumps(values))
    size = len(vocabulary)
    problem = rf"{path}: ids without a token: {size - 1} to {size}\. Edit the vocabulary in this file: every id from 0"
    with pytest.raises(DataError, match=rf"^data\.vocabulary_file: {problem}"):
        prepared(config(size + 2, tokenizer="byte_bpe", vocabulary_file=str(path)), tmp_path / "work")
    with pytest.raises(DataError, match=rf"^data\.source_vocabulary_file: {problem}"):
        prepared(
            separate(size + 2, size + 2, tokenizer="byte_bpe", source_vocabulary_file=str(path)), tmp_path / "work"
        )


def test_vocabulary_files_of_each_side(source, tmp_path):
    for name, words in (("en", ["line", "of", "and"]), ("de", ["LINE", "OF", "AND", "MORE"])):
        (tmp_path / name).write_text("".join(f"{word}\n" for word in words))
    files = {"source_vocabulary_file": str(tmp_path / "en"), "vocabulary_file": str(tmp_path / "de")}
    tokenizer = prepared(separate(8, 8, tokenizer="words", vocabulary_file=files["vocabulary_file"]), tmp_path / "c")
    assert len(tokenizer.tokenizer.source.tokens(range(8))) == 8  # trained
    assert prepared(separate(9, 9, tokenizer="words", **files), tmp_path / "b").tokenizer.source.vocab_size == 7
    (tmp_path / "en").write_text("a\nb\nc\nd\ne\nf\n")
    with pytest.raises(ConfigError, match=r"model\.source_vocab_size=9: .*en has 6 words"):
        prepared(separate(9, 8, tokenizer="words", **files), tmp_path / "a")
    with pytest.raises(DataError, match=r"data\.source_vocabulary_file: cannot read .*absent"):
        prepared(separate(8, 8, tokenizer="words", source_vocabulary_file=str(tmp_path / "absent")), tmp_path / "d")
    with pytest.raises(ConfigError, match=r"model\.source_vocab_size=999: the training split has"):
        prepared(separate(999, 8, tokenizer="words"), tmp_path / "e")


def test_columns_without_a_source(source, tmp_path):
    with pytest.raises(ConfigError, match=r"separate_tokenizers=true: .* has no texts for the source tokenizer"):
        prepare_data(separate(), [TextColumn("a", "targets")], tmp_path)
