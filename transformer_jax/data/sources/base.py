"""What every source of sentence pairs offers."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable


class Split(NamedTuple):
    """One split of a parallel corpus: `inputs[i]` is translated by `targets[i]`."""

    inputs: list[str]
    targets: list[str]
    families: list[str] | None
    """Template family of every pair (embedded corpus), so that each family is scored by itself."""


@runtime_checkable
class Source(Protocol):
    """A parallel corpus; made by `load_source`."""

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names that `split` knows, the training split first."""
        ...

    def split(self, name: str) -> Split:
        """Pairs of one split. Raises DataError, naming the existing splits, if there is none of that name."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """`{"sha256": hex digest of the whole corpus, "versions": {library: version}}`, ready for JSON."""
        ...
