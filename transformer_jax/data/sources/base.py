"""What every source of text offers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable

from transformer_jax.config import nearest
from transformer_jax.errors import DataError


class Split(NamedTuple):
    """One split of a corpus, or a part of it: `inputs[i]` is translated by `targets[i]`."""

    inputs: list[str]
    """Empty where the corpus is monolingual: it has targets only."""
    targets: list[str]
    families: list[str] | None
    """Template family of every pair (embedded corpus), so that each family is scored by itself."""


@runtime_checkable
class Source(Protocol):
    """A corpus, which need not fit into memory; made by `load_source`.

    Methods that take the name of a split raise DataError if there is none of that name, naming those that exist, or if
    what they read is bad.
    """

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits, the training split first."""
        ...

    def num_examples(self, name: str) -> int:
        """Pairs of a split or, of a monolingual one, its texts; `chunks` may leave out some that lack a side."""
        ...

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """A split in order, `size` examples at a time and the rest at the end."""
        ...

    def split(self, name: str) -> Split:
        """A whole split in memory: for those that are scored, which are small."""
        ...

    def fingerprint(self) -> dict[str, Any]:
        """`{"sha256": hex digest of the whole corpus, "versions": {library: version}}`, ready for JSON."""
        ...


def no_such_split(name: str, known: Iterable[str]) -> DataError:
    """What is raised for a split that a corpus does not have."""
    known = list(known)
    return DataError(f"no split '{name}'; there are {', '.join(known)}{nearest(name, known)}")


def joined(chunks: Iterable[Split]) -> Split:
    """The parts of a split as one; raises ValueError if there is none."""
    parts = list(chunks)
    if not parts:
        raise ValueError("a split without parts")
    families = None if parts[0].families is None else [x for part in parts for x in part.families or ()]
    return Split([x for part in parts for x in part.inputs], [x for part in parts for x in part.targets], families)


def divided(split: Split, size: int) -> Iterator[Split]:
    """A split that is in memory, `size` examples at a time."""
    for start in range(0, len(split.targets), size):
        part = slice(start, start + size)
        yield Split(split.inputs[part], split.targets[part], split.families and split.families[part])
