"""cuDNN's LSTM, as it is called here, equals the scan over the cell; models that it cannot compute are refused.

On a CPU, JAX's own reference of cuDNN's function, which its tests compare with cuDNN, stands in for it.
"""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import rnn
from training_support import distance

from transformer_jax.config import ExperimentConfig, ModelConfig, ParallelConfig
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.loading import apply_overrides
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.nn import recurrent_kernels
from transformer_jax.nn.linear import linear
from transformer_jax.nn.recurrent import CellWeights, scan_cell
from transformer_jax.nn.recurrent_kernels import cudnn_lstm, uses_cudnn
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.loss_sums import loss_sums_of_rows, split_for_evaluation
from transformer_jax.training.hyper import split
from transformer_jax.training.implementations import check_implementations
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

B, T, INPUTS, U = 4, 5, 3, 2
CUDNN = {"recurrent_implementation": "cudnn"}


def config_of(**fields):
    sizes = {"vocab_size": 19, "emb_dim": 6, "hidden_dim": 4, "num_encoder_layers": 2, "num_decoder_layers": 2}
    return ModelConfig(architecture="recurrent", dropout_rate=0.0, **sizes | {"tie_output": False} | fields).resolved()


@pytest.fixture
def calls(monkeypatch):
    """Make the package find cuDNN, in full precision; return a list that has one element for every traced call.

    Without a GPU, its function is JAX's reference of it, with the same arguments.
    """
    calls, cudnn = [], rnn.lstm

    def reference(x, h, c, weights, lengths, inputs, hidden, layers, dropout, bidirectional, precision):
        assert precision == jax.lax.Precision.HIGHEST
        parts = rnn.unpack_lstm_weights(weights, inputs, hidden, layers, bidirectional)
        return rnn.lstm_ref(x, h, c, *parts, lengths, inputs, hidden, layers, dropout, bidirectional)

    def counted(*arguments):
        calls.append(arguments)
        return (cudnn if jax.default_backend() == "gpu" else reference)(*arguments)

    monkeypatch.setattr(rnn, "lstm", counted)
    monkeypatch.setattr(recurrent_kernels, "_obstacle", lambda config, packed, backend: "")
    with jax.default_matmul_precision("highest"):
        yield calls


def numbers(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, (5, 3, 1, 0)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_outputs_states_and_gradients_equal_the_scan(calls, reverse, lengths, has_bias):
    """At tokens; the last of four rows has none."""
    weights = CellWeights(numbers(0, INPUTS, 4, U), numbers(1, 4, U) if has_bias else None, numbers(2, U, 4, U), None)
    first, x = (numbers(3, B, U), numbers(4, B, U)), numbers(5, B, T, INPUTS)
    lengths = None if lengths is None else jnp.array(lengths)
    mask = None if lengths is None else jnp.arange(T)[None] < lengths[:, None]

    def by_scan(weights, first, x):
        gates = linear(x.swapaxes(0, 1), weights.input, weights.input_bias)
        is_token = None if mask is None else mask.T
        states, last = scan_cell(config_of(), weights, gates, first, is_token, reverse=reverse)
        y = states[0].swapaxes(0, 1)
        return y if mask is None else jnp.where(mask[..., None], y, 0.0), last

    def by_cudnn(weights, first, x):
        return cudnn_lstm(x, first, weights.input, weights.input_bias, weights.state, lengths, reverse)

    def of(function):
        def loss(*arguments):
            y, last = function(*arguments)
            return sum((part * jnp.cos(jnp.arange(part.size).reshape(part.shape))).sum() for part in (y, *last)), y

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(weights, first, x)

    (_, expected), gradients = of(by_scan)
    (_, actual), actual_gradients = of(by_cudnn)
    np.testing.assert_allclose(actual, expected, atol=1e-5 if jax.default_backend() == "gpu" else 1e-6)
    assert distance(actual_gradients, gradients) < 1e-5
    assert calls


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"bidirectional": True, "bridge": "tanh", "feed_context": True}, 6),
        ({"attention": "dot", "cell_biases": 2}, 4),
        ({"attention": "additive"}, 2),
        ({"num_encoder_layers": 0}, 2),
    ],
    ids=["both directions, fed context", "dot", "additive", "language model"],
)
def test_models_have_the_same_logits(calls, fields, layers):
    """layers: that cuDNN computes; a decoder that attends before its cell runs token by token."""
    config = config_of(**fields)
    ids = jnp.asarray(np.random.default_rng(0).integers(1, 19, (3, 7)))
    mask = jnp.arange(7)[None] < jnp.array([[7], [4], [1]])
    batch, params = {"inputs": ids, "inputs_mask": mask, "decoder_inputs": ids[:, :5]}, init_params(config, 0)

    def logits(config):
        module = ARCHITECTURES["recurrent"].module(config)
        return jax.jit(lambda: module.apply({"params": params}, batch))()

    expected = logits(config)
    assert not calls
    np.testing.assert_allclose(logits(dataclasses.replace(config, **CUDNN)), expected, atol=1e-5)
    assert len(calls) == layers


@pytest.mark.parametrize("setting", [None, "bfloat16", "highest"])
def test_the_training_step_calls_cudnn_and_losses_of_rows_do_not(monkeypatch, setting):
    """JAX's own operation is traced, with its gradient; vmap, which the losses of rows are, cannot batch it."""
    monkeypatch.setattr(recurrent_kernels, "_obstacle", lambda config, packed, backend: "")
    monkeypatch.setattr(rnn.gpu_rnn, "compute_rnn_workspace_reserve_space_sizes", lambda *_: (8, 8), raising=False)
    config = read_config("recurrent:none", {"model.recurrent_implementation": "cudnn"})
    batch = TASKS["translation"].batch_template(config, 4, {"inputs": 8, "targets": 8})
    static, hyper = split(config)
    with jax.default_matmul_precision(setting):
        state = jax.eval_shape(lambda: init_state(static, hyper))
        step = str(jax.make_jaxpr(functools.partial(make_train_step(static), hyper=hyper))(state, batch))
        static, hyper = split_for_evaluation(config)
        rows = str(jax.make_jaxpr(lambda params: loss_sums_of_rows(static, params, batch, hyper))(state.params))
    layers = config.model.num_encoder_layers + config.model.num_decoder_layers
    assert step.count("rnn_fwd[") == step.count("rnn_bwd[") == layers
    assert step.count(f"cudnn_allow_tf32={setting != 'highest'}") == 2 * layers
    assert "rnn_fwd[" not in rows


def test_parameters_and_checkpoints_do_not_depend_on_the_machine():
    """Without cuDNN: both are those of `scan`."""
    config = config_of(**CUDNN)
    assert distance(init_params(config, 0), init_params(config_of(), 0)) == 0
    loaded = apply_overrides(ExperimentConfig(model=config).resolved().to_dict(), {})
    assert loaded.model == config_of()


@pytest.mark.parametrize(
    ("fields", "packed", "backend", "message"),
    [
        ({"dtype": "bfloat16"}, False, "gpu", "dtype='bfloat16', but it computes in float32 only; set model.rec"),
        ({}, True, "gpu", "it cannot begin a new example inside a row, as data.batching='packed' needs"),
        ({}, False, "tpu", "JAX computes on a TPU"),
    ],
)
def test_models_that_cudnn_cannot_compute_are_refused(fields, packed, backend, message):
    assert not uses_cudnn(config_of(**fields), packed=packed, backend=backend)
    with pytest.raises(ConfigError, match=f"recurrent_implementation='cudnn' is not possible: {message}"):
        uses_cudnn(config_of(**fields, **CUDNN), packed=packed, backend=backend)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cell": "gru"}, "recurrent_implementation='cudnn' has no effect with cell='gru', only with 'lstm'"),
        (
            {"num_encoder_layers": 0, "teacher_forcing_rate": 0.5},
            "has no layer to compute with teacher_forcing",
        ),
    ],
)
def test_models_without_a_layer_for_cudnn_are_refused(fields, message):
    ExperimentConfig(model=config_of(**fields)).resolved()
    with pytest.raises(ConfigError, match=message):
        ExperimentConfig(model=config_of(**fields, **CUDNN)).resolved()


@pytest.mark.parametrize(
    ("axis", "parallel", "message"),
    [
        (None, {}, ""),
        (None, {"num_devices": 4, "launcher": "pmap"}, ""),
        (None, {"num_devices": 4}, "'jit' cannot divide it over 4 devices; set parallel.launcher='pmap' or"),
        ("map", {"num_devices": 4}, ""),
        ("vmap", {}, "vmap cannot batch it over trials; use --trial_axis=map or --executor=local, or set"),
    ],
)
def test_programs_that_cudnn_cannot_run_in_are_refused(monkeypatch, axis, parallel, message):
    monkeypatch.setattr(recurrent_kernels, "_obstacle", lambda config, packed, backend: "")
    config = ExperimentConfig(model=config_of(**CUDNN), parallel=ParallelConfig(**parallel))
    with pytest.raises(ConfigError, match=message) if message else contextlib.nullcontext():
        check_implementations(config, axis)
