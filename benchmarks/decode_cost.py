"""Cost of a token as the text grows: milliseconds per step of the batch in every stage of greedy decoding.

    python -m benchmarks.decode_cost --shape small --figure=docs/decoding_cost.svg

The stages have caches with room for 64, 128, 256, ... positions. Each is timed separately, except the first, which also
encodes the sources. The time per token is fitted by a + b * capacity. For comparison: the time without a cache, with a
full forward pass per token; and the second stage of a run limited to 128 tokens, which must cost as much as with a
limit of 1,024. Prints one JSON object.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.decode import ENDS, SOURCE_LENGTH, make_uncached_decoder
from benchmarks.shapes import SHAPES, model_config
from transformer_jax.config import DecodeConfig
from transformer_jax.decoding.generate import FIRST_CAPACITY, prepare
from transformer_jax.host.huge_pages import restart_with_huge_pages
from transformer_jax.inspection.decoding_speed import median_seconds
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.tasks.trained.decode_requests import source_request


def stage_costs(shape: str, batch: int, limits: Sequence[int], repeats: int) -> list[dict[int, float]]:
    """Return for each limit the median milliseconds per token by capacity, without the first stage.

    Runs of different limits alternate.
    """
    config = model_config(shape, max_length=max(limits)).resolved()
    decoder = ARCHITECTURES[config.architecture].decoder(config)
    assert decoder is not None
    params = jax.device_put(decoder.prepare(init_params(config, 0)))
    inputs = np.random.default_rng(0).integers(4, config.vocab_size, (batch, SOURCE_LENGTH)).astype(np.int32)
    lengths = np.full(batch, SOURCE_LENGTH)
    times: list[dict[int, list[float]]] = [{} for _ in limits]
    for _ in range(repeats + 1):
        for limit, taken in zip(limits, times, strict=True):
            decode = DecodeConfig(max_new_tokens=limit, min_length=limit)
            request = source_request((decoder,), decode, config.decoder_start_id, inputs, lengths)
            search = prepare((decoder,), (params,), decode, ENDS, request)
            start, before = time.perf_counter(), 0
            for capacity, state in search.stages():
                jax.block_until_ready(state)
                now = time.perf_counter()
                if before:
                    taken.setdefault(capacity, []).append((now - start) * 1e3 / (capacity - before))
                start, before = now, capacity
    return [{capacity: float(np.median(ms[1:])) for capacity, ms in taken.items()} for taken in times]


def uncached_costs(shape: str, batch: int, lengths: Sequence[int]) -> dict[int, float]:
    """Return milliseconds per token by length, with a forward pass over `length` positions for every token."""
    result = {}
    for length in lengths:
        config = model_config(shape, max_length=length).resolved()
        result[length] = median_seconds(make_uncached_decoder(config, batch, length, num_tokens=4), 5.0)[0] * 1e3 / 4
    return result


def measure(shape: str, batch: int, limit: int, repeats: int) -> dict[str, Any]:
    cached, short = stage_costs(shape, batch, (limit, 2 * FIRST_CAPACITY), repeats)
    fitted, cost = np.array(list(cached)), np.array(list(cached.values()))
    slope, intercept = np.polyfit(fitted, cost, 1)
    return {
        "shape": shape,
        "device": jax.devices()[0].device_kind,
        "batch": batch,
        "ms_per_token": cached,
        "ms_per_token_uncached": uncached_costs(shape, batch, [FIRST_CAPACITY << i for i in range(3)]),
        "fit": {
            "a_ms": float(intercept),
            "b_us_per_position": float(slope * 1e3),
            "largest_error": float(np.max(np.abs(intercept + slope * fitted - cost) / cost)),
        },
        "position_100_to_limit_128": cached[2 * FIRST_CAPACITY] / short[2 * FIRST_CAPACITY],
        "last_to_position_100": cached[max(cached)] / cached[2 * FIRST_CAPACITY],
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the costs with the fitted line and, on logarithmic axes, together with the costs without a cache."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "decoding_cost"  # equal results give an identical file
    from matplotlib import pyplot as plt
    from matplotlib import ticker

    figure, (linear, logarithmic) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    cached, uncached, fit = result["ms_per_token"], result["ms_per_token_uncached"], result["fit"]
    ends = np.array([0, max(cached)])
    label = f"{fit['a_ms']:.1f} ms + {fit['b_us_per_position']:.1f} µs per position"
    linear.plot(ends, fit["a_ms"] + fit["b_us_per_position"] * 1e-3 * ends, "-", color="C1", alpha=0.6, label=label)
    linear.set(xlim=(0, None), ylim=(0, 1.3 * max(cached.values())))
    logarithmic.plot(list(uncached), list(uncached.values()), "s--", label="without a cache")
    logarithmic.set(xscale="log", yscale="log")
    logarithmic.set_xticks([*uncached, *[x for x in cached if x > max(uncached)]], minor=False)
    logarithmic.xaxis.set_major_formatter("{x:,.0f}")
    logarithmic.xaxis.set_minor_locator(ticker.NullLocator())
    logarithmic.yaxis.set_major_formatter("{x:,.0f}")
    for axes in (linear, logarithmic):
        axes.plot(list(cached), list(cached.values()), "o", color="C1", label="with a cache, by stage")
        axes.set(xlabel="positions that there is room for", ylabel="ms per token of the batch")
        axes.legend()
    figure.suptitle(f"Greedy decoding, {result['shape']}, {result['batch']} sentences, {result['device']}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--shape", choices=SHAPES, default="small")
    result.add_argument("--batch", type=int, default=32, help="sentences")
    result.add_argument("--limit", type=int, default=1024, help="tokens to decode, 64 times a power of two")
    result.add_argument("--repeats", type=int, default=7, help="runs, after one that compiles")
    result.add_argument("--figure", type=Path, help="SVG file to draw")
    return result


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    if arguments.limit < 4 * FIRST_CAPACITY or arguments.limit & (arguments.limit - 1):
        parser().error(f"--limit={arguments.limit}: expected 256, 512, 1024, ...: a line needs two stages")
    result = measure(arguments.shape, arguments.batch, arguments.limit, arguments.repeats)
    print(json.dumps(result))
    if arguments.figure:
        draw(result, arguments.figure)


if __name__ == "__main__":
    restart_with_huge_pages()
    main()
