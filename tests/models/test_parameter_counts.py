"""Parameters of the published models (Vaswani et al. 2017, table 3), without allocating any.

The paper prints 65 million for the base model and 213 for the big one. With biases, one shared table of 37,000 rows and
sinusoids there are 63.1 and 214.2; the differences between the rows of the paper's table agree.
"""

import math

import jax
import pytest
from support import slow_but

from transformer_jax.config import ModelConfig
from transformer_jax.models.architecture import init_params

BIG = {"emb_dim": 1024, "mlp_dim": 4096, "num_heads": 16}
VARIANTS = {  # millions of parameters
    "base": ({}, 63.1),
    "A: 1 head": ({"num_heads": 1}, 63.1),
    "A: 4 heads": ({"num_heads": 4}, 63.1),
    "A: 16 heads": ({"num_heads": 16}, 63.1),
    "A: 32 heads": ({"num_heads": 32}, 63.1),
    "B: d_k 16": ({"head_dim": 16, "value_head_dim": 64}, 56.0),
    "B: d_k 32": ({"head_dim": 32, "value_head_dim": 64}, 58.4),
    "C: 2 layers": ({"num_encoder_layers": 2, "num_decoder_layers": 2}, 33.7),
    "C: 4 layers": ({"num_encoder_layers": 4, "num_decoder_layers": 4}, 48.4),
    "C: 8 layers": ({"num_encoder_layers": 8, "num_decoder_layers": 8}, 77.8),
    "C: d_model 256": ({"emb_dim": 256, "head_dim": 32, "mlp_dim": 2048}, 26.8),
    "C: d_model 1024": ({"emb_dim": 1024, "head_dim": 128, "mlp_dim": 2048}, 163.9),
    "C: d_ff 1024": ({"mlp_dim": 1024}, 50.5),
    "C: d_ff 4096": ({"mlp_dim": 4096}, 88.3),
    "big": (BIG, 214.2),
}


def count(config):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(jax.eval_shape(lambda: init_params(config, 0))))


def formula(config):
    d, f = config.emb_dim, config.mlp_dim
    keys, values = config.num_heads * config.head_dim, config.num_heads * config.value_head_dim
    attention = 2 * (d + 1) * keys + (d + 1) * values + values * d + d  # queries and keys, values, output
    feed_forward = d * f + f + f * d + d
    norm = 2 * d
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    layers = config.num_encoder_layers * encoder_layer + config.num_decoder_layers * decoder_layer
    return config.vocab_size * d + layers


@pytest.mark.parametrize("name", slow_but("big", VARIANTS))
def test_published_variants(name):
    fields, millions = VARIANTS[name]
    config = ModelConfig(vocab_size=37_000, scan_layers=True, **fields).resolved()
    assert count(config) == formula(config)
    assert round(count(config) / 1e6, 1) == millions


def test_learned_positions_add_a_table_to_each_stack():
    sinusoidal = ModelConfig(vocab_size=37_000).resolved()
    learned = ModelConfig(vocab_size=37_000, position_encoding="learned", max_length=256).resolved()
    assert count(learned) - count(sinusoidal) == 2 * 256 * 512
