"""Layers that differ: patterns, windows, rotation and its base by layer, in training, decoding, packing and costs.

The covering sets of `support.OPTIONS` compare such models with the float64 reference and with cached decoding.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, forward, make_batch, random_params, slow_but, tiny

from transformer_jax.config import ExperimentConfig, layer_configs, layer_letters
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.nn.attention import visible_pairs
from transformer_jax.nn.dropout import Dropout, DropoutRates, fold_dropout
from transformer_jax.nn.layer import Layer
from transformer_jax.nn.layer_inputs import LayerInputs
from transformer_jax.nn.masks import causal_mask, prefix_mask, segment_mask, window_mask
from transformer_jax.nn.stack import Stack

KINDS = "S: attention_window=2; N: attention_window=3, attention_rotates=false; L: rotary_base=100"
MIXED = {"layer_pattern": "SNL", "layer_kinds": KINDS, "position_encoding": "rotary", "num_decoder_layers": 5}


@pytest.mark.parametrize(
    ("pattern", "depth", "letters"),
    [("SSSL", 6, "SSSLSS"), ("SSSL", 2, "SS"), ("SSSL|L", 6, "SSSLSL"), ("S|LN", 3, "SLN"), ("SL", 0, "")],
)
def test_a_pattern_is_repeated_and_cut_at_the_depth(pattern, depth, letters):
    config = tiny(layer_pattern=pattern, layer_kinds=KINDS)
    assert layer_letters(config, "encoder", depth) == layer_letters(config, "decoder", depth) == letters


def test_each_stack_may_have_a_pattern_of_its_own():
    config = tiny(layer_pattern="decoder: SL; encoder: N|S", layer_kinds=KINDS)
    assert layer_letters(config, "encoder", 3) == "NNS"
    assert layer_letters(config, "decoder", 3) == "SLS"
    config = tiny(layer_pattern="decoder: S", layer_kinds="S: attention_window=2")
    assert layer_configs(config, "encoder", 2) == (tiny(), tiny())


def test_a_kind_changes_its_fields_of_the_config():
    first, second = layer_configs(tiny(layer_pattern="NL", layer_kinds=KINDS, rotary_base=7), "decoder", 2)
    assert first == tiny(attention_window=3, attention_rotates=False, rotary_base=7)
    assert second == tiny(rotary_base=100.0)


def test_a_pattern_changes_no_parameter():
    plain, mixed = init_params(tiny(), 0), init_params(tiny(**MIXED | {"num_decoder_layers": 2}), 0)
    jax.tree.map(np.testing.assert_array_equal, plain, mixed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_pattern": "SX"}, "layer_pattern='SX': unknown letter X; layer_kinds defines S"),
        ({"layer_pattern": ""}, "layer_kinds='S: attention_window=4': no layer_pattern uses kind S; leave it out"),
        ({"layer_pattern": " "}, "'' is no pattern; expected letters that repeat"),
        ({"layer_pattern": "|S"}, "'|S' is no pattern"),
        ({"layer_pattern": "S1"}, "'S1' is no pattern"),
        ({"layer_pattern": "encoder: S"}, "architecture='decoder_only' has no encoder"),
        ({"layer_pattern": "decoder: S; decoder: S"}, "expected one pattern, or 'encoder: PATTERN; decoder: PATTERN'"),
        ({"layer_pattern": "S|SSS"}, "3 last layers, but num_decoder_layers=2"),
        ({"layer_kinds": ""}, "unknown letter S; layer_kinds defines none"),
        ({"layer_kinds": "S: attention_window=0"}, "kind S: attention_window=0: expected at least 1"),
        ({"layer_kinds": "S: attention_window=2.5"}, "kind S: attention_window=2.5: expected int, got float"),
        ({"layer_kinds": "S: attention_rotates=no"}, "kind S: attention_rotates=no: expected bool, got str"),
        ({"layer_kinds": "S: emb_dim=8"}, "kind S: emb_dim is the same in all layers; layers can differ in"),
        ({"layer_kinds": "S: dropout_rate=0.5"}, "kind S: dropout_rate is the same in all layers"),
        ({"layer_kinds": "S: atention_window=8"}, "is no field (did you mean 'attention_window'?)"),
        ({"layer_kinds": "S: attention_window=8; L:"}, "no layer_pattern uses kind L"),
        ({"layer_kinds": "S: attention_window=8; S:"}, "kind S is defined twice"),
        ({"layer_kinds": "S: attention_window=8, attention_window=9"}, "expected every field once, as NAME=VALUE"),
        ({"layer_kinds": "S attention_window=8"}, "is no kind; expected a letter and values"),
        ({"layer_kinds": "S: attention_rotates=false", "position_encoding": "none"}, "has no effect with"),
        ({"layer_kinds": "S: mixer=gated_delta, attention_window=4"}, "kind S: attention_window=4 has no effect with"),
        ({"layer_kinds": "S: mixer=gated_delta", "qk_norm": "rms"}, "qk_norm='rms' has no effect with mixer="),
        ({"layer_pattern": "", "layer_kinds": "", "attention_window": 0}, "attention_window=0: expected at least 1"),
    ],
)
def test_bad_patterns_and_kinds_are_refused(fields, message):
    model = {"layer_pattern": "S", "layer_kinds": "S: attention_window=4", "num_decoder_layers": 2}
    model |= {"architecture": "decoder_only", "position_encoding": "rotary"} | fields
    with pytest.raises(ConfigError) as error:
        ExperimentConfig.unresolved(
            {"model": model, "task": {"name": "language_model"}, "data": {"batching": "windows"}}
        ).resolved()
    assert message in str(error.value)
    assert str(error.value).startswith("config: model.")  # one problem, told once


@pytest.mark.parametrize("architecture", ["encoder_only", "encoder_decoder"])
@pytest.mark.parametrize(
    "fields", [{"mixer": "gated_delta"}, {"layer_pattern": "SA", "layer_kinds": "S: mixer=gated_delta; A:"}]
)
def test_a_mixer_with_a_state_in_an_encoder_or_with_cross_attention_is_refused(architecture, fields):
    (problem,) = tiny(architecture=architecture, **fields).problems()
    assert (
        f"mixer='gated_delta' cannot be used with architecture='{architecture}': it reads in one direction" in problem
    )


@pytest.mark.parametrize("task", [{"prefix": "random"}, {"name": "translation", "source_mask": "prefix"}])
def test_a_mixer_with_a_state_under_a_two_way_prefix_is_refused(task):
    model = {"architecture": "decoder_only", "layer_pattern": "SA", "layer_kinds": "S: mixer=gated_delta; A:"}
    config = {"model": model, "task": {"name": "language_model", **task}}
    with pytest.raises(ConfigError, match="a layer with mixer='gated_delta' reads in one direction; task"):
        ExperimentConfig.unresolved(config).resolved()


def test_window_masks():
    positions = jnp.arange(5)[None]
    near = window_mask(positions, positions, 2)
    causal = (causal_mask(5) & near).allowed[0, 0].astype(int)
    np.testing.assert_array_equal(
        causal, [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    )
    two_way = near.allowed[0, 0].astype(int)
    np.testing.assert_array_equal(two_way, causal | np.array(causal).T)
    prefix = (prefix_mask(jnp.arange(5)[None] < 3) & near).allowed[0, 0].astype(int)
    np.testing.assert_array_equal(
        prefix, [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    )
    # Rows of two texts: positions begin again, and segments keep the texts apart.
    segments, packed = jnp.array([[1, 1, 1, 2, 2]]), jnp.array([[0, 1, 2, 0, 1]])
    own = (causal_mask(5) & segment_mask(segments, segments) & window_mask(packed, packed, 2)).allowed[0, 0]
    np.testing.assert_array_equal(
        own.astype(int), [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    )
    # Slots of a cache stand in any order.
    slots = window_mask(jnp.array([[4]]), jnp.array([[3, 0, 4, 2, 5]]), 2).allowed[0, 0]
    np.testing.assert_array_equal(slots.astype(int), [[1, 0, 1, 0, 1]])


def logits_of_static_kinds(config, params, batch, dropout):
    """Return the logits of a decoder whose layers are applied one after the other, each with its own config alone."""
    module = ARCHITECTURES["decoder_only"].module(config)
    configs = layer_configs(config, "decoder", config.num_decoder_layers)

    def applied(self, x, inputs, dropout):
        for index, own in enumerate(configs):
            layer = Layer(own, config.num_decoder_layers, parent=None)
            of_layer = jax.tree.map(lambda p, i=index: p[i], params["decoder"]["layers"])
            x = layer.apply({"params": of_layer}, x, inputs, fold_dropout(dropout, jnp.int32(index))).x
        return x

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stack, "_applied", applied)
        return module.apply({"params": params}, batch, dropout)


def test_values_as_arrays_equal_static_kinds_and_a_loop_equals_unrolled_layers():
    """Bit for bit, with dropout; gradients, which XLA fuses otherwise, to rounding."""
    config = tiny(**MIXED, architecture="decoder_only", norm_position="pre")
    params, batch = random_params(config), make_batch(3, 7, 9)
    dropout = Dropout(jnp.uint32(1), jnp.arange(3), DropoutRates(0.2, 0.1, 0.1, 0.1))

    def loss(logits_of):
        return lambda params: jnp.sum(jnp.sin(logits_of(params)))

    def by_module(config, params):
        return ARCHITECTURES["decoder_only"].module(config).apply({"params": params}, batch, dropout)

    unrolled = jax.jit(jax.value_and_grad(loss(functools.partial(by_module, config))))(params)
    looped_config = dataclasses.replace(config, scan_layers=True)
    looped = jax.jit(loss(functools.partial(by_module, looped_config)))(params)
    static = jax.jit(jax.value_and_grad(loss(lambda params: logits_of_static_kinds(config, params, batch, dropout))))(
        params
    )
    assert looped == unrolled[0]
    assert static[0] == unrolled[0]
    for own, other in zip(jax.tree.leaves(static[1]), jax.tree.leaves(unrolled[1]), strict=True):
        assert_close(own, other, 1e-6)


@pytest.mark.parametrize(
    "architecture", slow_but("decoder_only", [name for name in ARCHITECTURES if name != "recurrent"])
)
def test_nothing_outside_the_windows_has_influence(architecture):
    """With L layers of window w, a token depends on tokens at most L (w - 1) away: beyond, gradients are exactly 0."""
    layers, window, length = 2, 3, 12
    config = tiny(architecture=architecture, attention_window=window, position_encoding="none", scan_layers=True)
    params, stack = random_params(config), "encoder" if architecture == "encoder_only" else "decoder"
    positions = jnp.arange(length)[None]
    causal = stack == "decoder"
    module = Stack(config, layers, causal)
    own = {"params": {k: v for k, v in params[stack].items() if k in ("layers", "final_norm")}}
    own["params"]["layers"] = {k: v for k, v in own["params"]["layers"].items() if not k.startswith("cross")}
    mask = causal_mask(length) if causal else None

    def output(x):
        return module.apply(own, x, positions, mask, None)

    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, length, config.emb_dim)), jnp.float32)
    influence = jax.jit(jax.jacrev(lambda x: output(x)[0].sum(-1)))(x)[:, 0]  # [T, S, D]
    reached = np.abs(np.asarray(influence)).max(-1) > 0
    distance = np.arange(length)[:, None] - np.arange(length)
    reach = layers * (window - 1)
    np.testing.assert_array_equal(reached, (distance <= reach) & (distance >= (0 if causal else -reach)))


@pytest.mark.parametrize("causal", [True, False])
def test_visible_pairs_are_those_of_the_mask(causal):
    for length in (1, 2, 5, 9):
        positions = jnp.arange(length)[None]
        for window in (None, 1, 2, 4, 9, 20):
            mask = window_mask(positions, positions, length if window is None else window)
            mask = mask & causal_mask(length) if causal else mask
            assert visible_pairs(tiny(attention_window=window), length, causal) == int(mask.allowed.sum())


def test_equal_operations_count_each_layer_by_its_window():
    config = tiny(architecture="decoder_only", layer_pattern="SL", layer_kinds="S: attention_window=2; L:")
    architecture, widths = ARCHITECTURES["decoder_only"], {"targets": 6}
    head = config.num_heads * (config.head_dim + config.value_head_dim)
    in_full = architecture.train_flops(config, 3, widths)
    assert in_full == architecture.train_flops(tiny(architecture="decoder_only"), 3, widths)
    hidden = architecture.hidden_flops(config, 3, widths)
    assert hidden == 3 * 2 * head * 3 * (
        (36 - 11) + (36 - 21)
    )  # of 36 pairs, a window of 2 shows 11, the other layer 21


def test_masks_of_windows_are_told_to_the_choice_of_kernels():
    plain = ARCHITECTURES["encoder_decoder"].attention_kinds(tiny())
    windows = {"layer_pattern": "decoder: SL; encoder: S", "layer_kinds": "S: attention_window=2; L:"}
    kinds = ARCHITECTURES["encoder_decoder"].attention_kinds(tiny(**windows))
    assert plain == {
        "encoder self-attention": "lengths",
        "decoder self-attention": "causal",
        "cross-attention": "lengths",
    }
    assert kinds == plain | {"encoder self-attention": "any", "decoder self-attention": "any"}


def test_layers_read_positions_and_not_places():
    """A row whose positions are shifted, or spread by 2 with a window of twice the size, is the same."""
    config = tiny(attention_window=2, position_encoding="none", num_encoder_layers=1)
    params = jax.tree.map(lambda p: p[0], random_params(config)["encoder"]["layers"])
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 6, config.emb_dim)), jnp.float32)

    def output(positions, window):
        own = dataclasses.replace(config, attention_window=window)
        return Layer(own, 1).apply({"params": params}, x, LayerInputs(positions, None, None)).x

    places = jnp.arange(6)[None]
    expected = output(places, 2)
    np.testing.assert_array_equal(output(places + 7, 2), expected)
    np.testing.assert_array_equal(output(places * 2, 3), expected)
    assert np.abs(np.asarray(output(places, 3) - expected)).max() > 1e-3


def test_a_window_wider_than_the_text_is_no_window():
    config = tiny(architecture="decoder_only", scan_layers=True)
    params, batch = random_params(config), make_batch()
    wide = forward(dataclasses.replace(config, attention_window=5), params, batch)
    assert_close(wide, forward(config, params, batch), 1e-6)
