"""The section `task`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Self

from transformer_jax.config.fields import DerivedBool, DerivedFloat, choice, field, number
from transformer_jax.config.model import RECURRENT

SOURCE_TO_TARGET = ("translation", "text_to_text")
"""The tasks that predict a target text from a source text."""
RULES_OF_SCORES = ("task.rouge_stemmer", "task.best_reference")
"""Fields that only say how outputs are scored; an evaluation may have other values than the training."""
_TEXT_TO_TEXT = {"task.name": ("text_to_text",)}
_LABELS = {"task.name": ("classification", "tagging", "images")}
_POOLED = {"task.name": ("classification", "images")}
_IMAGES = {"task.name": ("images",)}
_CLASSIFICATION = {"task.name": ("classification",)}
_SPAN_QA = {"task.name": ("span_qa",)}
_CORRUPTED = {"task.name": ("masked_lm", "span_corruption", "denoising")}
_MASKED_LM = {"task.name": ("masked_lm",)}
_SPANS = {"task.name": ("span_corruption", "denoising")}
_DENOISING = {"task.name": ("denoising",)}
_MASKS = {"task.name": ("masked_lm", "denoising")}
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
    """The task; tasks/task.py. A task from outside the package may extend this class with more fields."""

    name: str = choice(
        "translation",
        "transformer_jax.tasks.task:TASKS",
        "the examples, the loss and the scores; tasks/task.py",
        outside=True,
        extends=("task", "training.label_smoothing", "training.z_loss"),
        always_read=(),
    )
    prefix: str = choice(
        "none",
        "transformer_jax.tasks.batches.windows:PREFIXES",
        "tokens that attend to each other in both directions and are not predicted: none, or the beginning of every "
        "text, of random length (a prefix LM; Raffel et al. 2020, section 3.2.1)",
        read_by={"task.name": ("language_model",)},
    )
    source_mask: str = choice(
        "causal",
        ("causal", "prefix"),
        "of a decoder alone that translates, reading the source before it: the source's tokens attend to those before "
        "them, or to each other in both directions",
        read_by={"task.name": SOURCE_TO_TARGET, "model.architecture": ("decoder_only",)},
    )
    source_prefix: str = field(
        "",
        "text in front of every source in training, scoring and generation, such as 'summarize: ' (Raffel et al. 2020)",
        read_by={"task.name": SOURCE_TO_TARGET},
    )
    text_start: bool = field(
        False,
        "source and target begin with the tokenizer's token for the beginning of a text, as in BART",
        read_by={"task.name": SOURCE_TO_TARGET, "model.architecture": ("encoder_decoder", RECURRENT)},
    )
    rouge_stemmer: bool = field(
        True, "ROUGE compares the stems of words (Porter 1980) in place of the words", read_by=_TEXT_TO_TEXT
    )
    best_reference: str = choice(
        "each",
        ("each", "rouge1"),
        "of several references, the one that counts: each ROUGE score has its own best one, or that of the best "
        "ROUGE-1 gives all scores (Cachola et al. 2020, code)",
        read_by=_TEXT_TO_TEXT,
    )
    num_labels: int = number(
        2, "number of labels of the training split, which is the width of the head", 1, read_by=_LABELS
    )
    pooling: str = choice(
        "first",
        "transformer_jax.nn.heads:POOLINGS",
        "the vector of a text, made of those of its tokens: that of the first token (BERT), of the last one (GPT), "
        "their mean, or the maximum of every feature; of an image, that of the class token (first), or of its patches",
        read_by=_POOLED,
    )
    pooler: bool = field(
        False, "a dense layer and tanh between the pooled vector and the output, as in BERT", read_by=_POOLED
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
        "apart, but at most half of the room for the context (Devlin et al. 2019, code: doc_stride)",
        1,
        read_by=_SPAN_QA,
    )
    max_answer_length: int = number(30, "greatest length of a predicted answer in tokens", 1, read_by=_SPAN_QA)

    mask_rate: DerivedFloat = number(
        None,
        "share of tokens that are masked, of `denoising` share of words; default 0.15 (Devlin et al. 2019, Raffel et "
        "al. 2020), of `denoising` 0.3 (Lewis et al. 2020)",
        above=0.0,
        below=1.0,
        read_by=_CORRUPTED,
        derived_from=("task.name",),
    )
    whole_word: DerivedBool = field(
        None,
        "mask words with all their tokens; default false, of `denoising` true. Words begin at tokens with a space in "
        "front, or without ## in front",
        read_by=_MASKS,
        derived_from=("task.name",),
    )
    random_share: float = number(
        0.1, "share of the masks that are a random token instead; BERT and BART", 0.0, 1.0, read_by=_MASKS
    )
    keep_share: float = number(
        0.1, "share of the masked tokens that stay as they are; BERT", 0.0, 1.0, read_by=_MASKED_LM
    )
    mean_span_length: float = number(
        3.0,
        "mean number of tokens of a masked span; of `denoising`, mean number of words, of a Poisson distribution",
        0.1,
        read_by=_SPANS,
    )
    permute_sentences: float = number(
        1.0, "share of a text's sentences that change their places; 0: none", 0.0, 1.0, read_by=_DENOISING
    )

    crop_padding: int = number(
        0,
        "black pixels around an image, of which a random part of the image's size is taken in training; 0: none",
        0,
        read_by=_IMAGES,
    )
    flip: bool = field(False, "in training, exchange left and right of every second image at random", read_by=_IMAGES)
    rand_augment: int = number(
        0, "RandAugment: number of random operations on every image in training; 0: none", 0, 14, read_by=_IMAGES
    )
    rand_augment_magnitude: float = number(
        10.0, "strength of these operations, from none to the greatest one", 0.0, 10.0, read_by=_IMAGES
    )
    mixup: float = number(
        0.0,
        "in training, mix every image and its label with another one; the share is from Beta(mixup, mixup); 0: none",
        0.0,
        read_by=_IMAGES,
    )

    def resolved(self) -> Self:
        """Return the section with the task's own value for every None that the task reads."""
        denoising = self.name == "denoising"
        derived = {"mask_rate": 0.3 if denoising else 0.15, "whole_word": denoising}
        read = {"mask_rate": _CORRUPTED, "whole_word": _MASKS}
        unset = {
            name: value
            for name, value in derived.items()
            if getattr(self, name) is None and self.name in read[name]["task.name"]
        }
        return dataclasses.replace(self, **unset)

    def problems(self) -> Iterator[str]:
        if self.name == "masked_lm" and self.random_share + self.keep_share > 1.0:
            yield f"random_share={self.random_share} and keep_share={self.keep_share} are more than 1 in sum"
        if self.mean_span_length < 1.0 and self.name == "span_corruption":
            yield f"mean_span_length={self.mean_span_length}: a span has at least 1 token"
        try:
            weights = parse_class_weights(self.class_weights)
        except ValueError:
            yield (
                f"class_weights={self.class_weights!r}: expected positive numbers separated by commas, or '{BALANCED}'"
            )
            return
        if weights and len(weights) != self.num_labels:
            yield f"class_weights={self.class_weights!r} has {len(weights)} weights for num_labels={self.num_labels}"
