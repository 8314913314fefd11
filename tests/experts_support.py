"""A tagger whose layers have experts, and a batch of it, for the tests of losses of blocks."""

import dataclasses

import numpy as np
from labelled_support import config as labelled_config

EXPERTS = 3
WEIGHTS = {"balance_loss": 0.3, "router_z_loss": 0.1}


def experts_config(**model):
    """Return the config of a tagger with two layers, whose losses have WEIGHTS."""
    fields = {"num_encoder_layers": 2, "activation": "gelu", "feed_forward": "experts", "num_experts": EXPERTS}
    config = labelled_config("tagging", {"row_multiple": 8, "tokens_per_batch": 256}, fields | model)
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **WEIGHTS))


def experts_batch(rows=32, seed=0):
    """Return a batch of tagging, whose rows have 0 to 6 tokens; the first one and every eighth have none."""
    random = np.random.default_rng(seed)
    mask = np.arange(6) < (np.arange(rows) % 8)[:, None]
    return {
        "inputs": np.where(mask, random.integers(4, 24, (rows, 6)), 0).astype(np.int32),
        "inputs_mask": mask,
        "targets": random.integers(0, 5, (rows, 6), dtype=np.int32),
        "weights": mask.astype(np.float32),
        "row_ids": np.arange(rows, dtype=np.int32),
    }
