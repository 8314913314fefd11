"""The decoder-only model: its sizes and its prefixes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import as_batch, assert_close, forward, random_params, tiny
from training_support import compiled_gradient, compiled_step, distance, split_for

from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.models.flops import palm_flops_per_token
from transformer_jax.models.presets import gpt2, gpt3, llama2_7b, llama3_2_1b, nanogpt_character
from transformer_jax.training.state import init_state


def decoder_only(**fields):
    return tiny(**fields, architecture="decoder_only")


def count(config):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: init_params(config, 0))))


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (gpt2("small"), 124_439_808),
        (gpt2("medium"), 354_823_168),
        (gpt2("large"), 774_030_080),
        (gpt2("xl"), 1_557_611_200),
        (gpt2("small", use_bias=False), 124_337_664),
        (llama2_7b(), 6_738_415_616),
        (llama3_2_1b(), 1_235_814_400),
        (nanogpt_character(), 10_646_784 + 256 * 384),
    ],
)
def test_parameters_as_released(config, parameters):
    assert count(config.resolved()) == parameters


@pytest.mark.parametrize(
    ("size", "millions"),
    {
        "125M": 125,
        "350M": 356,
        "760M": 760,
        "1.3B": 1316,
        "2.7B": 2652,
        "6.7B": 6658,
        "13B": 12853,
        "175B": 174604,
    }.items(),
)
def test_parameters_of_gpt3(size, millions):
    """By the formula for GPT-2's layers; the names of the sizes are these, rounded."""
    config = gpt3(size).resolved()
    L, d = config.num_decoder_layers, config.emb_dim
    assert count(config) == 12 * L * d**2 + 13 * L * d + (50_257 + 2048) * d + 2 * d
    assert round(count(config) / 1e6) == millions


def test_flops_of_gpt2():
    """One row of 1,024 tokens without biases: the sum over products, and the formula of PaLM."""
    config = gpt2(use_bias=False).resolved()
    assert ARCHITECTURES["decoder_only"].train_flops(config, 1, {"targets": 1024}) == 874_944_921_600
    without_positions = count(config) - 1024 * 768
    assert 1024 * palm_flops_per_token(config, without_positions, 1024) == 875_062_886_400


@pytest.mark.parametrize(("position_encoding", "norm_position"), [("relative", "pre"), ("sinusoidal", "post")])
def test_tokens_of_a_prefix_see_each_other(position_encoding, norm_position):
    """In both directions; other tokens see earlier ones. Each row has its own prefix."""
    config = decoder_only(position_encoding=position_encoding, norm_position=norm_position)
    params, ids = random_params(config), jnp.array([[3, 9, 4, 11, 7, 1], [6, 8, 8, 5, 9, 4]])
    prefixes = [4, 0]
    prefix = jnp.arange(6)[None] < jnp.array(prefixes)[:, None]
    logits = forward(config, params, {"decoder_inputs": ids, "prefix_mask": prefix})
    for row, t in np.ndindex(2, 6):
        changed = {"decoder_inputs": ids.at[row, t].set(10), "prefix_mask": prefix}
        other = forward(config, params, changed)
        seen_by = np.abs(np.asarray(other - logits)).max(-1) > 0
        first = 0 if t < prefixes[row] else t
        assert seen_by[row].tolist() == [False] * first + [True] * (6 - first)
        assert not seen_by[1 - row].any()
    # A prefix of one token, and none, are the causal model.
    one = forward(config, params, {"decoder_inputs": ids, "prefix_mask": prefix & (jnp.arange(6) < 1)[None]})
    assert_close(one, forward(config, params, {"decoder_inputs": ids}), 2e-6)


@pytest.mark.slow
def test_a_prefix_ends_with_its_segment():
    """In packed rows every segment has its own prefix."""
    config = decoder_only(position_encoding="relative")
    params, ids = random_params(config), jnp.array([[3, 5, 6, 3, 7, 9, 4, 0]])
    prefix = jnp.array([[1, 1, 0, 1, 1, 1, 0, 0]], bool)
    segments, positions = jnp.array([[1, 1, 1, 2, 2, 2, 2, 0]]), jnp.array([[0, 1, 2, 0, 1, 2, 3, 0]])
    packed = {"decoder_inputs": ids, "prefix_mask": prefix, "targets_segment_ids": segments}
    logits = forward(config, params, {**packed, "targets_positions": positions})
    for part in (slice(0, 3), slice(3, 7)):
        alone = forward(config, params, {"decoder_inputs": ids[:, part], "prefix_mask": prefix[:, part]})
        assert_close(logits[:, part], alone, 2e-6)


@pytest.mark.slow
def test_it_trains_by_the_same_step():
    static, hyper = split_for("decoder_only", {"model.num_decoder_layers": 2})
    state = init_state(static, hyper)
    batch = as_batch(targets=jnp.array([[5, 6, 7, 1], [8, 9, 1, 0]]), row_ids=jnp.arange(2))
    grads, sums = compiled_gradient(static)(state.params, batch, 0, hyper)
    assert sums["weight"] == 7
    assert jax.tree.structure(grads) == jax.tree.structure(state.params)
    new, metrics = compiled_step(static)(state, batch, hyper)
    assert (metrics["filled"], metrics["slots"]) == (7, 8)
    assert distance(new.params, state.params) > 0
