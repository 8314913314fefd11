"""Induction and previous-token scores: on weights by hand, on planted heads, and on a model that learns to repeat."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import assert_close, make_batch, tiny

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.ablation import ablation_effects, mean_loss
from transformer_jax.inspection.head_scores import (
    induction_score,
    induction_scores,
    previous_token_score,
    previous_token_scores,
    repeated_tokens,
)
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import without_heads
from transformer_jax.models.architecture import ARCHITECTURES, init_params

IMAGES = {
    **{"architecture": "encoder_only", "inputs": "patches", "image_size": 12, "patch_size": 4, "image_channels": 1},
    **{"position_encoding": "learned", "class_token": True, "pixel_mean": "0.5", "pixel_std": "0.5"},
}


def scores_by_loops(weights, ids, is_token):
    """Return both scores [N] by the definitions, with a loop over rows, queries and keys."""
    rows, heads, length, _ = weights.shape
    sums, queries = np.zeros((2, heads)), [0, 0]
    for row in range(rows):
        for t in range(length):
            if not is_token[row, t]:
                continue
            if t and is_token[row, t - 1]:
                sums[0] += weights[row, :, t, t - 1]
                queries[0] += 1
            places = [s for s in range(1, t + 1) if ids[row, s - 1] == ids[row, t] and is_token[row, s - 1]]
            if places:
                sums[1] += weights[row, :, t, places].sum(0)
                queries[1] += 1
    return sums[0] / queries[0], sums[1] / queries[1]


def test_scores_are_their_definitions():
    rng = np.random.default_rng(0)
    weights = rng.random((3, 2, 9, 9)).astype(np.float32)
    ids = rng.integers(0, 4, (3, 9))
    is_token = np.arange(9) < np.array([9, 6, 1])[:, None]
    previous, induction = scores_by_loops(weights.astype(np.float64), ids, is_token)
    assert_close(previous_token_score(weights, is_token), previous, 1e-12)
    assert_close(induction_score(weights, ids, is_token), induction, 1e-12)


def test_a_head_on_the_token_after_the_first_occurrence_has_an_induction_score_of_one():
    ids, everything = np.array([[9, 4, 5, 6, 4, 5, 6]]), np.ones((1, 7), bool)
    weights = np.zeros((1, 3, 7, 7), np.float32)
    queries = np.arange(4, 7)
    weights[0, 0, queries, queries - 2] = 1  # after the first occurrence
    weights[0, 1, queries, queries - 3] = 1  # on the first occurrence
    weights[0, 2, np.arange(1, 7), np.arange(6)] = 1
    np.testing.assert_array_equal(induction_score(weights, ids, everything), [1, 0, 0])
    np.testing.assert_array_equal(previous_token_score(weights, everything), [0, 0, 1])


V, P = 12, 17


def planted():
    """Return a decoder: head 1 of layer 0 reads the token before, and head 0 of layer 1 is an induction head.

    The residual stream is [token, position, token before], as unit vectors. Every score is 0 or 60, so that the other
    keys of a query have weights below exp(-60) P.
    """
    config = tiny(
        **{"architecture": "decoder_only", "norm_position": "pre", "norm": "none", "position_encoding": "learned"},
        **{"vocab_size": V, "max_length": P, "emb_dim": 2 * V + P, "num_heads": 2, "head_dim": P, "num_kv_heads": 2},
        **{"value_head_dim": P, "scale_embeddings": False, "attention_scale": False, "use_bias": False},
        qkv_bias=False,
    )
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), init_params(config, 0))
    token, position, before = slice(0, V), slice(V, V + P), slice(V + P, 2 * V + P)
    params["embedding"]["embedding"][:, token] = np.eye(V)
    params["decoder"]["position_embedding"]["learned"]["embedding"][:, position] = np.eye(P)
    part = params["decoder"]["layers"]["self_attention"]
    query, key, value, out = (part[name]["kernel"] for name in ("query", "key", "value", "out"))
    query[0, position, 1] = 60 * np.eye(P, k=-1)  # place t asks for place t - 1
    key[0, position, 1] = np.eye(P)
    value[0, token, 1, :V] = np.eye(V)
    out[0, 1, :V, before] = np.eye(V)
    query[1, token, 0, :V] = 60 * np.eye(V)
    key[1, before, 0, :V] = np.eye(V)
    value[1, token, 0, :V] = np.eye(V)
    out[1, 0, :V, token] = 60 * np.eye(V)
    return config, jax.tree.map(jnp.asarray, params)


@pytest.mark.slow
def test_the_planted_heads_are_found_and_repeat_the_text():
    config, params = planted()
    batch = repeated_tokens(config, rows=3)
    assert batch["decoder_inputs"].shape == (3, P)
    induction, previous = induction_scores(config, params, batch), previous_token_scores(config, params, batch)
    assert [*induction] == [*previous] == ["decoder/0/self_attention", "decoder/1/self_attention"]
    assert previous["decoder/0/self_attention"][1] == pytest.approx(1, abs=1e-6)
    assert induction["decoder/1/self_attention"][0] == pytest.approx(1, abs=1e-6)
    # A head without a kernel spreads its weight over all keys before.
    equal = np.mean([1 / (t + 1) for t in range(P // 2 + 1, P)])
    assert_close([*induction["decoder/0/self_attention"][:1], induction["decoder/1/self_attention"][1]], 2 * [equal])
    targets = jnp.roll(batch["decoder_inputs"], -1, 1)

    def second_half(outputs):
        return mean_loss(outputs[:, P // 2 + 1 : -1], targets[:, P // 2 + 1 : -1])

    effects = ablation_effects(config, params, batch, second_half)
    assert effects.value < 1e-6
    assert effects.changes["decoder/1/self_attention/heads"][0] > 2
    assert abs(effects.changes["decoder/1/self_attention/heads"][1]) < 1e-6


def repeating(key):
    """Return 32 rows of 24 tokens that repeat after 4 to 12 different ones, and the places of repeated tokens."""

    def row(key):
        of_ids, of_period = jax.random.split(key)
        place, period = jnp.arange(24), jax.random.randint(of_period, (), 4, 13)
        return 4 + jax.random.permutation(of_ids, 28)[place % period], place >= period

    return jax.vmap(row)(jax.random.split(key, 32))


@pytest.mark.slow
def test_a_trained_model_repeats_by_the_heads_with_high_induction_scores():
    config = tiny(
        **{"architecture": "decoder_only", "norm_position": "pre", "position_encoding": "rotary", "vocab_size": 32},
        **{"num_heads": 2, "emb_dim": 32, "mlp_dim": 32, "head_dim": None, "value_head_dim": None},
        num_kv_heads=None,
    )
    module, optimizer = ARCHITECTURES[config.architecture].module(config), optax.adam(3e-3, b2=0.98)

    def loss(params, ids, is_repeated):
        inputs = jnp.pad(ids, ((0, 0), (1, 0)), constant_values=config.decoder_start_id)[:, :-1]
        logits = module.apply({"params": params}, {"decoder_inputs": inputs})
        of_tokens = optax.softmax_cross_entropy_with_integer_labels(logits, ids)
        return (of_tokens * is_repeated).sum() / is_repeated.sum()

    @jax.jit
    def trained(params, keys):
        def step(state, key):
            params, moments = state
            updates, moments = optimizer.update(jax.grad(loss)(params, *repeating(key)), moments)
            return (optax.apply_updates(params, updates), moments), None

        return jax.lax.scan(step, (params, optimizer.init(params)), keys)[0][0]

    params = trained(init_params(config, 0), jax.random.split(jax.random.key(7), 500))
    batch = repeated_tokens(config, count=12)
    scores = induction_scores(config, params, batch)
    found = {part: [head for head, score in enumerate(of) if score > 0.5] for part, of in scores.items()}
    assert found["decoder/0/self_attention"] == []  # such a head needs one before it
    assert found["decoder/1/self_attention"]
    assert previous_token_scores(config, params, batch)["decoder/0/self_attention"].max() > 0.5
    targets = jnp.roll(batch["decoder_inputs"], -1, 1)

    def measure(outputs):
        return mean_loss(outputs[:, 13:-1], targets[:, 13:-1])

    replace = without_heads(config, batch, {"decoder/1/self_attention": found["decoder/1/self_attention"]})
    assert measure(run_with(config, params, batch).outputs) < 0.3
    assert measure(run_with(config, params, batch, replace=replace).outputs) > 2


def test_repeated_tokens_fit_the_model():
    both = repeated_tokens(tiny(), count=5, rows=2)
    assert {name: ids.shape for name, ids in both.items()} == {"inputs": (2, 10), "decoder_inputs": (2, 11)}
    np.testing.assert_array_equal(both["inputs"][:, :5], both["inputs"][:, 5:])
    np.testing.assert_array_equal(both["inputs"], both["decoder_inputs"][:, 1:])
    assert all(len(set(row)) == 5 for row in np.asarray(both["inputs"][:, :5]).tolist())
    assert int(both["inputs"].min()) >= 4
    table = tiny(architecture="decoder_only", position_encoding="learned", max_length=12)
    assert repeated_tokens(table)["decoder_inputs"].shape == (4, 11)
    assert repeated_tokens(tiny(architecture="encoder_only", vocab_size=19))["inputs"].shape == (4, 30)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: induction_scores(tiny(**IMAGES), {}), ConfigError, "model.inputs=patches has no tokens"),
        (lambda: previous_token_scores(tiny(**IMAGES), {}, {}), ConfigError, "model.inputs=patches has no tokens"),
        (lambda: repeated_tokens(tiny(vocab_size=5)), ConfigError, "no room for two tokens and their repetition"),
        (
            lambda: induction_scores(
                ModelConfig(architecture="recurrent", vocab_size=19, emb_dim=8, hidden_dim=8).resolved(),
                {},
                make_batch(rows=1),
            ),
            ConfigError,
            "no residual stream",
        ),
        (
            lambda: induction_scores(tiny(architecture="decoder_only", mixer="gated_delta"), {}),
            ConfigError,
            "no self-attention",
        ),
        (
            lambda: induction_score(np.ones((1, 1, 3, 3), np.float32), np.array([[1, 2, 3]]), np.ones((1, 3), bool)),
            DataError,
            "no token of a row occurs twice",
        ),
        (
            lambda: previous_token_score(np.ones((2, 1, 1, 1), np.float32), np.ones((2, 1), bool)),
            DataError,
            "no row has two tokens",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
