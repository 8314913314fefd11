"""The programs of every config can be lowered for GPUs and TPUs, on a machine that has neither.

They are not compiled: the tests find operations that a platform lacks, and say nothing about speed.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import DecodeConfig
from transformer_jax.config_file import read_config
from transformer_jax.decoding import generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.models.presets import gpt2
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

BACKENDS = {"tpu": "tpu", "cuda": "gpu"}
"""Platforms of a program, and JAX's name of the backend, on which `attention_implementation="auto"` depends."""
CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.py"))
RECURRENT = ("recurrent", "multi30k_rnn", "scan")
ROWS, LENGTH = 8, 16

FIELDS = {
    "as it is": {},
    "packed, half as wide, in parts": {
        "data.batching": "packed",
        "data.tokens_per_batch": 16_384,
        "data.packed_length": 2048,
        "data.num_buckets": 6,
        "model.dtype": "bfloat16",
        "model.remat": "dots",
        "model.scan_layers": True,
        "training.loss_chunks": 4,
    },
}


@pytest.fixture(params=BACKENDS)
def platform(request, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: BACKENDS[request.param])
    return request.param


def check_lowering(function, platform, *arguments):
    exported = jax.export.export(jax.jit(function), platforms=[platform])(*arguments)
    assert exported.platforms == (platform,)


def check_train_step(static, hyper, batch, platform):
    state = jax.eval_shape(lambda h: init_state(static, h), hyper)
    step = make_train_step(static)
    check_lowering(lambda s, b, h: step(s, b, h), platform, state, batch, jax.tree.map(jnp.asarray, hyper))


def alternating(kinds):
    """Every config on every platform, and every kind on every platform: (config, kind, platform)."""
    names, platforms = list(kinds), list(BACKENDS)
    return [
        pytest.param(path, names[(i + j) % len(names)], platform, id=f"{path.stem}, {platform}")
        for i, path in enumerate(CONFIGS)
        for j, platform in enumerate(platforms)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "fields", "platform"), alternating(FIELDS), indirect=["platform"])
def test_the_training_step(path, fields, platform):
    task = TASKS[read_config(str(path), {}).task.name]
    others = FIELDS[fields]
    if others.get("data.batching", "buckets") not in task.batchings:
        others = {}
    if path.stem in RECURRENT and others:
        others = {"model.teacher_forcing_rate": 1.0} | {
            name: value for name, value in others.items() if name not in ("model.remat", "model.scan_layers")
        }
    config = read_config(str(path), others)
    batch = TASKS[config.task.name].batch_template(config, ROWS, {"inputs": LENGTH, "targets": LENGTH})
    read = ("inputs",) if config.model.architecture == "encoder_only" else ("inputs", "targets")
    sides = {side for side in read if side in batch and config.data.batching == "packed"}
    assert {name for name in batch if "segment_ids" in name} == {f"{side}_segment_ids" for side in sides}
    check_train_step(*split(config), batch, platform)


ENDS = Ends(end_id=1, never=(0,))
DECODE = {"search": DecodeConfig(beam_size=4), "sample": DecodeConfig(method="sample", num_samples=2)}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method", "platform"), alternating(DECODE), indirect=["platform"])
def test_decoding(path, method, platform):
    config = read_config(str(path), {}).model
    if not ARCHITECTURES[config.architecture].generates:
        assert ARCHITECTURES[config.architecture].decoder(config) is None
        return
    batch = {"inputs": np.ones((ROWS, LENGTH), np.int32), "inputs_mask": np.ones((ROWS, LENGTH), bool)}
    check_decoding(config, method, batch, platform)


@pytest.mark.slow
@pytest.mark.parametrize("method", DECODE)
def test_decoding_with_a_decoder_only_model(method, platform):
    check_decoding(gpt2(num_decoder_layers=2).resolved(), method, {}, platform)


def check_decoding(config, method, batch, platform):
    decoder = ARCHITECTURES[config.architecture].decoder(config)
    params = jax.eval_shape(lambda: decoder.prepare(init_params(config, 0)))
    request = generate.Request(batch, [[3]] * ROWS, np.full(ROWS, LENGTH), LENGTH)
    search = generate.prepare((decoder,), (params,), DECODE[method], ENDS, request)
    capacity, *_ = generate.capacities(0, search.limit)

    def begin(params, values, inputs):
        return generate._begin(search.decoders, search.settings, search.limit, capacity, params, values, inputs)

    def stage(params, values, inputs, state):
        return generate._stage(search.decoders, search.settings, capacity, params, values, inputs, state)

    arguments = jax.tree.map(jnp.asarray, (search.values, search.inputs))
    for function, given in ((begin, ()), (stage, (jax.eval_shape(begin, search.params, *arguments),))):
        check_lowering(function, platform, search.params, *arguments, *given)
