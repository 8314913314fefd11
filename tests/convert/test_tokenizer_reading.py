"""What the files of a folder say about its tokenizer: added tokens, settings, holes and damage, for every kind."""

import itertools
import json
import shutil

import pytest
from tokenizer_support import TEXTS
from tokenizers import Tokenizer

from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.convert.tokenizer_files import read_folder_tokenizer
from transformer_jax.data.tokenizers import AddedTokens, Frame, load_tokenizer, plain, train_tokenizer
from transformer_jax.data.tokenizers.word_piece import read_word_piece
from transformer_jax.errors import CheckpointError, DataError

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "\u00fcber", "uber", "Uber", "\u00dcber", "\u4e2d",
         "\u56fd", "\u4e2d\u56fd"]  # fmt: skip
KINDS = ("vocab.json", "byte-level tokenizer.json", "vocab.txt", "WordPiece tokenizer.json", "spiece.model", "Marian")
ENTITY = {
    "content": "[ENT]",
    "special": True,
    **dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False),
}


def ids_of(tokenizer, *texts):
    ids, offsets = tokenizer.encode_batch(texts)
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


@pytest.fixture(scope="module")
def contents():
    """The files of a tokenizer of each kind."""
    pieces = train_tokenizer(TEXTS, "unigram", 330)
    bytes_ = train_tokenizer(TEXTS, "byte_bpe", 300).model_bytes
    model = json.loads(bytes_)["model"]
    merges = "".join(f"{a} {b}\n" for a, b in model["merges"])
    vocabulary = {("<|endoftext|>" if name == "</s>" else name): id for name, id in model["vocab"].items()}
    names = dict.fromkeys([*reversed(pieces.tokens(range(330)))])
    text = "\n".join([*WORDS, ""]).encode()
    return {
        "vocab.json": {"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": merges.encode()},
        "byte-level tokenizer.json": {"tokenizer.json": bytes_},
        "vocab.txt": {"vocab.txt": text},
        "WordPiece tokenizer.json": {"vocab.txt": text},
        "spiece.model": {"spiece.model": pieces.model_bytes},
        "Marian": {
            **dict.fromkeys(("source.spm", "target.spm"), pieces.model_bytes),
            "vocab.json": json.dumps({name: id for id, name in enumerate(names)}).encode(),
        },
    }


@pytest.fixture
def folder(tmp_path, contents):
    def make(kind, **more):
        path = tmp_path / kind.replace(" ", "_")
        path.mkdir()
        for name, data in contents[kind].items():
            (path / name).write_bytes(data)
        if kind.startswith("WordPiece"):
            (path / "tokenizer.json").write_bytes(read_word_piece(path / "vocab.txt", 13).model_bytes)
            (path / "vocab.txt").unlink()
        for name, value in more.items():
            (path / f"{name}.json").write_text(json.dumps(value))
        return path

    return make


def sources(size):
    """The files that may add one token, by the name of the way."""
    return {
        "decoder": {"tokenizer_config": {"added_tokens_decoder": {str(size): ENTITY}}},
        "added_tokens": {"added_tokens": {"[ENT]": size}, "special_tokens_map": {"cls_token": "[ENT]"}},
        "special_tokens_map": {
            "special_tokens_map": {"additional_special_tokens": ["[ENT]"]}, "config": {"vocab_size": size + 1}
        },
        "settings": {
            "tokenizer_config": {"extra_special_tokens": {"entity": "[ENT]"}}, "config": {"vocab_size": size + 1}
        },
    }  # fmt: skip


@pytest.mark.parametrize("way", sources(0))
@pytest.mark.parametrize("kind", KINDS)
def test_one_id_per_added_token(kind, way, folder, tmp_path):
    before = read_folder_tokenizer(folder(kind))
    shutil.rmtree(tmp_path / kind.replace(" ", "_"))
    size = before.vocab_size
    after = read_folder_tokenizer(folder(kind, **sources(size)[way]))
    assert after.vocab_size == size + 1
    assert after.tokens([size]) == ["[ENT]"]
    texts = [*TEXTS[:5], "a [ENT] b", ""]
    assert ids_of(after, *texts) == ids_of(before, *texts)  # its name in a text is text
    again = load_tokenizer(after.model_bytes)
    assert (again.tokens([size]), ids_of(again, *texts)) == (["[ENT]"], ids_of(after, *texts))
    out = tmp_path / "out"
    out.mkdir()
    marian = kind == "Marian"
    frame = Frame(end=after.special_ids.eos) if marian else Frame()
    for name, data in tokenizer_files(after, 40, frame, marian=marian).items():
        (out / name).write_bytes(data)
    written = read_folder_tokenizer(out)
    assert (written.vocab_size, ids_of(written, *texts)) == (size + 1, ids_of(after, *texts))


@pytest.mark.parametrize("kind", KINDS)
def test_a_named_token_without_a_row_is_left_out(kind, folder):
    """As `pad_token` of many language models, whose embedding was not made larger."""
    named = {"special_tokens_map": {"pad_token": {"content": "[ENT]"}}}
    path = folder(kind, **named)
    before = read_folder_tokenizer(path)
    (path / "config.json").write_text(json.dumps({"vocab_size": before.vocab_size}))
    assert read_folder_tokenizer(path).vocab_size == before.vocab_size


@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_before_an_added_token_is_refused(kind, folder):
    with pytest.raises(CheckpointError, match=r"do not follow those of its \d+ pieces: .*\[ENT\]"):
        read_folder_tokenizer(folder(kind, added_tokens={"[ENT]": 5000}))


def test_added_tokens_of_sources_with_another_model(folder):
    path = folder("Marian")
    size = read_folder_tokenizer(path).vocab_size
    (path / "target.spm").write_bytes(train_tokenizer(TEXTS, "bpe", 320).model_bytes)
    (path / "added_tokens.json").write_text(json.dumps({"[ENT]": size}))
    tokenizer = read_folder_tokenizer(path)
    assert isinstance(tokenizer, AddedTokens)
    assert tokenizer.source.tokens([size]) == ["[ENT]"]
    assert ids_of(tokenizer.source, TEXTS[0]) == ids_of(plain(tokenizer).source, TEXTS[0])
    assert ids_of(tokenizer.source, TEXTS[0]) != ids_of(tokenizer, TEXTS[0])


BERT = {"do_lower_case": True}
SETTINGS = [
    # settings, tokens of "über Über 中国"
    (None, ["uber", "uber", "\u4e2d", "\u56fd"]),
    ({"do_lower_case": False}, ["\u00fcber", "\u00dcber", "\u4e2d", "\u56fd"]),
    (BERT | {"strip_accents": False}, ["\u00fcber", "\u00fcber", "\u4e2d", "\u56fd"]),
    (BERT | {"tokenize_chinese_chars": False}, ["uber", "uber", "\u4e2d\u56fd"]),
    ({"do_lower_case": False, "strip_accents": True}, ["uber", "Uber", "\u4e2d", "\u56fd"]),
    ({"model_max_length": 512}, ["uber", "uber", "\u4e2d", "\u56fd"]),
]


@pytest.mark.parametrize(("settings", "tokens"), SETTINGS)
@pytest.mark.parametrize("kind", ["vocab.txt", "WordPiece tokenizer.json"])
def test_settings_of_word_piece(kind, settings, tokens, folder):
    path = folder(kind, **({} if settings is None else {"tokenizer_config": settings}))
    tokenizer = read_folder_tokenizer(path)
    assert tokenizer.tokens(tokenizer.encode_batch(["\u00fcber \u00dcber \u4e2d\u56fd"]).ids) == tokens


def test_another_class_has_the_rules_of_its_file(folder):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}
    path = folder("WordPiece tokenizer.json", tokenizer_config=settings)
    assert read_folder_tokenizer(path).model_bytes == (path / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("settings", "space"),
    [
        ({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, True),
        ({"tokenizer_class": "GPT2TokenizerFast"}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True}, False),
        ({}, False),
    ],
)
def test_a_space_in_front_of_byte_level_bpe(settings, space, folder):
    path = folder("byte-level tokenizer.json", tokenizer_config=settings)
    tokenizer = read_folder_tokenizer(path)
    assert (ids_of(tokenizer, "king") == ids_of(tokenizer, " king")) == space
    assert (tokenizer.model_bytes == (path / "tokenizer.json").read_bytes()) == (not space)


@pytest.mark.parametrize("kind", ["byte-level tokenizer.json", "WordPiece tokenizer.json"])
def test_truncation_and_padding_do_not_act(kind, folder):
    """Published files have them; texts were cut to a few tokens, and short ones filled with padding."""
    path = folder(kind)
    before = read_folder_tokenizer(path)
    model = Tokenizer.from_file(str(path / "tokenizer.json"))
    model.enable_truncation(3)
    model.enable_padding(length=6)
    model.save(str(path / "tokenizer.json"))
    after = read_folder_tokenizer(path)
    texts = [*TEXTS[:20], "", "a"]
    assert ids_of(after, *texts) == ids_of(before, *texts)
    assert [part.tolist() for part in after.encode_spans(texts)] == [x.tolist() for x in before.encode_spans(texts)]
    written = json.loads(tokenizer_files(after, 40, Frame())["tokenizer.json"])
    assert (written["truncation"], written["padding"]) == (None, None)


def shift(values):
    vocabulary = values["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    vocabulary[last] += 7


def double(values):
    vocabulary = values["model"]["vocab"]
    first, last = min(vocabulary, key=vocabulary.get), max(vocabulary, key=vocabulary.get)
    vocabulary[last] = vocabulary[first]


@pytest.mark.parametrize(
    ("change", "message"),
    [(shift, "ids without a token: [0-9]+ to [0-9]+"), (double, "ids of two tokens: 0|without a")],
)
@pytest.mark.parametrize("kind", ["byte-level tokenizer.json", "WordPiece tokenizer.json"])
def test_holes_of_a_vocabulary_are_refused(kind, change, message, folder):
    path = folder(kind)
    values = json.loads((path / "tokenizer.json").read_text())
    change(values)
    (path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(
        CheckpointError, match=rf"tokenizer\.json: {message}.*every id from 0 to the last needs one token"
    ):
        read_folder_tokenizer(path)


def test_many_holes_are_not_all_named(folder):
    path = folder("byte-level tokenizer.json")
    values = json.loads((path / "tokenizer.json").read_text())
    values["model"]["vocab"] |= {f"new {id}": id for id in range(400, 440, 2)}
    (path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(
        CheckpointError, match=r"ids without a token: 300 to 399, 401, .*, 417, \.\.\.\. Edit the vocabulary"
    ):
        read_folder_tokenizer(path)


def test_holes_of_two_files_are_refused(folder):
    path = folder("vocab.json")
    values = json.loads((path / "vocab.json").read_text())
    values[max(values, key=values.get)] += 9
    (path / "vocab.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"vocab\.json: ids without a token: [0-9]+ to"):
        read_folder_tokenizer(path)


DAMAGED = [b"", b"{", b"[]", b"3", b"null", b'{"a": ' * 200_000, b"[" * 200_000, b"\xff\xfe", b'{"model": 3}',
           b'{"model": {"vocab": [1]}}', b'"\\ud800"', b"\x00" * 100]  # fmt: skip
SETTINGS_OF_OTHER_TYPES = [
    {"added_tokens_decoder": 3}, {"added_tokens_decoder": {"-1": {"content": "x"}}}, {"tokenizer_class": 3},
    {"added_tokens_decoder": {"1": {"content": 3}}}, {"added_tokens_decoder": {"1": {"content": "x", "special": "y"}}},
    {"additional_special_tokens": [3]}, {"extra_special_tokens": "x"}, {"pad_token": 3}, {"bos_token": {"content": ""}},
    {"do_lower_case": "no"}, {"strip_accents": 1}, {"tokenize_chinese_chars": None}, {"add_prefix_space": "x"},
    {"separate_vocabs": "yes"}, {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**12},
]  # fmt: skip


def error_of(path):
    """Return the message of the error, in a list; an empty one if there is none."""
    try:
        read_folder_tokenizer(path)
    except CheckpointError as error:
        return [str(error)]
    return []


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_named(kind, folder):
    """Any file of a tokenizer may be damaged: an error with a name, or the file does not matter for the kind."""
    path = folder(kind)
    names = [*(file.name for file in path.iterdir()), "tokenizer_config.json", "added_tokens.json"]
    names += ["special_tokens_map.json", "tokenizer.json"]
    refused: list[str] = []
    for name in dict.fromkeys(names):
        before = (path / name).read_bytes() if (path / name).exists() else None
        for data in DAMAGED:
            (path / name).write_bytes(data)
            refused += error_of(path)
        (path / name).unlink()
        if before is not None:
            (path / name).write_bytes(before)
    assert len(refused) > 2 * len(DAMAGED)
    assert all(str(path) in message for message in refused)
    for settings in SETTINGS_OF_OTHER_TYPES:
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
        named = [key for message in error_of(path) for key in settings if key in message]
        assert bool(named) == bool(error_of(path))


def test_bad_settings_are_named_for_the_kind_that_reads_them(folder):
    for kind, settings, name in [
        ("vocab.txt", {"do_lower_case": "no"}, "do_lower_case='no': expected true or false"),
        (
            "byte-level tokenizer.json",
            {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": 3},
            "add_prefix_space=3",
        ),
        ("Marian", {"separate_vocabs": "yes"}, "separate_vocabs='yes'"),
        ("spiece.model", {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**12}, "extra_ids=1000000000000"),
    ]:
        with pytest.raises(CheckpointError, match=name):
            read_folder_tokenizer(folder(kind, tokenizer_config=settings))


def test_a_model_of_the_library_that_is_too_deep():
    with pytest.raises(DataError, match="nested deeper"):
        load_tokenizer(b'{"a":' * 100_000)
