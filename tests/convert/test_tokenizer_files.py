"""Tokenizers of BERT, T5 and BART: the files of Hugging Face folders in both directions."""

import io
import itertools
import json

import pytest
import sentencepiece
from tokenizer_support import TEXTS
from tokenizers import Tokenizer

from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.convert.tokenizer_files import kind_of, read_folder_tokenizer
from transformer_jax.data.tokenizers import AddedTokens, Frame, SpecialIds, train_tokenizer
from transformer_jax.data.tokenizers.word_piece import read_word_piece
from transformer_jax.errors import CheckpointError, ConfigError

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]
ODD = ["", " ", "  two  spaces ", "x\u00a0\ufb01\u00bd \u732b\u2028y", "</s> <pad> <extra_id_0>", "tab\tand\nline"]
SENTINELS = tuple(f"<extra_id_{k}>" for k in range(3))


def rows(tokenizer, texts):
    ids, offsets = tokenizer.encode_batch(texts)
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def framed(tokenizer):
    return Frame(tokenizer.special_ids.start_of_text, tokenizer.special_ids.end_of_text)


def written(folder, tokenizer, frame=None, **fields):
    """Write the files; return the model of the library `tokenizers`, and the settings."""
    folder.mkdir(exist_ok=True)
    frame = framed(tokenizer) if frame is None else frame
    for name, data in tokenizer_files(tokenizer, 40, frame, **fields).items():
        (folder / name).write_bytes(data)
    model = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return model, json.loads((folder / "tokenizer_config.json").read_text())


def check_same(tmp_path, tokenizer, frame=None, **fields):
    """The written files are read as the same tokenizer, and the library cuts texts into the same ids."""
    model, settings = written(tmp_path / "out", tokenizer, frame, **fields)
    again = read_folder_tokenizer(tmp_path / "out")
    assert (again.special_ids, again.vocab_size) == (tokenizer.special_ids, tokenizer.vocab_size)
    assert rows(again, TEXTS + ODD) == rows(tokenizer, TEXTS + ODD)
    for name, id in model.get_vocab().items():
        assert tokenizer.tokens([id])[0] in (name, model.decode([id]).replace(" ", "\u2581"))
    model.encode_special_tokens = True
    for text, ids in zip(TEXTS + ODD, rows(tokenizer, TEXTS + ODD), strict=True):
        assert model.encode(text, add_special_tokens=False).ids == ids, text
    model.encode_special_tokens = False
    return model, settings


@pytest.mark.parametrize("lower_case", [True, False])
def test_word_piece(tmp_path, lower_case):
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, ""]))
    tokenizer = read_word_piece(tmp_path / "vocab.txt", 13, lower_case)
    model, settings = check_same(tmp_path, tokenizer, token_types=2)
    kind = "wordpiece" if lower_case else "wordpiece_cased"
    assert kind_of(tokenizer) == kind_of(read_folder_tokenizer(tmp_path / "out")) == kind
    assert (tmp_path / "out" / "vocab.txt").read_text() == "\n".join([*PIECES, ""])
    expected = {"tokenizer_class": "BertTokenizer", "do_lower_case": lower_case, "cls_token": "[CLS]"}
    assert expected.items() <= settings.items()
    assert settings["split_special_tokens"] is False
    unwanted = [9, 6, 7] if lower_case else [1]
    assert model.encode("UNwant\u00e9d,running [MASK]").ids == [2, *unwanted, 12, 10, 11, 4, 3]
    (tmp_path / "out" / "tokenizer.json").unlink()  # vocab.txt alone, with the settings
    again = read_folder_tokenizer(tmp_path / "out")
    assert (kind_of(again), rows(again, ODD)) == (kind, rows(tokenizer, ODD))


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "wordpiece"])
def test_trained_tokenizers_with_a_mask_and_sentinels(kind, tmp_path):
    tokenizer = train_tokenizer(TEXTS, kind, 370, ("<mask>", *SENTINELS))
    model, settings = check_same(tmp_path, tokenizer)
    special = tokenizer.special_ids
    assert special.sentinels == (369, 368, 367)
    mask = tokenizer.tokens([special.mask])[0]
    assert (settings["mask_token"], settings["split_special_tokens"]) == (mask, False)
    assert settings["additional_special_tokens"] == list(SENTINELS)
    assert model.encode(f"<extra_id_0>{mask}").ids == [special.start_of_text, 369, special.mask, special.end_of_text]


def test_the_end_alone_follows_a_text_with_sentinels(tmp_path):
    model, _ = written(tmp_path / "out", train_tokenizer(TEXTS, "unigram", 370, SENTINELS), Frame(end=1))
    assert model.encode("<extra_id_1>").ids == [368, 1]
    assert model.encode("<extra_id_1>", "<extra_id_0>").ids == [368, 1, 369, 1]


@pytest.fixture(scope="module")
def pieces():
    """A SentencePiece model as T5's: its special ids, and text is normalised."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=120, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


@pytest.fixture
def t5(tmp_path, pieces):
    folder = tmp_path / "t5"
    folder.mkdir()
    (folder / "spiece.model").write_bytes(pieces)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    return folder


def test_t5(t5, tmp_path):
    tokenizer = read_folder_tokenizer(t5)
    assert tokenizer.vocab_size == 220
    assert tokenizer.special_ids == SpecialIds(0, 1, 2, sentinels=tuple(range(219, 119, -1)))
    assert kind_of(tokenizer) == "unigram"
    model, settings = check_same(tmp_path, tokenizer, Frame(end=1), marian=True)
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"  # T5Tokenizer would not normalise as the pieces
    assert settings["added_tokens_decoder"]["219"]["content"] == "<extra_id_0>"
    assert model.encode("<extra_id_0><extra_id_99>").ids == [219, 120, 1]
    assert (tmp_path / "out" / "spiece.model").read_bytes() == (t5 / "spiece.model").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "sentinels"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 2}, (121, 120)),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}, ()),
        (
            "tokenizer_config.json",
            {"tokenizer_class": "T5TokenizerFast", "additional_special_tokens": list(SENTINELS)},
            (122, 121, 120),
        ),
        ("tokenizer_config.json", {"added_tokens_decoder": {"120": {"content": "<extra_id_0>"}}}, (120,)),
        ("tokenizer.json", {"added_tokens": [{"id": 120, "content": "<extra_id_0>"}]}, (120,)),
        ("added_tokens.json", {"<extra_id_0>": 121, "<extra_id_1>": 120}, (121, 120)),
    ],
)
def test_where_the_sentinels_of_t5_are_named(t5, name, content, sentinels):
    (t5 / name).write_text(json.dumps(content))
    assert read_folder_tokenizer(t5).special_ids.sentinels == sentinels


def test_bart_in_two_files(tmp_path):
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    alphabet += [chr(256 + k) for k in range(256 - len(alphabet))]
    words = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, "th", "\u0120th", "<mask>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: id for id, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nt h\n\u0120 th\n", encoding="utf-8")
    tokenizer = read_folder_tokenizer(tmp_path)
    assert tokenizer.special_ids == SpecialIds(pad=1, eos=2, unk=3, bos=0, mask=262)
    model, settings = check_same(tmp_path, tokenizer)
    assert (settings["cls_token"], settings["sep_token"]) == ("<s>", "</s>")
    assert model.encode("th<mask> th").ids == [0, 260, 262, 261, 2]
    assert model.encode("th", " th").ids == [0, 260, 2, 261, 2]  # two texts as in our batches
    assert rows(tokenizer, ["<mask>"])[0] != [262]
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(
        CheckpointError, match=r"merges.txt are read as .* GPT-2, and qwen2 splits .*; add the tokenizer"
    ):
        read_folder_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(CheckpointError, match="Qwen2Tokenizer splits texts in another way"):
        read_folder_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("added_tokens.json", '{"<extra_id_0>": 121}', "added tokens do not follow those of its 120 pieces"),
        ("added_tokens.json", "[]", "added_tokens.json: it holds a list, not an object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"120": 3}}', "decoder: 120: 3: expected an object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": {"content": "y"}}}', "'x' is not an id"),
    ],
)
def test_bad_added_tokens(t5, name, content, message):
    (t5 / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_folder_tokenizer(t5)


def test_t5_with_other_added_tokens(t5, tmp_path):
    tokenizer = AddedTokens(read_folder_tokenizer(t5).inner, ("<extra_id_0>", "<mask>"))
    model, _ = check_same(tmp_path, tokenizer, Frame(end=1))
    assert model.encode("<mask><extra_id_0>").ids == [121, 120, 1]


def test_what_transformers_cannot_say():
    words = train_tokenizer(TEXTS, "words", 50, ("<mask>",))
    with pytest.raises(ConfigError, match=r"WordTokenizer: transformers has no such tokenizer"):
        tokenizer_files(words, 40, Frame())
