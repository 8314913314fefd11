"""The rate and the decay of every parameter of a few models, as text.

`python tests/golden/labels.py > tests/golden/labels.txt` renews the recorded text. A parameter that a rule misses
trains without decay, or at the rate of the head, and no error says so.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig, layer_numbers
from transformer_jax.models.architecture import init_params
from transformer_jax.training.freezing import multipliers
from transformer_jax.training.optimizers import DECAY_MASKS

SMALL = {"vocab_size": 16, "emb_dim": 8, "num_heads": 2, "num_encoder_layers": 2, "num_decoder_layers": 2}
MODELS = {
    "encoder-decoder of 2017": {},
    "decoder with everything": {
        "architecture": "decoder_only",
        "num_decoder_layers": 5,
        "layer_pattern": "GGA",
        "layer_kinds": "G: mixer=gated_delta; A:",
        "qk_norm": "rms",
        "norm_position": "pre",
        "position_encoding": "learned",
        "tie_output": False,
    },
    "pair of stacks with experts in every other layer": {
        "layer_pattern": "AE",
        "layer_kinds": "A:; E: feed_forward=experts",
        "num_experts": 3,
        "activation": "swiglu",
        "use_bias": False,
    },
    "encoder with a table of distances": {
        "architecture": "encoder_only",
        "position_encoding": "relative",
        "activation": "swiglu",
        "token_types": 2,
        "embedding_norm": True,
    },
}


def labels() -> str:
    """Return one line per parameter: its path, its shape, D if it decays, and its multiplier of the rate by layer."""
    lines = []
    for title, fields in MODELS.items():
        config = ModelConfig(**{**SMALL, **fields}).resolved()
        params = jax.eval_shape(lambda config=config: init_params(config, 0))
        decays = DECAY_MASKS["matrices"](params)
        rates = multipliers(params, jnp.float32(0.5), layer_numbers(config))
        lines.append(f"# {title}")
        rows = zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(decays), jax.tree.leaves(rates), strict=True
        )
        for (path, leaf), decayed, rate in rows:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            shape, of_layers = " x ".join(map(str, leaf.shape)), " ".join(f"{value:g}" for value in np.ravel(rate))
            lines.append(f"{name} [{shape}] {'D' if decayed else '-'} {of_layers}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(labels(), end="")
