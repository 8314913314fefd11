"""Seconds of a training step and of a decoded token, by length, and the exponents of their growth.

Self-attention costs n^2 d operations per layer for a text of n tokens and can compute all positions at once. A
recurrent layer costs n d^2 and needs n steps in turn (Vaswani et al. 2017, table 1).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.evaluation.run import Scorer
from transformer_jax.inspection.decoding_speed import cached_decoder, median_seconds

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
ROWS = 4
"""Rows of a training batch, and texts that are decoded together."""
_SECONDS = 1.0
_LONGEST = 3
"""Number of the greatest lengths that `long_exponent` is fitted to."""


def times(scorer: Scorer) -> dict[str, float]:
    """Return the medians of repeated runs with 4 rows, and exponents.

    Returns: `step[32]/ms` ..., of a training step on rows of 32 tokens; `token[32]/ms` ..., for a new token of all rows
      if 32 are decoded greedily, with the cache or the recurrent state; `step/exponent`, `token/exponent`, see
      `exponent`, over all lengths, and `step/long_exponent`, `token/long_exponent`, over the three greatest.
    """
    found, config = {}, scorer.loaded.config
    by_name: dict[str, dict[int, float]] = {"step": {}, "token": {}}
    for length in LENGTHS:
        by_name["step"][length] = step_seconds(config, length)
        by_name["token"][length] = token_seconds(scorer, length)
    for name, seconds in by_name.items():
        found |= {f"{name}[{length}]/ms": 1e3 * taken for length, taken in seconds.items()}
        found[f"{name}/exponent"] = exponent(seconds)
        found[f"{name}/long_exponent"] = exponent(dict(list(seconds.items())[-_LONGEST:]))
    return found


def exponent(seconds: Mapping[int, float]) -> float:
    """Return a of seconds = b length^a, fitted to logarithms by least squares."""
    return float(np.polyfit([math.log(length) for length in seconds], [math.log(s) for s in seconds.values()], 1)[0])


def step_seconds(config: ExperimentConfig, length: int) -> float:
    """Return the median seconds of a training step on rows of random tokens without padding, the loss fetched."""
    from transformer_jax.models.architecture import ARCHITECTURES
    from transformer_jax.parallel.launchers import make_launcher
    from transformer_jax.tasks.base import TASKS
    from transformer_jax.training.hyper import split
    from transformer_jax.training.state import placed_state, state_shapes
    from transformer_jax.training.step import make_train_step

    template = TASKS[config.task.name].batch_template(config, ROWS, {"targets": length})
    assert template is not None
    batch = {name: np.ones(leaf.shape, leaf.dtype) for name, leaf in template.items()}
    ids = np.random.default_rng(0).integers(4, config.model.vocab_size, (ROWS, length + 1)).astype(np.int32)
    batch |= {"decoder_inputs": ids[:, :-1], "targets": ids[:, 1:], "row_ids": np.arange(ROWS, dtype=np.int32)}
    static, hyper = split(config)
    axes = ARCHITECTURES[config.model.architecture].parameter_axes(config.model)
    launcher = make_launcher(config, make_train_step(static), axes)
    state = placed_state(static, hyper, launcher.shardings(state_shapes(static, hyper)))

    def step() -> None:
        nonlocal state
        state, metrics = launcher.step(state, batch, hyper)
        float(metrics["loss"])

    return median_seconds(step, _SECONDS).seconds


def token_seconds(scorer: Scorer, length: int) -> float:
    """Return the median seconds of a new token of all rows, if `length` tokens are decoded greedily."""
    from transformer_jax.tasks.decode_requests import ends_of

    config = scorer.loaded.config
    decode = dataclasses.replace(config.decode, max_new_tokens=length, min_length=length)
    starts = np.full((ROWS, 1), config.model.decoder_start_id, np.int32)
    ends = ends_of(scorer.loaded.tokenizer, config.model.vocab_size)
    run = cached_decoder(config.model, scorer.loaded.params, starts, np.ones(ROWS, np.int32), decode, ends)
    return median_seconds(run, _SECONDS).seconds / length
