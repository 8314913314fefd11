"""Tests of SentencePiece alone."""

import io

import pytest
import sentencepiece
from tokenizer_support import INPUTS, TEXTS, encode, trained

from transformer_jax.data.tokenizers import SpecialIds, load_tokenizer, train_tokenizer
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


def test_models_of_others_keep_their_special_ids_and_must_have_an_end():
    def trained(**ids):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(INPUTS), model_writer=model, vocab_size=60, minloglevel=2, **ids
        )
        return load_tokenizer(model.getvalue())

    other = trained()
    assert other.special_ids == SpecialIds(pad=None, eos=2, unk=0, bos=1)
    assert other.tokens([0, 1, 2]) == ["<unk>", "<s>", "</s>"]
    ids = [int(id) for id in encode(other, INPUTS[0])]
    assert other.decode([*ids, 2, 5]) == other.decode(ids)
    with pytest.raises(DataError, match="the SentencePiece model has no end-of-sequence"):
        trained(eos_id=-1)


def test_characters_of_tokens_are_those_of_the_text_before_it_is_normalised():
    """By a model as T5's: NFKC, and one space for several."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(INPUTS), model_writer=model, vocab_size=300, byte_fallback=True, minloglevel=2
    )
    tokenizer = load_tokenizer(model.getvalue())
    text = "  ingship   \ufb01n\u00bd a\u0301\u732b "
    ids, offsets, spans = tokenizer.encode_spans([text])
    assert ids.tolist() == encode(tokenizer, text).tolist()
    assert offsets.tolist() == [0, len(ids)]
    found = [text[a:b] for a, b in sorted({*map(tuple, spans.tolist())})]
    assert "".join(found).replace(" ", "") == text.replace(" ", "")
    # Of a character that becomes several, or several that become one, no token has a part.
    assert {"\ufb01", "\u00bd", "a\u0301", "\u732b"} <= {*found}
