"""Position encodings: one function per value of `position_encoding`.

`none` has no function: an encoder then cannot see the order of tokens, and a decoder sees it only by the causal mask.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.nn.activation_sharding import constrain
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.initialisation import bias_table_init, table_init
from transformer_jax.registry import Parts
from transformer_jax.typing import Activations, Array, Batch, Heads, Ids, Positions

_LARGEST = 2**31 - 1
"""No distance exceeds it: positions are int32."""


def sinusoidal(positions: Int[Array, "*batch"], dim: int) -> Float[Array, "*batch D"]:
    """Return PE(pos, 2i) = sin(a), PE(pos, 2i+1) = cos(a), a = pos / 10000^(2i/dim) (Vaswani et al. 2017, section 3.5).

    Args:
      positions: [...] int32; dim: even width.
    Returns: [..., dim] float32, sines and cosines interleaved.
    """
    angles = _angles(positions, dim, 10_000.0)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*positions.shape, dim)


def sinusoidal_2d(config: ModelConfig, positions: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """Return [sin(x w), cos(x w), sin(y w), cos(y w)] for patches in column x and row y (Beyer et al. 2022, code).

    w_i = 10000^(-i / (D/4 - 1)) for i = 0, ..., D/4 - 1. Columns and rows count from 0. The class token, position 0 if
    there is one, gets zeros.

    Args:
      positions: [...] int32, of the class token and of the patches, row by row.
    Returns: [..., D] float32.
    """
    count, grid = config.emb_dim // 4, config.image_size // config.patch_size
    rates = 10_000.0 ** (-jnp.arange(count, dtype=jnp.float32) / (count - 1))
    patch = positions - config.class_token
    parts = []
    for place in (patch % grid, patch // grid):
        angles = place[..., None].astype(jnp.float32) * rates.reshape((1,) * positions.ndim + (-1,))
        parts += [jnp.sin(angles), jnp.cos(angles)]
    return jnp.where(patch[..., None] < 0, 0.0, jnp.concatenate(parts, -1))


def rotary(x: Heads, positions: Positions, base: float | Float[Array, ""]) -> Heads:
    """Rotate each pair (x_2i, x_2i+1) by the angle pos / base^(2i/H) (Su et al. 2021, equation 34).

    The product of a rotated query and a rotated key depends on their distance alone.

    Args:
      x: [B, T, N, H]; positions: [B, T] or [1, T] int32.
    Returns: [B, T, N, H] in the type of x.
    """
    angles = _angles(positions, x.shape[-1], base)[:, :, None, :]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    even, odd = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    rotated = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return rotated.reshape(x.shape).astype(x.dtype)


def rotated(
    rotate: Callable[[Heads, Positions, float | Array], Heads],
    x: Heads,
    positions: Positions,
    base: float | Array,
    width: int,
) -> Heads:
    """Return x [B, T, N, H] with `rotate` applied to the first `width` dimensions of every head (Black et al. 2022).

    The wavelengths are those of a head of that width.
    """
    if width == x.shape[-1]:
        return rotate(x, positions, base)
    return jnp.concatenate([rotate(x[..., :width], positions, base), x[..., width:]], -1) if width else x


def _angles(positions: Array, dim: int, base: float | Array) -> Array:
    """pos / base^(2i/dim): [..., dim / 2] float32."""
    rates = base ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    return positions[..., None].astype(jnp.float32) * rates.reshape((1,) * positions.ndim + (-1,))


def relative_buckets(
    distances: Int[Array, "*shape"], bidirectional: bool, num_buckets: int, max_distance: int
) -> Int[Array, "*shape"]:
    """Return the bucket of every distance, key position - query position (Raffel et al. 2020, section 2.1, and code).

    Half of the buckets hold one distance each; the size of the others grows logarithmically up to max_distance. With
    `bidirectional`, keys after the query use the upper half of all buckets. Without, they share bucket 0.

    Args:
      distances: [...] int32.
    Returns: [...] int32 in [0, num_buckets).
    """
    if bidirectional:
        num_buckets //= 2
        distance, offset = jnp.abs(distances), jnp.where(distances > 0, num_buckets, 0)
    else:
        distance, offset = jnp.maximum(-distances, 0), 0
    starts = jnp.array(bucket_starts(num_buckets, max_distance), jnp.int32)
    # XLA fuses comparison and sum, so that no array [..., buckets] is made.
    reached = distance[..., None] >= starts.reshape((1,) * distance.ndim + (-1,))
    return offset + reached.sum(-1, dtype=jnp.int32) - 1


@functools.lru_cache
def bucket_starts(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """Return the smallest distance of every bucket of one direction; of several with the same, only the last is used.

    With e = num_buckets // 2 and n = num_buckets - e, bucket e + k begins at the smallest integer d with
    log(d / e) / log(max_distance / e) >= k / n, which is d^n >= max_distance^k e^(n-k). Integers decide it exactly.
    Logarithms in float32 put d = 20 below its bucket for 4 buckets and max_distance = 200, where both sides are equal.
    """
    exact = num_buckets // 2
    n = num_buckets - exact
    return (*range(exact), *(_log_start(exact, max_distance, k, n) for k in range(n)))


def _log_start(exact: int, max_distance: int, k: int, n: int) -> int:
    """Return the smallest d with d^n >= max_distance^k exact^(n - k)."""
    root = exact * (max_distance / exact) ** (k / n)
    near = round(root)
    if abs(root - near) > 1e-9 * root:
        return min(math.ceil(root), _LARGEST)
    shared = math.gcd(k, n)
    k, n = k // shared, n // shared
    return min(near + (near**n < max_distance**k * exact ** (n - k)), _LARGEST)


class RelativeBias(nn.Module):
    """Owns one learned scalar per bucket and head, `embedding` [buckets, N], shared by all layers of a stack."""

    config: ModelConfig
    bidirectional: bool

    @nn.compact
    def __call__(self, query_positions: Positions, key_positions: Int[Array, "#B S"]) -> Float[Array, "#B N T S"]:
        """Return the bias that attention adds to its logits (Raffel et al. 2020, section 2.1).

        Args:
          query_positions: [B, T] or [1, T] int32; key_positions: [B, S] or [1, S] int32.
        Returns: [B or 1, N, T, S] float32.
        """
        config = self.config
        buckets, heads = config.relative_num_buckets, config.num_heads
        table = self.param("embedding", bias_table_init(config), (buckets, heads))
        distances = key_positions[:, None, :] - query_positions[:, :, None]
        index = relative_buckets(distances, self.bidirectional, buckets, config.relative_max_distance)
        return jnp.moveaxis(table[index], -1, 1)


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return the slope of every head: 2^(-8 h / N), h = 1, ..., N, for a power of two (Press et al. 2022, section 3).

    For another N they are those of the next lower power P, followed by the first, third, fifth ... slope of 2 P
    (the authors' code).
    """
    power = 2 ** (num_heads.bit_length() - 1)
    between = range(1, 2 * (num_heads - power), 2)
    return (
        *(2.0 ** (-8 * head / power) for head in range(1, power + 1)),
        *(2.0 ** (-4 * head / power) for head in between),
    )


class LinearBias(nn.Module):
    """-slope |i - j|, added to the logits of query i and key j (Press et al. 2022, section 3). It has no parameters.

    Where a mask shows keys after the query too, as in an encoder or a prefix, they count by their distance.
    """

    config: ModelConfig
    bidirectional: bool

    def __call__(self, query_positions: Positions, key_positions: Int[Array, "#B S"]) -> Float[Array, "#B N T S"]:
        """Return the bias of queries [B, T] and keys [B, S], positions int32, as [B or 1, N, T, S] float32."""
        distances = jnp.abs(query_positions[:, None, :, None] - key_positions[:, None, None, :])
        slopes = jnp.array(alibi_slopes(self.config.num_heads), jnp.float32).reshape(1, -1, 1, 1)
        return -slopes * distances.astype(jnp.float32)


def check_positions(config: ModelConfig, length: int) -> None:
    """Raise DataError if a sequence is longer than a learned table: a gather would silently repeat the last row.

    A caller with its own positions, such as packed rows, must keep them below `num_positions`.
    """
    if config.has_position_table and length > config.num_positions:
        raise DataError(
            f"a sequence of {length} positions exceeds the learned position table, "
            f"model.max_length={config.num_positions}"
        )


def sequence_positions(config: ModelConfig, batch: Batch, name: str, length: int) -> Positions:
    """Return the positions of a packed batch, NAME_positions [B, T], or 0, 1, 2, ... [1, T].

    Raises: DataError if a learned position table has fewer than `length` rows.
    """
    given = batch.get(f"{name}_positions")
    if given is not None:
        return given
    check_positions(config, length)
    return jnp.arange(length, dtype=jnp.int32)[None]


class LearnedPositions(nn.Module):
    """Owns `embedding` [num_positions, D], one row per position (Gehring et al. 2017; Vaswani et al. 2017, table 3 E).

    Those of patches have one row for the class token, if there is one, and then one for every patch, row by row.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, positions: Ids) -> Activations:
        """Return the rows of the table at positions [B, T]: [B, T, D] float32; see `check_positions`."""
        config = self.config
        table = self.param("embedding", table_init(config), (config.num_positions, config.emb_dim))
        return constrain(table, (None, "emb"))[positions]


def resized_table(table: Float[Array, "rows D"], size: int, has_class_token: bool) -> Float[Array, "resized D"]:
    """Return a table of positions of patches for images of size x size patches (Dosovitskiy et al. 2021, section 3.2).

    The rows are taken as points of a square, and those of the new square are interpolated linearly between them. The
    row of the class token stays.
    """
    first, of_patches = table[: int(has_class_token)], table[int(has_class_token) :]
    old = math.isqrt(len(of_patches))
    square = of_patches.reshape(old, old, -1)
    resized = jax.image.resize(square, (size, size, square.shape[-1]), "linear", antialias=False)
    return jnp.concatenate([first, resized.reshape(size * size, -1)])


class Encoding(NamedTuple):
    """The parts of a position encoding. A new encoding is a new entry of `ENCODINGS`, or `MODULE:OBJECT`.

    - added: (config, positions [B, T]) -> vectors [B, T, D] to add to embeddings; called in a compact method.
    - rotate: (queries or keys [B, T, N, H], positions, base) -> rotated queries or keys, same shape. The base is
      `rotary_base` of the layer.
    - bias: a module of (config, bidirectional) that maps positions of queries [B, T] and keys [B, S] to a bias
      [B or 1, N, T, S] for the attention logits. Its parameters are at STACK/relative_bias.
    - has_table: whether it has a table of `num_positions` rows; see `ModelConfig.has_position_table`.
    - axes, bias_axes: axes of the parameters of `added` and of `bias`, by the end of their paths.
    """

    added: Callable[[ModelConfig, Positions], Activations] | None = None
    rotate: Callable[[Heads, Positions, float | Array], Heads] | None = None
    bias: Callable[[ModelConfig, bool], nn.Module] | None = None
    has_table: bool = False
    axes: Mapping[str, Axes] = {}
    bias_axes: Mapping[str, Axes] = {}


ENCODINGS: Parts[Encoding] = Parts(
    "model.position_encoding",
    Encoding,
    {
        "sinusoidal": Encoding(added=lambda config, positions: sinusoidal(positions, config.emb_dim)),
        "sinusoidal_2d": Encoding(added=lambda config, positions: sinusoidal_2d(config, positions)),
        "learned": Encoding(
            added=lambda config, positions: LearnedPositions(config, name="learned")(positions),
            has_table=True,
            axes={"learned/embedding": Axes((None,), ("emb",))},
        ),
        "rotary": Encoding(rotate=rotary),
        "relative": Encoding(bias=RelativeBias, bias_axes={"embedding": Axes((None,), ("heads",))}),
        "alibi": Encoding(bias=LinearBias),
        "none": Encoding(),
    },
    methods={"bias": ("__call__",)},
    one_of=("added", "rotate", "bias"),
)
"""By the values of `model.position_encoding`."""


class PositionEmbedding(nn.Module):
    """Adds position vectors to embeddings, if the encoding has any; other encodings act in attention."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Activations, positions: Positions) -> Activations:
        """Return x [B, T, D] plus the vectors of positions [B, T] or [1, T]."""
        added = ENCODINGS[self.config.position_encoding].added
        return x if added is None else x + added(self.config, positions).astype(x.dtype)
