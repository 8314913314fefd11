"""Settings of generation for `generation_config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from transformer_jax.config import DecodeConfig, ModelConfig, parse_ids

_NOTHING_TO_SAY = ("seed", "length_penalty_alpha", "max_extra_length")
"""Fields that follow from others, or that say something about one run."""


_EARLY_STOPPING = {"bound": "never", "first": True, "current": False}


class Generation(NamedTuple):
    """Keys of generation_config.json, and the fields of `decode` that have no counterpart there, as messages."""

    keys: dict[str, Any]
    left_out: list[str]


def generation_settings(config: ModelConfig, decode: DecodeConfig | None) -> Generation:
    """Return the settings that mean the same in transformers.

    Args:
      decode: None writes none.
    """
    if decode is None:
        return Generation({}, [])
    said = dict(_said(config, decode))
    keys = {key: value for part in said.values() for key, value in part.items()}
    left_out = [
        f"decode.{field.name}={getattr(decode, field.name)!r}"
        for field in dataclasses.fields(decode)
        if field.name not in (*said, *_NOTHING_TO_SAY) and getattr(decode, field.name) != field.default
    ]
    if decode.method == "search" and "length_penalty" not in said:
        left_out = [x for x in left_out if not x.startswith("decode.length_penalty=")]
        left_out.append(f"decode.length_penalty='{decode.resolved().length_penalty}'")
    are_cut = decode.method == "search" and decode.beam_size > 1 and decode.at_limit == "cut"
    if are_cut and decode.cut_hypotheses == "last":  # they compete there
        left_out.append("decode.cut_hypotheses='last'")
    return Generation(keys, left_out)


def _said(config: ModelConfig, decode: DecodeConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield fields of `decode` with the keys that say the same."""
    yield "method", {"do_sample": decode.method == "sample"}
    yield "max_new_tokens", {"max_new_tokens": _limit(config, decode)}
    if decode.min_length:
        yield "min_length", {"min_new_tokens": decode.min_length}
    if decode.no_repeat_ngram:
        yield "no_repeat_ngram", {"no_repeat_ngram_size": decode.no_repeat_ngram}
    if decode.forbidden_ids:
        yield "forbidden_ids", {"suppress_tokens": [*parse_ids(decode.forbidden_ids)]}
    if decode.num_outputs > 1:
        yield "num_samples" if decode.method == "sample" else "num_best", {"num_return_sequences": decode.num_outputs}
    if decode.method == "sample":
        yield "temperature", {"temperature": decode.temperature}
        yield "top_p", {"top_p": decode.top_p}
        yield "top_k", {"top_k": decode.top_k or 0}
        if decode.min_p:
            yield "min_p", {"min_p": decode.min_p}
        return
    yield "beam_size", {"num_beams": decode.beam_size}
    if decode.beam_size == 1:
        yield "length_penalty", {}
        return
    if decode.cut_hypotheses == "compete":
        yield "cut_hypotheses", {}
    yield "early_stop", {"early_stopping": _EARLY_STOPPING[decode.early_stop]}
    full = decode.resolved()
    if full.length_penalty != "gnmt":  # transformers does not have it
        alpha = full.length_penalty_alpha if full.length_penalty == "average" else 0.0
        yield "length_penalty", {"length_penalty": alpha}


def _limit(config: ModelConfig, decode: DecodeConfig) -> int:
    """Return the largest number of new tokens; that of a translation depends on its source here, there it does not."""
    if decode.max_new_tokens is not None:
        return decode.max_new_tokens
    if config.architecture == "encoder_decoder":
        return config.max_length - 1  # the start id takes a position
    return decode.max_extra_length
