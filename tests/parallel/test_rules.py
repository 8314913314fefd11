"""Every parameter of every model has one sharding rule, and dimensions that a mesh does not divide are reported."""

import itertools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from support import ATTENTIONS, HYBRIDS, STREAMS, covering_set, shapes, tiny
from training_support import small_config

from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.nn import attention, embeddings, experts, feed_forward, gated_delta, norms
from transformer_jax.nn.axes import Axes
from transformer_jax.parallel.rules import shardings
from transformer_jax.training.hyper import split
from transformer_jax.training.state import TrainState, state_shapes

ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")
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


def specs_of(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.spec for path, leaf in leaves}


def placed(fields, **sizes):
    """Return the PartitionSpecs of a small model's state by path."""
    config = small_config({"model.vocab_size": 24, **fields})
    state = state_shapes(*split(config))
    return specs_of(shardings(state, parameter_axes(config.model), mesh(**sizes)))


@pytest.mark.parametrize("fields", MODELS, ids=lambda fields: "-".join(map(str, fields.values())))
def test_every_model_has_one_entry_for_each_of_its_parameters(fields):
    """Otherwise `shardings` raises."""
    fields = {name.removeprefix("model."): value for name, value in fields.items()}
    for architecture in ARCHITECTURES:
        config = tiny(**fields, architecture=architecture)
        shardings(shapes(config), parameter_axes(config), mesh())


@pytest.mark.slow
def test_every_entry_is_for_a_parameter():
    """Each matches some model of the covering set; an unused entry could mean that a parameter was renamed."""
    models = [{**fields, "architecture": name} for fields in covering_set() for name in ARCHITECTURES]
    used, ends, paths = set(), set(), set()
    decoders = [{**fields, "architecture": "decoder_only"} for fields in HYBRIDS]
    pairs = [{**fields, "architecture": "encoder_decoder"} for fields in ATTENTIONS]
    for fields in (*models, *decoders, *pairs, *STREAMS):
        config = tiny(**fields)
        axes = parameter_axes(config)
        specs = specs_of(shardings(shapes(config), axes, mesh()))
        used |= {end for end in axes for path in specs if re.search(rf"(^|/){end}$", path)}
        ends |= set(axes)
        paths |= set(specs)
    assert used == ends
    # Also those of nested blocks; an entry matches an entry of a larger block by the end of its name.
    for block in (attention, embeddings, experts, feed_forward, gated_delta, norms):
        for end in block.PARAMETER_AXES:
            assert any(re.search(rf"(^|/){end}$", path) for path in paths), f"{block.__name__}: {end}"
            assert any(larger == end or larger.endswith(f"/{end}") for larger in ends), f"{block.__name__}: {end}"


P = PartitionSpec


def attention_specs(prefix):
    return {
        f"{prefix}/query/kernel": P(None, "fsdp", "tensor"),
        f"{prefix}/query/bias": P(None, "tensor"),
        f"{prefix}/key/kernel": P(None, "fsdp", "tensor"),
        f"{prefix}/key/bias": P(None, "tensor"),
        f"{prefix}/value/kernel": P(None, "fsdp", "tensor"),
        f"{prefix}/value/bias": P(None, "tensor"),
        f"{prefix}/out/kernel": P(None, "tensor", None, "fsdp"),
        f"{prefix}/out/bias": P(),
        f"{prefix}_residual/norm/scale": P(),
        f"{prefix}_residual/norm/bias": P(),
    }


def stack_specs(name):
    return {
        f"{name}/position_embedding/learned/embedding": P(None, "fsdp"),
        **attention_specs(f"{name}/layers/self_attention"),
        f"{name}/layers/feed_forward/hidden/kernel": P(None, "fsdp", "tensor"),
        f"{name}/layers/feed_forward/hidden/bias": P(None, "tensor"),
        f"{name}/layers/feed_forward/gate/kernel": P(None, "fsdp", "tensor"),
        f"{name}/layers/feed_forward/gate/bias": P(None, "tensor"),
        f"{name}/layers/feed_forward/out/kernel": P(None, "tensor", "fsdp"),
        f"{name}/layers/feed_forward/out/bias": P(),
        f"{name}/layers/feed_forward_residual/norm/scale": P(),
        f"{name}/layers/feed_forward_residual/norm/bias": P(),
        f"{name}/final_norm/scale": P(),
        f"{name}/final_norm/bias": P(),
    }


EVERYTHING = {
    "model.norm_position": "pre",
    "model.position_encoding": "learned",
    "model.activation": "swiglu",
    "model.share_embeddings": False,
    "model.tie_output": False,
}
SPECS = {
    "embedding/embedding": P("tensor", "fsdp"),
    "source_embedding/embedding": P("tensor", "fsdp"),
    "output/kernel": P("fsdp", "tensor"),
    **stack_specs("encoder"),
    **stack_specs("decoder"),
    **attention_specs("decoder/layers/cross_attention"),
}


def test_parameters_and_their_moments_are_divided_alike():
    specs = placed(EVERYTHING, data=2, fsdp=2, tensor=2)
    params = {path.removeprefix("params/"): spec for path, spec in specs.items() if path.startswith("params/")}
    assert params == SPECS
    for moment in ("/mu/", "/nu/"):
        assert {path.partition(moment)[2]: spec for path, spec in specs.items() if moment in path} == SPECS
    assert specs["step"] == PartitionSpec()


def test_a_table_of_relative_positions_is_divided_by_heads():
    specs = placed({"model.position_encoding": "relative"}, fsdp=2, tensor=2)
    for stack_name in ("encoder", "decoder"):
        assert specs[f"params/{stack_name}/relative_bias/embedding"] == PartitionSpec(None, "tensor")


@pytest.mark.parametrize(
    ("sizes", "kernel"), [({"fsdp": 2}, P(None, "fsdp")), ({"tensor": 2}, P(None, None, "tensor"))]
)
def test_a_mesh_axis_of_one_device_is_omitted(sizes, kernel):
    specs = placed(EVERYTHING, **sizes)
    assert specs["params/encoder/layers/self_attention/query/kernel"] == kernel


def test_without_a_divided_axis_the_state_is_replicated():
    assert set(placed({}, data=8).values()) == {PartitionSpec()}


def test_dimensions_that_a_mesh_does_not_divide_are_named():
    with pytest.raises(ConfigError) as raised:
        placed({"model.num_kv_heads": 1}, fsdp=3, tensor=2)
    message, key = str(raised.value), "params/encoder/layers/self_attention/key/kernel"
    assert f"parallel.tensor=2 does not divide 1, axis 2 of {key} (1, 16, 1, 8)" in message
    assert "parallel.fsdp=3 does not divide 16, axis 1 of params/embedding/embedding (24, 16)" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda axes: axes.pop("output/kernel"), r"^output/kernel: expected one entry .*, and none matches"),
        (
            lambda axes: axes.update(scale=Axes((), (None,))),
            r"norm/scale: expected one entry .*, and 2 entries match: .*, scale;",
        ),
        (
            lambda axes: axes.update({r"decoder/layers/.*/hidden/kernel": Axes((None,), (None,))}),
            "^decoder/layers/feed_forward/hidden/kernel: expected one entry .*, and 2 entries match: ",
        ),
    ],
    ids=["none", "two for norms", "two for a kernel"],
)
def test_a_parameter_with_no_entry_or_with_two_is_refused(change, message):
    config = tiny(tie_output=False)
    axes = dict(parameter_axes(config))
    shardings(shapes(config), axes, mesh(fsdp=2))
    change(axes)
    with pytest.raises(ValueError, match=message):
        shardings(shapes(config), axes, mesh())


@pytest.mark.parametrize("sizes", [{"fsdp": 2}, {"tensor": 2}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
def test_an_architecture_without_axes_cannot_be_divided(sizes):
    """Its data can; every device then has all of its parameters."""
    tree = shapes(tiny())
    with pytest.raises(ConfigError, match=r"parallel\.fsdp and parallel\.tensor .*Architecture\.parameter_axes"):
        shardings(tree, None, mesh(**sizes))
    assert set(specs_of(shardings(tree, None, mesh(data=8))).values()) == {PartitionSpec()}


def test_the_parameters_of_a_head_are_on_every_device():
    config = small_config({"model.vocab_size": 24}).model
    head = {"kernel": jnp.zeros((16, 3)), "out": {"kernel": jnp.zeros((2, 8, 16))}}
    params = {**shapes(config), "head": head}
    for tree in (params, {"mu": params}):
        specs = specs_of(shardings(tree, parameter_axes(config), mesh(fsdp=2, tensor=2)))
        of_head = {path: spec for path, spec in specs.items() if "head/" in path}
        assert len(of_head) == 2
        assert set(of_head.values()) == {PartitionSpec()}


def test_arrays_of_an_optimizer_without_the_shape_of_a_parameter_are_on_every_device():
    """Such as one moment per row, a history of norms, or a list per parameter, which a rule from outside may have."""
    config = small_config({"model.vocab_size": 24}).model
    params = shapes(config)
    rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*x.shape[:-1], 1), x.dtype), params)
    state = {"mu": params, "rows": rows, "lists": jax.tree.map(lambda x: [x], params), "norms": jnp.zeros(8)}
    found = shardings(TrainState(jnp.zeros(()), params, state), parameter_axes(config), mesh(fsdp=2, tensor=2))
    assert found.opt_state["mu"] == found.params
    others = {name: tree for name, tree in specs_of(found.opt_state).items() if not name.startswith("mu/")}
    assert len(others) > len(jax.tree.leaves(params))
    assert set(others.values()) == {PartitionSpec()}


def test_an_entry_with_more_axes_than_its_array_is_refused():
    axes = {"kernel": Axes(("emb",), ("heads", None))}
    with pytest.raises(ValueError, match=r"^out/kernel \(4, 4\): its entry in the axes of its block has more axes"):
        shardings({"out": {"kernel": jnp.zeros((4, 4))}}, axes, mesh())
