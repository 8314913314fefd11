"""The section `data`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import choice, field, number

_FILES_OR_TFDS = {"data.source": ("text", "tfds")}

# The sizes of the embedded corpus are read by that source alone, but are not marked: another corpus can be put into a
# config that sets them.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus, its tokenizer and its batches."""

    source: str = choice("embedded", "transformer_jax.data.sources:SOURCES", "where examples come from; data/sources")
    source_locale: str = field("en", "locale of the inputs; for `text` the files' suffix")
    target_locale: str = field("de", "locale of the targets; for `text` the files' suffix")
    num_train_pairs: int = number(200_000, "training pairs of the embedded corpus", 100)
    num_eval_pairs: int = number(2_000, "pairs of each other split of the embedded corpus", 10)
    dir: str = field(
        "", "folder of the `text` files; of `tfds`, where datasets are prepared, or one of them", read_by=_FILES_OR_TFDS
    )
    dataset: str = field(
        "",
        "`tfds`: name and config, as in wmt14_translate/de-en; empty: dir is the dataset itself",
        read_by={"data.source": ("tfds",)},
    )
    format: str = choice(
        "parallel",
        ("parallel", "tsv", "jsonl"),
        "`text`: a file a language, PREFIX.LOCALE, or both in one, PREFIX.tsv or PREFIX.jsonl; plain or .gz",
        read_by={"data.source": ("text",)},
    )
    input_feature: str | None = field(
        None,
        "`tfds` feature, `jsonl` key or `tsv` column (from 1) of the inputs; default source_locale, column 1",
        read_by=_FILES_OR_TFDS,
    )
    target_feature: str | None = field(
        None, "the same of the targets; default target_locale, column 2", read_by=_FILES_OR_TFDS
    )
    train_split: str = field(
        "train",
        "`text`: prefixes of the files, separated by commas; `tfds`: the split, or a part of it",
        read_by=_FILES_OR_TFDS,
    )
    valid_split: str = field("valid", "the same of the validation split; empty: there is none", read_by=_FILES_OR_TFDS)
    test_split: str = field("test", "the same of the test split; empty: there is none", read_by=_FILES_OR_TFDS)
    text_form: str = choice(
        "plain",
        ("plain", "moses_bpe"),
        "moses_bpe: the text is Moses tokens, perhaps split with `@@`; it is scored and written as plain text",
        read_by=_FILES_OR_TFDS,
    )
    tokenizer: str = choice(
        "unigram",
        "transformer_jax.data.tokenizers:TRAINERS",
        "how text becomes tokens: two models of SentencePiece, byte-level BPE, words between spaces; data/tokenizers",
    )
    tokenizer_pairs: int = number(200_000, "at most this many training pairs train the tokenizer; `words`: all", 100)
    vocabulary_file: str = field(
        "",
        "`words`: the vocabulary, a word a line; default the most frequent in training",
        read_by={"data.tokenizer": ("words",)},
    )
    max_length: int = number(128, "training pairs with a longer side, in tokens with eos, are left out and counted", 2)
    batching: str = choice("buckets", ("buckets", "packed"), "padded to a few lengths, or several pairs to a row")
    tokens_per_batch: int = number(4096, "padded tokens of a batch, at most: rows times the longer side", 16)
    row_multiple: int = number(8, "rows of a batch are a multiple of this, so that devices can divide them", 1)
    num_buckets: int = number(
        6, "`buckets`: shapes that training batches are padded to, at most", 1, read_by={"data.batching": ("buckets",)}
    )
    packed_length: int = number(
        256, "`packed`: width of a row, on the side with more tokens", 2, read_by={"data.batching": ("packed",)}
    )
    cache_dir: str = field(
        "", "tokens, and trained tokenizers, for several runs; default: in the work directory", rounding=True
    )

    def problems(self) -> Iterator[str]:
        if self.format == "parallel" and self.source == "text":
            for name in ("input_feature", "target_feature"):
                if getattr(self, name) is not None:
                    yield f"{name}={getattr(self, name)!r} is not read with format='parallel'"
        if not self.train_split:
            yield "train_split is empty: a corpus has a training split"
        if self.batching == "packed" and self.packed_length < self.max_length:
            yield f"packed_length={self.packed_length} cannot hold a pair of max_length={self.max_length}"
