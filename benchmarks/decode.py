"""Speed of decoding with random parameters: 32 texts of 32 tokens, 64 new tokens each, greedy or with a beam.

    python -m benchmarks.decode --shape small --beam_size 4
    python -m benchmarks.decode --shape transformer_big --device gpu --dtype bfloat16 --batch 256

The texts are an encoder's sources, or a language model's prompts.

Prints one JSON object: `ms` per batch (median), `tokens_per_s` of the best hypotheses, `ms_per_token` for one step of
the whole batch, and `first_run_s` with compilation. For comparison, --uncached makes a full forward pass per token.
"""

import argparse
import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.devices import device_flag, use_device
from benchmarks.shapes import model_config, names
from transformer_jax.config import DecodeConfig, ModelConfig
from transformer_jax.decoding.settings import Ends
from transformer_jax.host.huge_pages import restart_with_huge_pages
from transformer_jax.inspection.decoding_speed import cached_decoder, median_seconds, uncached_decoder
from transformer_jax.models.architecture import init_params

SOURCE_LENGTH = 32
"""Tokens of a source, or of a prompt with the start id."""
ENDS = Ends(1, (0,))
"""Ids of this package's own tokenizers: eos, and padding."""


def make_decoder(config: ModelConfig, batch_size: int, length: int, beam_size: int) -> Callable[[], Any]:
    """Return a function that decodes a batch of random texts into exactly `length` new tokens each."""
    decode = DecodeConfig(beam_size=beam_size, max_new_tokens=length, min_length=length)
    return cached_decoder(config, init_params(config, 0), *_texts(config, batch_size), decode, ENDS)


def make_uncached_decoder(
    config: ModelConfig, batch_size: int, length: int, num_tokens: int | None = None
) -> Callable[[], Any]:
    """Return a function like `make_decoder`'s, but without a cache: a forward pass over all positions per token.

    num_tokens: decode only the first `num_tokens` tokens.
    """
    return uncached_decoder(config, init_params(config, 0), *_texts(config, batch_size), length, num_tokens)


def _texts(config: ModelConfig, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids [B, S] and lengths [B]."""
    ids = np.random.default_rng(0).integers(4, config.vocab_size, (batch_size, SOURCE_LENGTH)).astype(np.int32)
    return ids, np.full(batch_size, SOURCE_LENGTH)


def measure(
    shape: str, beam_size: int, batch: int, length: int, seconds: float, dtype: str, uncached: bool
) -> dict[str, Any]:
    """Compile the decoder, run it for about `seconds` and return its figures."""
    config = model_config(shape, max_length=SOURCE_LENGTH + length, dtype=dtype).resolved()
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
    result.add_argument("--shape", choices=names(), default="small")
    device_flag(result)
    result.add_argument("--beam_size", type=int, default=1)
    result.add_argument("--batch", type=int, default=32, help="texts")
    result.add_argument("--length", type=int, default=64, help="new tokens of every text")
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
