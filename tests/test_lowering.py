"""The programs of every config are built for GPUs and TPUs, on a machine that has neither.

They are lowered, not compiled: an operation that a platform lacks is found, and nothing is said about speed.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.config_file import read_config
from transformer_jax.decoding import translation
from transformer_jax.models import decoder_only
from transformer_jax.models.encoder_decoder import EncoderDecoder, decoding_params, init_params
from transformer_jax.models.presets import gpt2_small
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

BACKENDS = {"tpu": "tpu", "cuda": "gpu"}
"""Platforms of a program, and what JAX calls its backend there: what `attention_implementation="auto"` goes by."""
CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.py"))
ROWS, LENGTH = 8, 16

FIELDS = {
    "as it is": {},
    "packed, half as wide, in parts": {
        "data.batching": "packed",
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


def check_train_step(config, architecture, init_params, batch, platform):
    static, hyper = split(config)
    state = jax.eval_shape(lambda h: init_state(static, h, init_params), hyper)
    step = make_train_step(static, architecture)
    check_lowering(lambda s, b, h: step(s, b, h), platform, state, batch, jax.tree.map(jnp.asarray, hyper))


@pytest.mark.slow
@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_training_step(path, fields, platform):
    config = read_config(str(path), FIELDS[fields])
    ids = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    batch = {"inputs": ids, "targets": ids, "row_ids": jax.ShapeDtypeStruct((ROWS,), jnp.int32)}
    if config.data.batching == "packed":
        batch |= {f"{side}_{kind}": ids for side in ("inputs", "targets") for kind in ("segment_ids", "positions")}
    check_train_step(config, EncoderDecoder, init_params, batch, platform)


@pytest.mark.slow
def test_the_training_step_of_a_decoder_alone(platform):
    config = ExperimentConfig(model=gpt2_small(num_decoder_layers=2)).resolved()
    batch = {"targets": jnp.ones((ROWS, LENGTH), jnp.int32), "row_ids": jnp.arange(ROWS)}
    check_train_step(config, decoder_only.DecoderOnly, decoder_only.init_params, batch, platform)


DECODE = {"search": DecodeConfig(beam_size=4), "sample": DecodeConfig(method="sample", num_samples=2)}


@pytest.mark.slow
@pytest.mark.parametrize("method", DECODE)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_decoding(path, method, platform):
    config = read_config(str(path), {})
    params = jax.eval_shape(lambda: decoding_params(init_params(config.model, 0)))
    ids = np.ones((ROWS, LENGTH), np.int32)
    search = translation.prepare((config.model,), (params,), DECODE[method], ids)
    capacity, *_ = translation.capacities(0, search.limit)

    def begin(params, values, inputs):
        return translation._begin(search.models, search.settings, search.limit, capacity, params, values, inputs)

    def stage(params, values, inputs, state):
        return translation._stage(search.models, search.settings, capacity, params, values, inputs, state)

    arguments = jax.tree.map(jnp.asarray, (search.values, search.inputs))
    for function, given in ((begin, ()), (stage, (jax.eval_shape(begin, search.params, *arguments),))):
        check_lowering(function, platform, search.params, *arguments, *given)
