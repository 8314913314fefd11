"""Special tokens beyond those of a tokenizer's own model: their ids, roles, names, and where they are added."""

import json

import pytest
import sentencepiece
from data_support import FakeSource, pair_texts, prepared
from tokenizer_support import SIZES, TEXTS, encode, trained

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig
from transformer_jax.data import datasets
from transformer_jax.data.tokenizers import (
    AddedTokens,
    SpecialIds,
    Tokenizer,
    load_tokenizer,
    plain,
    train_tokenizer,
    trained_special_ids,
    with_added_tokens,
)
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer
from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.decode_requests import ends_of

SENTINELS = tuple(f"<extra_id_{k}>" for k in range(3))
NAMES = ("<mask>", *SENTINELS)


@pytest.mark.parametrize("kind", SIZES)
def test_a_trained_tokenizer_has_them_after_its_own_ids(kind):
    inner = trained(kind)
    has_mask = inner.special_ids.mask is not None
    first = SIZES[kind]
    size = first + len(NAMES) - has_mask
    tokenizer = train_tokenizer(TEXTS, kind, size, NAMES)
    assert isinstance(tokenizer, Tokenizer)
    assert (plain(tokenizer).sha256, tokenizer.vocab_size) == (inner.sha256, size)
    mask = inner.special_ids.mask if has_mask else first
    # As in T5, the first sentinel has the last id.
    expected = inner.special_ids._replace(mask=mask, sentinels=(size - 1, size - 2, size - 3))
    assert tokenizer.special_ids == expected
    assert inner.special_ids == trained_special_ids(kind)
    assert tokenizer.tokens([size - 1, size - 3]) == ["<extra_id_0>", "<extra_id_2>"]
    text = TEXTS[3]
    ids = encode(tokenizer, text).tolist()
    assert ids == encode(inner, text).tolist()
    assert tokenizer.tokens([size - 1, *ids, mask]) == ["<extra_id_0>", *inner.tokens(ids), *tokenizer.tokens([mask])]
    with_added = [size - 1, *ids, mask, size - 2, tokenizer.special_ids.eos, *ids]
    assert tokenizer.decode(with_added) == inner.decode(ids)
    assert tokenizer.decode_batch([with_added, []]) == [inner.decode(ids), ""]
    for name in NAMES:
        assert encode(tokenizer, f"a{name} {name}").max() < first
    again = load_tokenizer(tokenizer.model_bytes)
    assert (again.sha256, again.special_ids) == (tokenizer.sha256, tokenizer.special_ids)


def test_roles_of_their_names():
    byte = trained("byte")
    tokenizer = AddedTokens(byte, ["<sep>", "<other>", "<extra_id_1>", "<cls>", "<extra_id_3>", "<extra_id_0>"])
    assert tokenizer.special_ids == OWN_SPECIAL_IDS._replace(sep=260, cls=263, sentinels=(265, 262))
    assert (tokenizer.special_ids.start_of_text, tokenizer.special_ids.end_of_text) == (263, 260)
    assert (OWN_SPECIAL_IDS.start_of_text, OWN_SPECIAL_IDS.end_of_text) == (3, 1)
    assert tokenizer.special_ids.without_text == {0, 1, 3, 260, 262, 263, 265}
    assert SpecialIds(eos=5).start_of_text is None


def test_only_lacking_ones_are_added_and_only_if_there_is_room():
    byte = trained("byte")
    assert with_added_tokens(byte, (), 900) is byte
    assert with_added_tokens(byte, NAMES, 263) is byte
    full = with_added_tokens(byte, NAMES, 264)
    assert full.special_ids == OWN_SPECIAL_IDS._replace(mask=260, sentinels=(263, 262, 261))
    assert with_added_tokens(full, NAMES, 900) is full
    more = with_added_tokens(full, ("<extra_id_3>", "<mask>", "<other>"), 900)
    assert more.names == (*full.names, "<other>", "<extra_id_3>")
    assert more.special_ids.sentinels == (263, 262, 261, 265)
    assert with_added_tokens(more, ("<other>",), 900) is more
    assert plain(more) is byte


@pytest.mark.parametrize(
    ("kind", "vocab_size", "message"),
    [
        ("byte", 260, r"vocab_size=260: 4 of the ids are for added tokens \(<mask> to <extra_id_0>\); without them, "),
        ("words", 6, r"vocab_size=6: 4 of the .*; without them, the tokenizer needs at least 5"),
        ("bpe", 4, r"vocab_size=4: 4 of the ids are for added tokens \(.*\); increase it"),
        ("char", 5000, r"vocab_size=5000: 4 .*; without them, the training split has \d+ different"),
    ],
)
def test_a_vocabulary_without_room_for_them(kind, vocab_size, message):
    with pytest.raises(ConfigError, match=f"config: model.{message}"):
        train_tokenizer(TEXTS, kind, vocab_size, NAMES)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"<mask>"', b"7"),
        lambda data: data.replace(b'["', b'{"'),
        lambda data: data.replace(b"<mask>", b"<extra_id_0>"),
        lambda data: b"added tokens\n[]\nbytes\n",
        lambda data: data.partition(b"\nbytes")[0],
        lambda data: data[:-1],
    ],
)
def test_damaged_model_bytes(damage):
    data = AddedTokens(trained("byte"), NAMES).model_bytes
    assert load_tokenizer(data).vocab_size == 264
    with pytest.raises(DataError, match="tokenizer"):
        load_tokenizer(damage(data))


def test_byte_bpe_that_has_them_keeps_its_ids():
    model = json.loads(trained("byte_bpe").model_bytes)
    names = ["<mask>", "<extra_id_0>", "<extra_id_1>"]
    for id, name in enumerate(names, SIZES["byte_bpe"]):
        model["added_tokens"].append(model["added_tokens"][0] | {"id": id, "content": name})
    tokenizer = ByteBPETokenizer(json.dumps(model).encode())
    assert tokenizer.special_ids == OWN_SPECIAL_IDS._replace(mask=360, sentinels=(361, 362))
    assert with_added_tokens(tokenizer, names, 900) is tokenizer
    assert encode(tokenizer, "<mask> <extra_id_0>").max() < 360
    assert tokenizer.decode([360, *encode(tokenizer, "so").tolist(), 361]) == "so"


def test_sentence_piece_that_has_them_keeps_its_ids(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TEXTS, *["<extra_id_1> and <mask>"] * 200]),
        model_prefix=str(tmp_path / "model"),
        vocab_size=120,
        control_symbols=["<extra_id_0>"],
        user_defined_symbols=["<mask>"],
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    tokenizer = SentencePieceTokenizer((tmp_path / "model.model").read_bytes())
    ids = {name: id for id, name in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    # A piece that was learnt from text is no sentinel.
    assert tokenizer.special_ids == SpecialIds(0, 1, 2, mask=ids["<mask>"], sentinels=(ids["<extra_id_0>"],))


def test_outputs_have_no_ids_that_the_tokenizer_lacks():
    assert ends_of(trained("byte"), 263) == (1, (0, 260, 261, 262))
    assert ends_of(trained("byte"), 260) == (1, (0,))


@pytest.fixture
def special(tmp_path, monkeypatch):
    """A function from model.vocab_size and fields of `data` to the number of ids and the mask of a run's tokenizer."""
    lines = [f"line {n}" for n in range(200)]

    source = FakeSource(pair_texts(lines, lines))
    monkeypatch.setattr(datasets, "load_source", lambda config: source)
    monkeypatch.setattr(type(TASKS["translation"]), "added_tokens", lambda task, config: ("<mask>",))

    def made(size, folder="work", **data):
        data = DataConfig(tokenizer="words", cache_dir=str(tmp_path / "cache"), **data)
        config = ExperimentConfig(model=ModelConfig(vocab_size=size), data=data).resolved()
        first, second = (prepared(config, tmp_path / f"{folder}{size}").tokenizer for _ in range(2))
        assert first.sha256 == second.sha256
        return first.vocab_size, first.special_ids.mask

    return made


def test_a_run_trains_a_tokenizer_with_them(special, monkeypatch):
    assert special(12) == (12, 11)
    assert special(12, "from_the_cache") == (12, 11)
    monkeypatch.setattr(type(TASKS["translation"]), "added_tokens", lambda task, config: ())
    assert special(12, "without") == (12, None)


def test_a_run_adds_them_to_a_vocabulary_with_room(special, tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("line\n1\n2\n3\n4\n")
    assert special(12, vocabulary_file=str(file)) == (10, 9)
    assert special(10, vocabulary_file=str(file)) == (10, 9)
    assert special(9, vocabulary_file=str(file)) == (9, None)
    with pytest.raises(ConfigError, match=r"model\.vocab_size=8: .*words\.txt has 5 words; .* that makes 9"):
        special(8, vocabulary_file=str(file))
