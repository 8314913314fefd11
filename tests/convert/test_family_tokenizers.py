"""Tokenizers of Qwen2, Qwen3, Mistral, SmolLM3, OLMo 2, GPT-NeoX and RoBERTa: their files, in both directions."""

import itertools
import json
import unicodedata

import pytest
from family_tokenizers_support import LINES, QWEN, SPECS, divided, trained, write_folder, write_mistral_pieces
from tokenizer_support import TEXTS, as_qwen
from tokenizers import Tokenizer

from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.convert.tokenizer_files import kind_of, read_folder_tokenizer
from transformer_jax.convert.tokenizer_rules import check_family
from transformer_jax.data.tokenizers import Frame, SpecialIds, train_tokenizer
from transformer_jax.errors import CheckpointError, ConfigError

ALL = [*TEXTS[::20], *LINES]


def ids_of(tokenizer, texts=ALL):
    ids, offsets = tokenizer.encode_batch(texts)
    return [ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def ids_of_library(model, texts=ALL):
    model.encode_special_tokens = True  # names of special tokens in a text are text
    return [encoding.ids for encoding in model.encode_batch(texts, add_special_tokens=False)]


def special_ids(family, **roles):
    model = Tokenizer.from_str(trained(family))
    return SpecialIds(**{role: model.token_to_id(name) for role, name in roles.items()})


END = "<|endoftext|>"
SPECIAL_IDS = {
    **{family: {"eos": END, "bos": END} for family in ("qwen2", "qwen3")},
    "mistral": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "bos": "<s>"},
    "smollm3": {"eos": "<|end_of_text|>", "bos": "<|begin_of_text|>"},
    "olmo2": {"pad": "<|pad|>", "eos": END, "bos": END},
    "gpt_neox": {"pad": "<|padding|>", "eos": END, "bos": END},
    "roberta": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>", "bos": "<s>", "mask": "<mask>"},
}


@pytest.mark.parametrize("family", SPECS)
def test_ids_are_those_of_the_library(family, tmp_path):
    model = write_folder(tmp_path / "theirs", family)
    tokenizer = read_folder_tokenizer(tmp_path / "theirs")
    rows = ids_of(tokenizer)
    assert rows == ids_of_library(model)
    assert (kind_of(tokenizer), tokenizer.vocab_size) == ("byte_bpe", model.get_vocab_size())
    assert tokenizer.special_ids == special_ids(family, **SPECIAL_IDS[family])
    composed = [unicodedata.normalize("NFC", text) if SPECS[family].composes else text for text in ALL]
    assert tokenizer.decode_batch(rows) == composed
    # The way back: the same ids, with the library and with us.
    frame = Frame() if SPECS[family].frame is None else Frame(*map(model.token_to_id, SPECS[family].frame))
    (tmp_path / "ours").mkdir()
    for name, data in tokenizer_files(tokenizer, 40, frame).items():
        (tmp_path / "ours" / name).write_bytes(data)
    (tmp_path / "ours" / "config.json").write_text((tmp_path / "theirs" / "config.json").read_text())
    written = Tokenizer.from_file(str(tmp_path / "ours" / "tokenizer.json"))
    assert ids_of_library(written) == rows
    start, end = ([] if id is None else [id] for id in (frame.start, frame.end))
    assert written.encode(TEXTS[0]).ids == [*start, *rows[0], *end]
    again = read_folder_tokenizer(tmp_path / "ours")
    assert (ids_of(again), again.special_ids) == (rows, tokenizer.special_ids)
    check_family(family, family, (tmp_path / "ours" / "tokenizer.json").read_bytes())


@pytest.mark.parametrize("family", SPECS)
def test_the_divisions_of_families_differ(family, tmp_path):
    """Else the tests above would pass with the rules of any family."""
    write_folder(tmp_path / family, family)
    rows, plain = ids_of(read_folder_tokenizer(tmp_path / family)), Tokenizer.from_str(trained(family))
    differing = [ids_of_library(divided(plain, spec.pattern, spec.composes)) != rows for spec in SPECS.values()]
    same = [spec[2:4] == SPECS[family][2:4] for spec in SPECS.values()]
    assert differing == [not equal for equal in same]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gpt_neox", "roberta"])
@pytest.mark.parametrize("adds_space", [False, True])
def test_some_classes_take_the_tokens_alone(family, adds_space, tmp_path):
    """transformers gives them the normaliser and the division of their class, whatever tokenizer.json says."""
    spec, folder = SPECS[family], tmp_path / family
    write_folder(folder, family, add_prefix_space=adds_space)
    other = divided(Tokenizer.from_str(trained(family)), r"\s+", composes=not spec.composes)
    (folder / "tokenizer.json").write_text(other.to_str())
    expected = divided(Tokenizer.from_str(trained(family)), spec.pattern, spec.composes, adds_space)
    assert ids_of(read_folder_tokenizer(folder)) == ids_of_library(expected)


@pytest.mark.parametrize(
    ("model_type", "class_name", "changes"),
    [
        ("olmo2", "GPT2Tokenizer", False),  # the class of the published OLMo 2
        ("mistral", "LlamaTokenizer", False),
        ("smollm3", "PreTrainedTokenizerFast", False),
        ("qwen3", "PreTrainedTokenizerFast", False),
        ("qwen2", "PreTrainedTokenizerFast", True),
        ("qwen3", "Qwen2TokenizerFast", True),
        ("qwen3", None, True),
        ("gpt_neox", "GPTNeoXTokenizerFast", True),
        ("gpt_neox", "PreTrainedTokenizerFast", False),
        ("gpt_neox", None, True),
        ("llama", "GPT2Tokenizer", True),
    ],
)
def test_which_class_reads_a_folder(model_type, class_name, changes, tmp_path):
    write_folder(tmp_path / "folder", "smollm3")
    named = {} if class_name is None else {"tokenizer_class": class_name}
    (tmp_path / "folder" / "tokenizer_config.json").write_text(json.dumps(named | {"model_max_length": 64}))
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"model_type": model_type}))
    found = ids_of(read_folder_tokenizer(tmp_path / "folder"))
    assert (found != ids_of_library(Tokenizer.from_str(trained("smollm3")))) == changes


def test_tokens_that_are_not_special_are_found_in_a_text(tmp_path):
    """Runs of spaces of GPT-NeoX, and the marks of a thought of Qwen3."""
    write_folder(tmp_path / "gpt_neox", "gpt_neox")
    spaces = read_folder_tokenizer(tmp_path / "gpt_neox")
    assert spaces.tokens(ids_of(spaces, ["        eight"])[0])[0] == "\u2581" * 8
    write_folder(tmp_path / "qwen3", "qwen3")
    marks = read_folder_tokenizer(tmp_path / "qwen3")
    (row,) = ids_of(marks, ["<think>the</think><|im_end|>"])
    assert (row[0], "<|im_end|>" in marks.tokens(row)) == (marks.vocab_size - 2, False)


def test_pieces_of_mistral(tmp_path):
    """SentencePiece cuts the texts; the file that we write gives the library the same ids."""
    write_mistral_pieces(tmp_path / "theirs")
    tokenizer = read_folder_tokenizer(tmp_path / "theirs")
    assert (kind_of(tokenizer), tokenizer.special_ids) == ("bpe", SpecialIds(eos=2, unk=0, bos=1))
    written = Tokenizer.from_str(tokenizer_files(tokenizer, 40, Frame())["tokenizer.json"].decode())
    assert ids_of_library(written) == ids_of(tokenizer)


def test_a_folder_of_qwen2_has_no_other_division():
    """transformers reads every tokenizer of such a folder with Qwen2's rules."""
    tokenizer = train_tokenizer(TEXTS, "byte_bpe", 300)
    check_family("qwen2", "Qwen2", as_qwen(tokenizer).model_bytes)
    check_family("qwen3", "Qwen3", tokenizer.model_bytes)
    with pytest.raises(
        ConfigError, match=r"every Qwen2 folder as Qwen2Tokenizer.*--without_tokenizer writes the model"
    ):
        check_family("qwen2", "Qwen2", tokenizer.model_bytes)
    pieces = tokenizer_files(train_tokenizer(TEXTS, "bpe", 300), 40, Frame())["tokenizer.json"]
    with pytest.raises(ConfigError, match="would give other ids"):
        check_family("qwen2", "Qwen2", pieces)


@pytest.mark.parametrize("family", ["olmo2", "smollm3", "mistral", "qwen3"])
def test_two_files_without_the_division_are_refused(family, tmp_path):
    folder = tmp_path / family
    write_folder(folder, family)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in model["merges"]), encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"GPT-2, and \w+ splits texts in another way; add the tokenizer\.json"):
        read_folder_tokenizer(folder)


def test_two_files_of_gpt_neox_compose_characters(tmp_path):
    write_folder(tmp_path / "folder", "gpt_neox")
    expected = ids_of(read_folder_tokenizer(tmp_path / "folder"))
    model = json.loads((tmp_path / "folder" / "tokenizer.json").read_text())["model"]
    (tmp_path / "folder" / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = "".join(f"{a} {b}\n" for a, b in model["merges"])
    (tmp_path / "folder" / "merges.txt").write_text(merges, encoding="utf-8")
    (tmp_path / "folder" / "tokenizer.json").unlink()
    assert ids_of(read_folder_tokenizer(tmp_path / "folder")) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_prefix_space": "x"}, "add_prefix_space='x': expected true or false"),
        ({"added_tokens_decoder": {"900": {"content": "<new>"}}}, "do not follow those of its"),
        ({"tokenizer_class": 3}, "tokenizer_class=3: expected a text"),
    ],
)
def test_bad_settings_are_named(changes, message, tmp_path):
    write_folder(tmp_path / "folder", "gpt_neox", **changes)
    with pytest.raises(CheckpointError, match=message):
        read_folder_tokenizer(tmp_path / "folder")


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    write_folder(tmp_path / "folder", "qwen2")
    model = Tokenizer.from_str(trained("roberta"))
    values = json.loads(divided(model, QWEN, composes=True).to_str())
    values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] != "</s>"]
    (tmp_path / "folder" / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="is an end-of-sequence"):
        read_folder_tokenizer(tmp_path / "folder")
