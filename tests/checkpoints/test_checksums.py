import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.checkpoints import checksums as checksums_module
from transformer_jax.checkpoints.checksums import (
    DTYPES,
    as_arrays,
    by_path,
    checksum,
    checksum_on_host,
    checksums,
)
from transformer_jax.errors import CheckpointError

MASK = 0xFFFFFFFF


def mix_of(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)


def oracle(x: np.ndarray) -> int:
    """The definition, word by word, in Python integers."""
    size = min(x.dtype.itemsize, 4)
    data = np.ascontiguousarray(x).tobytes()
    words = [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]
    return sum(mix_of(word ^ mix_of(i)) for i, word in enumerate(words)) & MASK


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    data = np.random.default_rng(0).bytes(int(np.prod(shape)) * jnp.dtype(dtype).itemsize)
    if dtype == "bool":
        data = bytes(b & 1 for b in data)
    return np.frombuffer(data, jnp.dtype(dtype)).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_definition_for_every_dtype_and_rank(dtype):
    with jax.enable_x64(dtype.endswith("64")):
        for shape in [(), (2, 3, 5)]:
            x = random_array(dtype, shape)
            assert jnp.asarray(x).dtype == x.dtype
            assert int(checksum(jnp.asarray(x))) == oracle(x), shape
            assert checksum_on_host(x) == oracle(x), shape


def test_on_host_in_blocks_as_in_one(monkeypatch):
    x = random_array("float32", (1000,))
    whole = checksum_on_host(x)
    for block in (1, 7, 999, 1000, 1001):
        monkeypatch.setattr(checksums_module, "_BLOCK", block)
        assert checksum_on_host(x) == whole == oracle(x)


def test_on_host_in_any_memory_layout():
    x = random_array("float32", (6, 10))
    for view in (x.T, x[::2, ::3], x[::-1]):
        assert checksum_on_host(view) == oracle(view) == int(checksum(jnp.asarray(view)))


def test_summed_arrays_can_be_donated_and_deleted():
    """A kept NumPy view of a buffer would make the next training step allocate a new one."""
    x = jnp.arange(1000.0)
    checksums({"x": x})
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()


def test_never_changes_between_versions_of_this_project():
    """Checkpoints contain these numbers. If this fails, old checkpoints count as damaged: undo the change."""
    assert int(checksum(jnp.arange(10, dtype=jnp.float32))) == 0x30006F6F
    assert int(checksum(jnp.arange(10, dtype=jnp.bfloat16).reshape(5, 2))) == 0xC4350D1D
    assert int(checksum(jnp.array([True, False]))) == 0xC17EDA35


def test_every_flipped_bit_changes_it():
    x = np.array([0.0, 1.0, -2.5, np.nan], np.float32)
    seen = {int(checksum(jnp.asarray(x)))}
    for element in range(4):
        for bit in range(32):
            words = x.view(np.uint32).copy()
            words[element] ^= np.uint32(1 << bit)
            seen.add(int(checksum(jnp.asarray(words.view(np.float32)))))
    assert len(seen) == 1 + 4 * 32


def test_distinguishes_order_zeros_and_the_sign_of_zero():
    variants = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 1.0, 2.0], [1.0, 2.0, -0.0], [0.0, 0.0, 0.0], [0.0, 0.0]]
    assert len({int(checksum(jnp.array(v, jnp.float32))) for v in variants}) == len(variants)


def test_is_row_major_like_the_memory_of_numpy():
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    assert int(checksum(jnp.asarray(x))) == int(checksum(jnp.asarray(x.ravel())))
    assert int(checksum(jnp.asarray(x.T))) == oracle(x.T) != oracle(x)


def test_paths_name_fields_keys_and_positions(template):
    paths = list(by_path(template))
    assert "step" in paths
    assert "params/encoder/kernel" in paths
    assert "opt_state/0/1/0/mu/decoder/kernel" in paths


def test_two_leaves_with_one_path_are_refused():
    with pytest.raises(CheckpointError, match="share a path"):
        by_path({"a/b": jnp.zeros(1), "a": {"b": jnp.zeros(1)}})


def test_checksums_are_keyed_by_path():
    tree = {"a": {"x": jnp.arange(3)}, "b": jnp.arange(4)}
    sums = checksums(by_path(tree))
    assert sums == {"a/x": oracle(np.arange(3, dtype=np.int32)), "b": oracle(np.arange(4, dtype=np.int32))}


def test_all_unstorable_leaves_are_reported_at_once():
    state = {
        "count": 3,
        "key": jax.random.key(0),
        "wide": np.zeros(2, np.float64),
        "empty": jnp.zeros((0, 3)),
        "complex": jnp.zeros(2, jnp.complex64),
        "fine": np.zeros(2, np.float32),
    }
    with pytest.raises(CheckpointError) as caught:
        as_arrays(state)
    message = str(caught.value)
    for expected in (
        "count: expected an array, got int",
        "key: dtype key<fry>",
        "wide: dtype float64 needs jax_enable_x64",
        "empty: shape (0, 3) has no elements",
        "complex: dtype complex64",
    ):
        assert expected in message
    assert "fine" not in message


def test_numpy_leaves_become_arrays():
    arrays = as_arrays({"x": np.arange(3, dtype=np.int16)})
    assert isinstance(arrays["x"], jax.Array)
    assert arrays["x"].dtype == jnp.int16


PLACES = [
    [(slice(0, 2), slice(0, 6), slice(0, 4)), (slice(2, 5), slice(0, 6), slice(0, 4))],
    [(slice(0, 5), slice(0, 3), slice(0, 4)), (slice(0, 5), slice(3, 6), slice(0, 4))],
    [(slice(a, a + 1), slice(b, b + 2), slice(c, c + 2)) for a in range(5) for b in (0, 2, 4) for c in (0, 2)],
    [(slice(None), slice(None), slice(0, 1)), (slice(None), slice(None), slice(1, None))],
]


@pytest.mark.parametrize("places", PLACES, ids=len)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int8", "uint16", "float64", "int64"])
def test_parts_add_up_to_the_whole(dtype, places):
    values = np.random.default_rng(0).integers(0, 200, (5, 6, 4)).astype(jnp.dtype(dtype))
    parts = [checksum_on_host(values[place], place, values.shape) for place in places]
    assert sum(parts) % 2**32 == checksum_on_host(values)
    elsewhere = [checksum_on_host(values[place], places[0], values.shape) for place in places[:1] * len(places)]
    assert sum(elsewhere) % 2**32 != checksum_on_host(values)
