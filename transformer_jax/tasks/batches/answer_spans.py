"""Windows of contexts, the targets of answers in them, and the best answer of their logits; see span_qa.py."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.data.batching import Batch, BatchShape, Rows
from transformer_jax.data.columns import EncodedSplit, Ragged
from transformer_jax.errors import DataError
from transformer_jax.tasks.batches.framing import framed, marks
from transformer_jax.tasks.trained.head_outputs import log_softmax

_NO_ANSWER = -1


class Answer(NamedTuple):
    """An answer. text: the characters from `first` to before `end` of the context. score: start plus end logit."""

    text: str
    first: int
    end: int
    score: float


@dataclasses.dataclass(frozen=True)
class Windows:
    """Windows of contexts; all arrays are [windows].

    questions: number of the example. firsts, ends: the tokens of the context in the window. places: place of the first
    of them in the sequence. targets: [windows, 2], places of the first and last token of the answer in the sequence;
    0 if the window does not have all of it, -1 if the answer is not at its place in the context.
    """

    questions: np.ndarray
    firsts: np.ndarray
    ends: np.ndarray
    places: np.ndarray
    targets: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """The tokens of every sequence, with its three marks, int32 [windows]."""
        return (self.places + self.ends - self.firsts + 1).astype(np.int32)

    def answerable(self) -> Windows:
        """Return the windows of questions whose answer is at its place."""
        kept = self.targets[:, 0] >= 0
        return Windows(*(getattr(self, field.name)[kept] for field in dataclasses.fields(self)))


def windows_of(config: ExperimentConfig, split: EncodedSplit) -> Windows:
    """Return the windows of all questions, in their order.

    Raises: DataError for a question of more than `task.question_length` tokens.
    """
    return _windows_of(split, config.data.max_length, config.task.stride, config.task.question_length)


@functools.lru_cache(maxsize=4)
def _windows_of(split: EncodedSplit, max_length: int, stride: int, question_length: int) -> Windows:
    """Return the windows of a split; cached, since training and every validation need them."""
    question_sizes, sizes = (split.lengths(name).astype(np.int64) for name in ("question", "context"))
    if (longer := np.flatnonzero(question_sizes > question_length)).size:
        raise DataError(
            f"{len(longer):,} of {len(sizes):,} questions have more than task.question_length={question_length} "
            f"tokens; the first is question {longer[0] + 1:,} with {question_sizes[longer[0]]}, the longest "
            f"has {question_sizes.max()}; raise task.question_length"
        )
    rooms = max_length - 3 - question_sizes
    # Windows overlap by half at least, so that every answer of up to half a window is whole in one of them.
    steps = np.minimum(stride, np.maximum(rooms // 2, 1))
    counts = 1 + np.maximum(0, -(-(sizes - rooms) // steps))
    questions = np.repeat(np.arange(len(sizes)), counts)
    numbers = np.arange(len(questions)) - np.repeat(np.cumsum(counts) - counts, counts)
    room = rooms[questions]
    # The last window is moved back, so that it ends with the context and is full.
    firsts = np.minimum(numbers * steps[questions], np.maximum(sizes[questions] - room, 0))
    ends = np.minimum(firsts + room, sizes[questions])
    places = question_sizes[questions] + 2
    spans = _answer_tokens(split)[questions]  # [windows, 2]
    inside = (spans[:, 0] >= firsts) & (spans[:, 1] < ends)
    targets = np.where(inside[:, None], spans - firsts[:, None] + places[:, None], 0)
    targets[spans[:, 0] == _NO_ANSWER] = _NO_ANSWER
    return Windows(questions, firsts, ends, places, targets)


def _answer_tokens(split: EncodedSplit) -> np.ndarray:
    """Return the first and the last token of the first answer with a place in each context, int [examples, 2]; or -1.

    These are the tokens with its first and its last character; an answer may lie within a token.
    """
    spans = np.full((split.num_examples, 2), _NO_ANSWER)
    starts, ends, firsts, lengths = (
        split.ragged(name) for name in ("token_starts", "token_ends", "answer_starts", "answer_lengths")
    )
    for example in range(split.num_examples):
        places = _row(firsts, example)
        placed = np.flatnonzero(places >= 0)
        if not placed.size:
            continue
        first = places[placed[0]]
        last = first + _row(lengths, example)[placed[0]] - 1
        token_starts, token_ends = _row(starts, example), _row(ends, example)
        begin = int(np.searchsorted(token_ends, first, side="right"))
        end = int(np.searchsorted(token_starts, last, side="right")) - 1
        if begin < len(token_ends) and end >= begin:
            spans[example] = begin, end
    return spans


def _row(ragged: Ragged, example: int | np.integer) -> np.ndarray:
    first = ragged.starts[example]
    return np.asarray(ragged.ids[first : first + ragged.lengths[example]], np.int64)


def answer_arrays(
    config: ExperimentConfig, split: EncodedSplit, windows: Windows, rows: Rows, shape: BatchShape, step: int | None
) -> Batch:
    """Return the arrays of `framing.framed` for some windows, `targets` [B, 2] int32 and `weights` [B, 2] float32.

    An answer that is not at its place has weight 0.
    """
    question, context = split.ragged("question"), split.ragged("context")
    texts: list[list[np.ndarray]] = []
    for window in rows.examples:
        if window < 0:
            texts.append([])
            continue
        example = windows.questions[window]
        part = _row(context, example)[windows.firsts[window] : windows.ends[window]]
        texts.append([_row(question, example), part])
    targets = np.where(rows.examples[:, None] < 0, _NO_ANSWER, windows.targets[rows.examples])
    batch = framed(config, marks(config, split.special_ids), texts, rows, shape.width("inputs"))
    return batch | {
        "targets": np.maximum(targets, 0).astype(np.int32),
        "weights": (targets >= 0).astype(np.float32),
    }


def window_losses(windows: Windows, logits: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropy of both ends in every window, in nats, and the number of ends; float64 [windows].

    It is NaN for logits that are not finite, whether the window has the answer or not.

    Args:
      logits: of every window, [S, 2].
    """
    nll, weight = np.zeros((2, len(logits)))
    for window, (size, row) in enumerate(zip(windows.lengths, logits, strict=True)):
        targets = windows.targets[window]
        if not np.isfinite(row[:size]).all():
            nll[window] = np.nan
        elif targets[0] != _NO_ANSWER:
            log_probs = log_softmax(row[:size].T)  # [2, tokens]
            nll[window], weight[window] = -log_probs[np.arange(2), targets].sum(), 2
    return nll, weight


def best_answers(
    task: TaskConfig, split: EncodedSplit, windows: Windows, logits: Sequence[np.ndarray], contexts: Sequence[str]
) -> list[Answer]:
    """Return the best answer to every question over all its windows.

    It is "", with the score -inf, for a context without tokens, and with NaN if a logit of the context is not finite.

    Args:
      logits: of every window, [S, 2].
    """
    best = [Answer("", 0, 0, -np.inf) for _ in contexts]
    starts, ends = split.ragged("token_starts"), split.ragged("token_ends")
    for window, example in enumerate(windows.questions):
        first, end, place = windows.firsts[window], windows.ends[window], windows.places[window]
        if first == end:
            continue
        of_context = logits[window][place : place + end - first]
        if not np.isfinite(of_context).all():
            best[example] = Answer("", 0, 0, np.nan)
            continue
        begin, last, score = best_span(of_context, task.max_answer_length)
        if score > best[example].score:  # never above NaN
            characters = int(_row(starts, example)[first + begin]), int(_row(ends, example)[first + last])
            text = contexts[example][slice(*characters)]
            # The token of a word may begin with the space before it.
            lead, trail = len(text) - len(text.lstrip()), len(text) - len(text.rstrip())
            first_character, end_character = characters[0] + lead, max(characters[1] - trail, characters[0] + lead)
            best[example] = Answer(text.strip(), first_character, end_character, score)
    return best


def best_span(logits: np.ndarray, max_length: int) -> tuple[int, int, float]:
    """Return the first and the last token of the best span, and its score; of equal spans the first.

    Args: logits: [tokens, 2], at least one token. max_length: greatest number of tokens.
    """
    starts, ends = np.asarray(logits, np.float64).T
    scores = starts[:, None] + ends[None, :]  # [first, last]
    distance = np.arange(len(ends))[None, :] - np.arange(len(starts))[:, None]
    scores = np.where((distance >= 0) & (distance < max_length), scores, -np.inf)
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    return int(first), int(last), float(scores[first, last])
