"""One layer of an encoder or a decoder."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.nn import attention, residual
from transformer_jax.nn.activation_sharding import ACTIVATIONS, constrain
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout, fold_dropout
from transformer_jax.nn.feed_forwards import FEED_FORWARDS
from transformer_jax.nn.kv_cache import KeyValue, LayerCache
from transformer_jax.nn.layer_inputs import LayerInputs, LayerState, Site
from transformer_jax.nn.layer_values import EQUAL, LayerValues
from transformer_jax.nn.mixers import MIXERS
from transformer_jax.nn.monitored import is_monitored, monitor, rms
from transformer_jax.nn.places import at, inside
from transformer_jax.nn.residual import make_residual
from transformer_jax.registry import Parts
from transformer_jax.typing import Activations, Array

PARALLEL = {"none": 0, "one_norm": 1, "two_norms": 2}
"""By the values of `model.parallel`: the number of norms of two parallel parts; 0 if they follow each other."""


class LayerOutput(NamedTuple):
    """x: [B, T, D]. state: of the mixer, with the new tokens; None without one."""

    x: Activations
    state: Any


class Layer(nn.Module):
    """A mixer, attention over a memory if there is one, feed-forward (Vaswani et al. 2017, figure 1).

    The mixer is self-attention, or another one of `MIXERS`; the feed-forward part is one of `FEED_FORWARDS`. Each part
    has the `Residual` of the norm position around it. With `cross_attends` this is the decoder layer of an
    encoder-decoder. Without, it is an encoder layer or, with a causal mask, a layer of a decoder-only model.

    With `model.parallel` the parts read the same input: x + Attention(Norm(x)) + FFN(Norm(x)), with one norm (Wang and
    Komatsuzaki 2021; Chowdhery et al. 2022, section 2) or with one for each (Black et al. 2022).

    num_layers: layers of the stack; initial parameters may depend on it.
    """

    config: ModelConfig
    num_layers: int
    cross_attends: bool = False

    def setup(self) -> None:
        config = self.config
        num_sums = (3 if self.cross_attends else 2) * self.num_layers
        stack = "decoder" if self.cross_attends else config.stacks[0]
        mixer = MIXERS[config.mixer]
        setattr(self, mixer.name, mixer.module(config, num_sums))
        setattr(self, f"{mixer.name}_residual", make_residual(config, num_sums, stack))
        if self.cross_attends:
            self.cross_attention = MultiHeadAttention(config, num_sums)
            self.cross_attention_residual = make_residual(config, num_sums, stack)
        feed_forward = FEED_FORWARDS[config.feed_forward]
        setattr(self, feed_forward.name, feed_forward.module(config, num_sums))
        setattr(self, f"{feed_forward.name}_residual", make_residual(config, num_sums, stack))

    def __call__(
        self,
        x: Activations,
        inputs: LayerInputs,
        dropout: Dropout | None = None,
        state: LayerState | None = None,
        values: LayerValues = EQUAL,
    ) -> LayerOutput:
        """Map x [B, T, D] to [B, T, D].

        Args:
          dropout: of this layer.
          state: only in incremental decoding. Then x has the newest T tokens, inputs.mask covers the C slots of the
            caches, and inputs.memory is unused.
          values: of this layer, where the layers of the stack differ; they replace those of its config.
        Returns: the output, and the state with the new tokens, None without a state.
        """
        name = MIXERS[self.config.mixer].name
        mixer, residual = getattr(self, name), getattr(self, f"{name}_residual")

        start = x = at("input", x)
        with inside(name):
            normed = at("input", residual.before(x, inputs.is_token))
            if state is None:
                mixed = mixer(normed, inputs, dropout, values)
            else:
                mixed = (mixer.step if state.steps else mixer.read)(normed, inputs, state)
            y = at("output", mixed.output)
            self._monitor(f"{name}_rms", y, inputs)
            x = residual.after(x, y, fold_dropout(dropout, Site.SELF_ATTENTION_OUTPUT), inputs.is_token)
            x = at("stream", x)

        if self.cross_attends:
            with inside("cross_attention"):
                y = at("input", self.cross_attention_residual.before(x, inputs.is_token))
                y = self.cross_attention.attend(
                    self.cross_attention.project_query(y),
                    self._memory(inputs, state),
                    inputs.memory_mask,
                    None,
                    fold_dropout(dropout, Site.CROSS_ATTENTION_WEIGHTS),
                    inputs.is_token,
                )
                y = at("output", y)
                self._monitor("cross_attention_rms", y, inputs)
                x = self.cross_attention_residual.after(
                    x, y, fold_dropout(dropout, Site.CROSS_ATTENTION_OUTPUT), inputs.is_token
                )
                x = at("stream", x)

        name = FEED_FORWARDS[self.config.feed_forward].name
        feed_forward, residual = getattr(self, name), getattr(self, f"{name}_residual")
        num_norms = PARALLEL[self.config.parallel]
        with inside(name):
            y = normed if num_norms == 1 else residual.before(start if num_norms else x, inputs.is_token)
            y = feed_forward(at("input", y), fold_dropout(dropout, Site.FEED_FORWARD_HIDDEN), inputs.is_token)
            y = at("output", y)
            self._monitor(f"{name}_rms", y, inputs)
            x = residual.after(x, y, fold_dropout(dropout, Site.FEED_FORWARD_OUTPUT), inputs.is_token)
            x = at("stream", x)
        self._monitor("stream_rms", x, inputs)
        return LayerOutput(constrain(x, ACTIVATIONS), mixed.state)

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Return the keys and values that this layer reads from the encoder's output, memory [B, S, D]."""
        return self.cross_attention.project_memory(memory)

    def _monitor(self, name: str, x: Activations, inputs: LayerInputs) -> None:
        """Store the root mean square of x [B, T, D] in a monitored step."""
        if is_monitored(self):
            monitor(self, name, rms(x, inputs.is_token))

    def _memory(self, inputs: LayerInputs, state: LayerState | None) -> KeyValue | LayerCache:
        if state is not None:
            assert state.memory is not None, "decoding a layer that attends to a memory needs its keys and values"
            return state.memory
        assert inputs.memory is not None, "a layer with cross-attention needs a memory"
        return self.project_memory(inputs.memory)


def kept_elements(config: ModelConfig, cross_attends: bool) -> int:
    """Return roughly the elements a token that the backward pass of a layer needs more for fields of its sums.

    They are `residual.kept_elements` for every sum. Parallel parts need 4 D fewer, or with a norm for each 3 D fewer.
    """
    num_norms = PARALLEL[config.parallel]
    parallel = (num_norms - 5) * config.emb_dim if num_norms else 0
    return (3 if cross_attends else 2) * residual.kept_elements(config) + parallel


def parameter_axes(config: ModelConfig) -> dict[str, Axes]:
    """Return the axes of the parameters of the layers of a model, by the end of their paths.

    Those of built-in parts are among them, whether the model has them or not.

    Raises: ConfigError if two parts of the model have one name, or a part has that of another attribute of a layer.
    """
    mixers, feed_forwards = _with_chosen(MIXERS, config, "mixer"), _with_chosen(FEED_FORWARDS, config, "feed_forward")
    parts = {f"model.mixer='{value}'": mixer for value, mixer in mixers.items()}
    parts |= {f"model.feed_forward='{value}'": part for value, part in feed_forwards.items()}
    owners = dict.fromkeys((*dir(Layer), *Layer.__dataclass_fields__, "cross_attention"), "a layer's own part")
    for what, part in parts.items():
        if (other := owners.setdefault(part.name, what)) != what or part.name.endswith("_residual"):
            raise ConfigError(f"config: {what}: its name '{part.name}' is that of {other}; give it another one")
    return {
        **{f"{part.name}/{path}": axes for part in parts.values() for path, axes in part.axes.items()},
        **{f"cross_attention/{path}": axes for path, axes in attention.PARAMETER_AXES.items()},
        **{rf"\w+_residual/{path}": axes for path, axes in residual.parameter_axes(config).items()},
    }


def _with_chosen(table: Parts[Any], config: ModelConfig, field: str) -> dict[str, Any]:
    """Return the built-in entries of a table, and those that the layers of a model have, by their values."""
    values = [value for value in table if table.is_built_in(value)]
    return {value: table[value] for value in dict.fromkeys([*values, *config.values_in_layers(field)])}
