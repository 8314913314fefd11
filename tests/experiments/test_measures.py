"""The measures of the studies in experiments/."""

import csv
import dataclasses
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from data_support import EOS_ID, PAD_ID, encoded_pairs
from labelled_support import config as labelled_config
from labelled_support import data_of
from matplotlib.figure import Figure
from support import as_batch, random_params, tiny

from experiments.activations import narang
from experiments.architectures import by_length
from experiments.attention_scale import softmax
from experiments.first_batch import first_batch
from experiments.length_extrapolation.by_position import loss_by_position
from experiments.model_size.law import Point, fit
from experiments.norm_placement import gradient_norms as gradients
from experiments.norm_placement import study as norm_placement
from experiments.norm_placement.gradient_norms import Row, gradient_norms, slope
from experiments.normalisation import mismatch
from experiments.order import permuted
from experiments.parallelism import cost, tables
from experiments.positions.order import loss_of_shuffled_sources, shuffled
from experiments.windows.reach import reach_by_gradient
from transformer_jax.config import DataConfig, EvaluationConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.tasks.metrics.cross_entropy import cross_entropy
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state

MODEL = ModelConfig(
    vocab_size=32, emb_dim=16, num_heads=2, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=2, dropout_rate=0.0
).resolved()
BATCH = as_batch(
    inputs=np.array([[5, 6, 7, EOS_ID], [8, 9, EOS_ID, PAD_ID]], np.int32),
    targets=np.array([[4, 5, EOS_ID], [6, EOS_ID, PAD_ID]], np.int32),
)


@pytest.mark.slow
def test_gradient_norms_are_those_of_finite_differences():
    """In the direction of the gradient the loss rises by the norm."""
    batch = jax.device_put(BATCH)
    params = init_params(MODEL, 3)

    def loss(kernel):
        out = params["decoder"]["layers"]["feed_forward"]["out"] | {"kernel": kernel}
        layers = params["decoder"]["layers"]
        layers = layers | {"feed_forward": layers["feed_forward"] | {"out": out}}
        logits = EncoderDecoder(MODEL).apply(
            {"params": params | {"decoder": params["decoder"] | {"layers": layers}}}, batch
        )
        sums = cross_entropy(logits, batch["targets"], batch["weights"], 0.1)
        return sums["loss"] / sums["weight"]

    kernel = params["decoder"]["layers"]["feed_forward"]["out"]["kernel"]
    gradient = jax.grad(loss)(kernel)
    found = gradient_norms(MODEL, BATCH, 3)
    assert found["encoder"].shape == (1,)
    for layer in range(2):
        only = jnp.zeros_like(gradient).at[layer].set(gradient[layer])
        direction = only / jnp.linalg.norm(only)
        rise = (loss(kernel + 1e-2 * direction) - loss(kernel - 1e-2 * direction)) / 2e-2
        assert float(rise) == pytest.approx(float(found["decoder"][layer]), rel=2e-2)


def test_slope_of_a_power_of_the_depth():
    rows = [Row("pre", d, s, "decoder", d, 3 * d**-0.5) for d in (2, 4, 8) for s in (0, 1)]
    rows += [Row("pre", d, 0, "decoder", 1, 100.0) for d in (2, 4, 8)]
    assert slope(rows, "pre") == pytest.approx((-0.5, 0.0), abs=1e-6)


@pytest.mark.slow
def test_gradient_norms_command(tmp_path, capsys, monkeypatch):
    """Post-LN's last-layer gradient does not change with depth, Pre-LN's falls (Xiong et al. 2020, theorem 1)."""
    rng = np.random.default_rng(0)
    texts = [
        {name: rng.integers(4, 8000, (8, 16)).astype(np.int32) for name in ("inputs", "targets")} for _ in range(2)
    ]
    monkeypatch.setattr(
        gradients, "_batches", lambda model, tokens, count: [as_batch(**text) for text in texts[:count]]
    )
    words = [f"--output={tmp_path}", "--seeds=2", "--emb_dim=32", "--depths", "1", "6"]
    assert gradients.main(words) == 0
    with (tmp_path / "gradient_norms.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 2 * 2 * (1 + 6)
    last = {
        (norm, depth): np.mean(
            [
                float(row["gradient_norm"])
                for row in rows
                if (row["norm"], row["depth"], row["layer"], row["side"]) == (norm, depth, depth, "decoder")
            ]
        )
        for norm in ("post", "pre")
        for depth in ("1", "6")
    }
    assert last["pre", "6"] < 0.7 * last["pre", "1"]
    assert last["post", "6"] > 0.7 * last["post", "1"]
    assert (tmp_path / "gradient_norms.png").stat().st_size > 1000
    assert "slope of the last layer's gradient norm against depth" in capsys.readouterr().out


@pytest.mark.slow
def test_batches_of_the_gradients_are_training_batches_of_their_vocabulary():
    model = dataclasses.replace(MODEL, vocab_size=8000, source_vocab_size=None)
    first, second = gradients._batches(model, 512, 2)
    for batch in (first, second):
        assert len(batch["inputs"]) == len(batch["targets"]) > 1
        assert all(batch[side].size <= 512 for side in ("inputs", "targets"))
        assert (batch["targets"] != PAD_ID).any(axis=1).all()
    assert max(batch["targets"].max() for batch in (first, second)) > 4000
    assert (first["targets"] != second["targets"]).any()


def uniform(params):
    """Return the parameters with zero queries of the attention to the source."""
    cross = params["decoder"]["layers"]["cross_attention"]
    cross = cross | {"query": jax.tree.map(jnp.zeros_like, cross["query"])}
    layers = params["decoder"]["layers"] | {"cross_attention": cross}
    return params | {"decoder": params["decoder"] | {"layers": layers}}


def split_of(lengths):
    """Return pairs of random tokens with lengths [pairs, 2]."""
    rng = np.random.default_rng(0)

    def ids(counts):
        rows = [[*rng.integers(4, 32, count - 1), EOS_ID] for count in counts]
        return RaggedIds(np.concatenate(rows), np.cumsum([0, *counts]))

    return encoded_pairs(*map(ids, lengths.T))


def scorer_of(config, **splits):
    return SimpleNamespace(
        loaded=SimpleNamespace(config=config.resolved()),
        evaluator=SimpleNamespace(data=SimpleNamespace(splits=splits)),
    )


@pytest.mark.slow
def test_the_gradient_of_packed_rows_equals_that_of_separate_rows():
    data = DataConfig(batching="packed", packed_length=16, max_length=16, tokens_per_batch=48, row_multiple=1)
    config = ExperimentConfig(model=MODEL, data=data)
    split = split_of(np.random.default_rng(1).integers(2, 7, (12, 2)))
    scorer = scorer_of(config, train=split)
    packed = first_batch(scorer)

    def row(side, at, segment):
        ids = packed[side][at][packed[f"{side}_segment_ids"][at] == segment]
        return np.pad(ids, (0, 16 - len(ids)), constant_values=PAD_ID)

    segments = [(at, s) for at, row in enumerate(packed["targets_segment_ids"]) for s in range(1, row.max() + 1)]
    assert len(segments) > len(packed["targets"])
    alone = as_batch(**{side: np.stack([row(side, *where) for where in segments]) for side in ("inputs", "targets")})
    expected = gradient_norms(MODEL, alone, 0)["decoder"]
    found = norm_placement.measure(scorer)
    assert [found[f"start[{layer}]/gradient_norm"] for layer in (1, 2)] == pytest.approx(expected.tolist(), rel=1e-4)
    expected = softmax.query_key_gradient_norm(MODEL, alone, 0)
    assert softmax.query_key_gradient_norm(MODEL, packed, 0) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_the_entropy_of_uniform_attention_follows_from_the_lengths_of_the_sources(monkeypatch):
    config = ExperimentConfig(
        model=MODEL,
        data=DataConfig(max_length=16, row_multiple=1),
        evaluation=EvaluationConfig(tokens_per_batch=32),
    )
    lengths = np.random.default_rng(0).integers(2, 14, (9, 2))
    scorer = scorer_of(config, test=split_of(lengths))
    found = softmax.attention_entropy(scorer, uniform(init_params(MODEL, 0)))
    assert found == pytest.approx(np.average(np.log(lengths[:, 0]), weights=lengths[:, 1]), rel=1e-5)


@pytest.mark.slow
def test_the_gradient_of_queries_and_keys_is_that_of_finite_differences():
    batch, params = jax.device_put(BATCH), init_params(MODEL, 3)

    def loss(params):
        logits = EncoderDecoder(MODEL).apply({"params": params}, batch)
        sums = cross_entropy(logits, batch["targets"], batch["weights"], None)
        return sums["loss"] / sums["weight"]

    def wanted(path, gradient):
        return gradient if {"query", "key"} & {p.key for p in path} and path[-1].key == "kernel" else 0 * gradient

    direction = jax.tree_util.tree_map_with_path(wanted, jax.grad(loss)(params))
    norm = optax.tree.norm(direction)
    there, back = (jax.tree.map(lambda p, d, s=s: p + s * d / norm, params, direction) for s in (1e-2, -1e-2))
    found = softmax.query_key_gradient_norm(MODEL, BATCH, 3)
    assert float(loss(there) - loss(back)) / 2e-2 == pytest.approx(found, rel=2e-2)


def test_shuffling_keeps_tokens_eos_and_padding():
    rng = np.random.default_rng(0)
    row = [5, 6, 7, 8, 9, EOS_ID, PAD_ID, PAD_ID]
    inputs = np.array([row, row[:1] * 4 + [EOS_ID] + [PAD_ID] * 3], np.int32)
    mixed = shuffled(inputs, inputs != PAD_ID, rng)
    assert (np.sort(mixed, axis=1) == np.sort(inputs, axis=1)).all()
    for same in (EOS_ID, PAD_ID):
        assert ((mixed == same) == (inputs == same)).all()
    assert (mixed != inputs).any()
    assert inputs[0, 0] == 5


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["none", "sinusoidal"])
def test_without_positions_the_loss_does_not_depend_on_the_order_of_the_source(encoding):
    model = dataclasses.replace(MODEL, position_encoding=encoding)
    evaluation = EvaluationConfig(tokens_per_batch=128)
    config = ExperimentConfig(model=model, data=DataConfig(max_length=16, row_multiple=8), evaluation=evaluation)
    scorer = scorer_of(config, test=split_of(np.full((8, 2), 9)))
    scorer.loaded.params = init_params(model, 0)
    found = loss_of_shuffled_sources(scorer, "test")
    assert found["shuffled/loss"] > 1
    assert (abs(found["shuffled/loss_change"]) < 1e-5) == (encoding == "none")


def test_losses_by_position_are_those_of_single_windows():
    sizes = {"vocab_size": 32, "emb_dim": 16, "num_heads": 2, "mlp_dim": 24, "num_decoder_layers": 1}
    model = ModelConfig(architecture="decoder_only", position_encoding="rotary", dropout_rate=0.0, **sizes).resolved()
    data = DataConfig(source="text", format="documents", batching="windows", max_length=4, row_multiple=2)
    task = TaskConfig(name="language_model")
    config = ExperimentConfig(model=model, task=task, data=data, evaluation=EvaluationConfig(tokens_per_batch=16))
    ids = np.random.default_rng(0).integers(4, 32, 21).astype(np.int32)
    split = EncodedSplit({"ids": RaggedIds(ids, np.array([0, 21]))}, split_of(np.array([[2, 2]])).special_ids)
    scorer, params = scorer_of(config, valid=split), random_params(model, 1)
    scorer.loaded.params = params
    module, before, nats = ARCHITECTURES["decoder_only"].module(model), model.decoder_start_id, []
    for window in np.split(ids, [8, 16]):
        read = jnp.array([[before, *window[:-1]]], jnp.int32)
        logits = module.apply({"params": params}, {"decoder_inputs": read})
        nats.append(-jax.nn.log_softmax(logits[0])[np.arange(len(window)), window])
        before = window[-1]
    found = loss_by_position(scorer, "valid", size=8, width=4)
    assert found == pytest.approx(
        {
            "size_8/loss": np.concatenate(nats).mean(),
            "size_8[1-4]/loss": np.concatenate([x[:4] for x in nats]).mean(),
            "size_8[5-8]/loss": np.concatenate([x[4:] for x in nats]).mean(),
        },
        rel=1e-5,
    )


def law_points(seed, spread):
    """Losses of six sizes and three lengths by a known law."""
    rng = np.random.default_rng(seed)
    return [
        Point(n, s, n * s, list(((5e3 / n) ** 0.2 + (30 / s) ** 0.6) * np.exp(spread * rng.normal(size=3))))
        for n in np.geomspace(5e4, 2e6, 6)
        for s in (250, 500, 1000)
    ]


def test_a_law_of_size_and_length_is_recovered_with_its_uncertainty():
    exact = fit(law_points(0, 0.0))
    assert (exact.alpha_n, exact.alpha_s, exact.share) == pytest.approx((0.2, 0.6, 0.75), rel=1e-5)
    assert (np.exp(exact.log_n_c), np.exp(exact.log_s_c)) == pytest.approx((5e3, 30), rel=1e-4)
    assert exact.loss(1e5, 400) == pytest.approx((5e3 / 1e5) ** 0.2 + (30 / 400) ** 0.6)
    laws = [fit(law_points(seed, 0.005)) for seed in range(200)]
    for error, half_width in (
        ([law.alpha_n - 0.2 for law in laws], [law.alpha_n_half_width for law in laws]),
        ([law.alpha_s - 0.6 for law in laws], [law.alpha_s_half_width for law in laws]),
        ([law.share - 0.75 for law in laws], [law.share_half_width for law in laws]),
    ):
        assert 0.9 <= np.mean(np.abs(error) <= half_width) <= 0.99


def test_a_law_of_size_and_length_needs_its_points():
    points = law_points(0, 0.0)
    for too_few in (points[:4], [p for p in points if p.steps == 500], [p for p in points if p.parameters < 2e5][:6]):
        with pytest.raises(ValueError, match="three sizes and two lengths"):
            fit(too_few)


WORDS = np.array([[5, 6, 7, EOS_ID, PAD_ID], [8, 9, 10, 11, EOS_ID]], np.int32)


def test_orders_keep_eos_and_padding():
    mask, rng = WORDS != PAD_ID, np.random.default_rng(0)
    swapped = permuted.orders(mask, permuted.first_and_third_swapped, rng)
    assert swapped.tolist() == [[2, 1, 0, 3, 4], [2, 1, 0, 3, 4]]
    shuffled_places = np.stack([permuted.orders(mask, permuted.shuffled, rng) for _ in range(40)])
    assert {tuple(row[:3]) for row in shuffled_places[:, 0].tolist()} == set(itertools.permutations(range(3)))
    assert (shuffled_places[:, 0, 3:] == [3, 4]).all()
    assert (np.sort(shuffled_places[:, 1]) == np.arange(5)).all()
    assert (shuffled_places[:, 1, 4] == 4).all()


def test_distances_are_those_of_the_same_token():
    before = np.array([[[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]]])
    after = before[:, [1, 0, 2]] + np.array([[[0.0, 1.0], [3.0, 4.0], [0.0, 0.0]]])
    assert permuted.distances(before, after, np.array([[1, 0, 2]])).tolist() == [[0.5, 1.0, 0.0]]
    assert permuted.distances_to_next(before) == pytest.approx(np.array([[np.hypot(3, 2) / 5, np.hypot(1, 2) / 2]]))


@pytest.mark.slow
def test_outputs_move_only_where_the_model_knows_the_order():
    """Not at all without positions, and of an LSTM that reads forwards, not those before the first change."""
    mask, rng = WORDS != PAD_ID, np.random.default_rng(0)
    places = permuted.orders(mask, lambda count, _: np.array([0, 2, 1, 3])[:count], rng)
    batch = {"inputs": WORDS, "inputs_mask": mask}
    moved = {"inputs": np.take_along_axis(WORDS, places, axis=1), "inputs_mask": mask}
    found = {}
    lstm = {"architecture": "recurrent", "num_encoder_layers": 2, "attention": "dot"}
    for name, fields in (
        ("none", {"position_encoding": "none"}),
        ("rotary", {"position_encoding": "rotary"}),
        ("lstm", lstm),
        ("two_way", lstm | {"bidirectional": True, "attention": "general", "bridge": "tanh"}),
    ):
        shared = {"vocab_size": 32, "emb_dim": 16, "num_decoder_layers": 2, "dropout_rate": 0.0}
        heads = {} if "architecture" in fields else {"num_heads": 2, "mlp_dim": 24}
        model = ModelConfig(**shared | heads | fields).resolved()
        params = init_params(model, 0)
        before, after = (permuted.encoder_outputs(model, params, one) for one in (batch, moved))
        found[name] = permuted.distances(before, after, places)[mask]
    assert found["none"].max() < 1e-5
    for name in ("rotary", "two_way"):
        assert found[name].min() > 1e-3, name
    assert (found["lstm"] == 0).tolist() == [True, False, False, False, True, False, False, False, False]


def test_exponents_are_fitted_in_every_turn():
    """Seconds of a fixed overhead and a power: the slope of the longest lengths is nearer to the power."""
    lengths, powers = (8, 64, 512, 4096), {"transformer": 2.0, "lstm": 1.0}
    rows = [
        tables.Row(turn, "token", name, length, (turn + 1) * length ** (power + 0.1 * turn) + 1e-9)
        for turn in range(3)
        for name, power in powers.items()
        for length in lengths
    ]
    for name, power in powers.items():
        found = tables.exponent(rows, "token", name)
        assert found.mean == pytest.approx(power + 0.1)
        assert found.half_width == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-5)  # Student's t, 2 degrees
        overhead = [row._replace(seconds=row.seconds + 1e3) for row in rows]
        assert tables.exponent(overhead, "token", name).mean < tables.exponent(overhead, "token", name, 64).mean
    assert tables.ratio(rows, "token", 64).mean == pytest.approx(1 / 64)
    negative = [rows[0]._replace(seconds=-1.0), *rows[1:]]
    assert np.isnan(tables.exponent(negative, "token", "transformer").mean)
    assert tables.exponent(negative, "token", "lstm") == tables.exponent(rows, "token", "lstm")


@pytest.mark.slow
def test_both_models_have_equally_many_parameters():
    transformer = cost.transformer(16, 1, 33)
    lstm = cost.equal_lstm(transformer)
    wanted = tables.num_params(transformer)
    assert wanted == sum(leaf.size for leaf in jax.tree.leaves(init_params(transformer, 0)))
    errors = [
        abs(tables.num_params(dataclasses.replace(lstm, emb_dim=w, hidden_dim=w)) - wanted)
        for w in range(lstm.emb_dim - 1, lstm.emb_dim + 2)
    ]
    assert min(errors) == errors[1] < 0.05 * wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", tables.MODELS)
def test_a_sample_is_a_training_step_or_a_token(monkeypatch, name):
    """With the loss or the number of tokens in place of the seconds: losses fall, and seven tokens follow the first."""

    def timed(run):
        result = run()
        return result if isinstance(result, float) else float(result.lengths.min())

    monkeypatch.setattr(cost, "timed", timed)
    first = cost.transformer(16, 1, 9)
    models = {tables.TRANSFORMER: first, tables.LSTM: cost.equal_lstm(first)}
    setting = tables.Setting(models, (2, 4, 8), rows=2, tokens=24)
    for what in (tables.STEP_OF_ROWS, tables.STEP_OF_TOKENS):
        step = cost.sampler(setting, what, name, 8)
        assert np.log(first.vocab_size) + 1 > step() > step() > 0
    assert cost.sampler(setting, tables.TOKEN, name, 8)() == 1


def test_costs_by_length_command(tmp_path, monkeypatch, capsys):
    """Its page has the exponents of the times: 2 for the Transformer, 1 for the LSTM."""
    powers = {tables.TRANSFORMER: 2, tables.LSTM: 1}
    monkeypatch.setattr(cost, "sampler", lambda _, what, name, length: lambda: 1e-3 * length ** powers[name])
    words = [f"--output={tmp_path}", "--lengths", "4", "8", "16", "--tokens=32", "--turns=2", "--least=0"]
    assert cost.main([*words, "--emb_dim=16", "--num_layers=1"]) == 0
    with (tmp_path / "seconds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * 2 * 3
    assert {row["cost"] for row in rows} == set(tables.COSTS)
    page = (tmp_path / "report.md").read_text()
    assert page.startswith("# How does the time")
    assert capsys.readouterr().out.strip() in page
    for what in ("training step, 2 rows", "training step, 32 tokens", "decoded token, 2 rows"):
        assert f"| {what}: Transformer, ms | 16.00 ± 0.00 | 64.00 ± 0.00 | 256.0 ± 0.0 | 2.000 ± 0.000 |" in page
        assert f"| {what}: LSTM, ms | 4.000 ± 0.000 | 8.000 ± 0.000 | 16.00 ± 0.00 | 1.0000 ± 0.0000 |" in page
        assert f"| {what}: LSTM / Transformer | 0.2500 ± 0.0000 | 0.1250 ± 0.0000 | 0.06250 ± 0.00000 |" in page
    assert (tmp_path / "seconds.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lengths", "4", "8"], "--lengths=4 8: expected three or more lengths"),
        (["--lengths", "1", "8", "9"], "from 2 tokens on"),
        (["--lengths", "4", "8", "64", "--tokens=32"], "--tokens=32: expected at least the greatest length, 64"),
    ],
)
def test_costs_by_length_refuses(tmp_path, capsys, flags, message):
    with pytest.raises(SystemExit):
        cost.main([f"--output={tmp_path}", *flags])
    assert message in capsys.readouterr().err


def test_scores_by_length_are_drawn_over_both_splits():
    """A bin of few pairs is left out; the lines of the two splits have different ends."""

    def trial(score):
        scores = {"test[1-8]": 95, "test[9-16]": 50, "test[17-24]": 3, "test_longer[17-24]": 20}
        metrics = {f"{name}/pairs": float(pairs) for name, pairs in scores.items()}
        metrics |= {f"{name}/sacrebleu": score - at for at, name in enumerate(scores)}
        return SimpleNamespace(status="finished", metrics=metrics)

    def variant(name, *trials):
        values = lambda metric: {seed: trial.metrics[metric] for seed, trial in enumerate(trials)}  # noqa: E731
        return SimpleNamespace(labels={"model": name}, short_name=name, trials=trials, values=values)

    without = SimpleNamespace(status="diverged", metrics={})
    variants = [variant("decoder", without), variant("lstm", trial(30.0), trial(40.0))]
    results = SimpleNamespace(variants=variants)
    axes = Figure().subplots()
    by_length.draw(axes, results)
    assert [container[0].get_ydata().tolist() for container in axes.containers] == [[35.0, 34.0], [32.0]]
    assert axes.containers[1][0].get_xdata()[0] > axes.containers[0][0].get_xdata()[-1]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["lstm"]
    text = by_length.described(results)
    assert "in bins of at least 20 pairs: " in text
    assert text.endswith("lstm, test, 1 to 8 tokens: 35.0; lstm, test_longer, 17 to 24 tokens: 32.0.")


def test_distances_of_running_averages():
    """Two layers of one feature: means are off by one and by two standard deviations, variances by 1 and by e."""
    sums = {
        "weight": np.array([4.0, 2.0]),
        "mean": np.array([[4 * 5.0], [2 * 5.0]]),
        "variance": np.array([[16.0], [8.0]]),
    }
    running = {"running_mean": np.array([[3.0], [9.0]]), "running_variance": np.array([[4.0], [4.0 / np.e]])}
    [(mean, variance)] = mismatch._distances({"encoder": {"norm": sums}}, {"encoder": {"norm": running}}, 1e-6)
    assert mean == pytest.approx((1 + 2 * np.exp(0.5)) / 2, rel=1e-5)
    assert variance == pytest.approx(0.5)
    empty = {**sums, "weight": np.array([4.0, 0.0])}
    assert mismatch._distances({"norm": empty}, {"norm": running}, 1e-6) == []


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layernorm", "batchnorm"])
def test_losses_by_length_and_the_cost_of_running_averages(norm, tmp_path):
    config = labelled_config("tagging", model={"norm": norm})
    state = init_state(*split(config))
    evaluator = Evaluator(config, data_of(config, tmp_path))
    scorer = SimpleNamespace(loaded=SimpleNamespace(config=config, params=state.evaluated), evaluator=evaluator)
    found = mismatch.losses_by_length(scorer, ("valid",), width=4)
    bins = {name.partition("/")[0] for name in found}
    assert bins == {"valid[1-4]", "valid[5-8]"}  # of 4, 6 and 8 tokens
    sums = evaluator.sums(state.evaluated, "valid")
    total = sum(found[f"{name}/loss"] * found[f"{name}/words"] for name in bins)
    assert total == pytest.approx(sums["nll"], rel=1e-5)
    assert sum(found[f"{name}/words"] for name in bins) == sums["weight"]
    cost = mismatch.statistics_mismatch(scorer, "valid", num_batches=2)
    assert (cost["mismatch/loss"] == 0) == (norm == "layernorm")
    assert ("mismatch/mean" in cost) == ("mismatch/variance" in cost) == (norm == "batchnorm")


@pytest.mark.parametrize(("window", "layers", "expected"), [(3, 2, 4), (4, 3, 9), (None, 2, 11)])
def test_layers_with_windows_reach_so_many_times_their_width(window, layers, expected):
    """L (w - 1) tokens, and without a window the whole row of 12."""
    fields = {"architecture": "decoder_only", "num_decoder_layers": layers, "tie_output": False, "scan_layers": True}
    config = tiny(attention_window=window, **fields)
    assert reach_by_gradient(config, random_params(config), 12) == expected


@pytest.mark.slow
def test_the_reach_is_exact_where_the_batched_backward_pass_of_jax_is_not():
    """64 places of width 64, as in the study."""
    fields = {"architecture": "decoder_only", "norm_position": "pre", "tie_output": False, "max_length": 64}
    config = tiny(attention_window=4, emb_dim=64, vocab_size=40, **fields)
    assert reach_by_gradient(config, random_params(config), 64) == 6


def test_the_rank_correlation_with_narang_is_spearmans_over_the_activations_that_both_have():
    # Theirs: swiglu 1.789 < geglu 1.792 < relu 1.838 < sigmoid 1.867; here the first two change places.
    orders = {"geglu": 1.0, "swiglu": 1.1, "relu": 1.2, "sigmoid": 1.3, "relu2": 0.5}
    losses = {name: dict.fromkeys(range(3), loss) for name, loss in orders.items()}
    found = narang.ranked(losses)
    assert found is not None
    assert found.names == ("relu", "geglu", "swiglu", "sigmoid")
    assert found.correlation == pytest.approx(1 - 6 * 2 / (4 * 15))  # Spearman 1904: 1 - 6 sum d^2 / (n (n^2 - 1))
    assert (found.low, found.high) == pytest.approx((found.correlation, found.correlation))


def test_the_interval_of_the_rank_correlation_is_over_seeds():
    losses = {"swiglu": {0: 1.0, 1: 3.5}, "relu": {0: 2.0, 1: 2.0}, "sigmoid": {0: 3.0, 1: 1.2}}
    found = narang.ranked(losses)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((-1.0, 1.0))


@pytest.mark.parametrize("losses", [{}, {"relu": {0: 1.0}, "gelu": {0: 1.0}}, {"relu": {}, "gelu": {}, "glu": {}}])
def test_too_few_activations_have_no_rank_correlation(losses):
    assert narang.ranked(losses) is None
