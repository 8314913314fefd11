"""The section `task`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import choice, field, number

_LABELS = {"task.name": ("classification", "tagging")}
_CLASSIFICATION = {"task.name": ("classification",)}
_SPAN_QA = {"task.name": ("span_qa",)}
BALANCED = "balanced"
"""The value of `task.class_weights` that gives every label the same weight in total."""


def parse_class_weights(text: str) -> tuple[float, ...]:
    """Return the numbers of `task.class_weights`; raise ValueError for other text. There are none for `balanced`."""
    if text in ("", BALANCED):
        return ()
    weights = tuple(float(part) for part in text.split(","))
    if not all(0 < weight < float("inf") for weight in weights):
        raise ValueError("expected positive numbers")
    return weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The task; tasks/base.py. A task from outside the package may extend this class with more fields."""

    name: str = choice(
        "translation",
        "transformer_jax.tasks.base:TASKS",
        "the examples, the loss and the scores; tasks/base.py",
        outside=True,
        extends=("task", "decode", "training.label_smoothing", "training.loss_chunks"),
        always_read=(),
    )
    prefix: str = choice(
        "none",
        "transformer_jax.tasks.window_batches:PREFIXES",
        "tokens that attend to each other in both directions and are not predicted: none, or the beginning of every "
        "text, of random length (a prefix LM; Raffel et al. 2020, section 3.2.1)",
        read_by={"task.name": ("language_model",)},
    )
    num_labels: int = number(
        2, "number of labels of the training split, which is the width of the head", 1, read_by=_LABELS
    )
    pooling: str = choice(
        "first",
        "transformer_jax.nn.heads:POOLINGS",
        "the vector of a text, made of those of its tokens: that of the first token (BERT), of the last one (GPT), or "
        "their mean",
        read_by=_CLASSIFICATION,
    )
    pooler: bool = field(
        False, "a dense layer and tanh between the pooled vector and the output, as in BERT", read_by=_CLASSIFICATION
    )
    class_weights: str = field(
        "",
        "weights of the labels in the training loss: numbers separated by commas, in the order of labels.json; or "
        "balanced: examples / (labels * examples of the label); empty: all 1",
        read_by=_LABELS,
    )
    chunks: bool = field(
        False,
        "the tags mark chunks, such as names, in IOB1, BIO (IOB2) or BIOES: score them as conlleval does",
        read_by={"task.name": ("tagging",)},
    )
    question_length: int = number(
        64, "greatest length of a question in tokens; a longer one is an error", 1, read_by=_SPAN_QA
    )
    stride: int = number(
        128,
        "a context that does not fit into data.max_length is read in windows, whose beginnings are this many tokens "
        "apart (Devlin et al. 2019, code: doc_stride)",
        1,
        read_by=_SPAN_QA,
    )
    max_answer_length: int = number(30, "greatest length of a predicted answer in tokens", 1, read_by=_SPAN_QA)

    def problems(self) -> Iterator[str]:
        try:
            weights = parse_class_weights(self.class_weights)
        except ValueError:
            yield (
                f"class_weights={self.class_weights!r}: expected positive numbers separated by commas, or '{BALANCED}'"
            )
            return
        if weights and len(weights) != self.num_labels:
            yield f"class_weights={self.class_weights!r} has {len(weights)} weights for num_labels={self.num_labels}"
