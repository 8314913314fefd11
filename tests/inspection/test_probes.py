"""Linear probes: planted features, noise, control tasks, intervals, and hidden states of texts."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, make_batch, random_params, tiny

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.probes import accuracy, held_out_of_labels, probe, text_states


@functools.cache
def examples(count=400, width=6, num_labels=3):
    """Return features that hold the label on orthogonal directions, noise, and the names of labels."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_labels, count)
    noise = rng.standard_normal((count, width))
    turned = np.linalg.qr(rng.standard_normal((width, width)))[0]
    return noise + 20 * turned[labels], noise, [f"label {label}" for label in labels]


def test_a_planted_feature_is_found_and_noise_is_at_chance():
    planted, noise, labels = examples()
    found = probe({"planted": planted, "noise": noise}, labels)
    assert (found.held_out, found.labels) == (100, ("label 0", "label 1", "label 2"))
    assert found.accuracies["planted"].value == 1
    assert found.accuracies["planted"].low > 0.95
    for chance in (found.accuracies["noise"], *found.control.values(), found.majority):
        assert chance.low < 1 / 3 < chance.high
    assert found.selectivity["planted"] == 1 - found.control["planted"].value
    assert found == probe({"planted": planted, "noise": noise}, labels)
    assert found != probe({"planted": planted, "noise": noise}, labels, seed=1)


def test_a_large_penalty_leaves_the_shares_of_the_labels():
    planted, _, _ = examples()
    labels = ["often"] * 300 + ["rare"] * 100
    found = probe({"planted": planted}, labels, l2=1e12)
    assert found.accuracies["planted"] == found.majority


def test_features_of_types_solve_the_control_task_too():
    """A probe that sees the identity of every word learns any labels of words: it has no selectivity."""
    words = [f"word {number % 8}" for number in range(400)]
    identity = np.eye(8)[np.arange(400) % 8]
    labels = ["even" if number % 2 else "odd" for number in range(400)]
    found = probe({"identity": identity}, labels, types=words)
    assert found.accuracies["identity"].value == found.control["identity"].value == 1
    assert found.selectivity == {"identity": 0}
    assert probe({"identity": identity}, labels).control["identity"].value < 0.7


def test_a_group_is_on_one_side_of_the_split():
    """Features that name the group, and labels of groups: held-out groups are unknown, so the majority is as good."""
    groups = np.repeat(np.arange(20), 10)
    labels = [str(group % 2) for group in groups]
    features = {"group": np.eye(20)[groups]}
    assert probe(features, labels).accuracies["group"].value == 1
    found = probe(features, labels, groups.tolist())
    assert found.held_out == 50
    assert found.accuracies["group"].value < 0.9


def test_a_share_of_the_groups_of_every_label_is_held_out():
    labels = ["often"] * 40 + ["rare"] * 4 + ["two"] * 4
    groups = [*range(40), *range(40, 44), 44, 44, 45, 45]
    for seed in range(5):
        chosen = held_out_of_labels(labels, groups, 0.25, seed)
        assert (chosen[:40].sum(), chosen[40:44].sum(), chosen[44:].sum()) == (10, 1, 2)
        assert chosen[44] == chosen[45] != chosen[46] == chosen[47]
    assert (chosen != held_out_of_labels(labels, groups, 0.25, 0)).any()
    with pytest.raises(DataError, match="label 'b' has too few examples: 1 that differ"):
        held_out_of_labels(["a", "a", "b", "b"], [0, 1, 2, 2])


def test_examples_that_count_can_be_named():
    planted, _, labels = examples()
    found = probe({"planted": planted}, labels, held_out=np.arange(len(labels)) >= 300)
    wrong = [*labels[:300], *(f"label {(int(label[-1]) + 1) % 3}" for label in labels[300:])]
    assert found.accuracies["planted"].value == 1
    assert probe({"planted": planted}, wrong, held_out=np.arange(len(labels)) >= 300).accuracies["planted"].value == 0


def test_intervals_are_wilsons():
    right = np.arange(10) < 8
    # Wilson's interval of 8 of 10, and with 10 groups of three equal examples.
    for repeats in (1, 3):
        found = accuracy(np.repeat(right, repeats), np.repeat(np.arange(10), repeats))
        # The variance of the sample has n - 1 in its denominator, so 10 equal groups count as 9 examples.
        size = 9
        z, p = 1.959964, 0.8
        centre = (p + z * z / (2 * size)) / (1 + z * z / size)
        half = z / (1 + z * z / size) * np.sqrt(p * (1 - p) / size + z * z / (4 * size**2))
        assert_close([*found], [p, centre - half, centre + half])
    everything = accuracy(np.ones(30, bool), np.repeat(np.arange(10), 3))
    assert_close([*everything], [1, 1 / (1 + 1.959964**2 / 10), 1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "ids", "mask"), [("encoder", "inputs", "inputs_mask"), ("decoder", "decoder_inputs", "targets_mask")]
)
def test_states_of_texts_are_means_and_last_tokens_of_the_streams(stack, ids, mask):
    config = tiny(architecture=f"{stack}_only")
    batch = {ids: make_batch(rows=2)["inputs"], mask: jnp.asarray(np.arange(7) < np.array([[7], [4]]))}
    params = random_params(config)
    names = [f"{stack}/embedding", f"{stack}/0/feed_forward/stream", f"{stack}/1/feed_forward/stream"]
    read = run_with(config, params, batch, names).places
    means, lasts = text_states(config, params, batch), text_states(config, params, batch, "last")
    assert [*means] == [*lasts] == names
    for name in names:
        stream = np.asarray(read[name])
        assert_close(means[name], np.stack([stream[0].mean(0), stream[1, :4].mean(0)]))
        assert_close(lasts[name], np.stack([stream[0, 6], stream[1, 3]]))


FEATURES = {"x": np.zeros((4, 2))}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: probe(FEATURES, ["a", "b"]), DataError, "'x' has 4 examples, but there are 2 labels"),
        (lambda: probe(FEATURES, list("abab"), [1]), DataError, "'groups' has 1 examples"),
        (lambda: probe(FEATURES, list("abab"), types=["a"]), DataError, "'types' has 1 examples"),
        (lambda: probe({"x": np.full((4, 2), np.nan)}, list("abab")), DataError, "'x' has features that are not"),
        (lambda: probe(FEATURES, list("aaaa")), DataError, "one label alone"),
        (lambda: probe(FEATURES, list("abab"), [1, 1, 1, 1]), DataError, "1 groups of examples"),
        (lambda: probe(FEATURES, list("abab"), held_out=1.0), ConfigError, "held_out=1.0: expected a share"),
        (lambda: probe(FEATURES, list("abab"), held_out=np.ones(3, bool)), DataError, "'held_out' has 3 examples"),
        (lambda: probe(FEATURES, list("abab"), held_out=np.zeros(4, bool)), DataError, "0 of 4 examples count"),
        (lambda: probe(FEATURES, list("abab"), l2=0.0), ConfigError, "l2=0.0: expected more than 0"),
        (lambda: text_states(tiny(), {}, make_batch(), "sum"), ConfigError, "pooling=sum: expected one of first"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
