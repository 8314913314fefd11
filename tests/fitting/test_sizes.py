"""Sizes that follow from the examples, and files whose examples are refused; no program is compiled."""

import json

import pytest
from files_support import fitted, refusal, reviews, write_questions


def write(path, rows):
    (path / "train.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))


def test_labels_are_said_with_their_numbers(tmp_path, capsys):
    rows = [*reviews(60)]
    rows[7] = (rows[7][0], "Positive ")
    write(tmp_path, rows)
    fitted("classify", tmp_path)
    said = capsys.readouterr().err
    assert "labels for training: 'positive' 27, 'negative' 26, 'Positive ' 1" in said
    assert "warning: the labels 'Positive ' and 'positive' differ only in case or spaces" in said


def test_a_last_tenth_of_the_most_frequent_label_is_no_sorted_file(tmp_path):
    """Of 30 examples, 3 validate; with one label in four it is no wonder if all of them have the other one."""
    write(tmp_path, [(text, "b" if i % 4 == 0 and i < 27 else "a") for i, (text, _) in enumerate(reviews(30))])
    assert fitted("classify", tmp_path).task.num_labels == 2


def test_a_vocabulary_holds_all_characters(tmp_path):
    """Three thousand characters need more tokens than one per hundred characters of the texts."""
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 3000)))
    (tmp_path / "train.txt").write_text("".join(f"{text[i : i + 30]}\n" for i in range(0, 3000, 30)))
    assert 500 < fitted("text", tmp_path).model.vocab_size < 3500


def test_one_update(tmp_path):
    write(tmp_path, reviews(40))
    config = fitted("classify", tmp_path, training__num_train_steps=1)
    assert config.optimizer.warmup_steps == 0


# Bad input.


def test_sorted_examples(tmp_path):
    write(tmp_path, sorted(reviews(200), key=lambda row: row[1]))
    assert "has only the label 'positive': the examples seem sorted" in refusal("classify", tmp_path)


def test_one_class_only(tmp_path):
    write(tmp_path, [(text, "a") for text, _ in reviews(40)])
    assert "all examples of data.train_split=train[:90%] have the label 'a'" in refusal("classify", tmp_path)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "has the only example of the label 'new'; remove it, or add more of that label"),
        (2, "has the only 2 examples of the label 'new': too few to learn it"),
        (3, "has the label 'new', which the rest lacks: the examples seem sorted"),
    ],
)
def test_a_label_that_only_the_last_tenth_has(tmp_path, count, message):
    write(tmp_path, [(text, "new" if i >= 100 - count else label) for i, (text, label) in enumerate(reviews(100))])
    assert f"the last tenth of train, which is for validation, {message}" in refusal("classify", tmp_path)


def test_a_question_that_leaves_no_room_for_a_context(tmp_path):
    write_questions(tmp_path / "train.json")
    content = json.loads((tmp_path / "train.json").read_text())
    content["data"][0]["paragraphs"][0]["qas"][0]["question"] = "why so " * 400
    (tmp_path / "train.json").write_text(json.dumps(content))
    assert "which leaves no room for a context in 384 tokens" in refusal("answer", tmp_path)
