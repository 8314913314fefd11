"""Decoding with layers that keep a state per hypothesis in place of keys and values: reading, steps and gathering."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from decoding_support import EOS_ID, START, from_prompts
from reference import Model
from support import HYBRIDS, assert_close, forward, random_params, slow_but, tiny

from transformer_jax.config import DecodeConfig
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.models.decoder import TWO_WAY

ROWS, LENGTH, CAPACITY = 3, 7, 9
CONFIGS = [tiny(architecture="decoder_only", **fields) for fields in HYBRIDS]
by_config = pytest.mark.parametrize("config", slow_but(CONFIGS[0], CONFIGS), ids=[f["layer_pattern"] for f in HYBRIDS])


def decoder_of(config):
    return ARCHITECTURES[config.architecture].decoder(config)


@functools.partial(jax.jit, static_argnums=0)
def read(config, params, cache, ids, positions):
    return decoder_of(config).read(params, cache, ids, positions)


@functools.partial(jax.jit, static_argnums=0)
def step(config, params, cache, ids, positions, visible):
    return decoder_of(config).step(params, cache, ids, positions, visible)


@by_config
def test_reading_and_steps_equal_the_float64_reference(config):
    """Prompts of 1, 3 and 2 tokens, padded; two more tokens each at once; and then two hypotheses of one token."""
    decoder, params = decoder_of(config), random_params(config)
    ids = np.random.default_rng(0).integers(4, 19, (ROWS, LENGTH)).astype(np.int32)
    prepared = decoder.prepare(params)

    def expected(texts):
        return Model(config, params)({"decoder_inputs": texts})

    whole, lengths = expected(ids), np.array([1, 3, 2])
    columns = np.arange(3)[None]
    positions = np.where(columns < lengths[:, None], columns, -1)
    cache = decoder.empty_cache(prepared, {"prompts": jnp.asarray(ids)}, CAPACITY)
    logits, cache = read(config, prepared, cache, np.where(positions < 0, 17, ids[:, :3]), positions)
    for row, length in enumerate(lengths):
        assert_close(logits[row, :length], whole[row, :length])
    more = lengths[:, None] + np.arange(2)
    logits, cache = read(config, prepared, cache, np.take_along_axis(ids, more, 1), more)
    assert_close(logits, np.take_along_axis(whole, more[..., None], 1))

    width, at = 2, lengths + 2
    batch = {"prompts": np.where(np.arange(6) <= at[:, None], ids[:, :6], 0), "prompt_lengths": at + 1}
    started = decoder.start(prepared, jax.tree.map(jnp.asarray, batch), CAPACITY, width)
    fed = np.stack([np.take_along_axis(ids, at[:, None], 1)[:, 0], np.full(ROWS, 18)], 1).astype(np.int32)
    own = (5 + np.arange(width))[:, None] == np.arange(CAPACITY)  # [W, C]
    visible = started.visible[:, None] | own[None]
    logits, cache = step(config, prepared, started.cache, fed, np.repeat(at[:, None], width, 1), visible)
    for row in range(ROWS):
        for hypothesis in range(width):
            text = np.append(ids[row, : at[row]], fed[row, hypothesis])[None]
            assert_close(logits[row, hypothesis], expected(text)[0, -1])
    # Both hypotheses go on from the second one.
    cache = decoder.reorder(cache, jnp.ones((ROWS, width), jnp.int32))
    visible = started.visible[:, None] | own[None, 1:] | (np.arange(CAPACITY) == [[7], [8]])[None]
    logits, _ = step(config, prepared, cache, fed, np.repeat(at[:, None] + 1, width, 1), visible)
    for row in range(ROWS):
        text = np.append(ids[row, : at[row]], [18, 18])[None]
        assert_close(logits[row, 1], expected(text)[0, -1])


WORDS = (5, 6, 7)  # all other tokens except eos are forbidden
LIMIT = 4
PROMPTS = [[START], [START, 6, 6, 5], [START, 7]]


def all_texts(config, params, prompt):
    """Return {ids: log probability} of all outputs of at most LIMIT tokens, the last of which is eos."""
    grid = np.array(list(itertools.product(WORDS, repeat=LIMIT)))
    texts = np.concatenate([np.repeat([prompt], len(grid), axis=0), grid], axis=1)
    logits = forward(config, params, {"decoder_inputs": jnp.asarray(texts, jnp.int32)})
    log_probs = scipy.special.log_softmax(np.asarray(logits, np.float64), axis=-1)
    found = {}
    for row, known in zip(grid.tolist(), log_probs[:, len(prompt) - 1 :], strict=True):
        own = [known[place, token] for place, token in enumerate(row)]
        for length in range(LIMIT):
            found[(*row[:length], EOS_ID)] = sum(own[:length]) + known[length, EOS_ID]
    return found


@by_config
def test_the_n_best_of_a_wide_beam_are_those_of_all_texts(config):
    """All of them, and their scores: the best ones are short, so that they alone would not show a missing gather."""
    config = dataclasses.replace(config, vocab_size=8, tie_output=False)
    params = random_params(config)
    decode = DecodeConfig(
        beam_size=40,
        num_best=20,
        max_new_tokens=LIMIT,
        length_penalty="none",
        end_among="candidates",
        forbidden_ids="2,3,4",
    )
    result = from_prompts([decoder_of(config)], [decoder_of(config).prepare(params)], decode, PROMPTS, [LIMIT] * 3)
    for row, prompt in enumerate(PROMPTS):
        known = all_texts(config, params, prompt)
        order = sorted(known, key=known.__getitem__, reverse=True)[:20]
        np.testing.assert_allclose(result.scores[row], [known[ids] for ids in order], atol=1e-4)
        found = [tuple(ids[:n]) for ids, n in zip(result.ids[row], result.lengths[row], strict=True)]
        np.testing.assert_allclose([known[ids] for ids in found], result.scores[row], atol=1e-4)
        assert len({*found}) == 20


def test_prompts_that_are_read_both_ways_are_refused():
    config = CONFIGS[0]
    decoder = decoder_of(config)
    prepared = decoder.prepare(random_params(config))
    batch = {"prompts": np.ones((1, 3), np.int32), "prompt_lengths": np.array([3]), TWO_WAY: np.array([2])}
    batch = jax.tree.map(jnp.asarray, batch)
    with pytest.raises(ConfigError, match=r"model\.mixer='gated_delta' reads prompts in one direction only"):
        decoder.start(prepared, batch, 8, 1)
