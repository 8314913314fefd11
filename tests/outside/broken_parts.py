"""Parts of models and rules of training that lack something, raise, or return a wrong value."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.nn.feed_forward import Activation
from transformer_jax.nn.feed_forwards import FEED_FORWARDS
from transformer_jax.nn.mixers import MIXERS
from transformer_jax.nn.norms import NormKind
from transformer_jax.nn.positions import Encoding
from transformer_jax.nn.residual import NormPosition


class Empty(nn.Module):
    """A module without methods."""


class Reader(Empty):
    def __call__(self, x, inputs, dropout, values):
        return x

    def read(self, x, inputs, state):
        return x


ATTENTION, DENSE = MIXERS["attention"], FEED_FORWARDS["dense"]
NO_STEP = ATTENTION._replace(name="reader", module=Reader)
NO_STATE = ATTENTION._replace(name="reader", start=None)
NO_CALL = DENSE._replace(name="empty", module=Empty)
NUMBER = DENSE._replace(name="number", flops=12)
SLASH = DENSE._replace(name="a/b")
TAKEN = DENSE._replace(module=nn.Dense)
LIKE_A_LAYER = DENSE._replace(name="config")
NOT_GATED = Activation(jnp.tanh, gated="no")
NO_FUNCTION = Activation(None)
NO_NORM = NormKind(module=Empty)
NO_BIAS = Encoding(bias=Empty)
NOTHING = Encoding()
NO_BEFORE = NormPosition(before=True, after=False, final=True, module=Empty)
INSIDE = NormPosition(before=False, after=True, final=False, inside=True)
TANH = Activation(jnp.tanh)


def one_argument(step):
    return step


def no_rule(static, hyper, axes):
    return {"adam": 1}


def raises(step, hyper):
    raise ValueError("no idea")
