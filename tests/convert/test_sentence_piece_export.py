"""SentencePiece models of every kind as models of the library `tokenizers`: the same ids, or a refusal by name."""

import collections
import functools
import io
import itertools
import json
import random

import numpy as np
import pytest
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, normalizers

from transformer_jax.convert import character_rules
from transformer_jax.convert.sentence_piece_model import as_library_model, differing_text, with_exact_scores
from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.data.tokenizers import Frame
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.errors import ConfigError

NAMES = ("</s>", "<s>", "<unk>", "<pad>", "<0x41>", "<0x0A>", "<sep>", "qu", "[MASK]", "<extra_id_0>")
ODD = (
    "\u00bd", "\ufb01", "\uff21", "\uff10", "\uff5e", "\u2460", "\u00df", "\u0130", "\u2026", "\u201c", "\u2014",
    "\u00e9", "\u00f1", "\u00a0", "\u2028", "\u3000", "\u200b", "\u200d", "\ufeff", "\u00ad", "\x00", "\x01", "\x7f",
    "\ufffd", "\u2581", "\ufff0", "\uffff", "\ue000", "e\u0301", "\ufb01\u0301", "a\u0302\u0323", "a\u0323\u0302",
    "\u304b\u3099", "\uff76\uff9e", "\u1112\u1161\u11ab", "\ud55c\uad6d", "\u65e5\u672c", "\U0001f600",
    "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\r\n", "\n", "\t", "  ", "   ", " \t ", "\u0915\u093c",
)  # fmt: skip
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "a",
    "b",
    "café",
    "12",
    "0",
    "he..",
    "...",
    "thee",
    "bbb",
    "quiz",
    "aqu",
    "<sep>x",
    "hello",
]


@functools.cache
def lines(count=2000):
    """Lines of words, odd characters and names, with odd spaces; always the same."""
    rng, found = random.Random(1), ["", " ", "  ", "\x01", "\u2581", " \u2581 ", *NAMES, *ODD]
    while len(found) < count:
        parts = []
        for _ in range(rng.randint(1, 9)):
            place = rng.random()
            one = chr(rng.choice((rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x20000))))
            pool = WORDS if place < 0.5 else ODD if place < 0.75 else NAMES if place < 0.85 else (one,)
            parts.append(rng.choice(pool))
        text = rng.choice(("", " ", " ", "  ")).join(parts)
        found.append(" " * rng.choice((0, 0, 0, 1, 3)) + text + " " * rng.choice((0, 0, 0, 1, 2)))
    return found


IDENTITY = {"normalization_rule_name": "identity"}
KEEP = {"remove_extra_whitespaces": False}
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
SYMBOLS = {"user_defined_symbols": ["<sep>", "qu"]}
BPE, BYTES, NO_SPACE = {"model_type": "bpe"}, {"byte_fallback": True}, {"add_dummy_prefix": False}
KINDS = {
    "bpe": BPE,
    "bpe as Llama": BPE | IDENTITY | KEEP | BYTES,
    "bpe without added space": BPE | IDENTITY | KEEP | BYTES | NO_SPACE,
    "bpe with symbols": BPE | IDENTITY | KEEP | SYMBOLS,
    "bpe with pieces of spaces": BPE | IDENTITY | KEEP | {"allow_whitespace_only_pieces": True},
    "bpe with squeezed spaces": BPE | IDENTITY,
    "bpe with pieces over spaces": BPE | IDENTITY | KEEP | {"split_by_whitespace": False},
    "unigram": {},
    "unigram without added space": IDENTITY | KEEP | NO_SPACE,
    "unigram with space behind": T5 | {"treat_whitespace_as_suffix": True},
    "unigram with symbols": IDENTITY | KEEP | SYMBOLS,
    "unigram with kept spaces": IDENTITY | KEEP,
    "unigram with squeezed spaces": IDENTITY,
    "unigram as ours": IDENTITY | KEEP | BYTES | T5 | {"bos_id": 3},
    "t5": T5,
    "t5 with bytes": T5 | BYTES,
    "t5 without rules": T5 | IDENTITY,
    "t5 with kept spaces": T5 | KEEP,
    "t5 without added space": T5 | NO_SPACE,
    "char": {"model_type": "char"} | IDENTITY | KEEP,
    "char with rules": {"model_type": "char"},
}


@functools.cache
def trained(kind):
    fields = {"pad_id": 3, "num_threads": 1, "minloglevel": 2, "vocab_size": 400, "hard_vocab_limit": False}
    rng, model = random.Random(3), io.BytesIO()
    texts = [" ".join(rng.choices(WORDS, k=6)) for _ in range(200)]
    if KINDS.get(kind, {}).get("model_type") == "bpe":
        fields["vocab_size"] = 330 if "byte_fallback" in KINDS[kind] else 70
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, **fields | KINDS.get(kind, {"model_type": kind})
    )
    return SentencePieceTokenizer(model.getvalue())


def exported(tokenizer):
    return Tokenizer.from_str(tokenizer_files(tokenizer, 40, Frame())["tokenizer.json"].decode())


def ids_of(tokenizer, texts):
    ids, offsets = tokenizer.encode_batch(texts)
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_ids_on_2000_lines(kind):
    tokenizer = trained(kind)
    model = exported(tokenizer)
    expected = ids_of(tokenizer, lines())
    found = [encoding.ids for encoding in model.encode_batch(lines())]
    wrong = [place for place, ids in enumerate(expected) if found[place] != ids]
    # Behind a name where the text is cut, sums begin anew; rounding may then choose the same pieces in another order.
    explained = [
        place
        for place in wrong
        if any(name in lines()[place] for name in NAMES)
        and collections.Counter(expected[place]) == collections.Counter(found[place])
    ]
    assert wrong == explained, [(lines()[place], expected[place], found[place]) for place in wrong[:3]]
    assert len(explained) <= (5 if tokenizer.model_type == "unigram" else 0)
    special = {tokenizer.special_ids.unk, *tokenizer.special_ids.without_text}
    for text, ids in zip(lines()[:300], expected, strict=False):
        if not special.intersection(ids):
            assert model.decode(ids) == tokenizer.decode(ids), text


def changed(kind, change):
    """Return a trained tokenizer after a change of its model."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(trained(kind).model_bytes)
    change(proto)
    return SentencePieceTokenizer(proto.SerializeToString())


def add(proto, piece, score, kind=1):
    new = proto.pieces.add()
    new.piece, new.score, new.type = piece, score, kind


def remove(proto, text):
    kept = [piece for piece in proto.pieces if text not in piece.piece]
    del proto.pieces[:]
    proto.pieces.extend(kept)


def make_unused(proto):
    next(piece for piece in proto.pieces if len(piece.piece) > 1 and piece.type == 1).type = 5


def make_equal(proto):
    pieces = [piece for piece in proto.pieces if len(piece.piece) > 1 and piece.type == 1]
    pieces[1].score = pieces[0].score


def damage_rules(proto):
    proto.normalizer_spec.precompiled_charsmap = b"\x08\0\0\0abc"


REFUSED = {
    "words": ("word", lambda proto: None, "the type 'word', where a row of unknown words is one <unk>"),
    "unused": ("bpe as Llama", make_unused, "the unused piece '"),
    "equal scores": ("bpe as Llama", make_equal, "of one score"),
    "symbol with a space": ("char", lambda p: add(p, "a b", 0.0, 4), "the user-defined symbol 'a b' with a space"),
    "symbol that rules change": ("t5", lambda p: add(p, "\u00bd", 0.0, 4), "symbol '\u00bd' beside character rules"),
    "no piece of a character": (
        "bpe as Llama",
        lambda p: add(p, "e\u03c9", -0.5),
        "no piece for its character '\u03c9'",
    ),
    "damaged rules": ("t5", damage_rules, "character rules of the SentencePiece model are damaged"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_cannot_say_is_refused_by_name(name):
    kind, change, message = REFUSED[name]
    if name == "damaged rules":
        with pytest.raises(ConfigError, match=message):
            character_rules.read_rules(b"\x08\0\0\0abc")
        return
    with pytest.raises(ConfigError, match=message) as caught:
        tokenizer_files(changed(kind, change), 40, Frame())
    assert "--without_tokenizer writes the model alone" in str(caught.value)


def test_a_model_that_cuts_otherwise_is_refused_with_the_text(monkeypatch):
    tokenizer = trained("unigram with kept spaces")
    model = as_library_model(tokenizer)
    assert differing_text(tokenizer, model) is None
    model.normalizer = normalizers.Lowercase()
    assert differing_text(tokenizer, model) is not None
    monkeypatch.setattr("transformer_jax.convert.tokenizer_export.as_library_model", lambda tokenizer: model)
    with pytest.raises(ConfigError, match=r"\(unigram\) cuts '.*' otherwise than the library"):
        tokenizer_files(tokenizer, 40, Frame())


@pytest.mark.parametrize("rules", ["nmt_nfkc", pytest.param("nfkc", marks=pytest.mark.slow),
                                   pytest.param("nmt_nfkc_cf", marks=pytest.mark.slow)])  # fmt: skip
def test_character_rules_on_random_marks(rules):
    """Sequences of letters, marks and odd characters are normalised as SentencePiece does."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 20), model_writer=model, vocab_size=30, model_type="char", minloglevel=2,
        normalization_rule_name=rules, add_dummy_prefix=False, remove_extra_whitespaces=False, hard_vocab_limit=False,
    )  # fmt: skip
    tokenizer = SentencePieceTokenizer(model.getvalue())
    table = tokenizer.normalizer_spec.character_rules
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = normalizers.Sequence([*character_rules.rule_normalizers(table), normalizers.Replace(" ", "\u2581")])
    replaced = [key for key in character_rules.read_rules(table) if max(key) < "\U00010000" and max(key) < "\ua7f1"]
    marks = sorted({character for key in replaced for character in key[1:]})
    rng = random.Random(2)
    for _ in range(3000):
        pools = rng.choices((marks, replaced, ODD, "abeiouAEO"), weights=(3, 3, 2, 3), k=rng.randint(1, 12))
        text = "".join(rng.choice(pool) for pool in pools)
        assert ours.normalize_str(" " + text)[1:] == processor.normalize(text), ascii(text)


def test_the_library_reads_every_score_without_rounding():
    scores = -np.random.default_rng(0).random(3000, np.float32) * 15
    pieces = [(f"t{i}", float(score) * float((1 << 29) + 1)) for i, score in enumerate(scores)]
    model = with_exact_scores(Tokenizer(models.Unigram(pieces, 0, False)).to_str().encode())
    again = json.loads(Tokenizer.from_str(model.decode()).to_str())["model"]["vocab"]
    errors = [abs(a[1] - b[1]) / np.spacing(abs(b[1])) for a, b in zip(again, pieces, strict=True)]
    assert max(errors) <= 1
    assert sum(error > 0 for error in errors) < 0.005 * len(errors)


def test_two_orders_of_the_same_pieces():
    """`.` `..` and `..` `.` have one score; the float32 sums of SentencePiece choose, and so do ours."""
    tokenizer = changed("t5 without rules", lambda proto: remove(proto, "..."))
    texts = [f"{'a ' * count}... the ... {'b ' * count}..." for count in range(60)]
    expected = ids_of(tokenizer, texts)
    dot, dots = (tokenizer.tokens(range(tokenizer.vocab_size)).index(piece) for piece in (".", ".."))
    pairs = {pair for ids in expected for pair in itertools.pairwise(ids) if set(pair) == {dot, dots}}
    assert pairs == {(dot, dots), (dots, dot)}, "the texts have one order only: choose others"
    assert [encoding.ids for encoding in exported(tokenizer).encode_batch(texts)] == expected
