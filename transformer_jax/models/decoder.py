"""How one generates with a model: the interface that greedy search, sampling and beam search know."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int

from transformer_jax.typing import Array, Batch, Params


class Started(NamedTuple):
    """A cache that holds what was read before the first step.

    cache: any tree. visible: [B, C] bool, the slots of the cache that every hypothesis may attend to. index: the first
    free slot.
    """

    cache: Any
    visible: Array
    index: int


class Decoder(abc.ABC):
    """Functions of one model's parameters, for B rows with W hypotheses each.

    Hypotheses of a row share what is computed from its input. A step writes W tokens, one per hypothesis, into the next
    W slots of the cache; `visible` says which slots each of them attends to. A decoder whose state is not a cache of
    tokens (a recurrent one) ignores slots and `visible`, and keeps one state per hypothesis, which `reorder` gathers.

    A search is compiled per decoder: one is hashable, does not change, and equals every other of the same model, as a
    frozen dataclass of the model's config does. It holds no array.
    """

    @property
    @abc.abstractmethod
    def vocab_size(self) -> int:
        """Logits per step, V."""

    @property
    def max_length(self) -> int | None:
        """Positions that the model can number; None if there is no bound."""
        return None

    def prepare(self, params: Params) -> Params:
        """Return the parameters as decoding reads them, made once before any step."""
        return params

    @abc.abstractmethod
    def start(self, params: Params, batch: Batch, slots: int, width: int) -> Started:
        """Encode what there is to encode, and read every prompt without its last token.

        Args:
          batch: what the model reads, such as `inputs` [B, S] and `inputs_mask`; and `prompts` [B, P] int32 with
            `prompt_lengths` [B]: the tokens before the first generated one. The search feeds the last of each.
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
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Feed one token per hypothesis; return float32 logits of the next one, and the new cache.

        Args:
          visible: slots that each token attends to, its own among them.
        """

    def reorder(self, cache: Any, parents: Int[Array, "B W"]) -> Any:
        """Return the cache in which hypothesis w of a row continues hypothesis parents[w].

        Keys and values stay where they are, since `visible` follows the hypotheses; states are gathered.
        """
        return cache

    def grow(self, cache: Any, slots: int) -> Any:
        """Return the same cache with room for `slots` tokens."""
        return cache
