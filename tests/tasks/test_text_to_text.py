"""The task text_to_text: what stands around a source, in training as in generation."""

import numpy as np
import pytest

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.token_cache import encode_in_memory
from transformer_jax.data.tokenizers.words import MAGIC, WordTokenizer
from transformer_jax.errors import DataError
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.translator import Translator

TOKENIZER = WordTokenizer(MAGIC + "".join(f"{word}\n" for word in ["sum", "up", ":", "a", "b", "c"]).encode())
SOURCES = ["a b", "c", "b c a a"]


def config(**task):
    return ExperimentConfig(model=ModelConfig(vocab_size=16), task=TaskConfig(name="text_to_text", **task)).resolved()


@pytest.mark.parametrize("prefix", ["", "sum up : "])
@pytest.mark.parametrize("start", [False, True])
def test_a_source_has_the_same_ids_in_training_and_in_generation(prefix, start):
    settings = config(source_prefix=prefix, text_start=start)
    features = {"inputs": SOURCES, "targets": SOURCES}
    split = encode_in_memory(features, TASKS["text_to_text"].columns(settings), TOKENIZER)
    trained = split.ragged("inputs").take(np.arange(3), 12)
    generated = Translator(settings, {}, TOKENIZER, ()).encode_sources(SOURCES)
    assert [row[row > 0].tolist() for row in trained] == generated
    ids = TOKENIZER.special_ids
    for row, source in zip(generated, SOURCES, strict=True):
        text = TOKENIZER.encode_batch([prefix + source]).ids.tolist()
        assert row == [*([ids.bos] if start else []), *text, ids.eos]
    assert split.ragged("targets").lengths.tolist() == [3 + start, 2 + start, 5 + start]


def test_a_tokenizer_without_the_beginning_of_a_text(monkeypatch):
    monkeypatch.setattr(type(TOKENIZER), "special_ids", TOKENIZER.special_ids._replace(bos=None))
    settings = config(text_start=True)
    with pytest.raises(DataError, match="no id for 'start_of_text'"):
        encode_in_memory({"inputs": ["a"], "targets": ["a"]}, TASKS["text_to_text"].columns(settings), TOKENIZER)
    with pytest.raises(DataError, match="no id for 'start_of_text'"):
        Translator(settings, {}, TOKENIZER, ()).encode_sources(["a"])
