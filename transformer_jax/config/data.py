"""The section `data`."""

from __future__ import annotations

import dataclasses

from transformer_jax.config.fields import choice, field, number


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which corpus, how it is cut into pieces and how pieces are cut into batches."""

    source: str = choice("embedded", ("embedded", "text"), "where sentence pairs come from; data/sources")
    source_locale: str = field("en", "locale of the inputs; for `text` the files' suffix")
    target_locale: str = field("de", "locale of the targets; for `text` the files' suffix")
    num_train_pairs: int = number(200_000, "training pairs of the embedded corpus", 100)
    num_eval_pairs: int = number(2_000, "pairs of each other split of the embedded corpus", 10)
    dir: str = field("", "folder of the `text` files")
    train_files: str = field("train", "`text`: DIR/PREFIX.LOCALE, plain or .gz, of the training split")
    valid_files: str = field("valid", "`text`: the same of the validation split")
    test_files: str = field("test", "`text`: the same of the test split")
    tokenizer: str = choice("unigram", ("unigram", "bpe"), "SentencePiece model type")
    tokenizer_pairs: int = number(200_000, "at most this many training pairs train the tokenizer", 100)
    max_length: int = number(128, "training pairs with a longer side, in pieces with eos, are left out and counted", 2)
    tokens_per_batch: int = number(4096, "padded tokens of a batch, at most: pairs times the longer side", 16)
    row_multiple: int = number(8, "rows of a batch are a multiple of this, so that devices can divide them", 1)
    num_buckets: int = number(6, "shapes that training batches are padded to, at most", 1)
    cache_dir: str = field("", "token cache; default: inside the work directory")
