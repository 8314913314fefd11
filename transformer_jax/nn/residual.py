"""The residual connection around a sub-layer, and the place of its norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool

from transformer_jax.config import STACKS, ModelConfig
from transformer_jax.nn import norms
from transformer_jax.nn.axes import Axes, ParameterAxes, axes_of
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.model_numbers import number_of
from transformer_jax.nn.norms import make_norm
from transformer_jax.registry import Parts
from transformer_jax.typing import Activations, Array, Params


class Residual(nn.Module):
    """The computation around a sub-layer f: y = after(x, f(before(x))).

    - `norm_position="post"` (Vaswani et al. 2017, section 3.1): y = Norm(x + Dropout(f(x))).
    - `norm_position="pre"` (Xiong et al. 2020, table 1): y = x + Dropout(f(Norm(x))).
    - `norm_position="sandwich"` (Ding et al. 2021; Gemma 2): y = x + Dropout(Norm_2(f(Norm_1(x)))).
    - `norm_position="output"` (Liu et al. 2022; OLMo 2): y = x + Dropout(Norm(f(x))).
    - `norm_position="peri"` (Kim et al. 2025): as `sandwich`, and the input of the stack is normalised too.
    - `norm_position="deepnorm"` (Wang et al. 2022, figure 2): y = Norm(alpha x + Dropout(f(x))), see `deepnorm`.

    With `residual_scale`, f is multiplied by the parameter `scale`: one number (ReZero, Bachlechner et al. 2021;
    SkipInit, De and Smith 2020), or one per feature (LayerScale, Touvron et al. 2021). Before dropout and the sum, the
    output of f is normalised by a norm inside, multiplied by `scale`, and by `residual_multiplier`.

    A stack of all but "post" and "deepnorm" layers ends in one more norm, since its output is a sum that is not
    normalised (`has_final_norm`).

    num_sums: number of residual sums of the stack, for places of norms that scale by it. stack: `encoder` or `decoder`.
    """

    config: ModelConfig
    num_sums: int = 1
    stack: str = "encoder"

    def setup(self) -> None:
        config, place = self.config, NORM_POSITIONS[self.config.norm_position]
        self.norm = make_norm(config)
        if place.inside:
            self.output_norm = make_norm(config)
        shape, initial = RESIDUAL_SCALES[config.residual_scale], nn.initializers.constant(config.residual_scale_init)
        self.scale = None if shape is None else self.param("scale", initial, shape(config))

    def before(self, x: Activations, is_token: Bool[Array, "B T"] | None = None) -> Activations:
        """Return the input of the sub-layer, computed from x [B, T, D]; `is_token` as in `Norm`."""
        return self.norm(x, is_token) if NORM_POSITIONS[self.config.norm_position].before else x

    def after(
        self, x: Activations, y: Activations, dropout: Dropout | None, is_token: Bool[Array, "B T"] | None = None
    ) -> Activations:
        """Add the sub-layer's output y [B, T, D] to its input x [B, T, D]; `is_token` as in `Norm`."""
        multiplier = number_of(self.config, "residual_multiplier")
        place = NORM_POSITIONS[self.config.norm_position]
        y = self.output_norm(y, is_token) if place.inside else y
        y = y if self.scale is None else y * jnp.broadcast_to(self.scale, y.shape).astype(y.dtype)
        y = y if multiplier is None else y * jnp.asarray(multiplier, y.dtype)
        x = x if place.scales is None else x * place.scales(self.config, self.stack).stream
        total = x + drop(y, dropout, "residual")
        return self.norm(total, is_token) if place.after else total


RESIDUAL_SCALES: dict[str, Callable[[ModelConfig], tuple[int, ...]] | None] = {
    "none": None,
    "scalar": lambda config: (),
    "vector": lambda config: (config.emb_dim,),
}
"""By the values of `model.residual_scale`: the shape of the factors."""
_SCALE_AXES: dict[str, dict[str, Axes]] = {
    "none": {},
    "scalar": {"scale": Axes((), ())},
    "vector": {"scale": Axes((), (None,))},
}


class Scales(NamedTuple):
    """Numbers of a place of norms that depend on the depth of the model.

    stream: alpha, the factor of the residual stream in every sum. kernels: beta, the factor of the initial kernels of
    values, of the output of attention, and of the feed-forward part; in general of all arrays with `Axes.scaled`.
    """

    stream: float
    kernels: float


def deepnorm(config: ModelConfig, stack: str) -> Scales:
    """Return alpha and beta of a stack (Wang et al. 2022, figure 2).

        stack                                 alpha                     beta
        the only one, L layers                (2 L)^(1/4)               (8 L)^(-1/4)
        the encoder of two, N layers          0.81 (N^4 M)^(1/16)       0.87 (N^4 M)^(-1/16)
        the decoder of two, M layers          (3 M)^(1/4)               (12 M)^(-1/4)

    Args: stack: `encoder` or `decoder`; of a model of one stack, it is that one.
    """
    if len(config.stacks) == 1:
        depth = getattr(config, f"num_{config.stacks[0]}_layers")
        return Scales((2 * depth) ** 0.25, (8 * depth) ** -0.25)
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    if stack == "decoder":
        return Scales((3 * decoder) ** 0.25, (12 * decoder) ** -0.25)
    product = (encoder**4 * decoder) ** (1 / 16)
    return Scales(0.81 * product, 0.87 / product)


class NormPosition(NamedTuple):
    """The parts of a place of norms. A new one is a new entry of `NORM_POSITIONS`, or `MODULE:OBJECT`.

    - before, after, final: whether there is a norm before a sub-layer, after its residual sum, at the end of a stack.
    - module: of (config, num_sums), a `flax.linen.Module` with the methods of `Residual`, for other computations around
      a sub-layer; `before` and `after` then say where a diagram draws norms.
    - axes: axes of the parameters of the module that are not those of a norm, by the end of their paths. Norms
      have the names `norm` or `NAME_norm`.
    - inside: whether there is a norm of the sub-layer's output, before dropout and the sum; `output_norm`.
    - embedding: whether the input of a stack is normalised, as with `model.embedding_norm`.
    - scales: of (config, stack), numbers that depend on the depth; see `Scales`.
    """

    before: bool
    after: bool
    final: bool
    module: Callable[[ModelConfig, int], nn.Module] = Residual
    axes: Mapping[str, Axes] = {}
    inside: bool = False
    embedding: bool = False
    scales: Callable[[ModelConfig, str], Scales] | None = None


NORM_POSITIONS: Parts[NormPosition] = Parts(
    "model.norm_position",
    NormPosition,
    {
        "post": NormPosition(before=False, after=True, final=False),
        "pre": NormPosition(before=True, after=False, final=True),
        "sandwich": NormPosition(before=True, after=False, final=True, inside=True),
        "output": NormPosition(before=False, after=False, final=True, inside=True),
        "peri": NormPosition(before=True, after=False, final=True, inside=True, embedding=True),
        "deepnorm": NormPosition(before=False, after=True, final=False, scales=deepnorm),
    },
    methods={"module": ("before", "after")},
)
"""By the values of `model.norm_position`."""


def make_residual(config: ModelConfig, num_sums: int, stack: str) -> nn.Module:
    """Return the module around a sub-layer of a stack, `encoder` or `decoder`, which has `num_sums` residual sums."""
    module = NORM_POSITIONS[config.norm_position].module
    return Residual(config, num_sums, stack) if module is Residual else module(config, num_sums)


def parameter_axes(config: ModelConfig) -> dict[str, Axes]:
    """Return the axes of the parameters of `make_residual`, by the end of their paths."""
    own = {**NORM_POSITIONS[config.norm_position].axes, **_SCALE_AXES[config.residual_scale]}
    return {**{rf"(\w+_)?norm/{path}": axes for path, axes in norms.parameter_axes(config).items()}, **own}


def has_final_norm(config: ModelConfig) -> bool:
    """Return whether a stack of layers ends in a norm."""
    return NORM_POSITIONS[config.norm_position].final


def kept_elements(config: ModelConfig) -> int:
    """Return roughly the elements a token that the backward pass of one sum needs, beside those of one norm.

    They are 3 D for another norm, inside, and D for the factors of `residual_scale`.
    """
    place = NORM_POSITIONS[config.norm_position]
    has_two_norms = place.inside and (place.before or place.after) and config.norm != "none"
    return config.emb_dim * (3 * has_two_norms + (RESIDUAL_SCALES[config.residual_scale] is not None))


def has_embedding_norm(config: ModelConfig) -> bool:
    """Return whether the input of a stack is normalised."""
    return config.embedding_norm or NORM_POSITIONS[config.norm_position].embedding


def scaled_initial(config: ModelConfig, params: Params, axes: ParameterAxes | None) -> Params:
    """Return initial parameters with the arrays of `Axes.scaled` in the stacks multiplied by the beta of `Scales`.

    With `model.init=xavier_normal` that is the initialisation of the paper of DeepNorm (Wang et al. 2022, figure 2).
    All other parameters stay the same arrays.

    Args: axes: of all parameters of the stacks.
    Raises: ValueError if the place of norms has such a number, and a parameter has no entry in the axes, or more than
      one.
    """
    scales = NORM_POSITIONS[config.norm_position].scales
    if scales is None or not config.is_transformer:
        return params

    def scaled(path: jax.tree_util.KeyPath, leaf: Array) -> Array:
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        stack = text.partition("/")[0]
        if stack not in STACKS:
            return leaf
        own = axes_of(text, axes or {})
        return leaf * scales(config, stack).kernels if own is not None and own.scaled else leaf

    return jax.tree_util.tree_map_with_path(scaled, params)
