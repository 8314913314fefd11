"""The source and the gradients of the study long_range."""

import dataclasses

import numpy as np
import pytest
from support import random_params

from experiments.long_range.copying import Copying, recalled, row_length
from experiments.long_range.gradients import gradient_norms
from transformer_jax.config import DataConfig, ModelConfig
from transformer_jax.errors import ConfigError, DataError

DATA = DataConfig(max_length=row_length(7), num_train_pairs=300, num_eval_pairs=20)


def test_a_row_has_symbols_then_blanks_and_the_target_has_the_symbols():
    source = Copying(DATA)
    assert source.split_names == ("train", "valid", "test")
    for name, count in (("train", 300), ("valid", 20), ("test", 20)):
        split = source.split(name)
        assert split.num_examples == source.num_examples(name) == count
        for line, target in zip(split.features["inputs"], split.features["targets"], strict=True):
            assert line == target + " _" * 7
            assert len(line.split()) + 1 + len(target.split()) + 1 == DATA.max_length
            assert {*target.split()} <= {*"abcdefgh"}
    targets = [target for name in source.split_names for target in source.split(name).features["targets"]]
    assert len({*targets}) == len(targets)
    assert [part.num_examples for part in source.chunks("train", 200)] == [200, 100]


def test_the_gap_is_part_of_the_fingerprint():
    of = {Copying(dataclasses.replace(DATA, max_length=n)).fingerprint()["sha256"] for n in (20, 21)}
    assert len(of) == 2
    assert Copying(DATA).fingerprint() == Copying(DATA).fingerprint()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_length": row_length(0)}, r"data\.max_length=12: a row of 5 symbols and one blank has 13 tokens"),
        ({"num_train_pairs": 40_000}, r"data\.num_train_pairs=40000 .* more than 32,768"),
    ],
)
def test_rows_that_cannot_be(fields, message):
    with pytest.raises(ConfigError, match=message):
        Copying(dataclasses.replace(DATA, **fields))


def test_an_unknown_split():
    with pytest.raises(DataError, match="no split 'tset'; there are train, valid, test"):
        Copying(DATA).split("tset")


def test_symbols_are_recalled_at_their_places():
    assert recalled(["a b c", "", "a a b c"], ["a b d", "a a a", "a b c"]) == pytest.approx(100 * 3 / 9)


def test_gradients_are_the_norms_of_an_rnns_jacobians():
    """With h = tanh(W e + U h + b): dh_T / de_t = D_T U D_T-1 U ... D_t W, D = diag(1 - h^2)."""
    model = ModelConfig(
        architecture="recurrent",
        cell="rnn",
        num_encoder_layers=0,
        num_decoder_layers=1,
        vocab_size=16,
        emb_dim=4,
        hidden_dim=3,
        tie_output=False,
        scale_embeddings=False,
        dropout_rate=0.0,
    ).resolved()
    params = random_params(model, 2)
    ids = np.array([[3, 5, 5, 9], [1, 2, 12, 7]], np.int32)
    (cell,) = params["decoder"].values()
    w, u = (np.asarray(cell[name]["kernel"], np.float64)[:, 0].T for name in ("input", "state"))
    table, bias = np.asarray(params["embedding"]["embedding"], np.float64), np.asarray(cell["input"]["bias"])[0]
    squares = np.zeros(4)
    for row in ids:
        h, slopes = np.zeros(3), []
        for id in row:
            h = np.tanh(w @ table[id] + u @ h + bias)
            slopes.append(np.diag(1 - h**2))
        after = np.eye(3)
        for distance, slope in enumerate(reversed(slopes)):
            squares[distance] += np.linalg.norm(after @ slope @ w) ** 2 / len(ids)
            after = after @ slope @ u
    found = gradient_norms(model, params, ids, probes=4000)
    np.testing.assert_allclose(found, np.sqrt(squares), rtol=0.05)


@pytest.mark.slow
def test_only_attention_reaches_far_at_the_start():
    """An untrained Transformer's gradient does not fall with the distance; an untrained LSTM's does."""
    from transformer_jax.models.architecture import init_params

    shape = {"vocab_size": 16, "emb_dim": 16, "num_decoder_layers": 1, "dropout_rate": 0.0}
    ids = np.random.default_rng(0).integers(4, 16, (4, 60)).astype(np.int32)
    ratios = {}
    for architecture, fields in (
        ("decoder_only", {"num_heads": 2, "mlp_dim": 16, "norm_position": "pre"}),
        ("recurrent", {"num_encoder_layers": 0}),
    ):
        model = ModelConfig(architecture=architecture, **shape, **fields).resolved()
        norms = gradient_norms(model, init_params(model, 0), ids)
        ratios[architecture] = norms[50] / norms[5]
    assert ratios["decoder_only"] > 0.2
    assert ratios["recurrent"] < 1e-3
