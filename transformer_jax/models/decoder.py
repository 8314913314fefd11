"""The interface of decoders, which greedy search, sampling and beam search use."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

from jaxtyping import Bool, Int

from transformer_jax.config import ModelConfig
from transformer_jax.typing import Array, Batch, Params

TWO_WAY = "prompts_two_way"
"""Key of a batch, int32 [B]: the number of first tokens of every prompt that attend to each other in both directions.

The others see only the tokens before them.
"""


def slots_of_prompts(batch: Batch, width: int) -> int:
    """Return the slots of a cache that `Decoder.start` fills, for prompts [B, width].

    It leaves out the last token of each prompt, which the search feeds. Prompts that are read in both directions need
    all tokens: then the slot of the last one is filled, but not visible.
    """
    return width if TWO_WAY in batch else width - 1


class Started(NamedTuple):
    """A cache that holds everything read before the first step.

    cache: any tree. visible: [B, C] bool, the slots that every hypothesis may attend to. index: the first free slot.
    """

    cache: Any
    visible: Array
    index: int


class StepOutput(NamedTuple):
    """Float32 logits of the token after each that was fed, or after the last of each row; and the new cache."""

    logits: Array
    cache: Any


class Decoder(abc.ABC):
    """Functions of one model's parameters, for B rows with W hypotheses each.

    Hypotheses of a row share the encoded input. A step writes W tokens, one per hypothesis, into the next W slots of
    the cache; `visible` says which slots each of them attends to. A decoder with another state than a cache of tokens,
    such as a recurrent one, ignores slots and `visible`. It keeps one state per hypothesis, which `reorder` gathers.

    Searches are compiled once per decoder. So a decoder is hashable and immutable, holds no arrays, and equals any
    other decoder of the same model: a frozen dataclass with the model's config is all of that.
    """

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Number of logits per step, V."""

    @property
    def source_vocab_size(self) -> int:
        """Number of ids that `inputs` can have; unless a decoder says otherwise, V."""
        return self.vocab_size

    @property
    def max_length(self) -> int | None:
        """Greatest number of positions that the model can represent; None if there is no bound."""
        return None

    def prepare(self, params: Params) -> Params:
        """Return the parameters in the form that decoding reads; called once, before any step."""
        return params

    @abc.abstractmethod
    def start(self, params: Params, batch: Batch, slots: int, width: int) -> Started:
        """Encode the input, if there is one, and read every prompt without its last token.

        Args:
          batch: the columns that the model reads, such as `inputs` [B, S] and `inputs_mask`; and `prompts` [B, P] int32
            with `prompt_lengths` [B], the tokens before the first generated one. The search feeds the last of each.
            With `TWO_WAY`, prompts are read in both directions; `slots_of_prompts` says how many slots that fills.
          slots: capacity of the cache; width: hypotheses per row, W.
        """

    @abc.abstractmethod
    def step(
        self,
        params: Params,
        cache: Any,
        ids: Int[Array, "B W"],
        positions: Int[Array, "B W"],
        visible: Bool[Array, "B W C"],
    ) -> StepOutput:
        """Feed one token per hypothesis; return float32 logits [B, W, V] of the next one, and the new cache.

        Args:
          visible: the slots that each token attends to, including its own.
        """

    def reorder(self, cache: Any, parents: Int[Array, "B W"]) -> Any:
        """Return the cache after a selection: hypothesis w of a row continues hypothesis parents[w].

        A cache of tokens stays as it is, since `visible` follows the hypotheses. States are gathered.
        """
        return cache

    def grow(self, cache: Any, slots: int) -> Any:
        """Return the same cache with room for `slots` tokens."""
        return cache


@dataclasses.dataclass(frozen=True)
class TokenDecoder(Decoder):
    """A decoder of a model of this package, with a table of embeddings and a projection `output`, tied or not."""

    config: ModelConfig

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def source_vocab_size(self) -> int:
        return self.config.source_vocab_size

    def prepare(self, params: Params) -> Params:
        """Return parameters with an output kernel even if it is tied, so that no step transposes the table."""
        output = dict(params.get("output", {}))
        if "kernel" not in output:
            output["kernel"] = params["embedding"]["embedding"].T
        return {**params, "output": output}
