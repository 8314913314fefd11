"""A norm of layers that emits the losses of a router, for the tests of losses of blocks."""

import contextlib
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from labelled_support import config as labelled_config

from transformer_jax.nn import residual
from transformer_jax.nn.collected import collect, is_collecting
from transformer_jax.nn.norms import Norm
from transformer_jax.training.block_losses import BLOCK_LOSSES, BlockLoss

CHOICES = 3


class RoutedNorm(Norm):
    """The norm, whose first features are taken for the logits of a choice between CHOICES experts that do nothing."""

    def __call__(self, x, is_token=None):
        y = super().__call__(x, is_token)
        if is_collecting(self):
            logits = 2.0 * y[..., :CHOICES].astype(jnp.float32)
            counted = is_token[..., None].astype(jnp.float32)
            chosen = jax.nn.one_hot(logits.argmax(-1), CHOICES)
            sums = {"count": chosen, "share": jax.nn.softmax(logits)}
            collect(self, "balance", {name: (counted * value).sum((0, 1)) for name, value in sums.items()})
            squares = jnp.square(jax.nn.logsumexp(logits, -1, keepdims=True))
            collect(self, "router_z", {"squares": (counted * squares).sum()})
        return y


def balance(sums, whole):
    """CHOICES * sum over experts of their share of the tokens times the sum of their probabilities."""
    count = whole["count"]
    return CHOICES * (count / jnp.maximum(count.sum(-1, keepdims=True), 1.0) * sums["share"]).sum()


LOSSES = {
    "balance": BlockLoss(balance, lambda hyper: 1e3 * hyper.learning_rate, of_batch=("count",)),
    "router_z": BlockLoss(lambda sums, whole: sums["squares"].sum(), lambda hyper: 0.02),
}


@contextlib.contextmanager
def routed():
    """Give the layers of all models made inside the losses of a router."""
    with mock.patch.object(residual, "Norm", RoutedNorm), mock.patch.dict(BLOCK_LOSSES, LOSSES):
        yield


def routed_config(**model):
    """Return the config of a tagger, of two layers."""
    data = {"row_multiple": 8, "tokens_per_batch": 256}
    return labelled_config("tagging", data, {"num_encoder_layers": 2, "activation": "gelu"} | model)


def routed_batch(rows=32, seed=0):
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
