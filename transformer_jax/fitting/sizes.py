"""Sizes that follow from the examples: labels, vocabulary, lengths, batches and the number of updates."""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config import DataConfig
from transformer_jax.data.sources import load_source
from transformer_jax.data.sources.source import Source
from transformer_jax.data.tokenizers import Tokenizer, train_tokenizer
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.fitting.files import VALID_PART
from transformer_jax.fitting.pretrained import PretrainedModel
from transformer_jax.host.terminal import say

_SAMPLE = 20_000
"""Most examples whose tokens are counted."""
_CHUNK = 1 << 14
_CHARACTERS_PER_TOKEN = 100
"""Characters of the training texts for each token of the vocabulary, so that most tokens occur often."""
_VOCABULARY = 500, 8_000
_LENGTHS = {"span_qa": (64, 384)}
"""Shortest and longest texts by task, in tokens; longer contexts are read in windows."""
_ANY_LENGTH = 16, 512
_ROOM = 64
"""Fewest tokens of a context beside the longest question."""
_AT_MOST = re.compile(r"(?:at most|has) (\d+)(?: tokens| ids|$)")
"""How trainers of tokenizers say that the texts cannot fill the vocabulary."""
_AT_LEAST = re.compile(r"needs at least (\d+)")
"""How they say that it cannot hold all characters."""
_BATCHES_PER_EPOCH = 100
_SHOWN_LABELS = 10
_FEWEST_SORTED = 3
"""Fewest examples with a label that only the end of a file has, for the file to be called sorted."""
_IMPROBABLE = 1e-3
_CHUNK_TAG = re.compile(r"O|[BIES]-.+")
_OTHER_CHUNK_TAG = re.compile(r"[BIESLUMW]-.+")
_log = logging.getLogger(__name__)


class _Recipe(NamedTuple):
    """epochs: passes over the data. steps: fewest and most updates. batch: fewest and most tokens of a batch."""

    epochs: int
    steps: tuple[int, int]
    batch: tuple[int, int]


_FROM_SCRATCH = {
    "classification": _Recipe(10, (200, 3000), (512, 2048)),
    "tagging": _Recipe(20, (200, 3000), (512, 2048)),
    "span_qa": _Recipe(10, (500, 1500), (2048, 4096)),
    "translation": _Recipe(30, (500, 2500), (1024, 2048)),
    "language_model": _Recipe(10, (300, 3000), (1024, 4096)),
    "images": _Recipe(20, (200, 1500), (8, 128)),
}
_FINE_TUNED = {
    "classification": _Recipe(4, (100, 2500), (512, 1024)),
    "tagging": _Recipe(4, (100, 2500), (512, 1024)),
    "span_qa": _Recipe(2, (300, 1500), (1024, 4096)),
    "translation": _Recipe(5, (300, 3000), (1024, 2048)),
    "language_model": _Recipe(3, (200, 2000), (1024, 2048)),
    "images": _Recipe(5, (100, 1000), (8, 128)),
}
"""By task: rules of thumb for two CPU cores, a quarter of an hour at most for the small models of the configs."""


class _Examples(NamedTuple):
    """The training examples.

    count: their number. texts: those of a sample, by feature. labels: how often each occurs.
    """

    count: int
    texts: dict[str, list[str]]
    labels: collections.Counter[str]


_TEXTS = {
    "classification": ("inputs", "second"),
    "tagging": ("inputs",),
    "span_qa": ("questions", "contexts", "targets"),
    "translation": ("inputs", "targets"),
    "language_model": ("inputs",),
}
"""The features with text by task."""


def choose_sizes(
    task: str, data: DataConfig, given: Set[str], values: Mapping[str, Any], pretrained: PretrainedModel | None
) -> dict[str, Any]:
    """Return the fields that follow from the training examples, by dotted name.

    Args:
      data: with files and columns. given: dotted names of the fields that flags have set, with their values in
        `values`.
    Raises: DataError for a file that cannot be read, whose labels are hardly labels, whose last tenth has other labels
      than the rest, or with a question that leaves no room for a context; ConfigError if no vocabulary can be trained
      on its texts.
    """
    source = load_source(data)
    if task == "images":
        return _images(source, data, given, values, pretrained)
    examples = _read(source, task)
    if not examples.count:
        raise DataError(
            f"data.train_split={data.train_split} has no examples; the file needs at least two, and better hundreds"
        )
    if task == "classification" and 2 * len(examples.labels) > max(examples.count, 4):
        column = f" of column {data.target_feature}" if data.target_feature else ""
        raise DataError(
            f"the labels{column} have {len(examples.labels):,} different values in {examples.count:,} examples: too "
            "many to learn; name another column with --config.data.target_feature (numbers are not predicted)"
        )
    fields: dict[str, Any] = {}
    if examples.labels:
        fields["task.num_labels"] = len(examples.labels)
        _check_labels(examples.labels, data)
        if data.valid_split.endswith(VALID_PART) and "data.valid_split" not in given:
            _check_order(source, task, data, examples.labels)
    if task == "tagging":
        fields["task.chunks"] = len(examples.labels) > 1 and all(map(_CHUNK_TAG.fullmatch, examples.labels))
        if not fields["task.chunks"] and sum(map(bool, map(_OTHER_CHUNK_TAG.fullmatch, examples.labels))) > 2:
            say("the tags are not BIO or BIOES, and are scored as plain tags; write names as BIO to score whole names")
    tokenizer = pretrained.tokenizer if pretrained else None
    if tokenizer is None and not data.vocabulary_file:
        texts = [text for name, of in examples.texts.items() for text in of if (task, name) != ("span_qa", "targets")]
        size = values["model.vocab_size"] if "model.vocab_size" in given else None
        tokenizer = _trained(texts, data.tokenizer, size)
        fields["model.vocab_size"] = size or tokenizer.vocab_size
    tokens = {name: _lengths(texts, tokenizer) for name, texts in examples.texts.items()}
    return fields | _lengths_and_steps(task, data, examples.count, tokens, given, values, pretrained)


def _read(source: Source, task: str) -> _Examples:
    """Return the training examples, of texts at most `_SAMPLE` at even distances."""
    count = source.num_examples("train")
    every = -(-count // _SAMPLE)
    texts: dict[str, list[str]] = {}
    labels: collections.Counter[str] = collections.Counter()
    first = 0
    for chunk in source.chunks("train", _CHUNK):
        for name in _TEXTS[task]:
            if name in chunk.features:
                texts.setdefault(name, []).extend(map(str, chunk.features[name][-first % every :: every]))
        labels.update(_labels(chunk.features, task))
        first += chunk.num_examples
    return _Examples(count, texts, labels)


def _labels(features: Mapping[str, Sequence[Any]], task: str) -> Iterator[str]:
    if task == "tagging":
        yield from (tag for tags in features["tags"] for tag in tags)
    elif task == "classification":
        yield from map(str, features["targets"])


def _check_labels(labels: Mapping[str, int], data: DataConfig) -> None:
    """Print the labels with their numbers, and those that differ only in case or in spaces around them.

    Raises: DataError if there is only one.
    """
    if len(labels) == 1:
        column = ", or name another column with --config.data.target_feature" if data.source == "text" else ""
        raise DataError(
            f"all examples of data.train_split={data.train_split} have the label {next(iter(labels))!r}; at least two "
            f"labels are needed: add examples{column}"
        )
    shown = [f"{label!r} {count:,}" for label, count in collections.Counter(labels).most_common(_SHOWN_LABELS)]
    more = f", and {len(labels) - len(shown)} more" if len(labels) > len(shown) else ""
    say(f"labels for training: {', '.join(shown)}{more}")
    same: dict[str, list[str]] = {}
    for label in sorted(labels):
        same.setdefault(label.strip().casefold(), []).append(label)
    for names in same.values():
        if len(names) > 1:
            say(f"warning: the labels {' and '.join(map(repr, names))} differ only in case or spaces; each is learned")


def _check_order(source: Source, task: str, data: DataConfig, labels: Mapping[str, int]) -> None:
    """Raise DataError if the last tenth of the only file, which validates, has labels that the rest lacks.

    It also does if that tenth has a single label though the rest has others, and in a shuffled file this would happen
    less than once in a thousand times.
    """
    found: collections.Counter[str] = collections.Counter()
    for chunk in source.chunks("valid", _CHUNK):
        if task == "tagging":
            found.update(tag for tags in chunk.features["tags"] for tag in {*tags})
        else:
            found.update(_labels(chunk.features, task))
    tenth = f"the last tenth of {data.train_split.partition('[')[0]}, which is for validation,"
    remedy = "Shuffle them, or name a file for validation with --config.data.valid_split=NAME"
    if unknown := sorted({*found} - {*labels}):
        label, count = unknown[0], found[unknown[0]]
        if count < _FEWEST_SORTED:
            raise DataError(
                f"{tenth} has the only {count} examples of the label {label!r}: too few to learn it; remove them, or "
                "add more"
                if count > 1
                else f"{tenth} has the only example of the label {label!r}; remove it, or add more of that label"
            )
        raise DataError(f"{tenth} has the label {label!r}, which the rest lacks: the examples seem sorted. {remedy}")
    if task == "classification" and len(found) == 1 < len(labels):
        ((label, count),) = found.items()
        if (labels[label] / sum(labels.values())) ** count < _IMPROBABLE:
            raise DataError(f"{tenth} has only the label {label!r}: the examples seem sorted. {remedy}")


def _trained(texts: Sequence[str], kind: str, size: int | None) -> Tokenizer:
    """Return a tokenizer of these texts, with the number of ids that suits them if `size` is None."""
    if size is not None:
        return train_tokenizer(texts, kind, size)
    first = _clipped(sum(map(len, texts)) // _CHARACTERS_PER_TOKEN // 100 * 100, _VOCABULARY)
    sizes = [first, *(first >> n for n in range(1, 5)), *(first << n for n in range(1, 5))]
    problem, least, tried = None, 0, set()
    while sizes:
        tried.add(size := sizes.pop(0))
        try:
            return train_tokenizer(texts, kind, size)
        except ConfigError as error:
            problem = problem or error
            if needed := _AT_LEAST.search(str(error)):
                least = max(least, int(needed[1]))
                sizes = [least * 5 // 4, least]
            elif most := _AT_MOST.search(str(error)):
                # The same texts in another order may yield a few tokens fewer; characters and bytes do not.
                limits = (int(most[1]),) if kind in ("char", "byte") else (int(most[1]) * 19 // 20, int(most[1]))
                sizes = [size for size in (*limits, least) if size >= least]
            sizes = [size for size in sizes if size not in tried]
    raise problem or AssertionError


def _lengths(texts: Sequence[str], tokenizer: Tokenizer | None) -> np.ndarray:
    """Return the number of tokens of every text; of a vocabulary that is not read here, an estimate."""
    if tokenizer is None:
        return np.array([2 * len(text.split()) for text in texts])
    return np.diff(tokenizer.encode_batch(texts).offsets)


def _lengths_and_steps(
    task: str,
    data: DataConfig,
    count: int,
    tokens: Mapping[str, np.ndarray],
    given: Set[str],
    values: Mapping[str, Any],
    pretrained: PretrainedModel | None,
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    least, most = _LENGTHS.get(task, _ANY_LENGTH)
    most = min(most, (pretrained and pretrained.max_length) or most)
    if task == "span_qa":
        longest = int(tokens["questions"].max())
        if longest + _ROOM > most and not {"task.question_length", "data.max_length"} & given:
            raise DataError(
                f"a question has {longest:,} tokens, which leaves no room for a context in {most} tokens; shorten it, "
                "or set task.question_length and data.max_length"
            )
        question = min(_rounded_up(1.25 * longest, 8), most - _ROOM)
        fields["task.question_length"] = max(question, values["task.question_length"])
        fields["task.max_answer_length"] = _rounded_up(np.percentile(tokens["targets"], 99), 10)
        lengths = tokens["questions"] + tokens["contexts"] + 3
    elif task == "translation":
        lengths = np.maximum(tokens["inputs"], tokens["targets"]) + 1
    else:
        lengths = np.sum(list(tokens.values()), axis=0) + 1 + len(tokens)
    if task == "language_model":
        length = values["data.max_length"]
    else:
        length = _clipped(_rounded_up(np.percentile(lengths, 99.5), 8), (least, most))
    if task == "span_qa":
        length = max(length, min(fields["task.question_length"] + _ROOM, most))
    length = values["data.max_length"] if "data.max_length" in given else length
    fields["data.max_length"] = length
    if pretrained is None:
        fields["model.max_length"] = max(length, values["model.max_length"])
    recipe = (_FINE_TUNED if pretrained else _FROM_SCRATCH)[task]
    total = float(np.minimum(lengths, length).mean()) * count if task != "language_model" else lengths.mean() * count
    batch = 1 << round(np.log2(_clipped(total / _BATCHES_PER_EPOCH, recipe.batch)))
    batch = max(batch, _rounded_up(data.row_multiple * length, 8))
    batch = values["data.tokens_per_batch"] if "data.tokens_per_batch" in given else batch
    fields["data.tokens_per_batch"] = batch
    return fields | _steps(recipe, recipe.epochs * total / batch, given, values)


def _steps(recipe: _Recipe, wanted: int | float, given: Set[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the number of updates, and when to validate, to save and to end the warm-up."""
    name = "training.num_train_steps"
    steps = values[name] if name in given else _rounded_up(_clipped(wanted, recipe.steps), 100)
    every = max(steps // 10, 1)
    return {
        name: steps,
        "training.eval_every_steps": every,
        "training.checkpoint_every_steps": every,
        "training.log_every_steps": max(min(every, 100), 1),
        "optimizer.warmup_steps": every if every < steps else 0,
    }


def _images(
    source: Source, data: DataConfig, given: Set[str], values: Mapping[str, Any], pretrained: PretrainedModel | None
) -> dict[str, Any]:
    """Return the sizes of images: those of the first ones, or with a common size if they differ."""
    labels: collections.Counter[str] = collections.Counter()
    shapes: collections.Counter[tuple[int, ...]] = collections.Counter()
    for chunk in source.chunks("train", _IMAGES // 10):
        labels.update(map(str, chunk.features["targets"]))
        if shapes.total() < _IMAGES:
            shapes.update(map(_shape, chunk.features["inputs"]))
    count = source.num_examples("train")
    _check_labels(labels, data)
    fields: dict[str, Any] = {"task.num_labels": len(labels)}
    if pretrained is None:
        fields |= _image_size(shapes, data, given, values)
    recipe = (_FINE_TUNED if pretrained else _FROM_SCRATCH)["images"]
    rows = _rounded_up(_clipped(count / 20, recipe.batch), data.row_multiple)
    rows = values["data.rows_per_batch"] if "data.rows_per_batch" in given else rows
    fields["data.rows_per_batch"] = rows
    return fields | _steps(recipe, recipe.epochs * count / rows, given, values)


def _shape(picture: Any) -> tuple[int, ...]:
    try:
        return picture.load().shape
    except ValueError as error:
        raise DataError(f"image {picture}: {error}") from error


_IMAGES = 1_000
"""Number of images whose shapes are read."""
_IMAGE_SIZES = 32, 64


def _image_size(
    shapes: Mapping[tuple[int, ...], int], data: DataConfig, given: Set[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    sides = {shape[:2] for shape in shapes}
    channels = {shape[2] for shape in shapes}
    fields: dict[str, Any] = {}
    if len(channels) > 1 or not channels <= {1, 3}:
        fields["data.colours"] = "rgb"
    of = {"as_stored": max(channels), "grey": 1, "rgb": 3}
    colours = data.colours if "data.colours" in given else fields.get("data.colours", data.colours)
    fields["model.image_channels"] = of[colours]
    ((height, width), *others) = sorted(sides)
    size = height
    if "model.image_size" in given:
        size = values["model.image_size"]
    elif others or height != width or height > _IMAGE_SIZES[1]:
        size = _IMAGE_SIZES[min(min(side) for side in sides) >= _IMAGE_SIZES[1]]
    if sides != {(size, size)}:
        fields["data.resize"] = "crop"
    fields["model.image_size"] = size
    fields["model.patch_size"] = max((n for n in range(1, size // 6 + 1) if size % n == 0), default=1)
    return fields


def _clipped(value: int | float, limits: tuple[int, int]) -> int:
    return int(min(max(value, limits[0]), limits[1]))


def _rounded_up(value: int | float, multiple: int) -> int:
    return int(-(-value // multiple) * multiple)
