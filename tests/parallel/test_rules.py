"""Every parameter of every model has one rule, and what a mesh cannot divide is named."""

import itertools

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from training_support import small_config

from transformer_jax.errors import ConfigError
from transformer_jax.models.encoder_decoder import init_params
from transformer_jax.parallel.rules import Rule, rules, shardings
from transformer_jax.training.hyper import split
from transformer_jax.training.state import state_shapes

NORMS = {
    "model.norm_position": ("post", "pre"),
    "model.norm": ("layernorm", "rmsnorm"),
    "model.use_bias": (True, False),
}
MODELS = [
    *({"model.position_encoding": p} for p in ("sinusoidal", "learned", "rotary", "relative", "none")),
    *({"model.activation": a, "model.use_bias": b} for a in ("swiglu", "geglu") for b in (True, False)),
    *({"model.share_embeddings": s, "model.tie_output": t} for s in (True, False) for t in (True, False)),
    *(dict(zip(NORMS, values, strict=True)) for values in itertools.product(*NORMS.values())),
]


def mesh(data=1, fsdp=1, tensor=1):
    return AbstractMesh((data, fsdp, tensor), ("data", "fsdp", "tensor"))


def placed(fields, **sizes):
    """PartitionSpecs of a small model's state by path, and its shapes."""
    config = small_config({"model.vocab_size": 24, **fields})
    state = state_shapes(*split(config))
    tree = shardings(state, rules(config.model), mesh(**sizes))
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.spec for path, leaf in leaves}


@pytest.mark.parametrize("fields", MODELS, ids=lambda fields: "-".join(map(str, fields.values())))
def test_every_model_has_the_rules_for_its_parameters(fields):
    """Otherwise `shardings` raises: for a parameter without a rule, and for a rule without a parameter."""
    config = small_config(fields)
    params = jax.eval_shape(lambda: init_params(config.model, 0))
    shardings(params, rules(config.model), mesh())


def test_parameters_and_their_moments_are_divided_alike():
    specs = placed({}, data=2, fsdp=2, tensor=2)
    params = {path.removeprefix("params/"): spec for path, spec in specs.items() if path.startswith("params/")}
    moments = {path.partition("/mu/")[2]: spec for path, spec in specs.items() if "/mu/" in path}
    assert params == moments
    assert params["embedding/embedding"] == PartitionSpec("tensor", "fsdp")
    assert params["encoder/layers/self_attention/query/kernel"] == PartitionSpec(None, "fsdp", "tensor")
    assert params["decoder/layers/cross_attention/out/kernel"] == PartitionSpec(None, "tensor", None, "fsdp")
    assert params["decoder/layers/feed_forward/hidden/bias"] == PartitionSpec(None, "tensor")
    assert params["decoder/layers/feed_forward_residual/norm/scale"] == PartitionSpec()
    assert specs["step"] == PartitionSpec()


def test_where_nothing_is_divided_the_state_is_replicated():
    assert set(placed({}, data=8).values()) == {PartitionSpec()}


def test_what_a_mesh_does_not_divide_is_named():
    with pytest.raises(ConfigError) as raised:
        placed({"model.num_kv_heads": 1}, fsdp=3, tensor=2)
    message, key = str(raised.value), "params/encoder/layers/self_attention/key/kernel"
    assert f"parallel.tensor=2 does not divide 1, axis 2 of {key} (1, 16, 1, 8)" in message
    assert "parallel.fsdp=3 does not divide 16, axis 1 of params/embedding/embedding (24, 16)" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r[1:], "embedding/embedding: 0 sharding rules are for it"),
        (lambda r: (*r, Rule("scale", (None,))), "norm/scale: 2 sharding rules are for it"),
        (lambda r: (*r, Rule("gate/kernel", (None,))), "sharding rules for nothing: gate/kernel"),
    ],
)
def test_rules_that_do_not_belong_to_the_model_are_refused(change, message):
    config = small_config()
    params = jax.eval_shape(lambda: init_params(config.model, 0))
    with pytest.raises(ValueError, match=message):
        shardings(params, change(rules(config.model)), mesh())
