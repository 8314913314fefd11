"""SentencePiece models whose tokens have the ids of a vocabulary file, and pairs of tokenizers."""

import json

import numpy as np
import pytest
from tokenizer_support import INPUTS, TARGETS, encode

from transformer_jax.data.tokenizers import (
    SpecialIds,
    TokenizerPair,
    load_tokenizer,
    tokenizer_by_file,
    tokenizer_of_files,
    train_tokenizer,
)
from transformer_jax.data.tokenizers.numbered_pieces import MAGIC, NumberedPieces
from transformer_jax.errors import DataError


@pytest.fixture(scope="module")
def plain():
    """Return one SentencePiece tokenizer per side."""
    return train_tokenizer(INPUTS, "unigram", 330), train_tokenizer(TARGETS, "bpe", 350)


def joint_ids(*tokenizers, without=()):
    """Return ids as in Marian: `</s>` is 0, `<unk>` is 1, then a code of a language and the pieces, `<pad>` last."""
    pieces = [piece for t in tokenizers for piece in t.tokens(range(t.vocab_size))]
    tokens = dict.fromkeys(["</s>", "<unk>", ">>fr<<", *pieces])
    for token in ("<pad>", "<s>", *without):
        del tokens[token]
    return {token: id for id, token in enumerate([*tokens, "<pad>"])}


@pytest.fixture(scope="module")
def joint(plain):
    source, target = plain
    vocabulary = json.dumps(joint_ids(source, target)).encode()
    return NumberedPieces.pack(vocabulary, target.model_bytes, source.model_bytes)


def test_each_side_is_cut_by_its_model_and_numbered_by_the_vocabulary(joint, plain):
    ids = joint_ids(*plain)
    for tokenizer, own, texts in ((joint.source, plain[0], INPUTS[:20]), (joint, plain[1], TARGETS[:20])):
        for text in texts:
            tokens = own.tokens(encode(own, text))
            assert encode(tokenizer, text).tolist() == [ids[token] for token in tokens]
            assert tokenizer.tokens(encode(tokenizer, text)) == tokens
            assert tokenizer.decode([*encode(tokenizer, text).tolist(), 0, 5, len(ids) - 1]) == text
    assert joint.vocab_size == joint.source.vocab_size == len(ids)
    assert joint.special_ids == joint.source.special_ids == SpecialIds(pad=len(ids) - 1, eos=0, unk=1)
    assert encode(joint, INPUTS[0]).tolist() != encode(joint.source, INPUTS[0]).tolist()
    assert (joint.source.is_bpe, joint.is_bpe) == (False, True)


def test_known_ids(joint, plain):
    ids, text = joint_ids(*plain), "ing tion"
    pieces = [ids[token] for token in plain[0].tokens(encode(plain[0], text))]
    source = joint.source
    assert encode(source, f">>fr<<{text}").tolist() == [2, *pieces]
    assert encode(source, f">>xx<<{text}").tolist() == [1, *pieces], "a code without an id is unk"
    assert encode(source, ">>fr<").tolist() == [ids.get(t, 1) for t in plain[0].tokens(encode(plain[0], ">>fr<"))]
    assert encode(source, "").tolist() == []
    assert source.decode([1, len(ids) - 1]).strip() == "\u2047", "unk is shown as SentencePiece does"
    many = source.encode_batch([text] * 100)
    assert many.ids.tolist() == pieces * 100
    assert np.diff(many.offsets).tolist() == [len(pieces)] * 100


def test_a_piece_without_an_id_is_unk(plain):
    text = INPUTS[0]
    tokens = plain[0].tokens(encode(plain[0], text))
    ids = joint_ids(plain[0], without=[tokens[1]])
    tokenizer = NumberedPieces.pack(json.dumps(ids).encode(), plain[0].model_bytes)
    assert tokenizer.source is tokenizer
    assert encode(tokenizer, text).tolist() == [1 if token == tokens[1] else ids[token] for token in tokens]


def test_stored_bytes_hold_the_files_unchanged(joint, plain):
    again = load_tokenizer(joint.model_bytes)
    assert again.sha256 == joint.sha256
    assert (again.source_model, again.target_model) == tuple(t.model_bytes for t in plain)
    assert json.loads(again.vocabulary) == joint_ids(*plain)
    assert encode(again.source, INPUTS[0]).tolist() == encode(joint.source, INPUTS[0]).tolist()


SPECIAL = {"</s>": 0, "<unk>": 1}


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (b"{", "vocab.json is not JSON"),
        (b"[1]", "vocab.json is not an object of ids by token"),
        (b'{"a": "0"}', "vocab.json is not an object of ids by token"),
        (json.dumps(SPECIAL | {"a": 3}).encode(), "has 3 tokens, whose ids must be 0 to 2; it has 3"),
        (json.dumps(SPECIAL | {"a": -1}).encode(), "it has -1"),
        (json.dumps(SPECIAL | {"a": 1}).encode(), "an id occurs twice"),
        (b'{"a": 0, "<pad>": 1}', "vocab.json has no </s> and no <unk>"),
    ],
)
def test_bad_vocabularies(plain, vocabulary, message):
    with pytest.raises(DataError, match=message):
        NumberedPieces.pack(vocabulary, plain[0].model_bytes)


def test_damaged_bytes(joint):
    for damaged in (joint.model_bytes[:-1], MAGIC, MAGIC + b"1 2\n", MAGIC + b"2 0 0\n{}"):
        with pytest.raises(DataError, match="tokenizer: "):
            load_tokenizer(damaged)


def test_a_pair_is_the_target_and_has_the_source(plain):
    pair = TokenizerPair(*plain)
    source, target = plain
    assert (pair.vocab_size, pair.source.vocab_size) == (350, 330)
    assert encode(pair, TARGETS[0]).tolist() == encode(target, TARGETS[0]).tolist()
    assert encode(pair.source, INPUTS[0]).tolist() == encode(source, INPUTS[0]).tolist()
    assert pair.decode_batch([encode(pair, TARGETS[0]).tolist()]) == [TARGETS[0]]
    assert len({pair.sha256, TokenizerPair(target, source).sha256, source.sha256, target.sha256}) == 4
    files = {name: part.model_bytes for name, part in tokenizer_by_file(pair).items()}
    assert files == {"tokenizer.model": target.model_bytes, "source_tokenizer.model": source.model_bytes}
    assert tokenizer_of_files(files).sha256 == pair.sha256
    assert tokenizer_of_files({"tokenizer.model": files["tokenizer.model"]}).sha256 == target.sha256


def test_characters_of_tokens(joint):
    texts = ["", ">>fr<< ingship", "ing \u732b tion", ">>fr<<"]
    for tokenizer in (joint, joint.source, TokenizerPair(joint.source, joint)):
        encoded, found = tokenizer.encode_batch(texts), tokenizer.encode_spans(texts)
        np.testing.assert_array_equal(found.ids, encoded.ids)
        np.testing.assert_array_equal(found.offsets, encoded.offsets)
        for i, text in enumerate(texts):
            spans = found.spans[found.offsets[i] : found.offsets[i + 1]].tolist()
            assert "".join(text[a:b] for a, b in sorted({*map(tuple, spans)})).replace(" ", "") == text.replace(" ", "")
    assert joint.encode_spans([">>fr<<x"]).spans[0].tolist() == [0, 6]
    assert joint.encode_spans([]).spans.shape == (0, 2)
