"""The shape letters used in every signature and comment, and the array aliases built on them.

| letter | meaning                                       | config field        |
|--------|-----------------------------------------------|---------------------|
| B      | batch: sentences, rows                        |                     |
| T      | query or target length                        |                     |
| S      | key or source length                          |                     |
| N      | query heads                                   | `num_heads`         |
| K      | key/value heads                               | `num_kv_heads`      |
| H      | width of one head (the paper's d_k; d_v may differ, then Hv) | `head_dim`, `value_head_dim` |
| D      | model width (d_model)                         | `emb_dim`           |
| F      | feed-forward width (d_ff)                     | `mlp_dim`           |
| V      | vocabulary                                    | `vocab_size`        |
| L      | layers of one stack                           | `num_*_layers`      |
| C      | capacity of a KV cache                        |                     |

Masks are boolean and True means "attend"; what is added to logits is called a bias. Ids are int32 and 0 is padding.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jaxtyping import Bool, Float, Int

Array = jax.Array
ArrayLike = jax.typing.ArrayLike
Ids = Int[jax.Array, "B T"]
Positions = Int[jax.Array, "#B T"]
Activations = Float[jax.Array, "B T D"]
Heads = Float[jax.Array, "B T N H"]
Weights = Float[jax.Array, "B N T S"]
Mask = Bool[jax.Array, "#B #N #T S"]
Bias = Float[jax.Array, "#B #N T S"]

Params = Mapping[str, Any]
Batch = Mapping[str, jax.Array]
