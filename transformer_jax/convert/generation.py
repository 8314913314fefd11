"""Settings of generation for `generation_config.json` and for `task_specific_params` of `config.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from transformer_jax.config import DecodeConfig, ModelConfig, TaskConfig, parse_ids

_NOTHING_TO_SAY = ("seed", "length_penalty_alpha", "max_extra_length")
"""Fields that follow from others, or that say something about one run."""


EARLY_STOPPING = {"bound": "never", "first": True, "current": False}
"""`early_stopping` by the value of `decode.early_stop`."""
TASK_PARAMS = "task_specific_params"
PREFIX = "prefix"
"""The key of an entry of `task_specific_params` with the text before every source."""
ENTRIES = {"text_to_text": "summarization", "translation": "translation"}
"""The entry of `task_specific_params` that belongs to a task of ours."""


class Generation(NamedTuple):
    """Keys of generation_config.json, and the fields of `decode` that have no counterpart there, as messages."""

    keys: dict[str, Any]
    left_out: list[str]


def generation_settings(config: ModelConfig, decode: DecodeConfig | None, eos: int | None = None) -> Generation:
    """Return the settings that mean the same in transformers.

    Args:
      decode: None writes none. eos: end-of-sequence of the tokenizer.
    """
    if decode is None:
        return Generation({}, [])
    said = dict(_said(config, decode, eos))
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


def task_params(task: TaskConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key of config.json with the settings of a task and its prefix, as T5 has them.

    There is none for a translation without a prefix, or for another task.
    """
    if task.name not in ENTRIES or not (task.source_prefix or task.name == "text_to_text"):
        return {}
    prefix = {PREFIX: task.source_prefix} if task.source_prefix else {}
    return {TASK_PARAMS: {ENTRIES[task.name]: {**settings, **prefix}}}


def _said(config: ModelConfig, decode: DecodeConfig, eos: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield fields of `decode` with the keys that say the same."""
    yield "method", {"do_sample": decode.method == "sample"}
    has_beam = decode.method == "search" and decode.beam_size > 1
    if has_beam and decode.forced_tokens == "free":
        yield "forced_tokens", {}
    # In a beam search of transformers, forced tokens cost nothing.
    if config.architecture == "encoder_decoder" and (not has_beam or decode.forced_tokens == "free"):
        if len(prefix := parse_ids(decode.prefix_ids)) == 1:
            yield "prefix_ids", {"forced_bos_token_id": prefix[0]}
        if decode.at_limit == "end" and eos is not None:
            yield "at_limit", {"forced_eos_token_id": eos}
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
    yield "early_stop", {"early_stopping": EARLY_STOPPING[decode.early_stop]}
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
