"""The rate, the decay and the rule of every parameter of a few models, as text.

`python tests/golden/labels.py > tests/golden/labels.txt` renews the recorded text. A parameter that a rule misses
trains without decay, at the rate of the head or by another rule, and no error says so.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig, layer_numbers
from transformer_jax.models.architecture import init_params, parameter_axes
from transformer_jax.training.freezing import multipliers
from transformer_jax.training.muon import routes
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
        "residual_lambdas": True,
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
    "encoder of images": {
        "architecture": "encoder_only",
        "inputs": "patches",
        "position_encoding": "learned",
    },
    "recurrent pair": {
        "architecture": "recurrent",
        "attention": "additive",
        "bridge": "tanh",
        "deep_output": "maxout",
        "hidden_dim": 6,
        "tie_output": False,
    },
}


def labels() -> str:
    """Return one line per parameter: its path, its shape, D if it decays, its rule with `optimizer.name=muon`, and its
    multiplier of the rate by layer."""
    lines = []
    for title, fields in MODELS.items():
        config = ModelConfig(**{**SMALL, **fields}).resolved()
        params = jax.eval_shape(lambda config=config: init_params(config, 0))
        decays = DECAY_MASKS["matrices"](params)
        rules = routes(params, parameter_axes(config))
        rates = rates_by_layer(config, params)
        lines.append(f"# {title}")
        trees = (jax.tree.leaves(tree) for tree in (decays, rules, rates))
        rows = zip(jax.tree_util.tree_leaves_with_path(params), *trees, strict=True)
        for (path, leaf), decayed, rule, rate in rows:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            shape, of_layers = " x ".join(map(str, leaf.shape)), " ".join(f"{value:g}" for value in np.ravel(rate))
            lines.append(f"{name} [{shape}] {'D' if decayed else '-'} {rule} {of_layers}")
    return "\n".join(lines) + "\n"


def rates_by_layer(config: ModelConfig, params: Any) -> Any:
    """Return the multipliers of `layer_decay=0.5`; ones for a model that cannot have it."""
    if config.architecture == "recurrent":
        return jax.tree.map(lambda _: jnp.ones(()), params)
    return multipliers(params, jnp.float32(0.5), layer_numbers(config))


if __name__ == "__main__":
    print(labels(), end="")
