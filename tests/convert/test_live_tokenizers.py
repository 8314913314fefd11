"""Tokenizers of folders against AutoTokenizer of transformers. Runs only where transformers is installed."""

import importlib.util
import itertools
import json

import pytest
import sentencepiece
from family_tokenizers_support import LINES as FAMILY_LINES
from family_tokenizers_support import SPECS, divided, trained, write_mistral_pieces
from family_tokenizers_support import write_folder as write_family
from tokenizer_support import TEXTS
from tokenizers import Tokenizer

from transformer_jax.config import ModelConfig
from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.convert.tokenizer_files import read_folder_tokenizer
from transformer_jax.data.tokenizers import Frame, train_tokenizer
from transformer_jax.data.tokenizers.word_piece import read_word_piece
from transformer_jax.tasks.task import TASKS

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed", allow_module_level=True)

from transformers import AutoTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "\u00fcber", "uber", "Uber", "\u00dcber", "\u4e2d",
         "\u56fd", "\u4e2d\u56fd"]  # fmt: skip
LINES = [*TEXTS[:40], "", " ", " a  b ", "\u00fcber \u00dcber \u4e2d\u56fd", "e\u0301 \u00bd \ufb01 \u2026",
         "a [ENT] b",
         "</s> <s> <pad> [MASK]", "x\u200b\u00a0y", "\U0001f600"]  # fmt: skip
FLAGS = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)


def ids_of(tokenizer, texts):
    ids, offsets = tokenizer.encode_batch(texts)
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def check_read(path, size):
    ours, theirs = read_folder_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert ours.vocab_size == len(theirs) == size
    given = {"add_special_tokens": False, "split_special_tokens": True}
    assert [theirs(line, **given)["input_ids"] for line in LINES] == ids_of(ours, LINES)


@pytest.mark.parametrize("lower", [None, True, False])
@pytest.mark.parametrize("accents", [None, True, False])
@pytest.mark.parametrize("chinese", [None, True, False])
@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_settings_of_word_piece(file, chinese, accents, lower, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, ""]), encoding="utf-8")
    if file == "tokenizer.json":
        (tmp_path / file).write_bytes(read_word_piece(tmp_path / "vocab.txt", 13).model_bytes)
        (tmp_path / "vocab.txt").unlink()
    settings = {"do_lower_case": lower, "strip_accents": accents, "tokenize_chinese_chars": chinese}
    settings = {key: value for key, value in settings.items() if value is not None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 64}))
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 13}')
    check_read(tmp_path, 13)


@pytest.mark.parametrize("way", ["decoder", "added_tokens", "special_tokens_map"])
@pytest.mark.parametrize("kind", ["vocab.txt", "tokenizer.json", "vocab.json"])
def test_added_tokens(kind, way, tmp_path):
    size = 13 if kind == "vocab.txt" else 300
    byte_level = train_tokenizer(TEXTS, "byte_bpe", 300).model_bytes
    if kind == "vocab.txt":
        (tmp_path / kind).write_text("\n".join([*WORDS, ""]), encoding="utf-8")
    elif kind == "tokenizer.json":
        (tmp_path / kind).write_bytes(byte_level)
    else:
        model = json.loads(byte_level)["model"]
        vocabulary = {("<|endoftext|>" if name == "</s>" else name): id for name, id in model["vocab"].items()}
        (tmp_path / kind).write_text(json.dumps(vocabulary))
        (tmp_path / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in model["merges"]), encoding="utf-8")
    bert = kind == "vocab.txt"
    config = {"model_type": "bert" if bert else "gpt2", "vocab_size": size + 1}
    names = {} if bert else dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    if kind == "vocab.json":
        names = dict.fromkeys(names, "<|endoftext|>")
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = dict(names)
    if way == "decoder":
        settings["added_tokens_decoder"] = {str(size): {"content": "[ENT]", "special": True, **FLAGS}}
    elif way == "added_tokens":
        (tmp_path / "added_tokens.json").write_text(json.dumps({"[ENT]": size}))
    else:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(names | {"additional_special_tokens": ["[ENT]"]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    check_read(tmp_path, size + 1)


@pytest.mark.parametrize("space", [None, True, False])
@pytest.mark.parametrize("name", ["GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast", None])
def test_a_space_in_front_of_byte_level_bpe(name, space, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(train_tokenizer(TEXTS, "byte_bpe", 300).model_bytes)
    settings = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>")
    settings |= {} if name is None else {"tokenizer_class": name}
    settings |= {} if space is None else {"add_prefix_space": space}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "vocab_size": 300}')
    check_read(tmp_path, 300)


@pytest.mark.parametrize("with_bytes", [False, True])
def test_a_spiece_model_of_t5(with_bytes, tmp_path):
    """T5Tokenizer ignores byte fallback: it has `<unk>` where SentencePiece has the bytes of a character."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_prefix=str(tmp_path / "spiece"), vocab_size=350, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=with_bytes, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "spiece.vocab").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "t5", "vocab_size": 512}')
    ours, theirs = read_folder_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.vocab_size == len(theirs)
    lines = [line for line in LINES if "<" not in line]  # names of tokens are tokens there
    rows = ids_of(ours, lines)
    has_bytes = [any(token.startswith("<0x") for token in ours.tokens(row)) for row in rows]
    assert any(has_bytes) == with_bytes
    for line, row, other in zip(lines, rows, has_bytes, strict=True):
        found = theirs(line, add_special_tokens=False)["input_ids"]
        assert (ours.special_ids.unk in found) if other else found == row, line


FAMILIES = {
    "bert": ("classification", "tagging", "span_qa", "masked_lm"),
    "gpt2": ("language_model",),
    "llama": ("language_model",),
    "t5": ("span_corruption", "translation"),
    "bart": ("denoising", "translation"),
}


@pytest.mark.parametrize(("family", "task"), [(family, task) for family, tasks in FAMILIES.items() for task in tasks])
@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "wordpiece", "wordpiece_cased"])
def test_exported_tokenizers(kind, family, task, tmp_path):
    """`tokenizer(text)` has the ids of a text and its frame, and of two with their types."""
    tokenizer = train_tokenizer(TEXTS, kind, 365, ("<mask>",) if task in ("masked_lm", "denoising") else ())
    types = 2 if family == "bert" else 0
    form = "decoder_only" if family in ("gpt2", "llama") else "encoder_only" if types else "encoder_decoder"
    frame = TASKS[task].text_frame(ModelConfig(architecture=form), tokenizer.special_ids)
    for name, data in tokenizer_files(tokenizer, 64, frame, token_types=types).items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "vocab_size": 365}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    start, end = ([] if id is None else [id] for id in (frame.start, frame.end))
    texts = [line for line in LINES if tokenizer.special_ids.mask is None or ("<" not in line and "[" not in line)]
    rows = ids_of(tokenizer, texts)
    assert [theirs(text)["input_ids"] for text in texts] == [[*start, *row, *end] for row in rows]
    assert ("token_type_ids" in theirs("a")) == (types > 1)
    if frame.pairs:
        found = theirs(texts[0], texts[1])
        first = [*start, *rows[0], *end]
        assert found["input_ids"] == [*first, *rows[1], *end]
        assert found["token_type_ids"] == [0] * len(first) + [1] * (len(rows[1]) + 1)


@pytest.mark.parametrize("class_name", ["own", "PreTrainedTokenizerFast", "GPT2Tokenizer", None])
@pytest.mark.parametrize("file", ["theirs", "of another family", "ours"])
@pytest.mark.parametrize("family", SPECS)
def test_tokenizers_of_families(family, file, class_name, tmp_path):
    """Their files, tokenizer.json with the division of another family, and the files that we write."""
    named = SPECS[family].class_name if class_name == "own" else class_name
    write_family(tmp_path / "theirs", family, tokenizer_class=named)
    if file == "of another family":
        other = SPECS["smollm3" if family != "smollm3" else "qwen3"]
        model = divided(Tokenizer.from_str(trained(family)), other.pattern, other.composes)
        (tmp_path / "theirs" / "tokenizer.json").write_text(model.to_str())
    folder, tokenizer = tmp_path / "theirs", read_folder_tokenizer(tmp_path / "theirs")
    if file == "ours":
        folder = tmp_path / "ours"
        folder.mkdir()
        frame = TASKS["masked_lm" if family == "roberta" else "language_model"].text_frame(
            ModelConfig(architecture="encoder_only" if family == "roberta" else "decoder_only"), tokenizer.special_ids
        )
        for name, data in tokenizer_files(tokenizer, 64, frame).items():
            (folder / name).write_bytes(data)
        (folder / "config.json").write_text((tmp_path / "theirs" / "config.json").read_text())
    theirs = AutoTokenizer.from_pretrained(folder)
    texts = [*LINES, *FAMILY_LINES]
    given = {"add_special_tokens": False, "split_special_tokens": True}
    assert [theirs(text, **given)["input_ids"] for text in texts] == ids_of(tokenizer, texts)
    # A class has a token of its own for a role that the settings leave out.
    more = (family, named) == ("smollm3", "GPT2Tokenizer") and file != "ours"
    assert len(theirs) == tokenizer.vocab_size + more


def test_pieces_of_mistral(tmp_path):
    """The files that we write for a SentencePiece model; LlamaTokenizer of transformers reads the model itself."""
    write_mistral_pieces(tmp_path / "theirs")
    tokenizer = read_folder_tokenizer(tmp_path / "theirs")
    (tmp_path / "ours").mkdir()
    for name, data in tokenizer_files(tokenizer, 64, Frame()).items():
        (tmp_path / "ours" / name).write_bytes(data)
    (tmp_path / "ours" / "config.json").write_text('{"model_type": "mistral", "vocab_size": 420}')
    theirs, texts = AutoTokenizer.from_pretrained(tmp_path / "ours"), [*LINES, *FAMILY_LINES]
    assert [theirs(text)["input_ids"] for text in texts] == ids_of(tokenizer, texts)
