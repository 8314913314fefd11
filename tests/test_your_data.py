"""The commands of docs/your_data.md, section by section, on small files: each ends with a score and a prediction."""

import json
import re
import shlex
from pathlib import Path

import pytest
from files_support import write_names, write_pairs, write_pictures, write_plays, write_questions, write_reviews

from transformer_jax.cli.main import main

PAGE = Path(__file__).parent.parent / "docs" / "your_data.md"
SMALL = {
    "model.emb_dim": 16,
    "model.mlp_dim": 24,
    "model.num_heads": 2,
    "training.num_train_steps": 4,
    "training.eval_every_steps": 4,
    "training.checkpoint_every_steps": 4,
}
LAYERS = {"translate": ("encoder", "decoder"), "text": ("decoder",)}


def write_files(kind, folder):
    if kind == "classify":
        write_reviews(folder / "reviews" / "reviews.tsv")
        write_reviews(folder / "more_reviews.tsv", 20, 500)
    elif kind == "tag":
        write_names(folder / "names" / "train.conll")
        write_names(folder / "more_names.conll", 10)
    elif kind == "answer":
        write_questions(folder / "questions" / "train.json")
        write_questions(folder / "more_questions.json", 10)
    elif kind == "translate":
        write_pairs(folder / "pairs" / "train", ("en", "fr"))
        write_pairs(folder / "more_pairs", ("en", "fr"))
    elif kind == "text":
        write_plays(folder / "plays" / "plays.txt")
        write_plays(folder / "more_plays.txt")
    else:
        write_pictures(folder / "digits" / "train", 40)
        write_pictures(folder / "digits" / "test", 10)
        (folder / "digits" / "test" / "7").mkdir()
        (folder / "digits" / "test" / "left" / "0.png").rename(folder / "digits" / "test" / "7" / "29.png")
        (folder / "digits" / "train" / "7").mkdir()
        (folder / "digits" / "train" / "left" / "2.png").rename(folder / "digits" / "train" / "7" / "2.png")


def commands_of(kind):
    """Return the words after the program's name of every command of the section that trains with a config."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.M)
    (section,) = (text for text in sections if f"train --config={kind} --workdir=" in text and "init_from" not in text)
    return [shlex.split(line) for line in re.findall(r"^transformer-jax (.*)", section, re.M)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classify", "tag", "answer", "translate", "text", "pictures"])
def test_the_commands_of_a_section_work_one_after_the_other(kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_files(kind, tmp_path)
    found = commands_of(kind)
    assert 3 <= len(found) <= 8
    for words in found:
        small = {}
        if words[0] == "train":
            stacks = LAYERS.get(kind, ("encoder",))
            small = SMALL | {f"model.num_{stack}_layers": 1 for stack in stacks}
        if words[0] == "generate":
            words.append("--decode.max_new_tokens=8")
        assert main([*words, *(f"--config.{name}={value}" for name, value in small.items())]) == 0, words
        shown = capsys.readouterr()
        if words[0] in ("predict", "generate") and not any("output_file" in word for word in words):
            assert shown.out.strip()
    (workdir,) = (tmp_path / "runs").iterdir()
    scores = [json.loads(file.read_text()) for file in (workdir / "evaluation").glob("*.json")]
    assert scores
    for name in ("predicted.txt", "translated.txt"):
        if (tmp_path / name).exists():
            lines = (tmp_path / name).read_text().splitlines()
            second = {"classify": 20, "tag": 10, "answer": 10, "translate": 120}[kind]
            assert len(lines) == second
