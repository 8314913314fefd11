"""Operations of an update, against counts by hand."""

import dataclasses

import jax
import pytest

from transformer_jax.config import ExperimentConfig, ModelConfig, OptimizerConfig
from transformer_jax.tasks.task import param_shapes
from transformer_jax.training.optimizer_flops import muon_flops, optimizer_flops


def config(freeze="", **optimizer):
    model = ModelConfig(
        architecture="encoder_only", vocab_size=40, emb_dim=32, num_heads=4, mlp_dim=128, num_encoder_layers=1
    )
    fields = {"schedule": "constant", "learning_rate": 0.1, "clip_norm": 0.0} | optimizer
    config = ExperimentConfig(model=model, optimizer=OptimizerConfig(freeze=freeze, **fields))
    task = dataclasses.replace(config.task, name="masked_lm")
    return dataclasses.replace(config, task=task).resolved()


def size(of):
    return sum(leaf.size for leaf in jax.tree.leaves(param_shapes(of)))


# Per parameter. Momentum: 2 for m, 1 for the rate, 1 for the sum. Adam: 3 for m, 4 for v, 2 for the corrections of
# the biases, square root with an epsilon within and one outside, division, 1 for the rate, 1 for the sum.
BY_RULE = {"sgd": 2 + 1 + 1, "adam": 3 + 4 + 2 + 4 + 1 + 1}


@pytest.mark.parametrize("name", BY_RULE)
def test_operations_per_parameter(name):
    of = config(name=name)
    assert optimizer_flops(of) == pytest.approx(BY_RULE[name] * size(of), abs=100)  # and some scalars


def test_operations_of_muon():
    """Beside the products, per matrix: 6 for the two averages, 3 for the norm and the division, and in each step 3 for
    b A + c A A and 3 for a X + (...) X; 1 each for the factor, the rate and the sum."""
    of = config(name="muon")
    assert muon_flops(config(name="adam")) == 0
    products = 5 * (4 * (4 * 32**3 + 2 * 32**3) + 2 * (4 * 32**2 * 128 + 2 * 32**3))
    assert muon_flops(of) == products
    sizes = 4 * 32 * 32 + 2 * 32 * 128
    elementwise = (6 + 3 + 3) * sizes + 5 * (2 * sizes + 3 * 6 * 32 * 32)
    others = BY_RULE["adam"] * (size(of) - sizes)
    assert optimizer_flops(of) == pytest.approx(products + elementwise + others, rel=1e-3)
    assert muon_flops(config("encoder/layers/self_attention", name="muon")) == 5 * 2 * (4 * 32**2 * 128 + 2 * 32**3)


def test_clipping_and_decay_add_theirs():
    plain, clipped, decayed = (
        optimizer_flops(config(name="sgd", **fields)) for fields in ({}, {"clip_norm": 1.0}, {"weight_decay": 0.1})
    )
    total = size(config(name="sgd"))
    assert clipped - plain >= 3 * total  # squares, their sum, the factor
    assert 0 < decayed - plain <= 2 * total  # a product and a sum for every matrix


def test_frozen_parameters_cost_nothing():
    whole, part = optimizer_flops(config(name="sgd")), optimizer_flops(config("embedding", name="sgd"))
    assert whole - part == 4 * 40 * 32
