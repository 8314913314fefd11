"""The shape letters used in every signature and comment, the array aliases built on them, and the keys of a batch.

| letter | meaning                                       | config field        |
|--------|-----------------------------------------------|---------------------|
| B      | batch: rows                                   |                     |
| T      | query or target length                        |                     |
| S      | key or source length                          |                     |
| N      | query heads                                   | `num_heads`         |
| K      | key/value heads                               | `num_kv_heads`      |
| G      | query heads that share a key/value head, N / K |                    |
| H      | width of one head (the paper's d_k; d_v may differ, then Hv) | `head_dim`, `value_head_dim` |
| D      | model width (d_model)                         | `emb_dim`           |
| F      | feed-forward width (d_ff)                     | `mlp_dim`           |
| V      | vocabulary                                    | `vocab_size`        |
| L      | layers of one stack                           | `num_*_layers`      |
| C      | capacity of a KV cache, in slots              |                     |
| R      | width of the vectors that predict a token; D, unless a recurrent model has another | `output_dim` |
| P      | length of a prompt                            |                     |
| W      | hypotheses per row of a search                | `num_hypotheses`    |

In einsums, the letters are lower case, and `v` is Hv.

Masks are boolean and True means "attend"; arrays that are added to logits are called biases. Ids are int32. No id has a
fixed meaning: masks and weights mark the padding.

| key of a batch   | shape and type          | meaning                                                                |
|------------------|-------------------------|------------------------------------------------------------------------|
| `inputs`         | [B, S] int32            | the encoder's tokens; or images [B, height, width, channels] uint8     |
| `inputs_mask`    | [B, S] bool             | True for tokens, which come before a row's padding; absent: no padding |
| `types`          | [B, S] int32            | type of every token of `inputs`; absent: all 0                         |
| `decoder_inputs` | [B, T] int32            | the decoder's tokens: the targets, shifted by the task                 |
| `targets`        | [B, T], [B] or [B, 2]   | the values to predict                                                  |
| `weights`        | float32, like `targets` | loss = sum(weights * nll) / sum(weights); 0 for padding                |
| `targets_mask`   | [B, T] bool             | True for tokens of `targets`; absent: where weights are not 0          |
| `other_targets`  | [B] int32               | labels of the images that are mixed into those of `inputs`             |
| `shares`         | [B] float32             | share of an image itself in the mixture, and of its label in the loss  |
| `places`         | [B, T] int32            | the places in `inputs` that `targets` belong to; absent: the same ones |
| `prefix_mask`    | [B, T] bool             | tokens of `decoder_inputs` that attend to each other both ways         |
| `*_segment_ids`  | int32, like the ids     | of packed rows: number of the example from 1; 0 for padding            |
| `*_positions`    | int32, like the ids     | of packed rows: position within the example                            |
| `row_ids`        | [B] int32               | number of the row in the global batch, which keys its dropout          |

`*` is `inputs` or `targets`; the arrays of `targets` apply to `decoder_inputs` too.
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
