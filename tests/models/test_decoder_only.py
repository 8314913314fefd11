"""The decoder-only model: its sizes, its causality, and that packing changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, tiny
from training_support import distance, small_config

from transformer_jax.models.decoder_only import DecoderOnly, init_params
from transformer_jax.models.flops import decoder_only_train_flops, palm_flops_per_token
from transformer_jax.models.presets import gpt2_small
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_gradient, make_train_step


def count(config):
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: init_params(config, 0))))


def test_parameters_of_gpt2():
    """As released; and without biases, as nanoGPT counts them."""
    assert count(gpt2_small().resolved()) == 124_439_808
    assert count(gpt2_small(use_bias=False).resolved()) == 124_337_664


def test_flops_of_gpt2():
    """Of one row of 1,024 tokens without biases: the sum over products, and the formula of PaLM."""
    config = gpt2_small(use_bias=False).resolved()
    assert decoder_only_train_flops(config, 1, 1024) == 874_944_921_600
    without_positions = count(config) - 1024 * 768
    assert 1024 * palm_flops_per_token(config, without_positions, 1024) == 875_062_886_400


def random_params(config, seed=0):
    shapes = jax.eval_shape(lambda: init_params(config, 0))
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda s: jnp.asarray(random.standard_normal(s.shape) / 3, jnp.float32), shapes)


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned", "rotary", "relative", "none"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_logit_depends_on_earlier_targets_alone(position_encoding, norm_position):
    config = tiny(position_encoding=position_encoding, norm_position=norm_position)
    params, targets = random_params(config), jnp.array([[5, 9, 4, 11, 7, 1]])
    logits, _ = DecoderOnly(config).apply({"params": params}, {"targets": targets})
    assert logits.shape == (1, 6, config.vocab_size)
    for t in range(6):
        other, _ = DecoderOnly(config).apply({"params": params}, {"targets": targets.at[0, t].set(3)})
        changed = np.abs(np.asarray(other - logits)).max((0, 2)) > 0
        assert changed.tolist() == [False] * (t + 1) + [True] * (5 - t)


def test_packed_rows_have_the_logits_of_their_parts():
    config = tiny(position_encoding="learned")
    params = random_params(config)

    def logits(targets, **rest):
        batch = {"targets": jnp.asarray(targets), **{f"targets_{k}": jnp.asarray(v) for k, v in rest.items()}}
        return DecoderOnly(config).apply({"params": params}, batch)[0]

    packed = logits([[5, 6, 1, 7, 1, 0]], segment_ids=[[1, 1, 1, 2, 2, 0]], positions=[[0, 1, 2, 0, 1, 0]])
    assert_close(packed[:, :3], logits([[5, 6, 1]]), 1e-5)
    assert_close(packed[:, 3:5], logits([[7, 1]]), 1e-5)


def test_attention_weights_are_returned():
    config = tiny()
    _, weights = DecoderOnly(config, return_weights=True).apply(
        {"params": random_params(config)}, {"targets": jnp.array([[5, 6, 1]])}
    )
    assert {name: w.shape for name, w in weights.items()} == {
        "decoder_self_attention": (config.num_decoder_layers, 1, config.num_heads, 3, 3)
    }
    sums = weights["decoder_self_attention"].sum(-1)
    assert_close(sums, np.ones(sums.shape))


def test_it_trains_by_the_same_step():
    static, hyper = split(small_config({"model.num_decoder_layers": 2}))
    state = init_state(static, hyper, init_params)
    batch = {"targets": jnp.array([[5, 6, 7, 1], [8, 9, 1, 0]]), "row_ids": jnp.arange(2)}
    grads, sums = jax.jit(make_gradient(static, DecoderOnly))(state.params, batch, jnp.int32(0), hyper)
    assert sums.weight == 7
    assert jax.tree.structure(grads) == jax.tree.structure(state.params)
    new, metrics = jax.jit(make_train_step(static, DecoderOnly))(state, batch, hyper)
    assert (metrics["filled"], metrics["slots"]) == (7, 8)
    assert distance(new.params, state.params) > 0
