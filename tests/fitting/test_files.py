"""Which files of a folder are read; no program is compiled."""

import json

import numpy as np
import pytest
from files_support import fitted, refusal, reviews, write_names, write_pairs, write_pictures, write_reviews

TSV = "".join(f"{text}\t{label}\n" for text, label in reviews(60))
WORDS = "".join(f"{label} {text}\n" for text, label in reviews(60))


def test_the_only_file_that_is_not_for_scores_trains(tmp_path):
    for name in ("reviews", "test"):
        write_reviews(tmp_path / f"{name}.tsv")
    data = fitted("classify", tmp_path).data
    assert (data.train_split, data.valid_split, data.test_split) == ("reviews[:90%]", "reviews[90%:]", "test")


def test_a_file_for_scores_alone_trains_and_scores_nothing(tmp_path):
    write_reviews(tmp_path / "my_test_reviews.tsv")
    data = fitted("classify", tmp_path).data
    assert (data.train_split, data.test_split) == ("my_test_reviews[:90%]", "")


def test_labels_in_front_of_texts_train_beside_a_table_for_scores(tmp_path):
    (tmp_path / "train.txt").write_text(WORDS)
    write_reviews(tmp_path / "test.tsv")
    assert fitted("classify", tmp_path).data.train_split == "train[:90%]"


def test_a_file_that_trains_in_part_does_not_test(tmp_path):
    write_reviews(tmp_path / "test.tsv")
    given = {"data__train_split": "test[:80%]", "data__valid_split": "test[80%:]"}
    assert fitted("classify", tmp_path, **given).data.test_split == ""


def test_labels_in_front_of_texts_train_beside_any_table(tmp_path, capsys):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text(WORDS if name == "train" else "positive good\nnegative bad\n")
    write_reviews(tmp_path / "the classes.tsv")
    data = fitted("classify", tmp_path).data
    assert (data.train_split, data.valid_split) == ("train", "valid")
    assert f"not read in {tmp_path}: the classes.tsv (" in capsys.readouterr().err


def test_labels_in_front_of_texts_may_be_sorted(tmp_path):
    for name in ("train", "valid"):
        rows = sorted(reviews(600), key=lambda row: row[1])
        (tmp_path / f"{name}.txt").write_text("".join(f"{label} {text}\n" for text, label in rows))
    assert fitted("classify", tmp_path).data.format == "labelled"


@pytest.mark.parametrize("names", [("trainset", "devset", "testset"), ("reviewsTrain", "reviewsDev", "reviewsTest")])
def test_names_of_splits_in_longer_words(tmp_path, names):
    for name in names:
        write_reviews(tmp_path / f"{name}.tsv")
    data = fitted("classify", tmp_path).data
    assert (data.train_split, data.valid_split, data.test_split) == names


def test_text_of_another_encoding(tmp_path):
    (tmp_path / "a.txt").write_bytes("größer als groß\n".encode("latin-1") * 40)
    assert "if it is Latin-1, set data.encoding=latin-1" in refusal("text", tmp_path)
    assert fitted("text", tmp_path, data__encoding="latin-1").data.format == "documents"


def test_notes_beside_a_table_are_not_read(tmp_path):
    write_reviews(tmp_path / "train.tsv")
    (tmp_path / "notes.txt").write_bytes("größe".encode("latin-1"))
    (tmp_path / "empty.txt").write_text("")
    assert fitted("classify", tmp_path).data.format == "tsv"
    (tmp_path / "train.tsv").unlink()
    (tmp_path / "train.txt").write_text(WORDS)
    assert fitted("classify", tmp_path).data.format == "labelled"


def test_languages_are_those_of_the_training_files(tmp_path):
    write_pairs(tmp_path / "train", ("fr", "es"))
    for name in ("README.md", "README.rst", "a.xx", "a.yy"):
        (tmp_path / name).write_text("how to\n")
    data = fitted("translate", tmp_path).data
    assert (data.source_locale, data.target_locale, data.train_split) == ("es", "fr", "train[:90%]")


def test_folders_whose_name_begins_with_a_dot_have_no_images(tmp_path):
    write_pictures(tmp_path / "pictures")
    (tmp_path / "pictures" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "pictures" / "left" / ".ipynb_checkpoints").mkdir()
    config = fitted("pictures", tmp_path / "pictures")
    assert (config.data.train_split, config.task.num_labels) == (".[:90%]", 2)


def test_files_that_are_not_read_are_said(tmp_path, capsys):
    for name in ("train", "train_more", "test_a", "test_b"):
        write_reviews(tmp_path / f"{name}.tsv")
    data = fitted("classify", tmp_path).data
    assert (data.train_split, data.test_split) == ("train[:90%]", "test_a")
    said = capsys.readouterr().err
    assert f"not read in {tmp_path}: test_b.tsv, train_more.tsv (" in said


# Bad input.


def test_which_of_several_parts_trains(tmp_path):
    for name in ("train_1", "train_2"):
        write_reviews(tmp_path / f"{name}.tsv")
    message = refusal("classify", tmp_path)
    assert "DIR: which of train_1, train_2 is for training? Name one, or all, as in" in message
    assert "--config.data.train_split=train_1,train_2" in message
    given = {"data__train_split": "train_1,train_2", "data__valid_split": "train_1[:10%]"}
    assert fitted("classify", tmp_path, **given).data.train_split == "train_1,train_2"


def test_files_of_two_formats(tmp_path, capsys):
    write_reviews(tmp_path / "train.tsv")
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "fine", "label": "a"}) + "\n")
    assert fitted("classify", tmp_path).data.test_split == ""
    assert f"not read in {tmp_path}: test.jsonl (`evaluate --input=FILE` scores" in capsys.readouterr().err
    (tmp_path / "test.jsonl").rename(tmp_path / "valid.jsonl")
    assert "the training file is tsv, but valid.jsonl is jsonl; write both in one format" in refusal(
        "classify", tmp_path
    )
    given = {"data__train_split": "train[:80%]", "data__valid_split": "train[80%:]"}
    assert fitted("classify", tmp_path, **given).data.valid_split == "train[80%:]"


def test_a_table_beside_the_same_compressed(tmp_path):
    write_reviews(tmp_path / "r.tsv")
    (tmp_path / "r.tsv.gz").write_bytes(b"")
    assert fitted("classify", tmp_path / "r.tsv").data.train_split == "r[:90%]"
    message = refusal("classify", tmp_path / "r.tsv.gz")
    assert message == f"DIR: {tmp_path / 'r.tsv'} exists too, and would be read instead; remove or rename one of them"


@pytest.mark.parametrize(
    ("config", "files", "message"),
    [
        ("classify", {"r.txt": TSV.replace("film", "film\tfilm")}, "rename it to r.tsv"),
        ("classify", {"r.txt": "".join(f"{b}\t{a}\n" for a, b in reviews(60))}, "DIR/r.txt: has a tab after the first"),
        (
            "classify",
            {"r.json": '[{"text": "a", "label": "b"}]'},
            "is a JSON array; write one object per line as r.jsonl",
        ),
        ("classify", {"r.json": '{"text": "a", "label": "b"}\n' * 9}, "has JSON lines; rename it to r.jsonl"),
        ("classify", {"pos.txt": "good film\n" * 9, "neg.txt": "bad film\n" * 9}, "one file per label (neg and pos)"),
        ("classify", {"film.pos": "good film\n" * 9, "film.neg": "bad film\n" * 9}, "one file per label (neg and pos)"),
        ("classify", {"a/b/notes.md": "x"}, "DIR has no files; --config=classify reads"),
        ("tag", {"r.txt": "Ana B\nvive O\n\nLuis B\n"}, "a word and a tag per line; rename it to r.conll"),
        ("translate", {"train.en.txt": "a\n", "train.fr.txt": "b\n"}, "rename it to train.en"),
        (
            "translate",
            {"train.es": "a\n", "train.fr": "b\n", "train.it": "c\n", "valid.es": "a\n", "valid.fr": "b\n"},
            "train has the languages es, fr, it; name two, as in --config.data.source_locale=es",
        ),
    ],
)
def test_names_and_contents_that_do_not_fit(tmp_path, config, files, message):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert message in refusal(config, tmp_path)


@pytest.mark.parametrize("names", [("images", "labels"), ("x", "y"), ("X_train", "y_train")])
def test_arrays_with_other_names(tmp_path, names):
    np.savez(tmp_path / "d.npz", **dict(zip(names, (np.zeros((9, 8, 8), np.uint8), np.arange(9)), strict=True)))
    assert "expected train_x with images and train_y with labels" in refusal("pictures", tmp_path)


def test_folders_of_labels_beside_folders_of_sets(tmp_path):
    write_pictures(tmp_path / "one")
    (tmp_path / "one" / "left").rename(tmp_path / "left")
    assert "DIR: left has images, and one has folders with images" in refusal("pictures", tmp_path)


def test_a_damaged_image_is_named(tmp_path):
    write_pictures(tmp_path / "a", 40)
    (tmp_path / "a" / "left" / "damaged.png").write_bytes(b"no image")
    assert "image left/damaged.png: " in refusal("pictures", tmp_path / "a")


def test_the_usual_name_of_a_split_comes_first(tmp_path):
    for name in ("train", "heldout", "valid"):
        write_reviews(tmp_path / f"{name}.tsv")
    assert fitted("classify", tmp_path).data.valid_split == "valid"


def test_few_lines_with_labels_have_a_flag(tmp_path):
    (tmp_path / "train.txt").write_text("good fine\nbad dull\n" * 2)
    assert "or --config.data.format=labelled if every line begins" in refusal("classify", tmp_path)


def test_a_label_with_a_tab(tmp_path):
    (tmp_path / "r.txt").write_text(WORDS + "positive\tgood film\n")
    assert "line 61: a tab in the label 'positive\\tgood'" in refusal("classify", tmp_path)


def test_words_with_tags_in_a_file_of_another_name(tmp_path):
    write_names(tmp_path / "names.txt")
    assert "rename it to names.conll" in refusal("tag", tmp_path / "names.txt")
