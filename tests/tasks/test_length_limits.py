"""Limits of the length of a text."""

import dataclasses

import numpy as np
import pytest

from transformer_jax.config import EvaluationConfig, ExperimentConfig, ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.tasks.trained.length_limits import check_lengths, position_table_rows

LEARNED = ModelConfig(position_encoding="learned", max_length=20)
SINUSOIDAL = ModelConfig(position_encoding="sinusoidal", max_length=20)


def config(model, tokens_per_batch=160):
    base = ExperimentConfig(model=model, evaluation=EvaluationConfig(tokens_per_batch=tokens_per_batch))
    return dataclasses.replace(base, data=dataclasses.replace(base.data, row_multiple=4))


def check(model, lengths, **options):
    check_lengths(config(model, **options), np.array(lengths), lambda index: f"line {7 + index}")


def test_only_a_learned_table_limits_the_length():
    assert position_table_rows(LEARNED) == 20
    for name in ("sinusoidal", "rotary", "relative", "none"):
        assert position_table_rows(dataclasses.replace(LEARNED, position_encoding=name)) is None


def test_a_learned_table_takes_as_many_tokens_as_it_has_rows():
    check(LEARNED, [1, 20])
    with pytest.raises(DataError, match=r"line 9: 21 tokens .* model\.max_length=20"):
        check(LEARNED, [1, 20, 21, 22])


def test_otherwise_the_batch_is_the_limit():
    check(SINUSOIDAL, [1, 40])
    with pytest.raises(DataError, match=r"line 8: 41 tokens .*tokens_per_batch=160 .*=4 rows of at most 40"):
        check(SINUSOIDAL, [40, 41])


def test_a_length_within_the_decoder_s_capacity_is_never_refused():
    check(SINUSOIDAL, [20], tokens_per_batch=16)
    with pytest.raises(DataError, match="line 7: 21 tokens"):
        check(SINUSOIDAL, [21], tokens_per_batch=16)


def test_no_text_is_no_problem():
    check(LEARNED, [])
