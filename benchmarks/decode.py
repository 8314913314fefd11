"""Speed of decoding with random parameters: 32 sentences of 32 tokens, 64 new tokens each, greedy or with a beam.

    python -m benchmarks.decode --shape small --beam_size 4
    python -m benchmarks.decode --shape transformer_big --device gpu --dtype bfloat16 --batch 256

Prints one JSON object: `ms` per batch (median), `tokens_per_s` of the best hypotheses, `ms_per_token` of one step of
the whole batch; `first_run_s` compiles too. --uncached makes a whole forward pass for every token, for comparison.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.devices import device_flag, use_device
from benchmarks.shapes import PUBLISHED, SHAPES, WITHOUT_ENCODER, model_config
from transformer_jax.config import DecodeConfig, ModelConfig
from transformer_jax.decoding.translation import translate
from transformer_jax.huge_pages import restart_with_huge_pages
from transformer_jax.models.encoder_decoder import EncoderDecoder, decoding_params, init_params

SOURCE_LENGTH = 32


def make_decoder(config: ModelConfig, batch_size: int, length: int, beam_size: int) -> Callable[[], Any]:
    """A function that decodes a batch of random sentences into exactly `length` tokens each."""
    params = jax.device_put((decoding_params(init_params(config, 0)),))
    decode = DecodeConfig(beam_size=beam_size, max_length=length, min_length=length)
    inputs = np.random.default_rng(0).integers(4, config.vocab_size, (batch_size, SOURCE_LENGTH)).astype(np.int32)
    return lambda: jax.block_until_ready(translate((config,), params, decode, inputs))


def make_uncached_decoder(
    config: ModelConfig, batch_size: int, length: int, num_tokens: int | None = None
) -> Callable[[], Any]:
    """The same without a cache: a forward pass over `length` positions for every token, or the first `num_tokens`."""
    inputs = np.random.default_rng(0).integers(4, config.vocab_size, (batch_size, SOURCE_LENGTH)).astype(np.int32)
    return uncached_decoder(config, init_params(config, 0), inputs, length, num_tokens)


def uncached_decoder(
    config: ModelConfig, params: Any, inputs: np.ndarray, length: int, num_tokens: int | None = None
) -> Callable[[], Any]:
    """Of given sources [B, S]."""

    @jax.jit
    def decode(params: Any, inputs: jax.Array) -> jax.Array:
        def body(t: jax.Array, targets: jax.Array) -> jax.Array:
            logits, _ = EncoderDecoder(config).apply({"params": params}, {"inputs": inputs, "targets": targets})
            best = jnp.argmax(jax.lax.dynamic_index_in_dim(logits, t, axis=1), axis=-1).astype(jnp.int32)
            return jax.lax.dynamic_update_slice_in_dim(targets, best, t, axis=1)

        return jax.lax.fori_loop(0, num_tokens or length, body, jnp.ones((len(inputs), length), jnp.int32))

    return lambda: jax.block_until_ready(decode(params, inputs))


def median_seconds(run: Callable[[], Any], seconds: float) -> tuple[float, int]:
    """Median of at least 5 runs and `seconds`, after one that is not counted."""
    run()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return float(np.median(times)), len(times)


def measure(
    shape: str, beam_size: int, batch: int, length: int, seconds: float, dtype: str, uncached: bool
) -> dict[str, Any]:
    """Compiles the decoder and runs it for about `seconds`."""
    config = model_config(shape, max_length=length, dtype=dtype).resolved()
    make = make_uncached_decoder if uncached else functools.partial(make_decoder, beam_size=beam_size)
    run = make(config, batch, length)
    start = time.perf_counter()
    run()
    first_s = time.perf_counter() - start
    taken, runs = median_seconds(run, seconds)
    return {
        "shape": shape,
        "device": jax.devices()[0].device_kind,
        "dtype": dtype,
        "beam_size": beam_size,
        "cached": not uncached,
        "batch": batch,
        "length": length,
        "ms": taken * 1e3,
        "runs": runs,
        "tokens_per_s": batch * length / taken,
        "ms_per_token": taken * 1e3 / length,
        "first_run_s": first_s,
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    with_encoder = [shape for shape in (*SHAPES, *PUBLISHED) if shape not in WITHOUT_ENCODER]
    result.add_argument("--shape", choices=with_encoder, default="small")
    device_flag(result)
    result.add_argument("--beam_size", type=int, default=1)
    result.add_argument("--batch", type=int, default=32, help="sentences")
    result.add_argument("--length", type=int, default=64, help="new tokens of every sentence")
    result.add_argument("--seconds", type=float, default=15.0, help="time to run for, after compilation")
    result.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    result.add_argument("--uncached", action="store_true", help="greedy, without a cache")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    if arguments.uncached and arguments.beam_size > 1:
        parser().error("--uncached is greedy: leave --beam_size away")
    options = vars(arguments)
    use_device(options.pop("device"))
    print(json.dumps(measure(**options)))


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
