"""Vectors of texts by layer: as the model of each task reads them, whatever the batches."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from labelled_support import TEXTS, config, untrained
from support import assert_close, random_params, tiny

from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.errors import DataError
from transformer_jax.evaluation.loading import Loaded
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.text_features import text_features
from transformer_jax.tasks.task import TASKS

TOKENIZER, START, EOS, BOS = ByteTokenizer(), 3, 1, 3


def ids_of(text):
    return TOKENIZER.encode_batch([text]).ids.tolist()


READ = {  # by task: the architecture, the name of what the first stack reads, its ids, and how many are of no text
    "language_model": ("decoder_only", "decoder_inputs", lambda text: [START, *ids_of(text)], 1),
    "translation": ("encoder_decoder", "inputs", lambda text: [*ids_of(text), EOS], 0),
    "masked_lm": ("encoder_only", "inputs", lambda text: [BOS, *ids_of(text), EOS], 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READ)
def test_vectors_are_means_of_the_streams_of_each_text_alone(name):
    architecture, read, rows, skipped = READ[name]
    model = tiny(architecture=architecture, vocab_size=TOKENIZER.vocab_size, num_encoder_layers=1, num_decoder_layers=1)
    config = ExperimentConfig(model=model, task=TaskConfig(name=name))
    head = TASKS[name].head(config.task, model)
    loaded = Loaded(config, random_params(model, head=head), TOKENIZER, (1,), None, Path("x"), None)
    texts = ["abcd", "d", "bc"]
    found = text_features(loaded, texts)
    stack = model.stacks[0]
    places = [f"{stack}/embedding", f"{stack}/0/feed_forward/stream"]
    assert [*found] == places
    for number, text in enumerate(texts):
        batch = {read: jnp.array([rows(text)])}
        if architecture == "encoder_decoder":
            batch["decoder_inputs"] = jnp.array([[START]])
        streams = run_with(model, loaded.params, batch, places, None, head).places
        for place, vectors in found.items():
            assert_close(vectors[number], np.asarray(streams[place])[0, skipped:].mean(0))


@pytest.mark.slow
def test_a_classifier_reads_its_texts_as_it_does_to_predict():
    settings, corpus, params, predictor = untrained("classification")
    loaded = Loaded(settings, params, corpus.tokenizer, (1,), None, Path("x"), None, corpus.labels)
    texts, place = [*TEXTS, "a fine joy"], "encoder/0/feed_forward/stream"
    found = text_features(loaded, texts, "first")[place]
    kernel, bias = (np.asarray(params["head"]["output"][name]) for name in ("kernel", "bias"))
    # With pooling=first, the head is a linear function of the last stream in Post-LN.
    assert (settings.model.norm_position, settings.task.pooling, settings.task.pooler) == ("post", "first", False)
    for row, label in zip(found @ kernel + bias, predictor.predict(texts), strict=True):
        shares = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        assert_close(shares, [*label.probabilities.values()])


def test_a_text_that_cannot_be_read_is_named():
    settings = config("classification", {"tokenizer": "byte"}, {"position_encoding": "learned", "max_length": 16})
    loaded = Loaded(settings, {}, TOKENIZER, (1,), None, Path("x"), None, ("bad", "good"))
    with pytest.raises(DataError, match="line 2: has no text"):
        text_features(loaded, ["a", " "], place=lambda index: f"line {index + 1}")
    with pytest.raises(DataError, match="text 0: 22 tokens with end-of-sequence are too many"):
        text_features(loaded, ["a" * 20])
    model = dataclasses.replace(settings.model, architecture="decoder_only", num_encoder_layers=0, num_decoder_layers=1)
    of_text = ExperimentConfig(model=model, task=TaskConfig(name="language_model"))
    with pytest.raises(DataError, match="text 1: has no tokens"):
        text_features(loaded._replace(config=of_text), ["a", ""])
