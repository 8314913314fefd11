"""Parts from outside the package, `MODULE:OBJECT`: the examples of docs/extending.md, whole models, and bad objects.

The examples are in the folder examples/parts. test_trust.py has what a file names; test_lifecycles.py has a run.
"""

import dataclasses
import functools
import importlib
import json
import math
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding_support import EOS_ID, START, from_prompts
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from kinds_support import EXAMPLES, write_kind
from support import assert_close, forward, random_params, shapes, tiny

from transformer_jax import trust
from transformer_jax.cli.main import main
from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    experiment,
    layer_configs,
    layer_numbers,
    outside_parts,
    without_effect,
)
from transformer_jax.config.fields import choice, is_from_outside
from transformer_jax.config.problems import value_problem
from transformer_jax.convert.families import FAMILIES
from transformer_jax.convert.folder_config import unsaid
from transformer_jax.errors import ConfigError
from transformer_jax.inspection.diagram import model_columns
from transformer_jax.inspection.diagram_parts import Box, Repeat
from transformer_jax.models.architecture import ARCHITECTURES, init_params, parameter_axes
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.layer_inputs import LayerInputs
from transformer_jax.nn.layer_values import EQUAL
from transformer_jax.nn.norms import NORMS
from transformer_jax.nn.residual import scaled_initial
from transformer_jax.parallel.rules import shardings
from transformer_jax.tasks.outside_errors import errors_from_outside
from transformer_jax.training.freezing import multipliers, trained_part
from transformer_jax.training.hyper import split
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.schedules import learning_rate

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
OWN = {
    "architecture": "decoder_only",
    "position_encoding": "kerple:KERPLE",
    "norm": "scale_norm:SCALE_NORM",
    "norm_position": "gated_sum:GATED_SUM",
    "feed_forward": "squared_relu:SQUARED_RELU",
    "activation": "mish:MISH",
    "layer_pattern": "MA",
    "layer_kinds": "M: mixer=running_mean:RUNNING_MEAN; A: feed_forward=dense",
    "num_decoder_layers": 3,
    "embedding_norm": True,
    "vocab_size": 20,
}
"""A decoder that has every part of the examples, in layers of two structures."""
MEAN = "layers_running_mean_RUNNING_MEAN_squared_relu_SQUARED_RELU"


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """Let Python find the examples, and trust them as a program does that imports them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(trust, "_state", trust._State())
    trust.trust_modules(NAMES)


def example(name):
    return importlib.import_module(name)


# --- the examples against their equations --------------------------------------------------------------------------

X = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)


def test_mish():
    y = ACTIVATIONS["mish:MISH"].function(jnp.array([-2.0, 0.0, 3.0]))
    np.testing.assert_allclose(y, [-2 * np.tanh(np.log1p(np.exp(-2))), 0, 3 * np.tanh(np.log1p(np.exp(3)))], rtol=1e-6)


def test_squared_relu():
    config = tiny(feed_forward="squared_relu:SQUARED_RELU")
    module = example("squared_relu").SquaredReLU(config, 1)
    params = module.init(jax.random.key(0), jnp.asarray(X), None)["params"]
    first, second = (params[name] for name in ("hidden", "out"))
    hidden = np.maximum(X @ np.asarray(first["kernel"]) + first["bias"][None, None], 0) ** 2
    expected = hidden @ np.asarray(second["kernel"]) + second["bias"][None, None]
    assert_close(module.apply({"params": params}, jnp.asarray(X), None), expected)


def test_a_norm_to_one_length():
    module = example("scale_norm").ScaleNorm(tiny())
    assert_close(module.apply({"params": {"scale": jnp.float32(10.0)}}, jnp.array([[3.0, 4.0]])), [[6.0, 8.0]], 1e-6)
    assert module.init(jax.random.key(0), jnp.asarray(X))["params"]["scale"] == 4.0


def test_a_gated_sum():
    module = example("gated_sum").GatedSum(tiny(), 2)
    gate = {"kernel": jnp.eye(16), "bias": jnp.ones(16)}
    y = module.apply({"params": {"gate": gate}}, jnp.asarray(X), jnp.asarray(X[::-1]), None, method="after")
    assert_close(y, X + X[::-1] / (1 + np.exp(-X - 1)))


def test_logarithmic_biases():
    config = tiny(num_heads=2, position_encoding="kerple:KERPLE")
    queries, keys = jnp.array([[3, 4]]), jnp.array([[0, 4, 9]])
    params = {"strength": jnp.log(jnp.array([1.0, 2.0])), "rate": jnp.log(jnp.array([1.0, 3.0]))}
    bias = example("kerple").LogarithmicBias(config, True).apply({"params": params}, queries, keys)
    distances = np.array([[3, 1, 6], [4, 0, 5]])
    assert_close(bias[0], [-np.log(1 + distances), -2 * np.log(1 + 3 * distances)], 1e-6)


def test_a_running_mean():
    """Whole rows, of which the first is two packed texts, equal a loop over their tokens."""
    config = tiny(architecture="decoder_only", mixer="running_mean:RUNNING_MEAN")
    module = example("running_mean").RunningMean(config, 1)
    positions = jnp.array([[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]])
    inputs = LayerInputs(positions, None, None)
    params = module.init(jax.random.key(0), jnp.asarray(X), inputs, None, EQUAL)["params"]
    values = X @ np.asarray(params["value"]["kernel"])
    means = np.stack(
        [
            [values[row, t - int(at) : t + 1].mean(0) for t, at in enumerate(positions[row])]
            for row in range(len(positions))
        ]
    )
    output = module.apply({"params": params}, jnp.asarray(X), inputs, None, EQUAL).output
    assert_close(output, means @ np.asarray(params["out"]["kernel"]))


def optimizer_fields(**fields):
    config = ExperimentConfig(optimizer=OptimizerConfig(**fields)).resolved()
    return split(config)


def test_signs_of_the_momentum():
    static, hyper = optimizer_fields(
        name="sign_momentum:sign_momentum",
        schedule="none",
        learning_rate=0.5,
        warmup_steps=0,
        clip_norm=0.0,
        beta1=0.75,
    )
    optimizer, params = make_optimizer(static.optimizer, hyper), {"kernel": jnp.zeros(3)}
    state, momentum = optimizer.init(params), np.zeros(3)
    for gradient in ([1.0, -4.0, 0.0], [-0.5, 8.0, 0.0], [-0.5, 1.0, 2.0]):
        updates, state = optimizer.update({"kernel": jnp.array(gradient)}, state, params)
        momentum = 0.75 * momentum + 0.25 * np.array(gradient)
        np.testing.assert_array_equal(updates["kernel"], -0.5 * np.sign(momentum))


def test_restarts():
    _, hyper = optimizer_fields(
        schedule="restarts:restarts", learning_rate=2.0, warmup_steps=10, decay_steps=100, end_fraction=0.1
    )
    steps, expected = [5, 10, 60, 109, 110, 160], [1.0, 2.0, 1.1, None, 2.0, 1.1]
    expected[3] = 2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi * 0.99)) / 2)
    assert_close([learning_rate("restarts:restarts", step, hyper) for step in steps], expected)


# --- whole models --------------------------------------------------------------------------------------------------


@functools.cache
def own_model():
    config = tiny(**OWN)

    def longer(path, x):  # of length sqrt(emb_dim), and not 1, or all that a layer adds would be small
        return 4 * x if path[-1].key == "scale" else x

    return config, jax.tree_util.tree_map_with_path(longer, random_params(config))


def test_paths_of_parameters():
    """Folders are named by what a layer has; the names of the modules are those of the entries."""
    config, params = own_model()
    assert {*params["decoder"]} == {"embedding_norm", "final_norm", "relative_bias", MEAN, "layers"}
    of_mean = params["decoder"][MEAN]
    assert {*of_mean} == {"running_mean", "running_mean_residual", "squared_relu", "squared_relu_residual"}
    assert {*params["decoder"]["layers"]["feed_forward_residual"]} == {"norm", "gate"}
    assert of_mean["squared_relu"]["hidden"]["kernel"].shape == (2, 16, 24)
    assert config.num_decoder_layers == 3


def test_every_parameter_is_divided_by_its_axes():
    config, params = own_model()
    mesh = AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    found = shardings(params, parameter_axes(config), mesh)["decoder"]
    mean = found[MEAN]
    assert mean["running_mean"]["value"]["kernel"].spec == P(None, "fsdp", "tensor")
    assert mean["squared_relu"]["out"]["kernel"].spec == P(None, "tensor", "fsdp")
    assert mean["squared_relu_residual"]["gate"]["kernel"].spec == P(None, "fsdp")
    assert mean["squared_relu_residual"]["norm"]["scale"].spec == P()
    assert found["final_norm"]["scale"].spec == P()
    assert found["relative_bias"]["rate"].spec == P("tensor")


def test_a_parameter_without_axes_names_the_part(monkeypatch):
    config = ExperimentConfig(model=ModelConfig(norm="scale_norm:SCALE_NORM")).resolved()
    monkeypatch.setitem(NORMS._imported, "scale_norm:SCALE_NORM", example("scale_norm").SCALE_NORM._replace(axes={}))
    mesh = AbstractMesh((1, 1, 1), ("data", "fsdp", "tensor"))
    message = r"model\.norm='scale_norm:SCALE_NORM': ValueError: .*/scale: expected one entry .* and none matches"
    with pytest.raises(ConfigError, match=message), errors_from_outside(config):
        shardings(shapes(tiny(norm="scale_norm:SCALE_NORM")), parameter_axes(config.model), mesh)


def test_layers_from_outside_are_frozen_and_scaled_by_their_number():
    config, params = own_model()
    numbers = layer_numbers(config)
    trained = trained_part("decoder/layers:1", params, numbers)["decoder"]
    assert len(trained[MEAN]["running_mean"]["out"]["kernel"]) == 1  # layer 2 of 0 and 2
    assert len(trained["layers"]["self_attention"]["out"]["kernel"]) == 1
    factors = multipliers(params, 0.5, numbers)["decoder"]
    assert np.ravel(factors[MEAN]["squared_relu"]["out"]["kernel"]).tolist() == [2**-3, 2**-1]


def path_of(key_path):
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def test_kernels_that_deepnorm_scales():
    """Those that the axes of the parts say; the table of `squared_relu` is that of the built-in part. Of ones."""
    config = tiny(**{**OWN, "norm_position": "deepnorm"})
    ones = jax.tree.map(lambda x: jnp.ones(x.shape), shapes(config))
    scaled = leaves_of(scaled_initial(config, ones, parameter_axes(config)))
    found = {path_of(path).removeprefix("decoder/"): leaf for path, leaf in scaled if (leaf != 1).any()}
    assert {*found} == {
        *(f"{MEAN}/running_mean/{name}/kernel" for name in ("value", "out")),
        *(f"{MEAN}/squared_relu/{name}/kernel" for name in ("hidden", "out")),
        *(f"layers/self_attention/{name}/kernel" for name in ("value", "out")),
        *(f"layers/feed_forward/{name}/kernel" for name in ("hidden", "out")),
    }
    for leaf in found.values():
        np.testing.assert_allclose(leaf, (8 * 3) ** -0.25, rtol=1e-6)


@pytest.mark.slow
def test_outputs_that_start_at_zero():
    """Those whose kernels are from `residual_kernel_init`, and no others."""
    config = tiny(**OWN, zero_init_outputs=True)
    params = {path_of(path): leaf for path, leaf in leaves_of(jax.jit(lambda: init_params(config, 0))())}
    kernels = {path for path in params if path.endswith("/kernel")}
    assert {path for path in kernels if not params[path].any()} == {p for p in kernels if p.endswith("out/kernel")}


def test_operations():
    """Of a layer with a running mean 4 D^2 + 4 D F a token, and of one with attention as ever."""
    config, _ = own_model()
    architecture, tokens = ARCHITECTURES["decoder_only"], 2 * 6
    own = architecture.train_flops(config, 2, {"targets": 6})
    plain = dataclasses.replace(config, layer_pattern="", layer_kinds="", feed_forward="dense", num_decoder_layers=1)
    mean = 3 * tokens * (4 * 16**2 + 4 * 16 * 24)
    assert own == architecture.train_flops(plain, 2, {"targets": 6}) + 2 * mean
    assert architecture.activation_bytes(config, 2, {"targets": 6}) > 0


@functools.partial(jax.jit, static_argnums=0)
def fed(config, params, cache, ids, positions):
    return ARCHITECTURES["decoder_only"].decoder(config).read(params, cache, ids, positions)


def test_decoding_with_states_and_biases_equals_the_whole_text():
    """Prompts of 1, 3 and 2 tokens, padded on the right; then three more tokens at once."""
    config, params = own_model()
    decoder = ARCHITECTURES["decoder_only"].decoder(config)
    ids = np.random.default_rng(0).integers(4, 19, (3, 6)).astype(np.int32)
    whole = forward(config, params, {"decoder_inputs": jnp.asarray(ids)})
    prepared, lengths = decoder.prepare(params), np.array([1, 3, 2])
    columns = np.arange(3)[None]
    positions = np.where(columns < lengths[:, None], columns, -1)
    cache = decoder.empty_cache(prepared, {"prompts": jnp.asarray(ids)}, 6)
    logits, cache = fed(config, prepared, cache, jnp.asarray(ids[:, :3]), jnp.asarray(positions))
    for row, length in enumerate(lengths):
        assert_close(logits[row, :length], whole[row, :length])
    more = lengths[:, None] + np.arange(3)
    logits, _ = fed(config, prepared, cache, jnp.asarray(np.take_along_axis(ids, more, 1)), jnp.asarray(more))
    assert_close(logits, np.take_along_axis(np.asarray(whole), more[..., None], 1))


def test_packed_texts_are_as_alone_and_no_token_sees_a_later_one():
    config, params = own_model()
    ids = np.random.default_rng(1).integers(4, 19, (3, 6)).astype(np.int32)
    whole = np.asarray(forward(config, params, {"decoder_inputs": jnp.asarray(ids)}))
    changed = np.where(np.arange(6) < 4, ids, ids % 15 + 4)
    later = np.asarray(forward(config, params, {"decoder_inputs": jnp.asarray(changed)}))
    np.testing.assert_array_equal(later[:, :4], whole[:, :4])
    assert np.abs(later[:, 4:] - whole[:, 4:]).max() > 0.1

    packed = {
        "decoder_inputs": np.concatenate([ids[:1, :4], ids[1:2, :2]], 1),
        "targets_positions": [[*range(4), 0, 1]],
    }
    packed["targets_segment_ids"] = [[1] * 4 + [2] * 2]
    found = forward(config, params, jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), packed, is_leaf=_is_list))
    assert_close(found[0, :4], whole[0, :4])
    assert_close(found[0, 4:], whole[1, :2])


def _is_list(value):
    return isinstance(value, list)


@pytest.mark.slow
def test_hypotheses_keep_their_own_states():
    """The scores of a beam are those of its texts: a state of another hypothesis would change them."""
    config = dataclasses.replace(own_model()[0], vocab_size=8, tie_output=False)
    params, decoder = random_params(config), ARCHITECTURES["decoder_only"].decoder(config)
    decode = DecodeConfig(
        beam_size=6, num_best=6, max_new_tokens=4, length_penalty="none", end_among="candidates", forbidden_ids="2,3,4"
    )
    result = from_prompts([decoder], [decoder.prepare(params)], decode, [[START, 6]], [4])
    for ids, length, score in zip(result.ids[0], result.lengths[0], result.scores[0], strict=True):
        text = np.array([START, 6, *ids[:length]], np.int32)
        batch = {"decoder_inputs": jnp.asarray(np.pad(text, (0, 6 - len(text)))[None])}
        log_probs = jax.nn.log_softmax(forward(config, params, batch)[0])
        assert score == pytest.approx(float(sum(log_probs[1 + i, ids[i]] for i in range(length))), abs=1e-4)
    assert EOS_ID in result.ids[0]


def test_a_diagram_has_a_box_for_every_part():
    model = ModelConfig(**OWN, emb_dim=16, num_heads=4, mlp_dim=24)
    config = ExperimentConfig(model=model, task=TaskConfig(name="language_model"), data=DataConfig(batching="windows"))
    (column,) = model_columns(config.resolved())
    found = list(boxes(column.parts))
    titles = [box.title for box in found]
    assert (
        titles.count("scale_norm:SCALE_NORM") == 6
    )  # of the embedding, before two parts of two kinds of layers, at the end
    assert {"running_mean:RUNNING_MEAN", "squared_relu:SQUARED_RELU", "self-attention", "feed-forward"} < {*titles}
    said = {line for box in found for line in box.lines}
    assert {"B: kerple:KERPLE", "mish:MISH", "from outside the package"} < said
    owners = tuple(owner for box in found for owner in box.owns)
    paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves_of(own_model()[1])]
    assert [path for path in paths if not path.startswith(owners)] == []


def leaves_of(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def boxes(parts):
    for part in parts:
        if isinstance(part, Box):
            yield part
        else:
            yield from boxes(part.parts if isinstance(part, Repeat) else part.blocks)


STUDY = """
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study(
    "Does the rate matter?",
    CONFIG,
    axes=(over("optimizer.learning_rate", 1e-2, 1e-4, name="rate"),),
    settings={
        "data.dir": DIR,
        "optimizer.name": "sign_momentum:sign_momentum",
        "optimizer.schedule": "restarts:restarts",
        "optimizer.decay_steps": 3,
        "training.num_train_steps": 4,
    },
    seeds=(0,),
    metrics=(Metric("test/loss"),),
)
"""


@pytest.mark.slow
def test_trials_by_processes_and_as_one_program(tmp_path, monkeypatch):
    """Workers trust what the study names, and rates that differ share the program of an outside rule and schedule."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]))
    folder = write_kind(tmp_path / "corpus", "parts from outside")
    study = tmp_path / "rates" / "study.py"
    study.parent.mkdir()
    study.write_text(STUDY.replace("CONFIG", repr(str(folder / "tiny.py"))).replace("DIR", repr(str(folder))))
    losses = {}
    for executor in ("local", "vmap"):
        workdir = tmp_path / executor
        assert main(["sweep", f"--study={study.parent}", f"--workdir={workdir}", f"--executor={executor}"]) == 0
        results = [json.loads(file.read_text()) for file in sorted(workdir.glob("trials/*/result.json"))]
        losses[executor] = [result["metrics"]["test/loss"] for result in results]
        assert main(["report", f"--workdir={workdir}"]) == 2
        assert main(["report", f"--workdir={workdir}", f"--trust={','.join(NAMES)}"]) == 0
    assert len({*losses["local"]}) == 2
    assert losses["vmap"] == pytest.approx(losses["local"], rel=1e-4)


# --- configs -------------------------------------------------------------------------------------------------------


def refused(**fields):
    sections = {}
    for name, value in fields.items():
        section, _, leaf = name.partition("__")
        sections.setdefault(section, {})[leaf] = value
    with pytest.raises(ConfigError) as error:
        ExperimentConfig.unresolved(sections)
    return str(error.value)


BROKEN = "outside.broken_parts"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model__mixer", "NO_STEP", "module: Reader lacks step"),
        ("model__mixer", "NO_STATE", "start=None: expected a function or class"),
        ("model__mixer", "Reader", "expected transformer_jax.nn.mixers.Mixer, got the class Reader"),
        ("model__mixer", "DENSE", "expected transformer_jax.nn.mixers.Mixer, got FeedForwardPart"),
        ("model__feed_forward", "NO_CALL", "module: Empty lacks __call__"),
        ("model__feed_forward", "NUMBER", "flops=12: expected a function or class"),
        ("model__feed_forward", "SLASH", "name='a/b': expected the name of a folder of parameters"),
        ("model__feed_forward", "TAKEN", "name='feed_forward' is that of model.feed_forward='dense'; give it another"),
        ("model__activation", "NOT_GATED", "gated='no': expected bool"),
        ("model__activation", "NO_FUNCTION", "function=None: expected a function or class"),
        ("model__activation", "raises", "expected transformer_jax.nn.feed_forward.Activation, got function"),
        ("model__activation", "TAHN", "module outside.broken_parts has no 'TAHN' (did you mean 'TANH'?)"),
        ("model__norm", "NO_NORM", "module: Empty lacks __call__"),
        ("model__position_encoding", "NO_BIAS", "bias: Empty lacks __call__"),
        ("model__position_encoding", "NOTHING", "has none of added, rotate, bias, so it does nothing"),
        ("model__norm_position", "NO_BEFORE", "module: Empty lacks before, after"),
        ("optimizer__name", "BROKEN", "has no 'BROKEN'"),
        ("optimizer__name", "TANH", "expected a function of (static, hyper, axes), got Activation"),
        ("optimizer__schedule", "one_argument", "expected a function of (step, hyper): too many positional arguments"),
    ],
)
def test_objects_that_lack_something_are_refused(field, value, message):
    trust.trust_modules("outside")
    said = refused(**{field: f"{BROKEN}:{value}"})
    assert said.startswith(f"config: {field.replace('__', '.')}='{BROKEN}:{value}': ")
    assert message in said


def test_fields_that_an_outside_module_does_not_read():
    """A place of norms without a module of its own has the built-in one, which reads them."""
    trust.trust_modules("outside")
    place = f"{BROKEN}:INSIDE"
    assert next(iter(tiny(norm_position=place, residual_scale="vector").problems()), None) is None
    said = refused(model__norm_position="gated_sum:GATED_SUM", model__residual_scale="vector")
    assert "residual_scale='vector' cannot be used with norm_position='gated_sum:GATED_SUM'" in said
    said = refused(model__norm="scale_norm:SCALE_NORM", model__norm_scale="offset")
    assert "norm_scale='offset' cannot be used with norm='scale_norm:SCALE_NORM'" in said


def test_modules_that_are_missing_or_raise(capsys):
    trust.trust_modules("outside")
    assert "No module named 'outside.nowhere'; is the folder" in refused(model__activation="outside.nowhere:TANH")
    assert "importing outside.raising raised ValueError: no licence" in refused(model__norm="outside.raising:NORM")
    assert "raising.py" in capsys.readouterr().err  # its traceback
    assert "model.mixer='attentoin': expected one of attention, gated_delta, or MODULE:OBJECT (did you mean" in refused(
        model__mixer="attentoin"
    )


def test_a_name_that_a_layer_has_already_is_refused():
    trust.trust_modules("outside")
    config = tiny(feed_forward=f"{BROKEN}:LIKE_A_LAYER")
    with pytest.raises(ConfigError, match="its name 'config' is that of a layer's own part; give it another one"):
        parameter_axes(config)


def test_two_parts_with_one_name_are_refused(tmp_path, monkeypatch):
    """One table of axes could not tell their parameters apart; the same object in two kinds is one part."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "twice.py").write_text("from squared_relu import SQUARED_RELU\n\nOTHER = SQUARED_RELU\n")
    trust.trust_modules("twice")
    kinds = "X: feed_forward=twice:SQUARED_RELU; Y: feed_forward={}"
    same = tiny(layer_pattern="XY", layer_kinds=kinds.format("twice:SQUARED_RELU, attention_window=2"))
    assert [*shapes(same)["decoder"]] == ["layers_twice_SQUARED_RELU"]
    assert parameter_axes(same)
    other = tiny(layer_pattern="XY", layer_kinds=kinds.format("twice:OTHER"))
    with pytest.raises(ConfigError, match=r"'twice:OTHER': its name 'squared_relu' is that of model.feed_forward='twi"):
        parameter_axes(other)


def test_a_rule_that_returns_no_transformation():
    trust.trust_modules("outside")
    static, hyper = optimizer_fields(name=f"{BROKEN}:no_rule")
    with pytest.raises(
        ConfigError, match=r"optimizer\.name='outside\.broken_parts:no_rule' returned dict; expected an"
    ):
        make_optimizer(static.optimizer, hyper)


def test_an_exception_names_the_fields_whose_code_ran(capsys):
    trust.trust_modules("outside")
    config = ExperimentConfig(
        model=ModelConfig(activation=f"{BROKEN}:TANH", norm="scale_norm:SCALE_NORM"),
        optimizer=OptimizerConfig(schedule=f"{BROKEN}:raises", learning_rate=1.0),
    ).resolved()
    with pytest.raises(ConfigError) as error, errors_from_outside(config):
        learning_rate(config.optimizer.schedule, 1, split(config).hyper)
    assert f"optimizer.schedule='{BROKEN}:raises'" in str(error.value)
    assert "scale_norm" not in str(error.value)
    assert str(error.value).endswith(": ValueError: no idea")
    assert "in raises" in capsys.readouterr().err  # the traceback


def test_two_names_for_one_folder_are_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "twin.py").write_text("from squared_relu import SQUARED_RELU as b_c\n")
    (tmp_path / "twin_b.py").write_text("from squared_relu import SQUARED_RELU as c\n")
    trust.trust_modules(["twin", "twin_b"])
    fields = {"layer_pattern": "XY", "layer_kinds": "X: feed_forward=twin:b_c; Y: feed_forward=twin_b:c"}
    problem = next(tiny(**fields).problems())
    assert "would share the folder 'layers_twin_b_c' of their parameters; rename a module or an object" in problem


def test_kinds_may_name_objects():
    """The first colon of a kind ends its letter; a text with spaces, and further fields, are read as ever."""
    config = tiny(**OWN)
    mean, attention, _ = layer_configs(config, "decoder", 3)
    assert (mean.mixer, mean.feed_forward) == ("running_mean:RUNNING_MEAN", "squared_relu:SQUARED_RELU")
    assert (attention.mixer, attention.feed_forward) == ("attention", "dense")
    values = {"model.layer_kinds": "A : mixer = one.two:Three , attention_window=2;B: feed_forward=dense; C:"}
    assert outside_parts(values) == {"model.layer_kinds: A: mixer": "one.two:Three"}
    assert outside_parts({"model.layer_kinds": "A: mixer=one:two; A: mixer=three:four"}) == {}  # it is refused


def test_a_choice_of_several_names(monkeypatch):
    """Names between commas, each checked by itself, and each that a file names is found."""
    made = choice("relu", "transformer_jax.nn.feed_forward:ACTIVATIONS", "", outside=True, several=True)
    monkeypatch.setattr(experiment, "_outside_fields", lambda: {"model.activations": made})
    assert value_problem(made, str, "gelu, mish:MISH") is None
    assert value_problem(made, str, "gelu,rleu") == (
        f"'rleu': expected one of {', '.join(ACTIVATIONS)}, or MODULE:OBJECT (did you mean 'relu'?)"
    )
    assert "module mish has no 'MIS'" in value_problem(made, str, "gelu,mish:MIS")
    found = outside_parts({"model.activations": "gelu, one:A,two:B"})
    assert found == {"model.activations": "one:A", "model.activations (two:B)": "two:B"}
    assert is_from_outside(made, "gelu,one:A")
    assert not is_from_outside(made, "gelu,relu")


def test_what_an_outside_object_may_read():
    """All fields; and a field with `used_with` has an effect."""
    kinds = "M: mixer=running_mean:RUNNING_MEAN; A: mixer=gated_delta"  # without attention, which reads num_kv_heads
    model = ModelConfig(**{**OWN, "num_kv_heads": 4, "layer_kinds": kinds})
    given = {
        "schedule": "restarts:restarts",
        "learning_rate": 1.0,
        "decay_steps": 5,
        "name": "sign_momentum:sign_momentum",
    }
    config = ExperimentConfig(
        model=model,
        task=TaskConfig(name="language_model"),
        data=DataConfig(batching="windows"),
        optimizer=OptimizerConfig(**given, epsilon=1e-3, nesterov=True),
    ).resolved()
    assert "optimizer.decay_steps" not in without_effect(config)
    assert config.optimizer.nesterov


def test_statistics_and_tables_of_outside_objects_are_known(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "known.py").write_text(
        "from transformer_jax.nn.norms import NORMS\nfrom transformer_jax.nn.positions import ENCODINGS\n"
        "NORM, TABLE = NORMS['batchnorm'], ENCODINGS['learned']\n"
    )
    trust.trust_modules("known")
    assert tiny(position_encoding="known:TABLE").has_position_table
    assert not tiny(position_encoding="kerple:KERPLE").has_position_table
    assert "norm='known:NORM' cannot be used with architecture='encoder_decoder': its statistics are over" in refused(
        model__norm="known:NORM"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_of_hugging_face_has_an_outside_part(family):
    said = "\n".join(unsaid(FAMILIES[family], tiny(**OWN)))
    for field in ("position_encoding", "norm", "norm_position", "feed_forward", "activation", "layer_kinds"):
        assert f"model.{field}={OWN[field]!r}: " in said


def test_a_command_prints_the_traceback_and_the_field(monkeypatch, capsys, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "raising_later.py").write_text(
        "from transformer_jax.nn.feed_forward import Activation\n\nRAISES = Activation(lambda x: x.no_such_method())\n"
    )
    assert main(["inspect", "--config=quickstart", "--config.model.activation=raising_later:RAISES", "--compile"]) == 2
    said = capsys.readouterr().err
    assert "raising_later.py" in said  # the traceback
    last = said.strip().splitlines()[-1]
    assert last.startswith("transformer-jax: error: config: model.activation='raising_later:RAISES': AttributeError: ")


@pytest.mark.parametrize("index", ["", "[0]", "[:, 0, :1]", "[:, 0]"])
def test_a_bias_of_another_shape_is_refused_with_the_field(index, monkeypatch, capsys, tmp_path):
    """A bias without its axis of heads would broadcast: the bias of a row would be that of a head."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"bias_{len(index)}"
    (tmp_path / f"{module}.py").write_text(
        "from transformer_jax.nn.positions import ENCODINGS, RelativeBias\n\n\n"
        f"class Mine(RelativeBias):\n    def __call__(self, *of):\n        return super().__call__(*of){index}\n\n\n"
        "MINE = ENCODINGS['relative']._replace(bias=Mine)\n"
    )
    named = f"model.position_encoding='{module}:MINE'"
    status = main(["inspect", "--config=language_model", f"--config.model.position_encoding={module}:MINE"])
    said = capsys.readouterr()
    if not index:
        assert status == 0
        assert re.search(rf"from outside +{named}", said.out)
        return
    last = said.err.strip().splitlines()[-1]
    assert (status, f"config: {named}: ValueError: the bias of " in last) == (2, True)
    assert "expected [B or 1, N, T, S], here [1 or 1, 4, 2, 2]" in last
