"""Lines of text through a model, in whatever number, order and length they come."""

import dataclasses

import jax
import numpy as np
import pytest
from run_support import trained_config, trained_folder
from support import random_params

from transformer_jax.data.tokenizers import read_tokenizer
from transformer_jax.errors import DataError
from transformer_jax.evaluation import translate as translate_module
from transformer_jax.evaluation.translate import Translator, on_one_line

# Of 1 to 25 pieces, the longest in the middle.
LINES = ["1", "12 7", "3 44 5", "9 8 7 6 5 4 3 2 1 0 11 22 33", "50", "5 0", "12 7", "31 41 59 26"]


@pytest.fixture(scope="module")
def config():
    return trained_config()


@pytest.fixture(scope="module")
def translator(config):
    """With random parameters: those of a run of 8 steps translate everything alike."""
    tokenizer = read_tokenizer(trained_folder() / "run" / "tokenizer.model")
    return Translator(config, random_params(config.model, 3), tokenizer)


@pytest.fixture(scope="module")
def alone(translator):
    """The translation of every line by itself."""
    return {line: translator.translate_all([line]).lines[0] for line in set(LINES)}


def test_translations_are_worth_comparing(alone):
    assert len(set(alone.values())) >= 5


def test_lines_keep_their_order(translator, alone):
    assert translator.translate_all(LINES).lines == [alone[line] for line in LINES]
    shuffled = list(np.random.default_rng(0).permutation(LINES * 3))
    assert translator.translate_all(shuffled).lines == [alone[line] for line in shuffled]


def test_empty_lines_stay_empty(translator, alone):
    lines = ["", "1", "   ", "\t", "50", ""]
    assert translator.translate_all(lines).lines == ["", alone["1"], "", "", alone["50"], ""]
    assert translator.translate_all(["", " "]) == ([""] * 2, [])
    assert translator.translate_all([]) == ([], [])
    assert list(translator.translate([])) == []


def test_a_chunk_at_a_time(translator, alone, monkeypatch):
    """Output begins before the input has ended."""
    monkeypatch.setattr(translate_module, "CHUNK", 3)
    read = []

    def lines():
        for line in [*LINES, ""]:
            read.append(line)
            yield line

    translations = translator.translate(lines())
    assert read == []
    assert next(translations).lines == [alone[line] for line in LINES[:3]]
    assert len(read) == 3
    assert next(translations).lines == [alone[line] for line in LINES[3:6]]
    assert len(read) == 6
    (rest,) = translations
    assert rest.lines == [*(alone[line] for line in LINES[6:]), ""]
    assert len(read) == 9


@pytest.mark.parametrize("chunk", [2, 3, 100])
def test_a_line_too_long_for_the_learned_table_is_named(translator, config, monkeypatch, chunk):
    monkeypatch.setattr(translate_module, "CHUNK", chunk)
    model = dataclasses.replace(config.model, position_encoding="learned", max_length=12)
    short = Translator(dataclasses.replace(config, model=model), {}, translator.tokenizer)
    with pytest.raises(DataError, match=r"^line 4: \d+ pieces .* model\.max_length=12"):
        list(short.translate(["", "", " ", LINES[3], LINES[3]]))


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned"])
def test_a_line_of_a_million_characters_is_named(translator, config, encoding):
    model = dataclasses.replace(config.model, position_encoding=encoding)
    other = Translator(dataclasses.replace(config, model=model), {}, translator.tokenizer)
    with pytest.raises(DataError, match=r"^line 2: \d{6,} pieces with the end mark, and "):
        list(other.translate(["1", "x" * 1_000_000]))


def test_characters_that_training_has_not_seen(translator):
    """They are bytes to the tokenizer, so nothing is lost on the way in."""
    assert len(translator.translate_all(["ß ☃ 漢字", "\x00\x01", "a\u2028b\x85c"]).lines) == 3


@pytest.mark.parametrize(
    "end", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_text_on_one_line(translator, monkeypatch, end):
    assert on_one_line(f"a{end}b  c\td{end}") == "a b  c\td"
    assert on_one_line(end) == on_one_line("") == ""
    monkeypatch.setattr(type(translator.tokenizer), "decode_batch", lambda self, rows: [f"x{end}y" for _ in rows])
    # What is scored is what the model has written.
    assert translator.translate_all(["1", "", "2"]).lines == [f"x{end}y", "", f"x{end}y"]


def test_unfinished_translations_are_named(translator, config, monkeypatch):
    cut = dataclasses.replace(config, evaluation=dataclasses.replace(config.evaluation, max_extra_length=0))
    shorter = Translator(cut, translator.params, translator.tokenizer)
    each = [shorter.translate_all([line], first_number=7).unfinished for line in LINES]
    assert all(numbers in ([], [7]) for numbers in each)
    expected = [number for number, cut_there in enumerate(each, start=1) if cut_there]
    assert expected
    assert shorter.translate_all([*LINES, "", " "]).unfinished == expected
    monkeypatch.setattr(translate_module, "CHUNK", 3)
    assert [number for chunk in shorter.translate([*LINES, ""]) for number in chunk.unfinished] == expected


def test_from_a_checkpoint():
    translator = Translator.from_checkpoint(trained_folder() / "run")
    averaged = Translator.from_checkpoint(trained_folder() / "run", {"evaluation.average_checkpoints": 2})
    assert averaged.config.evaluation.average_checkpoints == 2
    pairs = zip(jax.tree.leaves(translator.params), jax.tree.leaves(averaged.params), strict=True)
    assert all((a != b).any() for a, b in pairs)
    assert len(translator.translate_all(["1 2", "3"]).lines) == 2
