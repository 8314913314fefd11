import jax
import pytest

from transformer_jax.config import ExperimentConfig
from transformer_jax.models.architecture import init_params
from transformer_jax.models.presets import transformer_base, transformer_big


def count(config):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: init_params(config.resolved(), 0))))


def formula(vocab, width, hidden, layers):
    """Parameters of the 2017 Transformer with one embedding, sinusoids, biases and layer norms, by hand."""
    attention = 4 * (width * width + width)
    feed_forward = width * hidden + hidden + hidden * width + width
    norm = 2 * width
    return vocab * width + layers * (3 * attention + 2 * feed_forward + 5 * norm)


def test_parameters_of_the_published_sizes():
    assert count(transformer_base()) == formula(37_000, 512, 2048, 6) == 63_082_496
    assert count(transformer_big()) == formula(37_000, 1024, 4096, 6) == 214_245_376


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
