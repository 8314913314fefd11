"""Datasets of TFDS: read without TensorFlow as they were written, and clear messages for those that are refused."""

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_support import pair_texts, prepared
from tfds_support import PAIRS, examples, prepare

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig
from transformer_jax.data.sources import load_source
from transformer_jax.data.sources.embedded import EmbeddedSource
from transformer_jax.data.sources.source import joined
from transformer_jax.data.sources.tfds import catalogue
from transformer_jax.data.sources.tfds import records as records_module
from transformer_jax.data.sources.tfds.preparing import prepare_dataset
from transformer_jax.errors import DataError

EMBEDDED = "embedded_translate/en-de-200-20"
WMT = "wmt14_translate/de-en"
TRANSLATION = [(WMT, "de", "en"), ("wmt_t2t_translate/de-en", "de", "en"), ("ted_hrlr_translate/pt_to_en", "pt", "en")]


@pytest.fixture(scope="module")
def embedded(tmp_path_factory) -> Path:
    """Return the data_dir of the prepared embedded corpus."""
    data_dir = tmp_path_factory.mktemp("tfds")
    prepare_dataset(EMBEDDED, str(data_dir), "", show_progress=False)
    return data_dir


@pytest.fixture(scope="module")
def prepared_wmt(tmp_path_factory) -> Path:
    data_dir = tmp_path_factory.mktemp("tfds")
    splits = {"train": examples("de", "en"), "validation": examples("de", "en", PAIRS[:1])}
    prepare(WMT, data_dir, splits)
    return data_dir


@pytest.fixture
def wmt(prepared_wmt, tmp_path) -> Path:
    """Return a copy, which a test may damage."""
    return Path(shutil.copytree(prepared_wmt, tmp_path / "tfds"))


def config(data_dir: Path | str, dataset: str, **fields) -> DataConfig:
    return DataConfig(source="tfds", dir=str(data_dir), dataset=dataset, **fields)


def wmt_config(data_dir: Path | str, **fields) -> DataConfig:
    defaults = {"source_locale": "de", "target_locale": "en", "valid_split": "validation", "test_split": ""}
    return config(data_dir, **{"dataset": WMT} | defaults | fields)


def error_of(config: DataConfig, split: str | None = None) -> str:
    """Return the error of the config or, if a split is given, of reading it."""
    if split is None:
        with pytest.raises(DataError) as raised:
            load_source(config)
    else:
        source = load_source(config)
        with pytest.raises(DataError) as raised:
            source.split(split)
    return str(raised.value)


def folder_of(data_dir: Path) -> Path:
    return data_dir / "wmt14_translate" / "de-en" / "1.0.0"


def shard_of(data_dir: Path, split: str) -> Path:
    (path,) = folder_of(data_dir).glob(f"*-{split}.array_record*")
    return path


def prepared_pairs(data_dir: Path, pairs) -> DataConfig:
    """Return the config of a dataset with these training pairs."""
    prepare(WMT, data_dir, {"train": examples("de", "en", pairs)})
    return wmt_config(data_dir, valid_split="")


# Reading.


@pytest.mark.slow
def test_the_embedded_corpus_read_by_tfds_is_the_same(embedded):
    original = EmbeddedSource("en", "de", 200, 20)
    source = load_source(config(embedded, EMBEDDED))
    assert source.split_names == ("train", "valid", "test")
    longer = load_source(config(embedded, EMBEDDED, test_split="test_longer"))
    for read, name, expected in [(source, n, n) for n in source.split_names] + [(longer, "test", "test_longer")]:
        split = original.split(expected)
        assert read.num_examples(name) == len(split.features["targets"]) > 0
        assert read.split(name) == pair_texts(split.features["inputs"], split.features["targets"])


def test_tokenizer_and_token_cache_of_a_dataset(embedded, tmp_path):
    vocab_size = 400
    experiment = ExperimentConfig(
        model=ModelConfig(vocab_size=vocab_size),
        data=config(embedded, EMBEDDED, tokenizer_pairs=150, train_split="train[:180]"),
    ).resolved()
    data = prepared(experiment, tmp_path)
    assert data.tokenizer.vocab_size == vocab_size
    assert data.splits["train"].num_examples == 180
    assert data.splits["test"].num_examples == 20
    text = data.text("valid")
    (ids,) = data.splits["valid"].take("targets", np.array([7]), 200)
    assert data.tokenizer.decode(ids) == text.features["targets"][7]


@pytest.mark.parametrize(("name", "first", "second"), TRANSLATION)
def test_datasets_of_translation(tmp_path, name, first, second):
    splits = {"train": examples(first, second), "validation": examples(first, second, PAIRS[:1])}
    prepare(name, tmp_path, splits)
    fields = {"valid_split": "validation", "test_split": "train[50%:]+validation"}
    source = load_source(config(tmp_path, name, source_locale=first, target_locale=second, **fields))
    train = source.split("train")
    assert sorted(zip(train.features["inputs"], train.features["targets"], strict=True)) == sorted(PAIRS)
    assert source.split("valid") == pair_texts([PAIRS[0][0]], [PAIRS[0][1]])
    assert source.split("test").features["inputs"] == [*train.features["inputs"][2:], PAIRS[0][0]]
    by_name = load_source(config(tmp_path, name, input_feature=second, target_feature=first, **fields))
    assert by_name.split("train") == pair_texts(train.features["targets"], train.features["inputs"])


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_chunks(embedded, monkeypatch, size):
    monkeypatch.setattr(records_module, "_READ_RECORDS", 8)
    source = load_source(config(embedded, EMBEDDED))
    chunks = list(source.chunks("valid", size))
    assert [len(chunk.features["targets"]) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
    assert joined(chunks) == source.split("valid")


def test_chunks_read_no_further_than_they_have_to(wmt, monkeypatch):
    monkeypatch.setattr(records_module, "_READ_RECORDS", 1)
    read = []
    source = load_source(wmt_config(wmt))
    monkeypatch.setattr(source, "_text", lambda record, feature, name, index: read.append(index) or "text")
    next(source.chunks("train", 2))
    assert set(read) == {0, 1}


def test_the_folder_of_a_dataset_is_enough(prepared_wmt, tmp_path):
    folder = shutil.copytree(folder_of(prepared_wmt), tmp_path / "anywhere")
    copied, original = load_source(wmt_config(folder, dataset="")), load_source(wmt_config(prepared_wmt))
    assert copied.split("train") == original.split("train")
    assert copied.fingerprint() == original.fingerprint()
    for name in (WMT, f"{WMT}:1.0.0", "wmt14_translate"):  # as in a checkpoint from another machine
        assert load_source(wmt_config(folder, dataset=name)).fingerprint() == original.fingerprint()
    for name in ("wmt14_translate/fr-en", f"{WMT}:2.0.0", "lm1b"):
        assert error_of(wmt_config(folder, dataset=name)) == (
            f"data.dir={str(folder)!r} contains {WMT}:1.0.0, not data.dataset={name!r}"
        )
    (folder / "dataset_info.json").write_text("[]")
    assert error_of(wmt_config(folder)).startswith(f"{folder}/dataset_info.json cannot be read: ")


def test_the_newest_version_is_read_unless_one_is_asked_for(wmt):
    newer = shutil.copytree(folder_of(wmt), folder_of(wmt).with_name("10.0.0"))
    shutil.copytree(folder_of(wmt), folder_of(wmt).with_name("9.0.0"))
    assert catalogue.prepared_folder(WMT, str(wmt)) == newer
    assert catalogue.prepared_folder(f"{WMT}:1.0.0", str(wmt)) == folder_of(wmt)


# Pairs without a side.


def test_pairs_that_lack_a_side_are_left_out_and_counted_once(tmp_path, caplog):
    pairs = [*PAIRS, ("", "no source"), ("kein Ziel", " \u3000"), ("", "")]
    source = load_source(prepared_pairs(tmp_path, pairs))
    with caplog.at_level(logging.WARNING, "transformer_jax"):
        assert [len(chunk.features["targets"]) for chunk in source.chunks("train", 3)] == [3, 1]
        assert source.num_examples("train") == 7
        split = source.split("train")
    assert sorted(zip(split.features["inputs"], split.features["targets"], strict=True)) == sorted(PAIRS)
    assert [record.getMessage() for record in caplog.records] == [
        "left out 3 of 7 examples of split train of wmt14_translate/de-en/1.0.0: they have no text on one side"
    ]


def test_a_complete_split_gives_no_message(wmt, caplog):
    assert len(load_source(wmt_config(wmt)).split("train").features["targets"]) == 4
    assert not [record for record in caplog.records if record.name.startswith("transformer_jax")]


def test_a_split_in_which_every_pair_lacks_a_side(tmp_path):
    message = error_of(prepared_pairs(tmp_path, [("", "a"), ("b", "")]), "train")
    assert message == "split 'train' of wmt14_translate/de-en/1.0.0: each of its 2 examples lacks a text"


# Fingerprint.


def test_fingerprint_is_of_texts_names_and_parts(wmt, tmp_path):
    original = load_source(wmt_config(wmt)).fingerprint()
    assert set(original) == {"sha256", "versions"}
    assert original["versions"] == {}
    assert load_source(wmt_config(wmt)).fingerprint() == original
    others = [
        wmt_config(wmt, source_locale="en", target_locale="de"),
        wmt_config(wmt, train_split="train[:50%]"),
        wmt_config(wmt, train_split="train[1:3]"),
        wmt_config(wmt, train_split="train[2:]"),
        wmt_config(wmt, valid_split=""),
        wmt_config(wmt, train_split="validation", valid_split="train"),
        prepared_pairs(tmp_path / "other", [*PAIRS[:3], ("fünf", "five")]),
    ]
    digests = [load_source(other).fingerprint()["sha256"] for other in others]
    assert len({original["sha256"], *digests}) == len(others) + 1
    assert load_source(wmt_config(wmt, train_split="train[:4]")).fingerprint() == original


# Errors.


@pytest.mark.parametrize(
    ("split", "problem"),
    [
        ("trian", "no such split or part of one (did you mean 'train'?); "),
        ("train[:", "no such split or part of one; "),
        ("train[:900%]", "no such split or part of one; "),
        ("train[:0%]", "this split is empty; "),
        ("train[3:1]", "this split is empty; "),
    ],
)
def test_an_unknown_split(wmt, split, problem):
    have = "wmt14_translate/de-en/1.0.0 has train, validation"
    assert error_of(wmt_config(wmt, train_split=split)) == f"data.train_split={split!r}: {problem}{have}"


def test_the_validation_split_has_another_name_in_this_dataset(wmt):
    message = error_of(wmt_config(wmt, valid_split="valid"))
    assert message.startswith("data.valid_split='valid': no such split or part of one (did you mean 'validation'?)")


def test_no_split_at_all(wmt):
    assert "data.train_split is empty" in error_of(wmt_config(wmt, train_split="", valid_split=""))
    with pytest.raises(DataError, match="no split 'test'; there are train, valid"):
        load_source(wmt_config(wmt)).num_examples("test")


def test_a_feature_that_is_unknown_or_not_text(wmt, tmp_path):
    message = error_of(wmt_config(wmt, source_locale="fr"))
    assert message.startswith("data.input_feature='fr': this feature of wmt14_translate/de-en/1.0.0 does not exist; ")
    assert sorted(message.rpartition("texts are ")[2].split(", ")) == ["de", "en"]
    prepare("ag_news_subset", tmp_path, {"train": [{"title": "a", "description": "b", "label": 1}]})
    fields = {"valid_split": "", "test_split": "", "input_feature": "label", "target_feature": "title"}
    message = error_of(config(tmp_path, "ag_news_subset", **fields))
    assert "data.input_feature='label': this feature of ag_news_subset/1.0.0 is ClassLabel(" in message
    assert message.partition("not a text; its texts are ")[2] in ("title, description", "description, title")


def test_a_text_that_is_not_utf8(tmp_path):
    where = "wmt14_translate/de-en/1.0.0: example 0 of split 'train', feature "
    config = prepared_pairs(tmp_path / "latin", [(b"Gr\xfc\xdfe", "hello")])
    assert error_of(config, "train") == f"{where}'de': not UTF-8 at byte 2 (0xfc): invalid start byte"
    config = prepared_pairs(tmp_path / "nul", [("Hallo", "hel\0lo")])
    assert error_of(config, "train") == f"{where}'en': a NUL character at 3; this is not text"


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        ("wmt14_translat/de-en", r"TFDS has no dataset 'wmt14_translat'; nearest: wmt14_translate, "),
        ("wmt14_translate/de-em", r"the dataset 'wmt14_translate' has no config 'de-em'; nearest: de-en"),
        ("embedded_translat", r"nearest: embedded_translate, "),
        ("embedded_translate/en", r"config 'en' of embedded_translate: expected two different locales"),
        ("embedded_translate/de-de", r"expected two different locales"),
        ("embedded_translate/en-dee", r"no locale 'dee' .*; nearest: de"),
        ("lm1b/text", r"the dataset 'lm1b' has no config 'text'; it has none"),
        ("huggingface:wmt14", r"dataset 'huggingface:wmt14': expected NAME, NAME/CONFIG or NAME/CONFIG:VERSION"),
        ("../secret", r"expected NAME, NAME/CONFIG"),
    ],
)
def test_an_unknown_dataset(tmp_path, dataset, told):
    with pytest.raises(DataError, match=told):
        load_source(config(tmp_path, dataset))
    with pytest.raises(DataError, match=told):
        catalogue.make_builder(dataset, str(tmp_path))


def test_a_dataset_that_is_not_prepared(tmp_path, monkeypatch):
    for dataset in (WMT, "lm1b", "super_glue/rte", "embedded_translate/en-it"):
        assert error_of(config(tmp_path, dataset)) == (
            f"data.dataset={dataset!r} is not prepared in {tmp_path}; to prepare it, run: "
            f"transformer-jax prepare --dataset={dataset} --data_dir={tmp_path}"
        )
    monkeypatch.setattr("tensorflow_datasets.core.constants.DATA_DIR", str(tmp_path))
    message = error_of(config("", WMT))
    assert message.endswith(f"{tmp_path}; to prepare it, run: transformer-jax prepare --dataset={WMT}")


def test_a_dataset_config_must_be_chosen(wmt):
    message = error_of(wmt_config(wmt, dataset="wmt14_translate"))
    assert message == "data.dataset='wmt14_translate' names no config; prepared: de-en"


def test_a_folder_that_is_not_a_dataset(wmt):
    for folder in (wmt, wmt / "nowhere"):
        assert error_of(wmt_config(folder, dataset="")).startswith(f"data.dir={str(folder)!r} is not the folder of a ")
    assert "needs data.dataset" in error_of(wmt_config("", dataset=""))
    (folder_of(wmt) / "features.json").unlink()
    assert error_of(wmt_config(wmt)).startswith(f"{folder_of(wmt)}: TFDS cannot read the description of this dataset: ")


@pytest.mark.parametrize(
    ("name", "content"), [("dataset_info.json", "{"), ("dataset_info.json", '{"nothing": 1}'), ("features.json", "[1]")]
)
def test_a_folder_whose_description_is_damaged(wmt, name, content):
    (folder_of(wmt) / name).write_text(content)
    assert error_of(wmt_config(wmt)).startswith(f"{folder_of(wmt)}: TFDS cannot read the description of this dataset: ")


def test_another_file_format(tmp_path):
    folder = prepare("lm1b", tmp_path, {"train": [{"text": "a"}]}, file_format="parquet")
    assert error_of(config(tmp_path, "lm1b")) == (
        f"{folder} is in the format parquet; without TensorFlow only array_record can be read; to prepare it in "
        "another folder, run: transformer-jax prepare --dataset=lm1b --data_dir=ANOTHER_FOLDER"
    )


def test_damaged_and_missing_files(wmt):
    shard = shard_of(wmt, "train")
    content = shard.read_bytes()
    for damaged in (b"", content[:-4000], b"x" * len(content)):
        shard.write_bytes(damaged)
        message = error_of(wmt_config(wmt), "train")
        assert message.startswith(f"{folder_of(wmt)}: split 'train' is damaged or cannot be read: ")
    shard.unlink()
    assert error_of(wmt_config(wmt)) == (
        f"data.train_split='train': {shard} is missing; copy or prepare the dataset again"
    )


# TensorFlow.


def test_tensorflow_is_never_imported_nor_tfds_before_it_is_needed(prepared_wmt, tmp_path):
    code = f"""
import sys
import transformer_jax.training.run, transformer_jax.evaluation.scoring
from transformer_jax.config import DataConfig
from transformer_jax.data.sources import load_source
print("tensorflow_datasets" in sys.modules)
source = load_source(DataConfig(source="tfds", dataset={WMT!r}, dir={str(prepared_wmt)!r}, valid_split="",
                                test_split=""))
print(source.num_examples("train"), len(source.split("train").features["inputs"]), len(source.fingerprint()["sha256"]))
print("tensorflow_datasets" in sys.modules, "tensorflow" in sys.modules)
"""
    stub = tmp_path / "tensorflow"
    stub.mkdir()
    (stub / "__init__.py").write_text("raise SystemExit('tensorflow was imported')")
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}){code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False", "4", "4", "64", "True", "False"]
