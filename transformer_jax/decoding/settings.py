"""The two parts of a decode config: settings of the compiled program, and numbers that are its arguments."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.config import DecodeConfig, parse_ids
from transformer_jax.decoding.beam_search import Rules
from transformer_jax.decoding.constraints import Constraints
from transformer_jax.errors import ConfigError
from transformer_jax.typing import ArrayLike


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the compiled program.

    rules: of a beam search; None for greedy search and sampling. sample: whether tokens are drawn. width: hypotheses
    per input. top_k: of sampling.
    """

    rules: Rules | None
    sample: bool
    width: int
    top_k: int | None


class Values(NamedTuple):
    """Arguments of the compiled program: a new value does not recompile it. None turns a feature off."""

    constraints: Constraints
    alpha: ArrayLike
    seed: ArrayLike
    first_sample: ArrayLike
    temperature: ArrayLike
    top_p: ArrayLike | None
    min_p: ArrayLike | None


class Ends(NamedTuple):
    """The tokenizer's special ids that generation needs.

    end_id: ends an output; None if there is none. never: ids that no output may contain, such as padding.
    """

    end_id: int | None
    never: tuple[int, ...]


class SplitSettings(NamedTuple):
    """Decode settings as the part that determines the compiled program, and the values that are its arguments."""

    settings: Settings
    values: Values


def split_settings(decode: DecodeConfig, vocab_size: int, ends: Ends) -> SplitSettings:
    """Split a config. Equal settings, and values with None in the same places, share a compiled program.

    Raises: ConfigError if outputs must end at the length limit but there is no end-of-sequence id, or if every id is
      forbidden.
    """
    decode = decode.resolved()
    if decode.at_limit == "end" and ends.end_id is None:
        raise ConfigError("decode.at_limit=end: there is no end-of-sequence id; use decode.at_limit=cut")
    sample = {"search": False, "sample": True}[decode.method]
    greedy = (decode.beam_size, decode.length_penalty, decode.end_among) == (1, "none", "beam")
    rules = None
    if not sample and not greedy:
        rules = Rules(
            decode.length_penalty, decode.end_among, decode.early_stop, decode.num_best, decode.cut_hypotheses
        )
    settings = Settings(rules, sample, decode.num_hypotheses, decode.top_k if sample else None)
    forbidden = np.zeros(vocab_size, bool)
    forbidden[[*parse_ids(decode.forbidden_ids), *ends.never]] = True
    if np.delete(forbidden, [] if ends.end_id is None else [ends.end_id]).all():
        raise ConfigError("decode.forbidden_ids: forbids every id except special ones; an output needs at least one")
    values = Values(
        constraints=Constraints(
            np.int32(-1 if ends.end_id is None else ends.end_id),
            jnp.asarray(forbidden),
            jnp.array(parse_ids(decode.prefix_ids), jnp.int32),
            np.int32(decode.min_length),
            np.bool_({"cut": False, "end": True}[decode.at_limit]),
            np.float32(decode.repetition_penalty) if decode.repetition_penalty != 1.0 else None,
            np.int32(decode.no_repeat_ngram) if decode.no_repeat_ngram else None,
            {"scored": None, "free": np.bool_(True)}[decode.forced_tokens],
        ),
        alpha=np.float32(decode.length_penalty_alpha),
        seed=np.uint32(decode.seed),
        first_sample=np.int32(0),
        temperature=np.float32(decode.temperature),
        top_p=np.float32(decode.top_p) if decode.top_p < 1.0 else None,
        min_p=np.float32(decode.min_p) if decode.min_p > 0.0 else None,
    )
    return SplitSettings(settings, values)
