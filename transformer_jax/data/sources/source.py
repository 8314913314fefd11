"""The interface of a source, and its splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from transformer_jax.config import nearest
from transformer_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class Split:
    """One split of a corpus, or a part of it: equally long lists of values, one per example, by feature.

    Pairs have `inputs`, and `targets`, their translations. The embedded corpus also has `families`, the template family
    of every pair, so that each family is scored separately. Raises ValueError if there is no feature, or if their lists
    differ in length.
    """

    features: dict[str, list[Any]]

    def __post_init__(self) -> None:
        counts = {name: len(values) for name, values in self.features.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"expected one or more features of equal length, got {counts}")

    @property
    def num_examples(self) -> int:
        """Number of examples of the split, or of this part of it."""
        return len(next(iter(self.features.values())))


@runtime_checkable
class Source(Protocol):
    """A corpus, which may be larger than memory; made by `load_source`.

    Methods that take the name of a split raise DataError for an unknown name, with the known ones, and for bad data.
    """

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits, the training split first."""
        ...

    def num_examples(self, name: str) -> int:
        """Return the number of examples of a split; `chunks` may leave out some without a text."""
        ...

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        """Yield a split in order, `size` examples at a time, and the rest at the end."""
        ...

    def split(self, name: str) -> Split:
        """Return a whole split in memory; for splits that are scored, which are small."""
        ...

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return `{"sha256": hex digest of the whole corpus, "versions": {library: version}}`, ready for JSON.

        Args:
          split: a test set that is not part of the corpus (`data.test_sets`) has its own digest.
        """
        ...


def no_such_split(name: str, known: Iterable[str]) -> DataError:
    """Return the error for a split that a corpus does not have."""
    known = list(known)
    return DataError(f"no split '{name}'; there are {', '.join(known)}{nearest(name, known)}")


def joined(chunks: Iterable[Split]) -> Split:
    """Return the parts of a split as one; raise ValueError if there are none."""
    parts = list(chunks)
    if not parts:
        raise ValueError("expected at least one part of a split")
    return Split({name: [value for part in parts for value in part.features[name]] for name in parts[0].features})


def divided(split: Split, size: int) -> Iterator[Split]:
    """Yield a split that is in memory, `size` examples at a time."""
    for start in range(0, split.num_examples, size):
        yield Split({name: values[start : start + size] for name, values in split.features.items()})
