"""The tables of axes against the initialisers, the layouts of Hugging Face and literals."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny

from transformer_jax.config import ModelConfig
from transformer_jax.convert.families import FAMILIES
from transformer_jax.convert.layouts import Permuted
from transformer_jax.models.architecture import init_params, parameter_axes
from transformer_jax.nn.axes import Axes, axes_of
from transformer_jax.nn.initialisation import INITS, Init

MODELS: dict[str, dict[str, Any]] = {
    "decoder": {
        "architecture": "decoder_only",
        "num_decoder_layers": 3,
        "layer_pattern": "AGE",
        "layer_kinds": "A:; G: mixer=gated_delta; E: feed_forward=experts",
        "num_experts": 3,
        "activation": "swiglu",
        "value_head_dim": 3,
        "tie_output": False,
        "scan_layers": True,
    },
    "images": {
        "architecture": "encoder_only",
        "inputs": "patches",
        "position_encoding": "learned",
        "num_encoder_layers": 1,
        "scan_layers": True,
    },
    "recurrent": {
        "architecture": "recurrent",
        "attention": "additive",
        "bridge": "tanh",
        "deep_output": "maxout",
        "hidden_dim": 6,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "tie_output": False,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_initialisers_get_the_numbers_of_inputs_and_outputs_that_the_axes_say(name, monkeypatch):
    """A kernel is filled with 1000 times its number of inputs plus that of outputs.

    Of a convolution, whose features are separate maps to one output, the initialiser counts the taps twice.
    """

    def filled(key, shape, num_inputs, num_outputs):
        return jnp.full(shape, 1000 * num_inputs + num_outputs, jnp.float32)

    monkeypatch.setitem(INITS, "glorot", Init(lambda config: filled, lambda config, sums: filled, lambda config: 1.0))
    config = tiny(init="glorot", **MODELS[name])
    params = jax.jit(lambda: init_params(config, 0))()
    table, seen = parameter_axes(config), 0
    for key_path, x in jax.tree_util.tree_leaves_with_path(params):
        path = jax.tree_util.keystr(key_path, simple=True, separator="/")
        axes = axes_of(path, table)
        assert axes is not None
        if not path.endswith(("kernel", "score")):
            continue
        last = x.shape[x.ndim - len(axes.names) :]
        inputs = math.prod(last[: len(axes.inputs)])
        outputs = math.prod(last[len(axes.inputs) + len(axes.maps) :])
        np.testing.assert_array_equal(x, 1000 * inputs + (inputs if "convolution" in path else outputs), path)
        seen += 1
    assert seen >= 5


def test_layouts_of_hugging_face_have_as_many_inputs_as_the_axes():
    """But for those with a permutation, which are convolutions over images and vectors with axes of size 1."""
    seen = 0
    for family in FAMILIES.values():
        inputs = "patches" if family.name == "vit" else "tokens"
        table: dict[str, Axes] = {}
        for encoding in ("learned", "relative"):
            config = ModelConfig(architecture=family.architecture, inputs=inputs, position_encoding=encoding)
            table |= parameter_axes(config) or {}
        for tensor in family.tensors:
            for path in tensor.ours:
                axes = axes_of(path, table)
                if axes is not None and not isinstance(tensor.layout, Permuted):
                    assert len(axes.inputs) == (tensor.layout.inputs or 0), (family.name, path)
                    seen += 1
    assert seen > 200


@pytest.mark.parametrize(
    ("path", "axes", "is_hidden"),
    [
        ("decoder/layers/self_attention/query/kernel", Axes(("emb",), ("heads", None)), True),
        ("decoder/layers_experts/self_attention/out/kernel", Axes(("heads", None), ("emb",), scaled=True), True),
        ("decoder/layers_experts/experts/hidden/kernel", Axes(("emb",), ("mlp",), scaled=True), True),
        ("decoder/layers_experts/experts/router/kernel", Axes(("emb",), (None,)), False),
        ("decoder/layers_gated_delta/gated_delta/convolution/kernel", Axes((None,), (), ("heads", None)), False),
        ("decoder/layers_gated_delta/gated_delta/gate/kernel", Axes(("emb",), ("heads", None)), True),
        ("decoder/layers/self_attention/query/bias", Axes((), ("heads", None)), False),
        ("embedding/embedding", Axes(("vocab",), ("emb",)), False),
        ("output/kernel", Axes(("emb",), ("vocab",)), False),
    ],
)
def test_axes_of_a_path_and_which_are_hidden_matrices(path, axes, is_hidden):
    found = axes_of(path, parameter_axes(tiny(**MODELS["decoder"])))
    assert found == axes
    assert found.is_hidden == is_hidden
    assert found.names == axes.inputs + axes.maps + axes.outputs


def test_a_part_of_a_name_is_no_match():
    table = {"gate/kernel": Axes(("emb",), ("mlp",))}
    with pytest.raises(ValueError, match=r"layers/attn_gate/kernel: expected one entry .* none matches"):
        axes_of("layers/attn_gate/kernel", table)
    assert axes_of("layers/gate/kernel", table) == table["gate/kernel"]
    assert axes_of("head/anything", table) is None


@pytest.mark.parametrize("entry", [("emb", "mlp"), Axes(("emb",), ("hidden",))], ids=["a tuple", "another name"])
def test_an_entry_of_other_names_or_type_is_refused(entry):
    with pytest.raises(
        ValueError, match=r"x/kernel: the axes of 'kernel' are .*; expected Axes\(inputs, outputs\) of emb"
    ):
        axes_of("x/kernel", {"kernel": entry})
