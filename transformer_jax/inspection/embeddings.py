"""Analysis of the rows of an embedding table: principal components, nearest neighbours, analogies.

Rows are compared by cosine similarity, u . v / (|u| |v|), which does not depend on the factor of
`model.scale_embeddings`. A word is tokenized as within a sentence, after a space. If it has several tokens, its vector
is the mean of their rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import nearest
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.typing import Params

_BYTE = re.compile("<0x[0-9A-F]{2}>")


class Projection(NamedTuple):
    """A projection on two principal components: points [V, 2]; explained [2], their shares of the variance."""

    points: np.ndarray
    explained: np.ndarray


class Match(NamedTuple):
    """A token found by a search, by its id, and its similarity to the query."""

    id: int
    similarity: float


class Embeddings(NamedTuple):
    """An embedding table [V, D], and the tokenizer whose ids number its rows."""

    table: np.ndarray
    tokenizer: Tokenizer

    @property
    def candidates(self) -> Int[np.ndarray, " tokens"]:
        """Return the ids that an answer can have: all but special tokens and bytes that are not text by themselves.

        Most bytes never occur in training, so that their vectors stay random.
        """
        special = self.tokenizer.special_ids.without_text | {self.tokenizer.special_ids.unk}
        ids = [i for i in range(min(len(self.table), self.tokenizer.vocab_size)) if i not in special]
        return np.array([i for i, p in zip(ids, self.tokenizer.tokens(ids), strict=True) if not self._is_byte(i, p)])

    def _is_byte(self, id: int, token: str) -> bool:
        return _BYTE.fullmatch(token) is not None or "\ufffd" in self.tokenizer.decode([id])

    def ids_of(self, word: str) -> list[int]:
        """Return the token ids of a word; raises DataError if it is empty or not in the vocabulary."""
        word = word.strip()
        if not word:
            raise DataError("a word to look up is empty")
        # Tokenize after another word, because the token at the beginning of a text may differ from that after a space.
        before, both = (self.tokenizer.encode_batch([text]).ids.tolist() for text in ("a", f"a {word}"))
        ids = both[len(before) :]
        unk = self.tokenizer.special_ids.unk
        if unk in ids or any(map(_BYTE.fullmatch, self.tokenizer.tokens(ids))):  # bytes: no other token fits
            known = self.tokenizer.tokens(self.candidates)
            raise DataError(f"the vocabulary has no '{word}'{nearest(word, known)}")
        return ids

    def vector(self, word: str) -> Float[np.ndarray, " D"]:
        """Return the mean of the rows of a word's tokens."""
        return self.table[self.ids_of(word)].astype(np.float64).mean(0)


def embeddings(params: Params, tokenizer: Tokenizer, side: str = "source") -> Embeddings:
    """Return the embedding table of a model's source or target, with its tokenizer; a model may share it.

    Raises: ConfigError if the model has no such table.
    """
    name = "source_embedding" if side == "source" and "source_embedding" in params else "embedding"
    if "embedding" not in params.get(name, {}):
        raise ConfigError(f"the model has no token embeddings; its parts are {', '.join(params)}")
    chosen = tokenizer.source if side == "source" else tokenizer
    return Embeddings(np.asarray(params[name]["embedding"], np.float32), chosen)


def principal_components(rows: Float[np.ndarray, "V D"]) -> Projection:
    """Return the projection of rows on the two directions of largest variance (Pearson 1901).

    With the singular value decomposition X = U S W^T of the centred rows, the projections are the columns of U S, and
    component i explains s_i^2 / sum_j s_j^2 of the variance. The sign of a component is chosen so that its entry of
    largest magnitude in W is positive, which makes it reproducible.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(right[np.arange(len(right)), np.abs(right).argmax(1)])
    points = (left * values * signs)[:, :2]
    total = float((values**2).sum())
    explained = values[:2] ** 2 / total if total else np.zeros(2)
    return Projection(np.pad(points, ((0, 0), (0, 2 - points.shape[1]))), np.pad(explained, (0, 2 - len(explained))))


def neighbours(found: Embeddings, word: str, count: int = 10) -> list[Match]:
    """Return the tokens whose rows are most similar to a word, most similar first, without the word's own tokens."""
    return _most_similar(found, found.vector(word), found.ids_of(word), count)


def analogy(found: Embeddings, a: str, b: str, c: str, count: int = 10) -> list[Match]:
    """Return the tokens d that are to c as b is to a, best first: with the largest cos(d, b) - cos(d, a) + cos(d, c).

    This is 3CosAdd (Mikolov et al. 2013b; Levy and Goldberg 2014, equation 1). As there, the tokens of the three words
    are left out. The similarity of a match is cos(d, v) with v = b/|b| - a/|a| + c/|c|, which gives the same ranking.
    """
    a_, b_, c_ = (_unit(found.vector(word)) for word in (a, b, c))
    asked = [id for word in (a, b, c) for id in found.ids_of(word)]
    return _most_similar(found, b_ - a_ + c_, asked, count)


def parse_analogies(given: str) -> list[tuple[str, str, str]]:
    """Return the questions (a, b, c) of `a:b::c,...`; raises ConfigError for any other form."""
    questions = []
    for text in given.split(","):
        pair, _, third = text.partition("::")
        words = [word.strip() for word in (*pair.split(":"), third)]
        if len(words) != 3 or not all(words) or ":" in third:
            raise ConfigError(f"--analogy={given}: '{text}' is not a:b::c; several are separated by commas")
        questions.append((words[0], words[1], words[2]))
    return questions


def spread_out(points: Float[np.ndarray, "V 2"], order: Sequence[int], count: int, apart: float = 0.05) -> list[int]:
    """Return the indices of the points to label, in the given order, without those whose labels would overlap.

    A point is left out if it is too close to one that is labelled already.

    Args:
      order: indices of points, the most important first. count: the largest number of labels.
      apart: labelled points differ by at least this fraction of the height of all points, or twice this fraction of
        their width.
    """
    size = np.ptp(points, axis=0)
    scaled = points / np.where(size > 0, size, 1.0)
    chosen: list[int] = []
    for index in order:
        if len(chosen) == count:
            break
        # Labels are wider than high: points side by side must be farther apart than points above each other.
        gaps = np.abs(scaled[chosen] - scaled[index]) / [2 * apart, apart]
        if not chosen or gaps.max(1).min() >= 1:
            chosen.append(index)
    return chosen


def _most_similar(found: Embeddings, vector: np.ndarray, asked: Sequence[int], count: int) -> list[Match]:
    ids = np.setdiff1d(found.candidates, asked)
    rows = found.table[ids].astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(vector)
    similarities = rows @ vector / np.where(lengths > 0, lengths, np.inf)
    order = np.argsort(-similarities, kind="stable")[:count]
    return [Match(int(ids[i]), float(similarities[i])) for i in order]


def _unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length else vector
