"""The section `decode`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import Choices, DerivedFloat, DerivedStr, choice, field, number
from transformer_jax.config.task import SOURCE_TO_TARGET

# Samples of an input share its row of the cache, and each one masks the tokens of the others. So W samples together
# cost W^2.
SAMPLES_TOGETHER = 8

GENERATING = {"task.name": (*SOURCE_TO_TARGET, "language_model", "span_corruption", "denoising")}
"""The tasks that generate text. They read this section, as others like them do (`tasks.task.Task.generates`)."""

_SEARCH = {"decode.method": ("search",)}
_SAMPLE = {"decode.method": ("sample",)}
_LENGTH_PENALTIES = "transformer_jax.decoding.beam_search:LENGTH_PENALTIES"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """Settings of decoding; decoding/beam_search.py and decoding/sampling.py state the rules."""

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
        ("bound", "first", "current"),
        "bound: stop when no live hypothesis can win; first: stop when beam_size hypotheses have ended; current: then, "
        "but only if no live hypothesis would be among the best with its current length, as in Hugging Face",
        read_by=_SEARCH,
    )
    end_among: str = choice(
        "beam",
        ("beam", "candidates"),
        "an end-of-sequence ends a hypothesis if it is among the best beam_size (beam) or 2 * beam_size (candidates) "
        "continuations",
        read_by=_SEARCH,
    )
    num_best: int = number(1, "`search`: outputs per input, at most beam_size", 1, read_by=_SEARCH)
    temperature: float = number(1.0, "`sample`: logits are divided by this", 1e-6, read_by=_SAMPLE)
    top_k: int | None = number(None, "`sample`: draw only from the k likeliest tokens; default all", 1, read_by=_SAMPLE)
    top_p: float = number(
        1.0,
        "`sample`: draw only from the likeliest tokens that together have this probability (nucleus)",
        above=0.0,
        maximum=1.0,
        read_by=_SAMPLE,
    )
    min_p: float = number(
        0.0,
        "`sample`: draw only from tokens whose probability is at least this fraction of the highest",
        0.0,
        1.0,
        read_by=_SAMPLE,
    )
    num_samples: int = number(1, "`sample`: outputs per input", 1, read_by=_SAMPLE)
    seed: int = number(
        0,
        "`sample`: random seed; an output depends on it and on the number of the input",
        0,
        2**31 - 1,
        read_by=_SAMPLE,
    )
    repetition_penalty: float = number(
        1.0, "above 1, tokens that an output already contains become less likely; 1 turns it off", above=0.0
    )
    no_repeat_ngram: int = number(
        0, "no sequence of this many tokens occurs twice in prompt and output together; 0 turns it off", 0
    )
    max_extra_length: int = number(
        50, "an output has at most the source's length plus this many tokens; that of a language model has no source", 0
    )
    max_new_tokens: int | None = number(None, "an output has at most this many tokens, in place of max_extra_length", 1)
    min_length: int = number(0, "an output has at least this many tokens before the end-of-sequence", 0)
    at_limit: str = choice(
        "cut", ("cut", "end"), "at the length limit, an output is cut off (cut) or gets an end-of-sequence (end)"
    )
    cut_hypotheses: str = choice(
        "last",
        ("last", "compete"),
        "hypotheses cut off at the length limit: below every ended one (last), or ranked by their scores (compete), as "
        "in Hugging Face",
        read_by=_SEARCH,
    )
    forced_tokens: str = choice(
        "scored",
        ("scored", "free"),
        "tokens that prefix_ids or at_limit=end forces: scored by the model (scored), or with log P = 0, as in Hugging "
        "Face (free)",
        read_by=_SEARCH,
    )
    forbidden_ids: str = field("", "ids that no output contains, separated by commas")
    prefix_ids: str = field("", "ids that every output begins with, separated by commas")

    def resolved(self) -> DecodeConfig:
        """Return the section with the defaults that follow from other fields; imports JAX.

        A resolved ExperimentConfig does not set them, so that overrides in an evaluation still change them.
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
        """Number of outputs per input."""
        return self.num_samples if self.method == "sample" else self.num_best

    def problems(self) -> Iterator[str]:
        if self.method == "search" and self._penalty_name == "none" and self.length_penalty_alpha:
            yield (
                f"length_penalty_alpha={self.length_penalty_alpha} has no effect with length_penalty='none', "
                "which is the default with beam_size=1"
            )
        if self.cut_hypotheses == "compete" and self.at_limit == "end":
            yield "cut_hypotheses='compete' has no effect with at_limit='end': no hypothesis is cut off"
        if self.num_best > self.beam_size:
            yield f"num_best={self.num_best} exceeds beam_size={self.beam_size}"
        if self.max_new_tokens is not None and self.min_length > self.max_new_tokens:
            yield f"min_length={self.min_length} exceeds max_new_tokens={self.max_new_tokens}"
        for name in ("forbidden_ids", "prefix_ids"):
            text = getattr(self, name)
            try:
                parse_ids(text)
            except ValueError:
                yield f"{name}={text!r}: expected ids separated by commas"
                return
        if both := sorted({*parse_ids(self.forbidden_ids)}.intersection(parse_ids(self.prefix_ids))):
            yield f"prefix_ids={self.prefix_ids!r}: {', '.join(map(str, both))} is in forbidden_ids too"


def parse_ids(text: str) -> tuple[int, ...]:
    """Return the ids in a text, as in "4,17" -> (4, 17); raises ValueError if the text is not a list of ids."""
    ids = tuple(int(part) for part in text.split(",")) if text.strip() else ()
    if any(i < 0 for i in ids):
        raise ValueError(text)
    return ids
