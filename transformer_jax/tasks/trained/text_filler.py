"""Text from corrupted text: the spans of sentinels, or the whole text from a text with masks."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.data.tokenizers.tokenizer import SPACE, before_eos
from transformer_jax.tasks.trained.translator import SourceGenerator


@dataclasses.dataclass(frozen=True, repr=False)
class Filler(SourceGenerator):
    """Parameters and tokenizer of a model that undoes corruption; a line is a text with `<extra_id_0>` or `<mask>`.

    framed: the text stands between the start and the end of a text, as in denoising, not only before an end.
    """

    framed: bool = False

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text; names of masks and sentinels become their ids."""
        special = self.tokenizer.special_ids
        start = [special.start_of_text] if self.framed and special.start_of_text is not None else []
        end = special.end_of_text if self.framed else special.required("eos")
        return [[*start, *self._ids(text), *([] if end is None else [end])] for text in texts]

    def decode(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        """Return the text of each row of ids up to its end-of-sequence, with the names of sentinels and masks in it."""
        return [self._text([int(id) for id in row]) for row in rows]

    def _text(self, ids: list[int]) -> str:
        names = {id: name for name, id in self._names.items()}
        if not names.keys() & set(ids):
            return self.tokenizer.decode(ids)
        parts: list[str] = []
        for is_name, group in itertools.groupby(before_eos(ids, self.tokenizer.special_ids.eos), names.__contains__):
            run = list(group)
            parts += [names[id] for id in run] if is_name else [self.tokenizer.decode(run).strip(" ")]
        return " ".join(filter(None, parts))

    def _ids(self, text: str) -> list[int]:
        """Return the ids of a text. A space in front of a name belongs to the span that the name stands for."""
        names = self._names
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        plain = parts[::2]
        before = [part.rstrip(" ") for part in plain[:-1]] + plain[-1:]
        after = [before[0], *(part.removeprefix(" ") if self._adds_space else part for part in before[1:])]
        rows = [self.encode([part])[0] if part else [] for part in after]
        special = [[names[name]] for name in parts[1::2]]
        return [id for row in itertools.chain(*zip(rows, [*special, []], strict=True)) for id in row]

    @functools.cached_property
    def _names(self) -> dict[str, int]:
        special = self.tokenizer.special_ids
        ids = [*special.sentinels, *([] if special.mask is None else [special.mask])]
        return dict(zip(self.tokenizer.tokens(ids), ids, strict=True))

    @functools.cached_property
    def _adds_space(self) -> bool:
        """Whether the tokenizer puts a space in front of every text."""
        (ids,) = self.encode(["a"])
        return self.tokenizer.tokens(ids)[0].startswith(SPACE)
