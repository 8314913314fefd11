"""Shapes of a batch of pairs, which translation and the tasks that corrupt texts share, and of pairs in rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


def pair_template(rows: int, widths: Mapping[str, int], packed: bool) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and types of the arrays of `sequence_to_sequence_arrays`.

    Args:
      widths: of `inputs` and `targets`. packed: whether rows hold several examples.
    """
    import jax
    import jax.numpy as jnp

    def of(side: str, dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, widths[side]), dtype)

    batch = {"inputs": of("inputs", jnp.int32), "inputs_mask": of("inputs", bool)}
    batch |= {"decoder_inputs": of("targets", jnp.int32), "targets": of("targets", jnp.int32)}
    batch |= {"weights": of("targets", jnp.float32), "row_ids": jax.ShapeDtypeStruct((rows,), jnp.int32)}
    if packed:
        kinds = ("segment_ids", "positions")
        batch |= {f"{side}_{kind}": of(side, jnp.int32) for side in ("inputs", "targets") for kind in kinds}
    return batch


def row_template(
    rows: int, widths: Mapping[str, int], packed: bool, has_prefix: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and types of the arrays of `pair_row_arrays`; widths: of `targets`, source and target together."""
    import jax
    import jax.numpy as jnp

    def of(dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, widths["targets"]), dtype)

    batch = {"decoder_inputs": of(jnp.int32), "targets": of(jnp.int32), "targets_mask": of(bool)}
    batch |= {"weights": of(jnp.float32), "row_ids": jax.ShapeDtypeStruct((rows,), jnp.int32)}
    batch |= {"prefix_mask": of(bool)} if has_prefix else {}
    return batch | ({f"targets_{kind}": of(jnp.int32) for kind in ("segment_ids", "positions")} if packed else {})
