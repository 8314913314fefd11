"""Numbers of parameters that are not finite are counted and named, whatever the type and the layout."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from transformer_jax.checkpoints import finite
from transformer_jax.checkpoints.finite import check_finite
from transformer_jax.errors import CheckpointError

TYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray, lambda x: np.asfortranarray(x), lambda x: x[::-1, ::-1]])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_counts_and_places_equal_those_of_numpy(dtype, convert, wrong, monkeypatch):
    monkeypatch.setattr(finite, "_BLOCK", 7)  # several blocks
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(5, 9)).astype(dtype)
        x[0, 0], x[1, 1], x[2, 2] = ml_dtypes.finfo(dtype).max, ml_dtypes.finfo(dtype).min, 0
        check_finite({"a": convert(x), "b": convert(-x)}, "f")
        x[2, 3] = x[4, 8] = wrong
        given = convert(x)
        first = [int(index[0]) for index in np.nonzero(~np.isfinite(np.asarray(given, np.float64)))]
        with pytest.raises(CheckpointError, match=rf"^f: .*: b: 2 of 45 numbers, the first is -?(nan|inf) at \{first}"):
            check_finite({"a": np.zeros(3), "b": given}, "f")


def test_integers_scalars_and_empty_arrays_are_finite():
    check_finite({"a": np.arange(3), "b": jnp.arange(3), "c": np.zeros((0, 3), np.float32), "d": np.float32(1)}, "f")
    with pytest.raises(CheckpointError, match=r"a: 1 of 1 numbers, the first is nan at \[\]"):
        check_finite({"a": np.array(np.nan)}, "f")


def test_only_the_first_arrays_are_named():
    with pytest.raises(CheckpointError, match=r"x4: .*; and 3 arrays more; use another checkpoint") as raised:
        check_finite({f"x{i}": np.array([np.nan]) for i in range(8)}, "f")
    assert "x5" not in str(raised.value)


def test_an_accelerator_looks_first():
    for wrong in (jnp.nan, jnp.inf, -jnp.inf):
        assert not finite._all_finite(np.where(np.arange(16) == 6, np.float32(wrong), np.float32(1)))
    assert finite._all_finite(jnp.ones(3, jnp.bfloat16))
