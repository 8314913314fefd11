"""The programs of every config are built for GPUs and TPUs, on a machine that has neither.

They are lowered, not compiled: an operation that a platform lacks is found, and nothing is said about speed.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import DecodeConfig
from transformer_jax.config_file import read_config
from transformer_jax.decoding import translation
from transformer_jax.models.encoder_decoder import decoding_params, init_params
from transformer_jax.training.hyper import split
from transformer_jax.training.state import state_shapes
from transformer_jax.training.step import make_train_step

PLATFORMS = ["tpu", "cuda"]
CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.py"))
ROWS, LENGTH = 8, 16

FIELDS = {
    "as it is": {},
    "packed, half as wide, by the library, in parts": {
        "data.batching": "packed",
        "data.num_buckets": 6,
        "model.dtype": "bfloat16",
        "model.attention_dropout_rate": 0.0,
        "model.attention_implementation": "xla",
        "model.remat": "dots",
        "model.scan_layers": True,
        "training.loss_chunks": 4,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_training_step(path, fields):
    config = read_config(str(path), FIELDS[fields])
    static, hyper = split(config)
    ids = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    batch = {"inputs": ids, "targets": ids, "row_ids": jax.ShapeDtypeStruct((ROWS,), jnp.int32)}
    if config.data.batching == "packed":
        batch |= {f"{side}_{kind}": ids for side in ("inputs", "targets") for kind in ("segment_ids", "positions")}
    train_step = make_train_step(static)
    exported = jax.export.export(jax.jit(lambda s, b, h: train_step(s, b, h)), platforms=PLATFORMS)(
        state_shapes(static, hyper), batch, jax.tree.map(jnp.asarray, hyper)
    )
    assert exported.platforms == tuple(PLATFORMS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "decode",
    [DecodeConfig(beam_size=4), DecodeConfig(method="sample", num_samples=2)],
    ids=lambda decode: decode.method,
)
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_decoding(path, decode):
    config = read_config(str(path), {})
    params = jax.eval_shape(lambda: decoding_params(init_params(config.model, 0)))
    ids = np.ones((ROWS, LENGTH), np.int32)
    search = translation.prepare((config.model,), (params,), decode, ids)
    capacity, *_ = translation.capacities(0, search.limit)

    def begin(params, values, inputs):
        return translation._begin(search.models, search.settings, search.limit, capacity, params, values, inputs)

    def stage(params, values, inputs, state):
        return translation._stage(search.models, search.settings, capacity, params, values, inputs, state)

    arguments = jax.tree.map(jnp.asarray, (search.values, search.inputs))
    for function, given in ((begin, ()), (stage, (jax.eval_shape(begin, search.params, *arguments),))):
        exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)(search.params, *arguments, *given)
        assert exported.platforms == tuple(PLATFORMS)
