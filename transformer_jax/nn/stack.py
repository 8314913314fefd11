"""L layers, with their parameters stacked on a leading axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.config import LAYERS, ModelConfig, layer_configs, layer_folder
from transformer_jax.nn import layer, norms
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.collected import COLLECTED
from transformer_jax.nn.dropout import Dropout, drop, fold_dropout
from transformer_jax.nn.kv_cache import LayerCache, cache_layout
from transformer_jax.nn.layer import Layer
from transformer_jax.nn.layer_inputs import LayerInputs, LayerState
from transformer_jax.nn.layer_runs import in_order, runs, strided
from transformer_jax.nn.layer_values import LayerValues, layer_values
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.nn.mixers import MIXERS
from transformer_jax.nn.monitored import MONITORED, is_monitored, monitor, rms
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.places import at, inside, is_visited
from transformer_jax.nn.positions import ENCODINGS
from transformer_jax.nn.residual import has_final_norm
from transformer_jax.typing import Activations, Array, Bias, Params, Positions

REMAT_POLICIES = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}
"""Policies for the values that the forward pass keeps for the backward pass, by `model.remat`; None keeps all."""


LAMBDAS = ("stream_lambdas", "input_lambdas")
"""Folders of a stack beside those of its layers: their arrays [L] have one number for each layer, whatever its kind."""


class _LoopedLayer(Layer):
    """`Layer` as the body of the loop that creates parameters: x is carried."""

    def __call__(  # ty: ignore[incompatible-method-override]
        self, x: Activations, inputs: LayerInputs
    ) -> tuple[Activations, None]:
        return super().__call__(x, inputs).x, None


class StackState(NamedTuple):
    """The state of a stack in incremental decoding of T new tokens.

    positions: [B, T], of the new tokens, -1 for padding. slot_positions: [B, C], of the tokens in the slots of the
    caches, including the new tokens. mask: over the slots, [B, 1, T, C]. layers: one state per layer. memory_mask: over
    the S tokens of the encoder. The caches of attention have slots; other states are [B, W, ...].
    """

    positions: Array
    slot_positions: Array
    mask: AttentionMask
    layers: tuple[LayerState, ...]
    memory_mask: AttentionMask | None

    @property
    def token_positions(self) -> Array:
        """Positions [B, T] that are valid in a table: 0 for padding."""
        return jnp.maximum(self.positions, 0)


LAMBDA_INITS = {
    "identity": ((1.0, 1.0), (0.0, 0.0)),
    "by_depth": ((1.15, 1.05), (0.2, 0.05)),
}
"""By the values of `model.residual_lambdas_init`: r of the first and of the last layer, and s of both."""


class Lambdas(nn.Module):
    """Owns `scale` [L]: one number per layer, at first on a line from `first` to `last`."""

    num_layers: int
    first: float
    last: float

    @nn.compact
    def __call__(self) -> Float[Array, " L"]:
        return self.param("scale", _on_a_line(self.first, self.last), (self.num_layers,))


def _on_a_line(first: float, last: float) -> Callable[..., Array]:
    """Return an initialiser of vectors."""
    if first == last:
        return nn.initializers.constant(first)
    return lambda key, shape: jnp.linspace(first, last, *shape)


class Decoded(NamedTuple):
    """Hidden states or logits of the newest tokens, [B, T, D or V], and the states of all layers with these tokens."""

    x: Array
    states: tuple[Any, ...]


class Stack(nn.Module):
    """L layers over embedded tokens, the final norm of "pre" layers, and dropout.

    The stack with a causal mask is the decoder, the other one the encoder, as `config.layer_pattern` names them.

    With `model.residual_lambdas`, layer l reads r_l x + s_l x_0 in place of x, with x_0 the input of the stack, after
    dropout and the norm of the embedding if there are any, and learned numbers r_l, initially 1, and s_l, initially 0
    (as in the code of modded-nanogpt and nanochat). With `residual_lambdas_init=by_depth` they are initially
    1.15 - 0.1 d and 0.2 - 0.15 d at the depth d = l / (L - 1), l = 0, ..., L - 1 (as in later code of nanochat).

    The layers fold 0 to L - 1 into the seed of dropout, the embedder L, the end of the stack L + 1, and the head of a
    model of one stack L + 2.
    """

    config: ModelConfig
    num_layers: int
    causal: bool
    cross_attends: bool = False

    def setup(self) -> None:
        config = self.config
        self.configs = layer_configs(config, "decoder" if self.causal else "encoder", self.num_layers)
        attends = any(MIXERS[own.mixer].mask_kind(own, "causal") is not None for own in self.configs)
        bias = ENCODINGS[config.position_encoding].bias if attends else None
        self.relative_bias = None if bias is None else bias(config, not self.causal)
        self.folders = tuple(layer_folder(own) for own in self.configs)
        for name in dict.fromkeys(self.folders):
            # Creates the parameters, stacked [L, ...], and applies nothing else: `_applied` reads them.
            created = nn.scan(
                _LoopedLayer,
                variable_axes={"params": 0, COLLECTED: 0},
                split_rngs={"params": True},
                in_axes=nn.broadcast,
                length=self.folders.count(name),
            )
            own = self.configs[self.folders.index(name)]
            setattr(self, name, created(own, self.num_layers, self.cross_attends))
        if config.residual_lambdas:
            of_stream, of_input = LAMBDA_INITS[config.residual_lambdas_init]
            self.stream_lambdas = Lambdas(self.num_layers, *of_stream)
            self.input_lambdas = Lambdas(self.num_layers, *of_input)
        if has_final_norm(config):
            self.final_norm = make_norm(config)

    def __call__(
        self,
        x: Activations,
        positions: Positions,
        mask: AttentionMask | None,
        dropout: Dropout | None,
        memory: Float[Array, "B S D"] | None = None,
        memory_mask: AttentionMask | None = None,
        is_token: Bool[Array, "B T"] | None = None,
    ) -> Activations:
        """Map embedded tokens x [B, T, D] to [B, T, D].

        Args:
          positions: [B, T] or [1, T] int32; memory: [B, S, D]. is_token: [B, T], as in `Norm`.
        """
        inputs = LayerInputs(positions, mask, self._bias(positions, positions), memory, memory_mask, is_token)
        if self.is_initializing():
            self._lambdas()
            for name in dict.fromkeys(self.folders):
                x, _ = getattr(self, name)(x, inputs)
        else:
            if is_monitored(self):
                monitor(self, "embedded_rms", rms(x, is_token))
            with inside("decoder" if self.causal else "encoder"):
                x = self._applied(at("embedding", x), inputs, dropout)
                return at("output", self._ended(x, dropout, is_token))
        return self._ended(x, dropout, is_token)

    def _applied(self, x: Activations, inputs: LayerInputs, dropout: Dropout | None) -> Activations:
        """Return the output of all layers; keep what they collect in training."""
        mutable = [name for name in (COLLECTED, MONITORED) if self.is_mutable_collection(name)]
        start = x

        def layer(
            config: ModelConfig,
            x: Activations,
            params: Params,
            index: Int[Array, ""],
            values: LayerValues,
            lambdas: tuple[Array, Array] | None,
        ) -> tuple[Activations, Any]:
            x = _with_input(x, start, lambdas)
            output, collected = self._block(config).apply(
                {"params": params}, x, inputs, fold_dropout(dropout, index), values=values, mutable=mutable
            )
            return output.x, collected

        # Unrolled layers are one program: without prevent_cse, XLA would merge the recomputation with the first pass.
        is_looped, policy = self.config.scan_layers, REMAT_POLICIES[self.config.remat]
        kept: Any = layer
        if policy is not None:
            kept = jax.checkpoint(layer, prevent_cse=not is_looped, policy=policy, static_argnums=0)
        found: list[tuple[range, Any]] = []
        if is_visited():
            # Places must not be inside of a loop.
            for index, config in enumerate(self.configs):
                place = jax.tree.map(lambda array: array[0], self._places([index]))
                with inside(str(index)):
                    x, output = layer(config, x, *place)
                found.append((range(index, index + 1), jax.tree.map(lambda array: array[None], output)))
            self._keep(found)
            return x
        for run in runs(self.folders):
            configs = self.configs[run.first : run.first + run.period]

            def period(x: Activations, places: Any, configs: Any = configs) -> tuple[Activations, Any]:
                outputs = []
                for config, place in zip(configs, places, strict=True):
                    x, output = kept(config, x, *place)
                    outputs.append(output)
                return x, outputs

            layers = [run.of_place(place) for place in range(run.period)]
            scanned = [self._places(own) for own in layers]
            x, outputs = jax.lax.scan(period, x, scanned, unroll=1 if is_looped else run.times)
            found += zip(layers, outputs, strict=True)
        self._keep(found)
        return x

    def _places(self, layers: Sequence[int]) -> tuple[Params, Array, LayerValues, Any]:
        """Return the parameters, numbers, values and lambdas of some layers of one kind, equally far apart."""
        name = self.folders[layers[0]]
        of_kind = [index for index, other in enumerate(self.folders) if other == name]
        params = getattr(self, name).variables["params"]
        rows = [of_kind.index(layer) for layer in layers]
        values = strided(layer_values(self.configs), layers, self.num_layers)
        return (
            strided(params, rows, len(of_kind)),
            strided(jnp.arange(self.num_layers), layers, self.num_layers),
            values,
            strided(self._lambdas(), layers, self.num_layers),
        )

    def _keep(self, found: Sequence[tuple[Sequence[int], Any]]) -> None:
        """Store what the layers have stored, by kind; found: numbers of layers, with their collections."""
        for name in dict.fromkeys(self.folders):
            of_kind = [(layers, collected) for layers, collected in found if self.folders[layers[0]] == name]
            for collection, stored in in_order(of_kind).items():
                for key, value in stored.items():
                    getattr(self, name).put_variable(collection, key, value)

    def _lambdas(self) -> tuple[Array, Array] | None:
        """Return r and s [L] of `model.residual_lambdas`; None without."""
        return (self.stream_lambdas(), self.input_lambdas()) if self.config.residual_lambdas else None

    def _block(self, config: ModelConfig) -> Any:
        """Return a layer without parameters, for `apply`."""
        return Layer(config, self.num_layers, self.cross_attends, parent=None)

    def decode(self, x: Activations, layers: Sequence[Params], states: StackState) -> Decoded:
        """Map the newest T tokens, embedded x [B, T, D], to [B, T, D], from the states of the layers.

        Args:
          layers: the parameters of every layer, as separate trees.
        Returns: [B, T, D] and the states with the new tokens.
        """
        bias = self._bias(states.positions, states.slot_positions)
        inputs = LayerInputs(
            states.positions,
            states.mask,
            bias,
            memory_mask=states.memory_mask,
            key_positions=states.slot_positions,
        )
        new, start, lambdas = [], x, self._lambdas()
        for index, (config, params, state) in enumerate(zip(self.configs, layers, states.layers, strict=True)):
            x = _with_input(x, start, None if lambdas is None else (lambdas[0][index], lambdas[1][index]))
            x, own = self._block(config).apply({"params": params}, x, inputs, None, state)
            new.append(own)
        return Decoded(self._finished(x), tuple(new))

    def project_memory(self, memory: Float[Array, "B S D"], layers: Sequence[Params]) -> tuple[LayerCache, ...]:
        """Return the keys and values of a memory [B, S, D] for every layer, for `decode`; computed once."""
        return tuple(
            cache_layout(self._block(config).apply({"params": params}, memory, method="project_memory"))
            for config, params in zip(self.configs, layers, strict=True)
        )

    def _bias(self, query_positions: Positions, key_positions: Int[Array, "#B S"]) -> Bias | None:
        """Return the bias that is added to attention logits, [B or 1, N, T, S], or None.

        Raises: ValueError for another shape, which could broadcast and mean something else.
        """
        if self.relative_bias is None:
            return None
        bias = self.relative_bias(query_positions, key_positions)
        rest = (self.config.num_heads, query_positions.shape[-1], key_positions.shape[-1])
        if bias.ndim != 4 or bias.shape[0] not in (1, query_positions.shape[0]) or bias.shape[1:] != rest:
            expected = ", ".join(map(str, (f"{query_positions.shape[0]} or 1", *rest)))
            raise ValueError(
                f"the bias of model.position_encoding has the shape {list(bias.shape)}; expected [B or 1, N, T, S], "
                f"here [{expected}]"
            )
        return bias

    def _ended(self, x: Activations, dropout: Dropout | None, is_token: Bool[Array, "B T"] | None) -> Activations:
        return self._finished(x, fold_dropout(dropout, self.num_layers + 1), is_token)

    def _finished(
        self, x: Activations, dropout: Dropout | None = None, is_token: Bool[Array, "B T"] | None = None
    ) -> Activations:
        return drop(self.final_norm(x, is_token) if has_final_norm(self.config) else x, dropout, "final")


def _with_input(x: Activations, start: Activations, lambdas: tuple[Array, Array] | None) -> Activations:
    """Return r x + s x_0 of one layer, with x_0 the input of the stack; x without lambdas (r, s)."""
    if lambdas is None:
        return x
    stream, of_input = lambdas
    return (stream * x + of_input * start).astype(x.dtype)


def kept_elements(config: ModelConfig, cross_attends: bool) -> int:
    """Return `layer.kept_elements`, and D elements more with `residual_lambdas`: the sum that a layer reads."""
    return layer.kept_elements(config, cross_attends) + config.residual_lambdas * config.emb_dim


def parameter_axes(config: ModelConfig) -> dict[str, Axes]:
    """Return the axes of the parameters of the stacks of a model, by the end of their paths.

    Those of `layers` have one more, in front.

    Raises: ConfigError if two parts of the model have one name.
    """
    return {
        **{rf"{LAYERS}\w*/{path}": axes for path, axes in layer.parameter_axes(config).items()},
        **{f"relative_bias/{path}": axes for path, axes in ENCODINGS[config.position_encoding].bias_axes.items()},
        **({f"{name}/scale": Axes((), (None,)) for name in LAMBDAS} if config.residual_lambdas else {}),
        **{f"final_norm/{path}": axes for path, axes in norms.parameter_axes(config).items()},
    }
