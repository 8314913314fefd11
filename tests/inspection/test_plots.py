"""Plotted positions and schedules equal those of models and training."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, random_params, tiny

from transformer_jax.config import ExperimentConfig, OptimizerConfig, TrainingConfig
from transformer_jax.inspection.plots import schedule
from transformer_jax.inspection.positions import (
    learned_tables,
    relative_biases,
    rotary_table,
    similarity_by_distance,
    sinusoid_table,
    table_figure,
    write_positions,
)
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.positions import rotary


def test_inner_products_of_sinusoids_by_distance():
    """sum_i cos(d / 10000^(2i/D)), which is D / 2 at distance 0."""
    config = tiny(max_length=40, emb_dim=16)
    distances = np.arange(-39, 40)
    rates = 10_000.0 ** (-np.arange(0, 16, 2) / 16)
    expected = np.cos(distances[:, None] * rates).sum(-1) / 8
    assert_close(similarity_by_distance(sinusoid_table(config)), expected)


def test_inner_products_of_rotated_vectors_by_distance():
    config = tiny(max_length=30, head_dim=8, rotary_base=100.0, position_encoding="rotary")
    expected = np.cos(np.arange(-29, 30)[:, None] * 100.0 ** (-np.arange(0, 8, 2) / 8)).mean(-1)
    assert_close(similarity_by_distance(rotary_table(config)), expected)
    query, key = jnp.tile(jnp.array([1.0, 0.0]), 4), jnp.tile(jnp.array([1.0, 0.0]), 4)
    at = [rotary(x[None, None, None], jnp.array([[p]]), 100.0)[0, 0, 0] for x, p in ((query, 3), (key, 10))]
    assert float(at[0] @ at[1]) / 4 == pytest.approx(expected[29 + 7], abs=1e-5)


def test_similarity_is_the_mean_over_pairs():
    table = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    # Distance 1: 0 and 0; distance 2: 3; squared norms 1, 4, 9.
    assert_close(similarity_by_distance(table), np.array([3, 0, 14 / 3, 0, 3]) / (14 / 3))


def test_learned_tables_are_those_of_the_parameters():
    params = random_params(tiny(position_encoding="learned"))
    tables = learned_tables(params)
    for stack, table in tables.items():
        np.testing.assert_array_equal(table, params[stack]["position_embedding"]["learned"]["embedding"])
    assert not np.array_equal(tables["encoder"], tables["decoder"])


@pytest.mark.slow
def test_relative_biases_are_those_of_the_model():
    config = tiny(position_encoding="relative", max_length=9)
    params = random_params(config)
    biases = relative_biases(config, params)
    positions = jnp.arange(9)[None]

    def of(stack):
        return lambda module: getattr(module, stack)._bias(positions, positions)

    for stack in ("encoder", "decoder"):
        bias = np.asarray(EncoderDecoder(config).apply({"params": params}, method=of(stack)))[0]
        for query in range(9):
            for key in range(9):
                actual = biases[stack][8 + key - query]
                if stack == "decoder" and key > query:
                    assert np.isnan(actual).all()
                else:
                    np.testing.assert_allclose(actual, bias[:, query, key], rtol=1e-6)


def config_of(steps, **optimizer):
    return ExperimentConfig(
        model=tiny(), optimizer=OptimizerConfig(**optimizer), training=TrainingConfig(num_train_steps=steps)
    ).resolved()


def test_the_schedule_of_the_paper():
    steps, rates = schedule(config_of(10_000, warmup_steps=4000))
    assert (steps[0], steps[-1], len(steps) <= 2001) == (1, 10_000, True)
    assert 4000 in steps
    s = steps.astype(np.float64)
    assert_close(rates / rates.max(), np.minimum(s**-0.5, s * 4000**-1.5) / 4000**-0.5)
    assert rates.max() == pytest.approx(16**-0.5 * 4000**-0.5, rel=1e-5)


@pytest.mark.parametrize("name", ["none", "constant", "cosine", "linear"])
def test_a_schedule_of_few_steps_is_plotted_at_every_step(name):
    warmup = 0 if name == "none" else 3
    steps, rates = schedule(config_of(7, schedule=name, learning_rate=0.5, warmup_steps=warmup))
    assert steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert rates.shape == (7,)
    assert rates.max() == pytest.approx(0.5)
    assert (rates[0] < 0.5) == (name != "none")


FILES = {
    "sinusoidal": (["positions_sinusoidal.png"], []),
    "rotary": (["positions_rotary.png"], []),
    "relative": (["positions_relative_buckets.png"], ["positions_relative_biases.png"]),
    "learned": ([], ["positions_learned.png"]),
    "none": ([], []),
}


@pytest.mark.slow
@pytest.mark.parametrize("encoding", FILES)
def test_files_of_every_position_encoding(encoding, tmp_path):
    without, more = FILES[encoding]
    config = tiny(position_encoding=encoding)
    for params, expected in ((None, without), (random_params(config), [*without, *more])):
        files = write_positions(config, params, tmp_path)
        assert sorted(path.name for path in files) == sorted(expected)
        for path in files:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_a_table_of_equal_rows_can_be_drawn():
    figure = table_figure({"equal": np.array([[1.0, 0.0, 0.0, 0.0]] * 3)})
    left, right, _ = figure.axes
    assert left.images[0].get_clim() == (-1, 1)
    np.testing.assert_array_equal(right.lines[0].get_ydata(), np.ones(5))
