import dataclasses
from functools import partial

import jax
import pytest

from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.models.architecture import init_params
from transformer_jax.models.presets import (
    bart,
    bert,
    seq2seq_bentrevett,
    t5,
    t5_v1_1,
    transformer_base,
    transformer_big,
    vit,
)
from transformer_jax.nn.heads import MaskedLMHead, SequenceHead, TokenHead


def count(config, head=lambda config: None, scan=True):
    config = dataclasses.replace(config, scan_layers=scan).resolved()
    shapes = jax.eval_shape(lambda: init_params(config, 0, head(config)))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))


def formula(vocab, width, hidden, layers):
    """Parameters of the 2017 Transformer with one embedding, sinusoids, biases and layer norms, by hand."""
    attention = 4 * (width * width + width)
    feed_forward = width * hidden + hidden + hidden * width + width
    norm = 2 * width
    return vocab * width + layers * (3 * attention + 2 * feed_forward + 5 * norm)


def test_parameters_of_the_published_sizes():
    assert count(transformer_base()) == formula(37_000, 512, 2048, 6) == 63_082_496
    assert count(transformer_big()) == formula(37_000, 1024, 4096, 6) == 214_245_376


@pytest.mark.parametrize(
    ("name", "expected"),
    [("lstm", 13_898_501), ("gru", 14_219_781), ("attention", 20_518_405), ("transformer", 9_038_341)],
)
def test_parameters_of_the_models_of_bentrevett(name, expected):
    config = seq2seq_bentrevett(name)
    data = DataConfig(separate_tokenizers=True, max_length=64)
    assert count(ExperimentConfig(model=config, data=data).resolved().model, scan=False) == expected


def test_presets_are_the_papers_configs():
    base, big = transformer_base(), transformer_big()
    for config in (base, big):
        assert (config.norm_position, config.position_encoding, config.activation) == ("post", "sinusoidal", "relu")
        assert config.share_embeddings
        assert config.tie_output
        assert config.scale_embeddings
        assert ExperimentConfig(model=config).resolved().model.head_dim == 64
    assert (base.num_heads, base.dropout_rate) == (8, 0.1)
    assert (big.num_heads, big.dropout_rate) == (16, 0.3)


def test_given_fields_are_replaced_and_others_kept():
    config = transformer_big(norm_position="pre", num_heads=4)
    assert (config.norm_position, config.num_heads, config.emb_dim) == ("pre", 4, 1024)
    with pytest.raises(TypeError, match="num_head"):
        transformer_base(num_head=4)


POOLED, TAGS, ENDS = (
    partial(SequenceHead, num_labels=2, has_pooler=True),
    partial(TokenHead, num_labels=9),
    partial(TokenHead, num_labels=2),
)


@pytest.mark.parametrize(
    ("config", "head", "expected"),
    [
        (bert("base"), MaskedLMHead, 109_514_298),
        (bert("base"), POOLED, 109_483_778),
        (bert("base"), TAGS, 108_898_569),
        (bert("base"), ENDS, 108_893_186),
        (bert("base", vocab_size=28_996), POOLED, 108_310_272 + 2 * 768 + 2),
        (bert("large"), POOLED, 335_141_888 + 2 * 1024 + 2),
        (t5("small"), None, 60_506_624),
        (t5("base"), None, 222_903_552),
        (t5("large"), None, 737_668_096),
        (t5_v1_1("small"), None, 76_961_152),
        # transformers counts two unused rows more in each of the two tables of positions.
        (bart("base"), None, 139_420_416 - 2 * 2 * 768),
        (bart("large"), None, 406_291_456 - 2 * 2 * 1024),
    ],
)
def test_parameters_of_bert_t5_and_bart(config, head, expected):
    """The numbers of transformers 5.23, without BERT's head for the next sentence."""
    assert (count(config) if head is None else count(config, head)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Ti/16", 5_717_416),
        ("S/16", 22_050_664),
        ("B/16", 86_567_656),
        ("B/32", 88_224_232),
        ("L/16", 304_326_632),
        ("H/14", 632_045_800),
    ],
)
def test_parameters_of_vit(name, expected):
    """The numbers of transformers 5.23 and of vit_jax, with 1000 labels and images of 224 pixels."""
    assert count(vit(name), partial(SequenceHead, num_labels=1000)) == expected
    with pytest.raises(KeyError, match="X"):
        vit("X/16")
