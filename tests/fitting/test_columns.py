"""Which columns of a table have the texts and the labels; no program is compiled."""

import json

import pytest
from files_support import fitted, refusal, reviews, write_names


def columns(path, rows, config="classify", **given):
    (path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    data = fitted(config, path, **given).data
    return data.input_feature, data.target_feature


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (("text", "label"), ("text", "label")),
        (("Text", "Label (y/n)"), ("Text", "Label (y/n)")),
        (('"text"', '"label"'), ('"text"', '"label"')),
        (("#text", "label"), ("#text", "label")),
        (("opinion", "meinung"), ("opinion", "meinung")),
        (("l'avis du client", "l'étiquette"), ("l'avis du client", "l'étiquette")),
        (("film 0 is great", "positive"), ("1", "2")),
        (("a label for the text", "negative"), ("1", "2")),
        (("text", "positive"), ("1", "2")),
    ],
)
def test_a_first_line_of_names(tmp_path, first, found):
    assert columns(tmp_path, [first, *reviews(60)]) == found


def test_a_label_that_is_a_usual_name_is_no_header(tmp_path):
    """`y` is a usual name of a column of labels; here it is a label."""
    assert columns(tmp_path, [(text, "yn"[i % 2]) for i, (text, _) in enumerate(reviews(60))]) == ("1", "2")


def test_a_first_line_of_unusual_names_is_said(tmp_path, capsys):
    columns(tmp_path, [("opinion", "meinung"), *reviews(60)])
    assert "the first line, opinion, meinung, is taken for the names of the columns" in capsys.readouterr().err
    columns(tmp_path, [("text", "label"), *reviews(60)])
    assert "is taken for" not in capsys.readouterr().err


def test_names_about_texts_are_no_texts(tmp_path):
    rows = [(f"r{i}", text, label) for i, (text, label) in enumerate(reviews(60))]
    assert columns(tmp_path, [("review_id", "utterance", "intent"), *rows]) == ("utterance", "intent")
    rows = [(text[:8], f"{text} {text}", label) for text, label in reviews(60)]
    assert columns(tmp_path, [("review_title", "review_body", "star_rating"), *rows]) == ("review_body", "star_rating")


def test_a_usual_pair_of_texts_is_read_as_one(tmp_path, capsys):
    rows = [(text, f"what {i}", label) for i, (text, label) in enumerate(reviews(60))]
    assert columns(tmp_path, [("sentence1", "sentence2", "label"), *rows]) == ("sentence1", "label")
    assert fitted("classify", tmp_path).data.second_feature == "sentence2"
    assert "sentence1 'film 0 is fine and fine', sentence2 'what 0', label 'positive'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (("english", "french"), ("english", "french")),
        (("EN", "FR"), ("EN", "FR")),
        (("English words/sentences", "French words/sentences"), ("English words/sentences", "French words/sentences")),
        (("target", "source"), ("source", "target")),
        (("a man", "un homme"), ("1", "2")),
    ],
)
def test_a_first_line_of_languages(tmp_path, first, found):
    rows = [(text, text.upper()) for text, _ in reviews(60)]
    assert columns(tmp_path, [first, *rows], "translate") == found


@pytest.mark.parametrize("labels", [(True, False), (1, 0), ("a", "b")])
def test_labels_of_json_lines(tmp_path, labels):
    rows = [{"text": text, "spam": labels[i % 2]} for i, (text, _) in enumerate(reviews(60))]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = fitted("classify", tmp_path)
    assert (config.data.target_feature, config.task.num_labels) == ("spam", 2)


@pytest.mark.parametrize("start", [0, 1])
def test_words_with_numbers_in_front(tmp_path, start):
    write_names(tmp_path / "train.conll")
    blocks = ["Ana B-PER", *(tmp_path / "train.conll").read_text().strip().split("\n\n")]
    numbered = ["".join(f"{i} {line}\n" for i, line in enumerate(block.split("\n"), start)) for block in blocks]
    (tmp_path / "train.conll").write_text("\n".join(numbered))
    config = fitted("tag", tmp_path)
    assert (config.data.input_feature, config.task.num_labels) == ("2", 3)


@pytest.mark.parametrize("names", [("premise", "hypothesis"), ("question", "sentence")])
def test_the_longer_text_of_a_pair_may_be_the_second(tmp_path, names):
    rows = [(text[:9], f"{text} {text}", label) for text, label in reviews(60)]
    assert columns(tmp_path, [(*names, "label"), *rows]) == (names[0], "label")
    assert fitted("classify", tmp_path).data.second_feature == names[1]


def test_a_word_may_be_the_word_for_word(tmp_path):
    write_names(tmp_path / "train.conll")
    file = tmp_path / "train.conll"
    file.write_text("-DOCSTART- O\n\nWords O\nvive O\n\n" + file.read_text())
    assert fitted("tag", tmp_path).task.num_labels == 3


def test_the_first_example_is_one_line(tmp_path, capsys):
    rows = [{"text": text, "label": label} for text, label in reviews(60)]
    lines = [{"text": None, "label": "negative"}, *rows]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert "line 1: 'text' is NoneType" in refusal("classify", tmp_path)
    assert "text 'film 0 is fine and fine', label 'positive'" in capsys.readouterr().err


def test_a_second_text_is_not_a_column_of_labels(tmp_path):
    rows = [(text, f"what {'abc'[i % 3]}", label) for i, (text, label) in enumerate(reviews(60))]
    found = columns(tmp_path, [("premise", "hypothesis", "gold"), *rows], data__second_feature="hypothesis")
    assert found == ("premise", "gold")


def test_a_key_without_a_value_in_some_lines(tmp_path):
    rows = [{"text": text, "note": None if i else "x", "label": label} for i, (text, label) in enumerate(reviews(60))]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = fitted("classify", tmp_path).data
    assert (data.input_feature, data.target_feature) == ("text", "label")


def test_a_test_file_without_labels_is_for_predictions(tmp_path, capsys):
    (tmp_path / "test.tsv").write_text("text\n" + "".join(f"{text}\n" for text, _ in reviews(20)))
    columns(tmp_path, [("text", "label"), *reviews(60)])
    assert fitted("classify", tmp_path).data.test_split == ""
    assert "test has no labels" in capsys.readouterr().err
    (tmp_path / "test.tsv").write_text("text\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in reviews(20)))
    assert fitted("classify", tmp_path).data.test_split == "test"


# Bad input.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "id\tgender\tcomment\tis_toxic\n" + "".join(f"{i}\tm{i % 2}\tno {i}\t{i % 3}\n" for i in range(60)),
            "which has the labels, gender, is_toxic? Name it, as in --config.data.target_feature=is_toxic",
        ),
        ("0\t1\n" + "fine\ta\nbad\tb\n" * 20, "the first line has numbers in place of names, 0, 1; remove it"),
        ('text\tlabel\n"a film"\t"a"\n"a bad film"\t"b"\n', "all values of column label are in quotes"),
    ],
    ids=["several columns", "numbers", "quotes"],
)
def test_columns_that_are_not_clear(tmp_path, text, message):
    (tmp_path / "train.tsv").write_text(text)
    assert message in refusal("classify", tmp_path)


def test_numbers_with_decimals_are_no_labels(tmp_path):
    rows = [{"text": text, "stars": float(i % 3)} for i, (text, _) in enumerate(reviews(60))]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "line 1: 'stars' is a number, 0.0, and not text" in refusal("classify", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("word tag\nAna B-PER\n\nLuis B-PER\n", "line 1: has names of columns, word tag; remove the line"),
        ("".join(f"{i} w _ X _ _ _ _ _ _\n" for i in range(1, 4)), "as CoNLL-U; rename it to .conllu"),
    ],
)
def test_words_of_another_format(tmp_path, text, message):
    (tmp_path / "train.conll").write_text(text)
    assert message in refusal("tag", tmp_path)


def test_more_columns_than_texts_of_a_pair(tmp_path):
    rows = [(str(i), text, text.upper()) for i, (text, _) in enumerate(reviews(40))]
    (tmp_path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    message = refusal("translate", tmp_path)
    assert "has the columns 1, 2, 3; name those of the two texts" in message
    assert "--config.data.target_feature=" in refusal("translate", tmp_path, data__input_feature="2")
    assert "as in --config.data.input_feature=2 --config.data.target_feature=3" in message


def test_a_tab_in_a_text_without_a_first_line_of_names(tmp_path):
    rows = [*reviews(40)]
    rows[30] = ("a film\twith a tab", "positive")
    (tmp_path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    assert "line 31: 3 columns, but most lines have 2; perhaps a text contains a tab" in refusal("classify", tmp_path)
