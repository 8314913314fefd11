"""Which columns of a table have the texts and the labels; no program is compiled."""

import json

import pytest
from files_support import fitted, refusal, reviews


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


def test_more_columns_than_texts_of_a_pair(tmp_path):
    rows = [(str(i), text, text.upper()) for i, (text, _) in enumerate(reviews(40))]
    (tmp_path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    message = refusal("translate", tmp_path)
    assert "has the columns 1, 2, 3; name those of the two texts" in message
    assert "--config.data.target_feature=" in refusal("translate", tmp_path, data__input_feature="2")


def test_a_tab_in_a_text_without_a_first_line_of_names(tmp_path):
    rows = [*reviews(40)]
    rows[30] = ("a film\twith a tab", "positive")
    (tmp_path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    assert "line 31: 3 columns, and most lines have 2; has a text a tab in it?" in refusal("classify", tmp_path)
