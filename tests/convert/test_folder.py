"""Hugging Face folders: bad ones, tokenizers, and the command."""

import dataclasses
import io
import json
import shutil
import struct

import jax
import numpy as np
import pytest
import sentencepiece
from support import random_params, tiny
from tokenizers import Tokenizer

from transformer_jax.cli.main import main
from transformer_jax.config import DecodeConfig, ExperimentConfig, TaskConfig
from transformer_jax.convert.folder import from_pretrained, open_folder, save_pretrained
from transformer_jax.convert.generation import generation_settings
from transformer_jax.convert.tensor_files import INDEX, SINGLE, Outgoing, TensorFiles, write_tensors
from transformer_jax.convert.tokenizer_export import tokenizer_files
from transformer_jax.convert.tokenizer_files import read_folder_tokenizer
from transformer_jax.data.tokenizers import Frame, SpecialIds, TokenizerPair, train_tokenizer
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.evaluation.loading import load
from transformer_jax.tasks.task import TASKS

TEXTS = [
    f"the {a} {b} is near the {a}, and {b} {i}" for i, a in enumerate(["ax", "bee", "cow", "elm"]) for b in "pqrst"
]
ODD = ["", " ", "  two  spaces ", "the \u00fcber \u732b", "</s> <unk> <0x41> \u2581", "tab\tand\nline", "the ax " * 30]


@pytest.fixture(scope="module")
def tokenizers():
    return {
        kind: train_tokenizer(TEXTS, kind, size) for kind, size in [("unigram", 290), ("bpe", 290), ("byte_bpe", 280)]
    }


def gpt2(tokenizer, **fields):
    return tiny(
        architecture="decoder_only", vocab_size=tokenizer.vocab_size + 3, norm_position="pre", emb_dim=8, num_heads=2,
        position_encoding="learned", activation="gelu_tanh", scale_embeddings=False, max_length=40, **fields,
    )  # fmt: skip


@pytest.fixture
def whole(tmp_path, tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    save_pretrained(tmp_path / "whole", config, random_params(config), tokenizers["byte_bpe"], shard_bytes=2000)
    return tmp_path / "whole"


def edit(file, **values):
    found = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in found.items() if value is not ...}))


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


def shard(path, number=1):
    return sorted(path.glob("model-*.safetensors"))[number]


def drop_tensor(path):
    index = json.loads((path / INDEX).read_text())
    name = "transformer.ln_f.bias"
    tensors = TensorFiles(path)
    kept = {n: np.array(tensors.read(n)) for n in tensors.tensors if n != name}
    for file in {*path.glob("model-*.safetensors"), path / INDEX}:
        file.unlink()
    assert name in index["weight_map"]
    write_tensors(path, [Outgoing(n, x.shape, lambda x=x: x) for n, x in kept.items()])


def with_nan(path):
    """Put NaN into the third number of a tensor, in its file."""
    tensor = TensorFiles(path).tensors["transformer.ln_f.bias"]
    with tensor.file.open("r+b") as file:
        file.seek(tensor.start + 8)
        file.write(struct.pack("<f", np.nan))


def add_tensor(path, dtype="F32", shape=(2,)):
    file = path / "model-extra.safetensors"
    header = json.dumps({"strange": {"dtype": dtype, "shape": shape, "data_offsets": [0, 8]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["strange"] = file.name
    (path / INDEX).write_text(json.dumps(index))


def lying_header(path, header=None, length=None):
    header = json.dumps(header or {"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    shard(path).write_bytes(struct.pack("<Q", length or len(header)) + header + bytes(12))


OVERLAP = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
}
BAD = {
    "a model type of no text": (
        lambda p: edit(p / "config.json", model_type=["gpt2"]),
        r"model_type=\['gpt2'\]: transformer_jax converts",
    ),
    "an activation of no text": (
        lambda p: edit(p / "config.json", activation_function=["gelu"]),
        r"activation_function=\['gelu'\]: expected one of",
    ),
    "rotary positions of no object": (
        lambda p: edit(p / "config.json", **LLAMA, rope_scaling="linear"),
        "rope_scaling='linear': expected an object",
    ),
    "numbers that are not finite": (
        with_nan,
        r"parameters are not finite: transformer\.ln_f\.bias: 1 of 8 numbers, the first is nan at \[2\]",
    ),
    "no folder": (shutil.rmtree, "there is no such folder"),
    "no config": (lambda p: (p / "config.json").unlink(), r"has no config\.json"),
    "no JSON": (lambda p: (p / "config.json").write_text("{"), r"config\.json: cannot be read"),
    "a list": (lambda p: (p / "config.json").write_text("[]"), r"config\.json: cannot be read: it holds a list"),
    "model_type": (
        lambda p: edit(p / "config.json", model_type="gptx"),
        r"model_type='gptx': transformer_jax converts gpt2, llama",
    ),
    "pickled": (
        lambda p: [(p / INDEX).rename(p / "pytorch_model.bin"), *(f.unlink() for f in p.glob("model-*"))],
        r"has pytorch_model\.bin but no model\.safetensors.*unpickling runs code.*save_pretrained",
    ),
    "shard missing": (lambda p: shard(p).unlink(), r"1 of \d+ files are missing: model-00002"),
    "shard cut": (lambda p: shard(p).write_bytes(shard(p).read_bytes()[:-5]), "is damaged or cut short"),
    "shard empty": (lambda p: shard(p).write_bytes(b""), "is damaged or cut short"),
    "header beyond the file": (lying_header, "is damaged or cut short"),
    "overlapping tensors": (lambda p: lying_header(p, OVERLAP), "is damaged or cut short"),
    "huge header": (lambda p: lying_header(p, length=1 << 50), "is damaged or cut short: its header would have"),
    "index of another file": (
        lambda p: shard(p).write_bytes(shard(p, 0).read_bytes()),
        r"lacks the tensor|is in model-\d+-of-\d+\.safetensors too",
    ),
    "path in the index": (
        lambda p: (p / INDEX).write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}})),
        r"the file name '\.\./a\.safetensors' of 'a' has a path in it",
    ),
    "no index": (lambda p: (p / INDEX).write_text("{}"), "is not an index of tensors"),
    "tensor missing": (drop_tensor, r"transformer\.ln_f\.bias: is missing"),
    "tensor unknown": (add_tensor, "strange: unknown tensor"),
    "another shape": (
        lambda p: edit(p / "config.json", n_inner=16), r"has the shape \(8, 24\), config.* says \(8, 16\)"
    ),
    "unknown activation": (
        lambda p: edit(p / "config.json", activation_function="tanh"), "activation_function='tanh': expected one of"
    ),
    "a value that is not supported": (
        lambda p: edit(p / "config.json", scale_attn_by_inverse_layer_idx=True),
        "scale_attn_by_inverse_layer_idx=True: transformer_jax supports only False",
    ),
    "scaled rotary": (
        lambda p: edit(p / "config.json", **LLAMA, rope_scaling={"rope_type": "llama3", "factor": 8.0}),
        "rope_scaling with rope_type='llama3': transformer_jax cannot scale rotary positions",
    ),
    "heads": (lambda p: edit(p / "config.json", n_head=3), "num_heads=3 does not divide emb_dim=8"),
    "a size of no number": (lambda p: edit(p / "config.json", n_embd=0), "n_embd=0: expected an integer, at least 1"),
    "a width as text": (lambda p: edit(p / "config.json", n_inner="8"), "n_inner='8': expected an integer"),
    "an epsilon of no number": (lambda p: edit(p / "config.json", layer_norm_epsilon="x"), "norm_epsilon='x'"),
    "a switch of no truth value": (
        lambda p: edit(p / "config.json", scale_attn_weights="no"), "scale_attn_weights='no': expected true or false"
    ),
    "too many ids": (
        lambda p: edit(p / "config.json", vocab_size=99, bos_token_id=3), r"tokenizer has \d+ ids, its embedding only"
    ),
    "no tokenizer": (
        lambda p: [(p / n).unlink() for n in ("tokenizer.json", "tokenizer_config.json")],
        r"has no tokenizer, which a checkpoint needs; expected tokenizer\.json",
    ),
    "another tokenizer": (lambda p: (p / "tokenizer.json").write_text("{}"), "are not a model of byte-level BPE"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_refused_and_nothing_is_written(name, whole, tmp_path, capsys):
    damage, message = BAD[name]
    damage(whole)
    before = sorted(tmp_path.iterdir())
    code = main(["convert", f"--from={whole}", f"--workdir={tmp_path / 'run'}"])
    error = capsys.readouterr().err
    assert code == 2
    with pytest.raises(CheckpointError, match=rf"(?s){message}"):
        raise CheckpointError(error)
    assert sorted(tmp_path.iterdir()) == before


def test_special_ids_without_a_tokenizer(tmp_path, tokenizers):
    """Those of the tokenizer are kept when it is left out, and again when the model alone is read and written."""
    config = gpt2(tokenizers["byte_bpe"])
    params, ids = random_params(config), tokenizers["byte_bpe"].special_ids
    save_pretrained(tmp_path / "known", config, params, special_ids=ids)
    model = from_pretrained(tmp_path / "known")
    assert model.tokenizer is None
    assert model.special_ids == SpecialIds(pad=ids.pad, eos=ids.eos)
    save_pretrained(tmp_path / "again", model.config, model.params, special_ids=model.special_ids)
    save_pretrained(tmp_path / "unknown", config, params)
    for file in ("config.json", "generation_config.json"):
        known, again, unknown = (
            json.loads((tmp_path / name / file).read_text()) for name in ("known", "again", "unknown")
        )
        assert (known["pad_token_id"], known["eos_token_id"]) == (ids.pad, ids.eos)
        assert again == known
        assert (unknown["pad_token_id"], unknown["eos_token_id"]) == (None, None)
    assert from_pretrained(tmp_path / "unknown").special_ids == SpecialIds()


def test_a_type_that_we_do_not_read_is_named(tmp_path, tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    save_pretrained(tmp_path / "folder", config, random_params(config))
    data = bytearray((tmp_path / "folder" / SINGLE).read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].decode().replace('"F32"', '"I32"', 1)
    data[8 : 8 + length] = header.encode()
    (tmp_path / "folder" / SINGLE).write_bytes(data)
    with pytest.raises(CheckpointError, match="has the type I32; expected F32, F16, BF16"):
        from_pretrained(tmp_path / "folder")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_are_read_exactly(dtype, tmp_path, tokenizers):
    import ml_dtypes

    config = gpt2(tokenizers["byte_bpe"])
    params = random_params(config)
    save_pretrained(tmp_path / "folder", config, params, dtype=dtype)
    narrow = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    table = from_pretrained(tmp_path / "folder").params["embedding"]["embedding"]
    expected = np.asarray(params["embedding"]["embedding"]).astype(narrow).astype(np.float32)
    np.testing.assert_array_equal(table, expected)


def test_settings_of_generation_are_written(tmp_path, tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    for name, decode in (("off", DecodeConfig()), ("on", DecodeConfig(no_repeat_ngram=3, max_new_tokens=5))):
        save_pretrained(tmp_path / name, config, random_params(config), decode=decode)
    off, on = (json.loads((tmp_path / name / "generation_config.json").read_text()) for name in ("off", "on"))
    assert "no_repeat_ngram_size" not in off
    assert (on["no_repeat_ngram_size"], on["max_new_tokens"]) == (3, 5)


def test_tensors_that_repeat_others_are_compared(tmp_path, tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    save_pretrained(tmp_path / "folder", config, random_params(config))
    found = TensorFiles(tmp_path / "folder")
    arrays = {name: np.array(found.read(name)) for name in found.tensors}
    arrays["lm_head.weight"] = arrays["transformer.wte.weight"].copy()
    arrays["transformer.h.0.attn.bias"] = np.ones((1, 1, 40, 40), np.float32)
    for name in ("copy", "other"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "folder" / "config.json", tmp_path / name)
    write_tensors(tmp_path / "copy", [Outgoing(n, x.shape, lambda x=x: x) for n, x in arrays.items()])
    ignored = from_pretrained(tmp_path / "copy").ignored
    assert ignored["lm_head.weight"] == "the same numbers as transformer.wte.weight"
    assert ignored["transformer.h.0.attn.bias"] == "the causal mask, which is computed"
    arrays["lm_head.weight"][0, 0] += 1
    write_tensors(tmp_path / "other", [Outgoing(n, x.shape, lambda x=x: x) for n, x in arrays.items()])
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: differs from transformer\.wte\.weight"):
        from_pretrained(tmp_path / "other")


def test_names_without_the_prefix_are_read(whole):
    before = open_folder(whole).load().params
    found = TensorFiles(whole)
    arrays = {name.removeprefix("transformer."): np.array(found.read(name)) for name in found.tensors}
    for file in [*whole.glob("model-*"), whole / INDEX]:
        file.unlink()
    write_tensors(whole, [Outgoing(n, x.shape, lambda x=x: x) for n, x in arrays.items()])
    after = from_pretrained(whole).params
    np.testing.assert_array_equal(after["embedding"]["embedding"], before["embedding"]["embedding"])


def test_a_folder_that_is_not_empty_stays_as_it_is(whole, tmp_path):
    config = open_folder(whole).config
    before = {file: file.read_bytes() for file in whole.iterdir()}
    with pytest.raises(CheckpointError, match=r"whole: is not empty; choose another"):
        save_pretrained(whole, config, random_params(config))
    assert {file: file.read_bytes() for file in whole.iterdir()} == before


def test_an_interrupted_conversion_leaves_nothing_that_looks_whole(tmp_path, tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    params = random_params(config)

    def die(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_pretrained(tmp_path / "folder", config, params, advance=die)
    assert not list(tmp_path.iterdir())
    # A killed process cleans nothing up; the next one does.
    (tmp_path / ".folder.partial").mkdir()
    (tmp_path / ".folder.partial" / SINGLE).write_bytes(b"half")
    save_pretrained(tmp_path / "folder", config, params)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("kind", "encoder_decoder"), [("byte_bpe", False), ("unigram", False), ("bpe", False), ("unigram", True)]
)
def test_tokenizers_there_and_back(kind, encoder_decoder, tmp_path, tokenizers):
    tokenizer = tokenizers[kind]
    files = tokenizer_files(tokenizer, 40, Frame(end=1) if encoder_decoder else Frame(), marian=encoder_decoder)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert read_folder_tokenizer(tmp_path).model_bytes == tokenizer.model_bytes
    settings = json.loads(files["tokenizer_config.json"])
    assert settings["eos_token"] == "</s>"
    assert settings["split_special_tokens"] is True
    if encoder_decoder:
        assert json.loads(files["vocab.json"])["</s>"] == 1
        return
    theirs = Tokenizer.from_str(files["tokenizer.json"].decode())
    theirs.encode_special_tokens = True
    ours = tokenizer.encode_batch(TEXTS + ODD)
    for i, text in enumerate(TEXTS + ODD):
        ids = ours.ids[ours.offsets[i] : ours.offsets[i + 1]].tolist()
        assert theirs.encode(text, add_special_tokens=False).ids == ids, text


def test_a_sentence_piece_model_with_the_ids_of_llama(tmp_path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3), model_writer=model, vocab_size=290, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    tokenizer = read_folder_tokenizer(tmp_path)
    assert tokenizer.special_ids == SpecialIds(pad=None, eos=2, unk=0, bos=1)
    files = tokenizer_files(tokenizer, 40, Frame())
    assert json.loads(files["special_tokens_map.json"]) == {
        "eos_token": "</s>", "unk_token": "<unk>", "bos_token": "<s>"
    }  # fmt: skip
    theirs = Tokenizer.from_str(files["tokenizer.json"].decode())
    theirs.encode_special_tokens = True
    ours = tokenizer.encode_batch(TEXTS + ODD)
    for i, text in enumerate(TEXTS + ODD):
        assert theirs.encode(text).ids == ours.ids[ours.offsets[i] : ours.offsets[i + 1]].tolist(), text
    assert tokenizer.decode(ours.ids[: ours.offsets[1]]) == TEXTS[0]


def test_the_command_in_both_directions(whole, tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out"
    assert main(["inspect", f"--folder={whole}", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["family"], report["tokenizer"]) == ("GPT-2", "byte_bpe, 280 ids")
    assert report["ignored"]["architectures"] == "a note about the file"
    assert main(["convert", f"--from={whole}", f"--workdir={run}"]) == 0
    assert main(["convert", f"--checkpoint={run}", f"--to={out}"]) == 0
    assert "MB/s" in capsys.readouterr().err
    loaded, config = load(run), json.loads((run / "config.json").read_text())
    assert ExperimentConfig.from_config_dict(config) == loaded.config
    assert loaded.corpus is None
    before, after = TensorFiles(whole), TensorFiles(out)
    assert {n: before.read(n).tobytes() for n in before.tensors} == {n: after.read(n).tobytes() for n in after.tensors}
    assert (out / "tokenizer.json").read_bytes() == (whole / "tokenizer.json").read_bytes()
    generation = json.loads((out / "generation_config.json").read_text())
    assert generation["eos_token_id"] == 1
    assert generation["num_beams"] == 1
    for changed in ([], ["--config.training.num_train_steps=7"]):  # of the right advice, whatever the config
        assert main(["train", f"--config={run / 'config.json'}", f"--workdir={run}", *changed]) == 2
        err = capsys.readouterr().err
        assert "has converted parameters, and no training to resume; start one in another --workdir with" in err
        assert f"--config.training.init_from={run}" in err
        assert "--allow_config_change" not in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "convert takes one of --from=FOLDER --workdir=... and --checkpoint=... --to=FOLDER"),
        (["--from=x", "--to=y"], "convert takes one of"),
        (["--from=x"], "--workdir=... is missing"),
        (["--to=x"], "--checkpoint=... is missing"),
        (["--to=x", "--checkpoint=y", "--family=gtp2"], "family='gtp2': expected one of gpt2, llama, marian"),
        (["--to=x", "--checkpoint=y", "--config=quickstart"], "--config is for --from"),
        (["--from=x", "--workdir=y", "--config=quickstart"], "x: there is no such folder"),
        (["--from=x", "--workdir=y", "--dtype=bfloat16"], "--dtype is for convert --checkpoint=... --to=FOLDER"),
        (["--to=x", "--checkpoint=y", "--workdir=z"], "--workdir is for convert --from=FOLDER"),
    ],
)
def test_wrong_arguments(argv, message, capsys):
    assert main(["convert", *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_config_of_another_task_is_refused(whole, tmp_path, capsys):
    assert main(["convert", f"--from={whole}", f"--workdir={tmp_path / 'run'}", "--config=quickstart"]) == 2
    assert "task.name='translation': GPT-2 needs 'language_model'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def published(tokenizers):
    """Return the files of a tokenizer as of Marian's published models: two cuts, ids of vocab.json, padding last."""
    source, target = tokenizers["unigram"], tokenizers["bpe"]
    pieces = [piece for t in (source, target) for piece in t.tokens(range(t.vocab_size))]
    tokens = [t for t in dict.fromkeys(["</s>", "<unk>", *pieces]) if t not in ("<pad>", "<s>")]
    ids = {token: id for id, token in enumerate([*tokens, "<pad>"])}
    vocabulary = json.dumps(ids, indent=1).encode()
    return {"source.spm": source.model_bytes, "target.spm": target.model_bytes, "vocab.json": vocabulary}


def marian(vocab_size, **fields):
    return tiny(
        vocab_size=vocab_size, norm_position="post", norm_epsilon=1e-5, emb_dim=8, num_heads=2, mlp_dim=12,
        num_encoder_layers=1, num_decoder_layers=1, max_length=40, decoder_start_id=vocab_size - 1, **fields,
    )  # fmt: skip


@pytest.fixture
def translator(tmp_path, published):
    """Return a folder of the form of Marian's published models."""
    config = marian(len(json.loads(published["vocab.json"])))
    save_pretrained(tmp_path / "marian", config, random_params(config))
    for name, data in published.items():
        (tmp_path / "marian" / name).write_bytes(data)
    return tmp_path / "marian"


def test_a_tokenizer_of_the_form_of_published_marian_models(translator, published, tmp_path, tokenizers):
    run, out = tmp_path / "run", tmp_path / "out"
    assert main(["convert", f"--from={translator}", f"--workdir={run}"]) == 0
    loaded, ids = load(run), json.loads(published["vocab.json"])
    assert loaded.tokenizer.special_ids == SpecialIds(pad=len(ids) - 1, eos=0, unk=1)
    assert not loaded.config.data.separate_tokenizers
    text = TEXTS[0]
    for side, kind in ((loaded.tokenizer.source, "unigram"), (loaded.tokenizer, "bpe")):
        cut = tokenizers[kind].tokens(tokenizers[kind].encode_batch([text]).ids)
        assert side.encode_batch([text]).ids.tolist() == [ids[token] for token in cut]
    assert main(["generate", f"--checkpoint={run}", f"--text={text}", "--decode.max_new_tokens=3"]) == 0
    assert main(["convert", f"--checkpoint={run}", f"--to={out}"]) == 0
    assert {name: (out / name).read_bytes() for name in published} == published
    config = json.loads((out / "config.json").read_text())
    assert (config["pad_token_id"], config["eos_token_id"]) == (len(ids) - 1, 0)
    assert config["decoder_start_token_id"] == len(ids) - 1


def renumber(path, **ids):
    file = path / "vocab.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | ids))


BAD_MARIAN = {
    "an id beyond the rows": (lambda p: renumber(p, more=len(json.loads((p / "vocab.json").read_text()))), "only"),
    "an id twice": (lambda p: renumber(p, more=0), "an id occurs twice"),
    "no target": (lambda p: (p / "target.spm").unlink(), r"lacks target\.spm; expected source\.spm"),
    "damaged model": (lambda p: (p / "source.spm").write_bytes(b"x"), "are not a SentencePiece model"),
    "separate": (
        lambda p: [edit(p / "tokenizer_config.json", separate_vocabs=True),
                   shutil.copy(p / "vocab.json", p / "target_vocab.json")],
        r"separate_vocabs=true, but its model has one embedding table",
    ),
    "settings": (lambda p: (p / "tokenizer_config.json").write_text("[]"), "tokenizer_config.json: it holds a list"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_MARIAN)
def test_bad_tokenizers_of_marian(name, translator):
    damage, message = BAD_MARIAN[name]
    (translator / "tokenizer_config.json").write_text("{}")
    damage(translator)
    with pytest.raises(CheckpointError, match=message):
        from_pretrained(translator)


def test_separate_tokenizers_that_transformers_does_not_have(tokenizers):
    pair = TokenizerPair(tokenizers["byte_bpe"], tokenizers["unigram"])
    for encoder_decoder in (True, False):
        with pytest.raises(ConfigError, match="TokenizerPair: transformers has no such tokenizer"):
            tokenizer_files(pair, 40, Frame(end=1), marian=encoder_decoder)


def test_an_end_that_the_tokenizer_does_not_have_is_named(whole):
    edit(whole / "config.json", eos_token_id=[1, 2])
    assert open_folder(whole).ignored["eos_token_id"] == "[1, 2] there; here a text ends at 1, by the tokenizer"


def test_parameters_of_another_config_are_refused(tmp_path, tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    params = random_params(config)
    for other, message in (
        (
            dataclasses.replace(config, vocab_size=30),
            r"params: embedding/embedding has the shape \(283, 8\), .* \(30, 8\)",
        ),
        (dataclasses.replace(config, tie_output=False), "output/kernel has the shape of nothing, it is missing"),
    ):
        with pytest.raises(ConfigError, match=message):
            save_pretrained(tmp_path / "folder", other, params)
    with pytest.raises(ConfigError, match="dtype='int8': expected one of float32, float16, bfloat16"):
        save_pretrained(tmp_path / "folder", config, params, dtype="int8")
    assert not list(tmp_path.iterdir())


def test_numbers_that_float16_cannot_hold_are_named(tmp_path, tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    params = jax.tree.map(lambda x: 1e6 * x, random_params(config))
    with pytest.raises(CheckpointError, match="has numbers too large for float16; use bfloat16 or float32"):
        save_pretrained(tmp_path / "folder", config, params, dtype="float16")
    assert not list(tmp_path.iterdir())


def test_settings_of_generation(tokenizers):
    config = gpt2(tokenizers["byte_bpe"])
    assert generation_settings(config, None) == ({}, [])
    sampled = DecodeConfig(method="sample", top_p=0.9, min_p=0.1, num_samples=2, repetition_penalty=1.5)
    assert generation_settings(config, sampled) == (
        {
            **{"do_sample": True, "max_new_tokens": 50, "num_return_sequences": 2, "temperature": 1.0},
            **{"top_p": 0.9, "top_k": 0, "min_p": 0.1},
        },
        ["decode.repetition_penalty=1.5"],
    )
    beam = DecodeConfig(beam_size=4, min_length=3, forbidden_ids="5,7", prefix_ids="9", max_new_tokens=8)
    assert generation_settings(config, beam) == (
        {
            **{"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 3, "suppress_tokens": [5, 7]},
            **{"num_beams": 4, "early_stopping": "never"},
        },
        ["decode.prefix_ids='9'", "decode.length_penalty='gnmt'", "decode.cut_hypotheses='last'"],
    )
    average = dataclasses.replace(
        beam, length_penalty="average", prefix_ids="", early_stop="first", cut_hypotheses="compete"
    )
    keys, left_out = generation_settings(config, average)
    assert (keys["length_penalty"], keys["early_stopping"], left_out) == (1.0, True, [])
    assert generation_settings(tiny(), DecodeConfig()).keys["max_new_tokens"] == 11


def test_labels_that_a_classifier_cannot_have_are_refused(tmp_path):
    config = tiny(
        architecture="encoder_only", position_encoding="learned", scale_embeddings=False, embedding_norm=True,
        token_types=2, activation="gelu",
    )  # fmt: skip
    task = TaskConfig(name="classification", num_labels=3, pooler=True)
    params = random_params(config, head=TASKS["classification"].head(task, config))
    save_pretrained(tmp_path / "folder", config, params, task=task, labels=("a", "b", "c"))
    for values, message in (
        ({"problem_type": "regression"}, "problem_type='regression': transformer_jax has only heads"),
    ):
        shutil.copytree(tmp_path / "folder", tmp_path / "other", dirs_exist_ok=True)
        edit(tmp_path / "other" / "config.json", **values)
        with pytest.raises(CheckpointError, match=message):
            open_folder(tmp_path / "other")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_that_are_not_finite_are_not_written(tmp_path, dtype):
    tensors = [Outgoing("a", (2,), lambda: np.float32([1, np.inf]))]
    with pytest.raises(CheckpointError, match=r"a: 1 of 2 numbers, the first is inf at \[1\]"):
        write_tensors(tmp_path, tensors, dtype)
