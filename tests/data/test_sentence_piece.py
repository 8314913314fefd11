"""Tests of SentencePiece alone."""

import io

import pytest
import sentencepiece
from tokenizer_support import INPUTS, TEXTS, encode, trained

from transformer_jax.data.tokenizers import load_tokenizer, train_tokenizer
from transformer_jax.errors import DataError


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_one_lossy_character_becomes_a_space(kind):
    tokenizer = trained(kind)
    assert tokenizer.decode(encode(tokenizer, "a▁b")) == "a b"


def test_long_lines_train_like_short_ones():
    """SentencePiece itself skips lines of more than 4,192 bytes."""
    words = " ".join(["Donaudampfschifffahrt"] * 2000)
    tokenizer = train_tokenizer([*TEXTS, words, words], "unigram", 360)
    assert len(encode(tokenizer, "Donaudampfschifffahrt")) <= 3


def test_lines_with_a_block_character_train_like_others():
    """SentencePiece itself skips lines with U+2585."""
    tokenizer = train_tokenizer([*TEXTS, *["▅ Donaudampfschifffahrt ▅"] * 800], "bpe", 360)
    assert len(encode(tokenizer, "Donaudampfschifffahrt")) <= 3


def test_other_reserved_ids_are_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(INPUTS), model_writer=model, vocab_size=60, minloglevel=2
    )
    with pytest.raises(DataError, match=r"expected \(0, 1, 2, 3\)"):
        load_tokenizer(model.getvalue())
