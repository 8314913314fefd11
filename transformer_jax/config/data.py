"""The section `data`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from transformer_jax.config.fields import choice, field, number

# Fields that only some sources read; the others refuse them when they are set. The sizes of the embedded corpus are not
# among them, so that another corpus can be put into a config that sets them.
_READ_BY = {
    "dir": ("text", "tfds"),
    "dataset": ("tfds",),
    "format": ("text",),
    "input_feature": ("text", "tfds"),
    "target_feature": ("text", "tfds"),
    "train_split": ("text", "tfds"),
    "valid_split": ("text", "tfds"),
    "test_split": ("text", "tfds"),
    "monolingual": ("text", "tfds"),
    "text_form": ("text", "tfds"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpus, how it is cut into pieces and how pieces are cut into batches."""

    source: str = choice("embedded", ("embedded", "text", "tfds"), "where sentence pairs come from; data/sources")
    source_locale: str = field("en", "locale of the inputs; for `text` the files' suffix")
    target_locale: str = field("de", "locale of the targets; for `text` the files' suffix")
    num_train_pairs: int = number(200_000, "training pairs of the embedded corpus", 100)
    num_eval_pairs: int = number(2_000, "pairs of each other split of the embedded corpus", 10)
    dir: str = field("", "folder of the `text` files; of `tfds`, where datasets are prepared, or one of them")
    dataset: str = field("", "`tfds`: name and config, as in wmt14_translate/de-en; empty: dir is the dataset itself")
    format: str = choice(
        "parallel",
        ("parallel", "tsv", "jsonl"),
        "`text`: a file a language, PREFIX.LOCALE, or both in one, PREFIX.tsv or PREFIX.jsonl; plain or .gz",
    )
    input_feature: str | None = field(
        None, "`tfds` feature, `jsonl` key or `tsv` column (from 1) of the inputs; default source_locale, column 1"
    )
    target_feature: str | None = field(None, "the same of the targets; default target_locale, column 2")
    train_split: str = field("train", "`text`: prefixes of the files, by commas; `tfds`: the split, or a part of it")
    valid_split: str = field("valid", "the same of the validation split; empty: there is none")
    test_split: str = field("test", "the same of the test split; empty: there is none")
    monolingual: bool = field(False, "`text`, `tfds`: targets without inputs, for language models")
    text_form: str = choice(
        "plain",
        ("plain", "moses_bpe"),
        "moses_bpe: the text is Moses tokens, perhaps in pieces with `@@`, and is scored and written without them",
    )
    tokenizer: str = choice(
        "unigram",
        ("unigram", "bpe", "byte_bpe", "words"),
        "how text becomes pieces: two models of SentencePiece, byte-level BPE, words between spaces; data/tokenizers",
    )
    tokenizer_pairs: int = number(200_000, "at most this many training pairs train the tokenizer; `words`: all", 100)
    vocabulary_file: str = field("", "`words`: the vocabulary, a word a line; default the most frequent in training")
    max_length: int = number(128, "training pairs with a longer side, in pieces with eos, are left out and counted", 2)
    batching: str = choice("buckets", ("buckets", "packed"), "padded to a few lengths, or several pairs to a row")
    tokens_per_batch: int = number(4096, "padded tokens of a batch, at most: rows times the longer side", 16)
    row_multiple: int = number(8, "rows of a batch are a multiple of this, so that devices can divide them", 1)
    num_buckets: int = number(6, "`buckets`: shapes that training batches are padded to, at most", 1)
    packed_length: int = number(256, "`packed`: width of a row, on the side with more tokens", 2)
    cache_dir: str = field(
        "", "tokens, and trained tokenizers, for several runs; default: in the work directory", rounding=True
    )

    def problems(self) -> Iterator[str]:
        for name, sources in _READ_BY.items():
            if self.source not in sources and getattr(self, name) != getattr(DataConfig, name):
                yield f"{name}={getattr(self, name)!r} is not read with source='{self.source}'"
        if self.format == "parallel" and self.source == "text":
            for name in ("input_feature", "target_feature"):
                if getattr(self, name) is not None:
                    yield f"{name}={getattr(self, name)!r} is not read with format='parallel'"
        if not self.train_split:
            yield "train_split is empty: a corpus has a training split"
        if self.monolingual and self.input_feature is not None:
            yield f"input_feature={self.input_feature!r} is not read with monolingual=True"
        if self.vocabulary_file and self.tokenizer != "words":
            yield f"vocabulary_file={self.vocabulary_file!r} is not read with tokenizer='{self.tokenizer}'"
        if self.batching == "packed" and self.packed_length < self.max_length:
            yield f"packed_length={self.packed_length} cannot hold a pair of max_length={self.max_length}"
        if self.batching != "packed" and self.packed_length != DataConfig.packed_length:
            yield f"packed_length={self.packed_length} is not read with batching='{self.batching}'"
        if self.batching == "packed" and self.num_buckets != DataConfig.num_buckets:
            yield f"num_buckets={self.num_buckets} is not read with batching='packed'"
