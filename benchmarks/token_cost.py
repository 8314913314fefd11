"""Milliseconds per token of every mixer after short and long texts, in decoding.

    python -m benchmarks.token_cost --shape gpt_small --after 256 4096

A decoder-only model reads a text of random ids, and then takes steps of one token for every row. Mixers and lengths
alternate; the figures are medians. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.shapes import LANGUAGE_MODELS, model_config
from transformer_jax.config import ModelConfig
from transformer_jax.host.huge_pages import restart_with_huge_pages
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.nn.mixers import MIXERS

STEPS = 64


def stepper(config: ModelConfig, rows: int, length: int) -> Callable[[], Any]:
    """Return a function that decodes `STEPS` tokens after a text of `length` tokens."""
    decoder = ARCHITECTURES[config.architecture].decoder(config)
    assert decoder is not None
    params = decoder.prepare(init_params(config, 0))
    ids = jnp.asarray(np.random.default_rng(0).integers(4, config.vocab_size, (rows, length + 1)), jnp.int32)
    batch = {"prompts": ids, "prompt_lengths": jnp.full(rows, length + 1)}
    slots = length + STEPS
    started = jax.jit(decoder.start, static_argnums=(2, 3))(params, batch, slots, 1)

    @jax.jit
    def steps(cache: Any) -> Any:
        def step(carried: Any, number: Any) -> tuple[Any, None]:
            cache, last = carried
            positions = jnp.full((rows, 1), length, jnp.int32) + number
            visible = (jnp.arange(slots) <= length + number)[None, None] & jnp.ones((rows, 1, 1), bool)
            logits, cache = decoder.step(params, cache, last, positions, visible)
            return (cache, logits.argmax(-1).astype(jnp.int32)), None

        return jax.lax.scan(step, (cache, ids[:, -1:]), jnp.arange(STEPS))[0][1]

    return lambda: jax.block_until_ready(steps(started.cache))


def measure(shape: str, rows: int, lengths: Sequence[int], repeats: int) -> dict[str, Any]:
    config = dataclasses.replace(
        model_config(shape), position_encoding="rotary", norm_position="pre", max_length=max(lengths) + STEPS
    ).resolved()
    runs = {
        (mixer, length): stepper(dataclasses.replace(config, mixer=mixer), rows, length)
        for mixer in MIXERS
        for length in lengths
    }
    times: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    for _ in range(repeats + 1):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            times[key].append((time.perf_counter() - start) * 1e3 / STEPS)
    of_token = {key: float(np.median(taken[1:])) for key, taken in times.items()}
    return {
        "shape": shape,
        "device": jax.devices()[0].device_kind,
        "rows": rows,
        "ms_per_token": {mixer: {n: of_token[mixer, n] for n in lengths} for mixer in MIXERS},
        "longest_to_shortest": {m: of_token[m, max(lengths)] / of_token[m, min(lengths)] for m in MIXERS},
    }


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--shape", choices=LANGUAGE_MODELS, default="gpt_small")
    result.add_argument("--rows", type=int, default=1)
    result.add_argument("--after", type=int, nargs="+", default=[256, 4096], help="tokens of the text before")
    result.add_argument("--repeats", type=int, default=9)
    return result


def main(args: Sequence[str] | None = None) -> None:
    given = parser().parse_args(args)
    print(json.dumps(measure(given.shape, given.rows, given.after, given.repeats)))


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
