"""The section `decode`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import Choices, DerivedFloat, DerivedStr, choice, field, number

# Samples of an input share its row of the cache, and each looks past the tokens of the others: W of them cost W^2.
SAMPLES_TOGETHER = 8

_SEARCH = {"decode.method": ("search",)}
_SAMPLE = {"decode.method": ("sample",)}
_LENGTH_PENALTIES = "transformer_jax.decoding.beam_search:LENGTH_PENALTIES"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How text is generated; the rules are stated in decoding/beam_search.py and decoding/sampling.py."""

    method: str = choice(
        "search", ("search", "sample"), "search: the best output of a beam search; sample: random outputs"
    )
    beam_size: int = number(1, "hypotheses per input; 1 is greedy search", 1, read_by=_SEARCH)
    length_penalty: DerivedStr = choice(
        None,
        _LENGTH_PENALTIES,
        "divisor of log P: 1, ((5 + length) / 6)^alpha, length^alpha; default gnmt, and none for greedy search",
        read_by=_SEARCH,
    )
    length_penalty_alpha: DerivedFloat = number(
        None, "alpha of length_penalty; default 0.6 for gnmt, 1 for average", 0.0, read_by=_SEARCH
    )
    early_stop: str = choice(
        "bound",
        ("bound", "first"),
        "done once no live hypothesis can win, or once beam_size have ended",
        read_by=_SEARCH,
    )
    end_among: str = choice(
        "beam",
        ("beam", "candidates"),
        "an end mark ends a hypothesis if among the best beam_size continuations, or the best 2 * beam_size",
        read_by=_SEARCH,
    )
    num_best: int = number(1, "outputs per input that a search returns, at most beam_size", 1, read_by=_SEARCH)
    temperature: float = number(1.0, "`sample`: logits are divided by this", 1e-6, read_by=_SAMPLE)
    top_k: int | None = number(None, "`sample`: among the k likeliest tokens only; default all", 1, read_by=_SAMPLE)
    top_p: float = number(
        1.0,
        "`sample`: among the likeliest tokens with this mass only (nucleus)",
        above=0.0,
        maximum=1.0,
        read_by=_SAMPLE,
    )
    min_p: float = number(
        0.0, "`sample`: among tokens at least this times as likely as the likeliest only", 0.0, 1.0, read_by=_SAMPLE
    )
    num_samples: int = number(1, "`sample`: outputs per input", 1, read_by=_SAMPLE)
    seed: int = number(
        0, "`sample`: draws follow from it and from the number of the input", 0, 2**31 - 1, read_by=_SAMPLE
    )
    repetition_penalty: float = number(
        1.0, "above 1, tokens that an output already contains become less likely; 1 turns it off", above=0.0
    )
    max_extra_length: int = number(50, "an output has at most the source's length plus this many tokens", 0)
    max_length: int | None = number(None, "an output has at most this many tokens, in place of max_extra_length", 1)
    min_length: int = number(0, "an output has at least this many tokens before the end mark", 0)
    at_limit: str = choice("cut", ("cut", "end"), "an output that comes to its limit is cut there, or ended")
    forbidden_ids: str = field("", "ids that no output has, separated by commas")
    prefix_ids: str = field("", "ids that every output begins with, separated by commas")

    def resolved(self) -> DecodeConfig:
        """Return the section with the defaults that follow from other fields; imports JAX.

        A resolved config leaves them open, so that those of a checkpoint follow what its evaluation overrides.
        """
        name, alpha = self._penalty_name, self.length_penalty_alpha
        if alpha is None:
            alpha = Choices(_LENGTH_PENALTIES).table[name].default_alpha
        return dataclasses.replace(self, length_penalty=name, length_penalty_alpha=alpha)

    @property
    def _penalty_name(self) -> str:
        return self.length_penalty or ("none" if self.beam_size == 1 else "gnmt")

    @property
    def num_hypotheses(self) -> int:
        """Number of sequences that are decoded side by side for every input."""
        return min(self.num_samples, SAMPLES_TOGETHER) if self.method == "sample" else self.beam_size

    @property
    def num_outputs(self) -> int:
        """Outputs per input."""
        return self.num_samples if self.method == "sample" else self.num_best

    def problems(self) -> Iterator[str]:
        if self.method == "search" and self._penalty_name == "none" and self.length_penalty_alpha:
            yield (
                f"length_penalty_alpha={self.length_penalty_alpha} is not read with length_penalty='none', "
                "which is the default with beam_size=1"
            )
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


def parse_ids(text: str) -> tuple[int, ...]:
    """ "4,17" -> (4, 17); raises ValueError for anything that is no list of ids."""
    ids = tuple(int(part) for part in text.split(",")) if text.strip() else ()
    if any(i < 0 for i in ids):
        raise ValueError(text)
    return ids
