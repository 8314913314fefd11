"""The section `decode`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import DerivedFloat, DerivedStr, choice, field, number
from transformer_jax.config.ids import EOS_ID, PAD_ID

# Samples of an input share its row of the cache, and each looks past the tokens of the others: W of them cost W^2.
SAMPLES_TOGETHER = 8

# Fields of DecodeConfig that only one method reads.
_SEARCH_FIELDS = ("beam_size", "length_penalty", "length_penalty_alpha", "early_stop", "end_among", "num_best")
_SAMPLE_FIELDS = ("temperature", "top_k", "top_p", "min_p", "num_samples", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How text is generated; the rules are stated in decoding/beam_search.py and decoding/sampling.py."""

    method: str = choice("search", ("search", "sample"), "the best output that a beam search finds, or drawn ones")
    beam_size: int = number(1, "hypotheses per input; 1 is greedy search", 1)
    length_penalty: DerivedStr = choice(
        None,
        ("none", "gnmt", "average"),
        "what log P is divided by: 1, ((5 + length) / 6)^alpha, length^alpha; default gnmt, and none for greedy search",
    )
    length_penalty_alpha: DerivedFloat = number(None, "its alpha; default 0.6 for gnmt, 1 for average", 0.0)
    early_stop: str = choice(
        "bound", ("bound", "first"), "done once no live hypothesis can win, or once beam_size have ended"
    )
    end_among: str = choice(
        "beam",
        ("beam", "candidates"),
        "an end mark ends a hypothesis if among the best beam_size continuations, or the best 2 * beam_size",
    )
    num_best: int = number(1, "outputs per input that a search returns, at most beam_size", 1)
    temperature: float = number(1.0, "`sample`: logits are divided by this", 1e-6)
    top_k: int | None = number(None, "`sample`: among the k likeliest tokens only; default all", 1)
    top_p: float = number(
        1.0, "`sample`: among the likeliest tokens with this mass only (nucleus)", above=0.0, maximum=1.0
    )
    min_p: float = number(0.0, "`sample`: among tokens at least this times as likely as the likeliest only", 0.0, 1.0)
    num_samples: int = number(1, "`sample`: outputs per input", 1)
    seed: int = number(0, "`sample`: what is drawn follows from it and from the number of the input", 0, 2**31 - 1)
    repetition_penalty: float = number(1.0, "held against tokens that an output has already; 1 is none", above=0.0)
    max_extra_length: int = number(50, "an output has at most its source's pieces plus this many", 0)
    max_length: int | None = number(None, "an output has at most this many pieces, in place of max_extra_length", 1)
    min_length: int = number(0, "pieces before the end mark, at least", 0)
    at_limit: str = choice("cut", ("cut", "end"), "an output that comes to its limit is cut there, or ended")
    forbidden_ids: str = field("", "ids that no output has, separated by commas")
    prefix_ids: str = field("", "ids that every output begins with, separated by commas")

    def resolved(self) -> DecodeConfig:
        """With the defaults that follow from other fields.

        A resolved config leaves them open, so that those of a checkpoint follow what its evaluation overrides.
        """
        name = self.length_penalty or ("none" if self.beam_size == 1 else "gnmt")
        alpha = {"none": 0.0, "gnmt": 0.6, "average": 1.0}[name]
        if self.length_penalty_alpha is not None:
            alpha = self.length_penalty_alpha
        return dataclasses.replace(self, length_penalty=name, length_penalty_alpha=alpha)

    @property
    def num_hypotheses(self) -> int:
        """What grows side by side for every input."""
        return min(self.num_samples, SAMPLES_TOGETHER) if self.method == "sample" else self.beam_size

    @property
    def num_outputs(self) -> int:
        """Outputs per input."""
        return self.num_samples if self.method == "sample" else self.num_best

    def problems(self) -> Iterator[str]:
        yield from self._idle_fields()
        if self.num_best > self.beam_size:
            yield f"num_best={self.num_best} exceeds beam_size={self.beam_size}"
        if self.max_length is not None and self.min_length > self.max_length:
            yield f"min_length={self.min_length} exceeds max_length={self.max_length}"
        for name in ("forbidden_ids", "prefix_ids"):
            text = getattr(self, name)
            try:
                parse_ids(text)
            except ValueError:
                yield f"{name}={text!r}: expected ids separated by commas"
                continue
            if name == "prefix_ids" and {PAD_ID, EOS_ID} & {*parse_ids(text)}:
                yield f"prefix_ids={text}: no output has padding ({PAD_ID}) or an end mark ({EOS_ID}) at its beginning"

    def _idle_fields(self) -> Iterator[str]:
        """Fields that are set and that the method does not read."""
        defaults, other = DecodeConfig, _SEARCH_FIELDS if self.method == "sample" else _SAMPLE_FIELDS
        for name in other:
            if getattr(self, name) != getattr(defaults, name):
                yield f"{name}={getattr(self, name)} is not read with method='{self.method}'"
        if self.method == "search" and self.resolved().length_penalty == "none" and self.length_penalty_alpha:
            yield (
                f"length_penalty_alpha={self.length_penalty_alpha} is not read with length_penalty='none', "
                "which is the default with beam_size=1"
            )


def parse_ids(text: str) -> tuple[int, ...]:
    """ "4,17" -> (4, 17); raises ValueError for anything that is no list of ids."""
    ids = tuple(int(part) for part in text.split(",")) if text.strip() else ()
    if any(i < 0 for i in ids):
        raise ValueError(text)
    return ids
