"""Values of the generic configs that follow from a user's files; no program is compiled."""

import gzip
import json
import re
import subprocess

import pytest
from files_support import (
    fitted,
    refusal,
    reviews,
    write_names,
    write_pairs,
    write_pictures,
    write_plays,
    write_questions,
    write_reviews,
)
from published_support import config_of, reduced, write_folder

from transformer_jax.cli.main import main
from transformer_jax.config import ValueSource
from transformer_jax.config_file import read_config, read_with_sources
from transformer_jax.errors import CheckpointError, DataError


def test_a_single_file_with_names_of_columns(tmp_path):
    write_reviews(tmp_path / "reviews.tsv")
    config = fitted("classify", tmp_path)
    data = config.data
    assert (data.format, data.input_feature, data.target_feature) == ("tsv", "review", "sentiment")
    assert (data.train_split, data.valid_split, data.test_split) == ("reviews[:90%]", "reviews[90%:]", "")
    assert config.task.num_labels == 2
    assert data.cut_texts
    steps = config.training.num_train_steps
    assert config.optimizer.decay_steps == steps == 10 * config.training.eval_every_steps


def test_the_file_itself_may_be_named(tmp_path):
    write_reviews(tmp_path / "reviews.tsv")
    write_reviews(tmp_path / "other.tsv")
    config = fitted("classify", tmp_path / "reviews.tsv")
    assert (config.data.dir, config.data.train_split) == (str(tmp_path), "reviews[:90%]")


@pytest.mark.parametrize("valid", ["valid", "dev", "val", "validation"])
def test_splits_are_found_by_their_usual_names(tmp_path, valid):
    for name in ("train", valid, "test"):
        write_reviews(tmp_path / f"{name}.tsv")
    data = fitted("classify", tmp_path).data
    assert (data.train_split, data.valid_split, data.test_split) == ("train", valid, "test")


def test_words_of_names_say_what_a_file_is_for(tmp_path):
    for name in ("es-train-v2", "es-dev-v2", "es-test-v2", "es-test-v1"):
        write_reviews(tmp_path / f"{name}.tsv")
    data = fitted("classify", tmp_path).data
    assert (data.train_split, data.valid_split, data.test_split) == ("es-train-v2", "es-dev-v2", "es-test-v1")


def test_columns_without_names_have_numbers(tmp_path):
    write_reviews(tmp_path / "train.tsv", names=None)
    data = fitted("classify", tmp_path).data
    assert (data.input_feature, data.target_feature) == ("2", "3")


def test_a_first_line_of_unusual_names_is_one_of_names(tmp_path):
    write_reviews(tmp_path / "train.tsv", names=("nr", "opinion", "meinung"))
    data = fitted("classify", tmp_path).data
    assert (data.input_feature, data.target_feature) == ("opinion", "meinung")


def test_a_named_column_stays_and_the_other_one_is_found(tmp_path):
    rows = [f"{text}\t{label}\t{'ab'[i % 2]}" for i, (text, label) in enumerate(reviews(40))]
    (tmp_path / "train.tsv").write_text("\n".join(["review\tsentiment\tfold", *rows]) + "\n")
    assert fitted("classify", tmp_path).data.target_feature == "sentiment"
    data = fitted("classify", tmp_path, data__target_feature="fold").data
    assert (data.input_feature, data.target_feature) == ("review", "fold")


def test_json_lines_may_have_integer_labels(tmp_path):
    lines = [json.dumps({"stars": i % 3, "body": text}) for i, (text, _) in enumerate(reviews(60))]
    (tmp_path / "train.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    config = fitted("classify", tmp_path)
    assert (config.data.format, config.data.input_feature, config.data.target_feature) == ("jsonl", "body", "stars")
    assert config.task.num_labels == 3


def test_labels_in_front_of_texts(tmp_path):
    (tmp_path / "train.txt").write_text("".join(f"{label} {text}\n" for text, label in reviews(60)))
    config = fitted("classify", tmp_path)
    assert (config.data.format, config.task.num_labels) == ("labelled", 2)


def test_tags_of_names_are_chunks_and_others_are_not(tmp_path):
    write_names(tmp_path / "names" / "train.conll")
    config = fitted("tag", tmp_path / "names")
    assert (config.task.num_labels, config.task.chunks) == (3, True)
    text = (tmp_path / "names" / "train.conll").read_text()
    other = tmp_path / "parts"
    other.mkdir()
    (other / "train.conll").write_text(text.replace("B-PER", "NOUN").replace("B-LOC", "NOUN"))
    config = fitted("tag", other)
    assert (config.task.num_labels, config.task.chunks) == (2, False)


def test_questions(tmp_path):
    write_questions(tmp_path / "train.json")
    config = fitted("answer", tmp_path)
    assert config.data.format == "squad"
    assert config.data.max_length >= config.task.question_length + 64


@pytest.mark.parametrize(
    ("languages", "given", "found"),
    [
        (("en", "de"), {}, ("en", "de")),
        (("fr", "es"), {}, ("es", "fr")),
        (("fr", "es"), {"data__source_locale": "fr"}, ("fr", "es")),
        (("fr", "es"), {"data__target_locale": "es"}, ("fr", "es")),
    ],
)
def test_pairs_of_files(tmp_path, languages, given, found):
    write_pairs(tmp_path / "train", languages)
    data = fitted("translate", tmp_path, **given).data
    assert (data.format, data.source_locale, data.target_locale) == ("parallel", *found)
    assert (data.train_split, data.valid_split) == ("train[:90%]", "train[90%:]")


def test_pairs_in_columns(tmp_path):
    write_pairs(tmp_path / "train")
    sides = [(tmp_path / f"train.{language}").read_text().splitlines() for language in ("en", "de")]
    other = tmp_path / "columns"
    other.mkdir()
    (other / "all.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in zip(*sides, strict=True)))
    data = fitted("translate", other).data
    assert (data.format, data.input_feature, data.target_feature) == ("tsv", "1", "2")


def test_plain_text(tmp_path):
    write_plays(tmp_path / "plays.txt")
    data = fitted("text", tmp_path).data
    assert (data.format, data.batching, data.train_split) == ("documents", "windows", "plays[:90%]")


def test_pictures_in_one_folder_per_label(tmp_path):
    write_pictures(tmp_path / "pictures", 40)
    config = fitted("pictures", tmp_path / "pictures")
    assert (config.task.num_labels, config.data.source, config.data.train_split) == (2, "image_folder", ".[:90%]")
    assert (config.model.image_size, config.model.image_channels, config.data.resize) == (8, 1, "none")


def test_pictures_of_different_sizes_are_scaled(tmp_path):
    write_pictures(tmp_path / "train", size=8)
    write_pictures(tmp_path / "test", size=8)
    write_pictures(tmp_path / "more", size=70)
    (tmp_path / "more" / "left" / "0.png").rename(tmp_path / "train" / "left" / "large.png")
    for file in (tmp_path / "more").rglob("*.png"):
        file.unlink()
    for folder in [*(tmp_path / "more").iterdir(), tmp_path / "more"]:
        folder.rmdir()
    config = fitted("pictures", tmp_path)
    assert (config.data.train_split, config.data.test_split) == ("train[:90%]", "test")
    assert (config.model.image_size, config.data.resize) == (32, "crop")


def test_a_flag_has_precedence_and_sources_are_named(tmp_path):
    write_reviews(tmp_path / "reviews.tsv")
    read = read_with_sources("classify", {"data.dir": str(tmp_path), "data.max_length": 40, "model.vocab_size": 120})
    assert (read.config.data.max_length, read.config.model.vocab_size) == (40, 120)
    sources = read.sources()
    assert sources["data.max_length"] == ValueSource("flag")
    assert sources["task.num_labels"] == ValueSource("data")
    assert sources["model.emb_dim"].kind in ("file", "default")


def test_without_a_folder_nothing_is_read():
    assert read_config("classify").data.dir == ""


def test_the_vocabulary_is_one_that_the_texts_can_fill(tmp_path):
    (tmp_path / "train.tsv").write_text("".join(f"{'a b c d'[: 2 * (i % 4) + 1]}\t{i % 2}\n" for i in range(40)))
    assert fitted("classify", tmp_path).model.vocab_size < 500


@pytest.mark.parametrize("kind", ["byte", "char"])
def test_the_vocabulary_of_characters_and_bytes_is_all_of_them(tmp_path, kind):
    (tmp_path / "train.txt").write_text("the lazy dog\n" * 30)
    config = fitted("text", tmp_path, data__tokenizer=kind)
    assert config.model.vocab_size == 4 + (256 if kind == "byte" else len({*"the lazy dog"}))


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A work directory with a small BERT of random weights, from a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("bert") / "folder"
    config = reduced(config_of("all-MiniLM-L6-v2"))
    write_folder(folder, config | {"intermediate_size": 4 * config["hidden_size"]})  # the derived default
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in "aeiot")]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    assert main(["convert", f"--from={folder}", f"--workdir={folder / 'workdir'}"]) == 0
    return folder / "workdir"


def test_the_model_is_that_of_a_checkpoint(tmp_path, pretrained):
    write_reviews(tmp_path / "reviews.tsv")
    config = fitted("classify", tmp_path, training__init_from=str(pretrained))
    stored = read_config(str(pretrained / "config.json"))
    assert config.model == stored.model
    assert config.data.tokenizer == stored.data.tokenizer == "wordpiece"
    assert config.data.max_length <= config.model.max_length
    assert (config.optimizer.schedule, config.optimizer.learning_rate) == ("linear", 1e-4)
    assert (config.task.name, config.task.pooling, config.task.num_labels) == ("classification", "mean", 2)


def test_a_flag_has_precedence_over_a_checkpoint(tmp_path, pretrained):
    write_names(tmp_path / "train.conll")
    given = {"training__init_from": str(pretrained), "optimizer__learning_rate": 2e-4, "model__dropout_rate": 0.2}
    config = fitted("tag", tmp_path, **given)
    assert (config.optimizer.learning_rate, config.model.dropout_rate) == (2e-4, 0.2)


# Bad input.


def test_a_checkpoint_that_is_not_there(tmp_path):
    write_reviews(tmp_path / "reviews.tsv")
    with pytest.raises(CheckpointError, match=r"training.init_from=.*nowhere"):
        fitted("classify", tmp_path, training__init_from=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "write", "hint"),
    [
        (
            "classify",
            lambda d: write_pairs(d / "train"),
            "pairs of texts (train.en and train.de); use --config=translate",
        ),
        ("classify", lambda d: write_names(d / "train.conll"), "words with tags (train.conll); use --config=tag"),
        ("classify", lambda d: write_plays(d / "plays.txt"), "plain text (plays.txt); use --config=text"),
        ("classify", lambda d: write_pictures(d), "has images; use --config=pictures"),
        ("tag", lambda d: write_reviews(d / "a.tsv"), "use --config=classify or --config=translate"),
        ("tag", lambda d: write_questions(d / "train.json"), "use --config=answer"),
        ("text", lambda d: write_names(d / "train.conll"), "use --config=tag"),
        ("pictures", lambda d: write_pairs(d / "train"), "use --config=translate"),
    ],
)
def test_a_config_for_another_kind_of_data_is_named(tmp_path, name, write, hint):
    write(tmp_path)
    assert hint in refusal(name, tmp_path)


def test_a_file_of_comma_separated_values_has_a_remedy_that_works(tmp_path):
    folder = tmp_path / "my files"
    folder.mkdir()
    (folder / "mine.csv").write_text('\ufeffreview,label\n"good, and\nfine",1\nbad,0\n')
    with pytest.raises(DataError, match="is CSV") as caught:
        fitted("classify", folder)
    command = re.search(r"(python -c .*\.tsv'?);", str(caught.value))[1]
    subprocess.run(command, shell=True, check=True)
    assert (folder / "mine.tsv").read_text() == "review\tlabel\ngood, and fine\t1\nbad\t0\n"


def test_a_column_that_is_not_there(tmp_path):
    write_reviews(tmp_path / "reviews.tsv")
    message = refusal("classify", tmp_path, data__target_feature="sentment")
    assert "no column 'sentment'" in message
    assert "there are id, review, sentiment (did you mean 'sentiment'?)" in message
    write_names(tmp_path / "names" / "train.conll")
    assert "expected at least 7 columns, got 2" in refusal("tag", tmp_path / "names", data__target_feature="7")


def test_no_column_looks_like_labels(tmp_path):
    (tmp_path / "train.tsv").write_text("".join(f"text number {i}\tother text {i}\n" for i in range(40)))
    message = refusal("classify", tmp_path)
    assert "has the columns 1, 2" in message
    assert "--config=translate" in message


def test_a_sorted_file_is_refused(tmp_path):
    rows = sorted(reviews(100), key=lambda row: row[1])
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    assert "the examples seem sorted" in refusal("classify", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text\tlabel\n", "data.train_split=train[:90%] has no examples"),
        ("text\tlabel\nfine\tgood\n", "data.train_split=train[:90%] has no examples"),
        ("text\ttext\tlabel\n" + "a\tb\t1\nc\td\t0\n" * 20, "line 1: two columns have the name 'text'"),
        ("id\tid\ttext\tlabel\n" + "1\t1\ta\t1\n2\t2\tc\t0\n" * 20, "two columns have the name 'id'"),
        (
            "text\tlabel\n" + "a film\t1\nno\tfilm\t0\n" * 20,
            "line 3: 3 columns, but the first line names 2; perhaps a text contains a tab",
        ),
        (
            "text\tscore\n" + "".join(f"film {i}\t{i / 7:.3f}\n" for i in range(40)),
            "have 36 different values in 36 examples",
        ),
    ],
    ids=["only names", "one example", "two columns of texts", "two other columns", "a tab in a text", "numbers"],
)
def test_tables_with_faults(tmp_path, text, message):
    (tmp_path / "train.tsv").write_text(text)
    assert message in refusal("classify", tmp_path)


def test_empty_texts_are_refused(tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f" \t{i % 2}\n" for i in range(20)))
    assert "line 2: column text is empty" in refusal("classify", tmp_path)


def test_it_must_be_clear_which_file_trains(tmp_path):
    for name in ("a", "b"):
        write_reviews(tmp_path / f"{name}.tsv")
    assert "which of a, b is for training?" in refusal("classify", tmp_path)


def test_a_format_that_the_config_does_not_read(tmp_path):
    write_reviews(tmp_path / "a.tsv")
    assert "--config=tag reads conll, conllu" in refusal("tag", tmp_path, data__format="tsv")
    assert "no such file, but tsv" in refusal("classify", tmp_path, data__format="jsonl")


def test_a_folder_that_is_not_there(tmp_path):
    assert "does not exist; it is the folder of words with tags" in refusal("tag", tmp_path / "nowhere")


def test_a_wrong_value_is_reported_as_for_other_configs(tmp_path):
    write_reviews(tmp_path / "a.tsv")
    assert "data.encoding='utf8': expected one of utf-8" in refusal("classify", tmp_path, data__encoding="utf8")
    assert "data.max_length=0" in refusal("classify", tmp_path, data__max_length=0)
