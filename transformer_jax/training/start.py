"""Where a run starts: from new parameters, its own checkpoint, or the parameters of another run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.state import TrainState, placed_state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """A start from new parameters; subclasses start from a checkpoint.

    tokenizer: the one of the parameters; None if there is none yet. record: of the checkpoint that the run resumes
    from; empty for a new run. labels: names of the labels of that checkpoint. head_labels: names of the labels of a
    head that another run has trained, in the order of its rows.
    """

    tokenizer: Tokenizer | None = None
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] | None = None

    @property
    def step(self) -> int:
        """Number of updates before the first one of this process."""
        return 0

    @property
    def head_labels(self) -> tuple[str, ...] | None:
        return None

    def check_labels(self, labels: Sequence[str]) -> None:
        """Raise CheckpointError if the head is for other labels than those of the training split."""

    def first_state(self, static: StaticConfig, hyper: Hyper, shardings: Any) -> TrainState:
        """Return the state before the first step of this process.

        Args:
          shardings: a tree like the state, or one sharding for all arrays.
        Raises: CheckpointError if a checkpoint is damaged.
        """
        return placed_state(static, hyper, shardings)
