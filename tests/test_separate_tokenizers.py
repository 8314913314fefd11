"""A whole run with separate tokenizers of source and target: training, resuming, scores, outputs, conversion."""

import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_support import argv, run_main, write_corpus

from transformer_jax.checkpoints.manifest import SUMS
from transformer_jax.convert.folder import from_pretrained
from transformer_jax.errors import CheckpointError
from transformer_jax.evaluation.loading import load, load_translator
from transformer_jax.inspection.attention import attention_maps
from transformer_jax.inspection.embeddings import embeddings
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.trained.lines import Line

pytestmark = pytest.mark.slow

TWO = (
    *("--config.data.separate_tokenizers", "--config.model.share_embeddings=false", "--config.model.vocab_size=280"),
    *("--config.model.source_vocab_size=276", "--config.model.norm_position=post"),
    "--config.model.norm_epsilon=1e-5",
)


def train(folder, *flags):
    return run_main(argv("train", folder, *TWO, *flags))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a corpus, whose sides have different letters, with a trained run."""
    folder = write_corpus(tmp_path_factory.mktemp("two"))
    for file in folder.glob("*.de"):
        file.write_text(file.read_text().translate(str.maketrans("0123456789", "abcdefghij")))
    assert train(folder) == 0
    return folder


@pytest.fixture
def copied(folder, tmp_path):
    return Path(shutil.copytree(folder / "run", tmp_path / "run"))


def test_both_tokenizers_are_in_the_checkpoint(folder):
    checkpoint = folder / "run" / "checkpoints" / "8"
    for name in ("tokenizer.model", "source_tokenizer.model"):
        assert (checkpoint / name).read_bytes() == (folder / "run" / name).read_bytes()
        assert name in (checkpoint / SUMS).read_text()
    params = load(folder / "run").params
    assert params["source_embedding"]["embedding"].shape == (276, 16)
    assert params["embedding"]["embedding"].shape == (280, 16)


def test_inputs_are_read_with_the_source_tokenizer(folder):
    translator = load_translator(folder / "run")
    source, target = translator.tokenizer.source, translator.tokenizer
    batch = translator.batch([("12 3", "abc b")])
    assert batch["inputs"].tolist() == [[*source.encode_batch(["12 3"]).ids, 1]]
    assert batch["targets"].tolist() == [[*target.encode_batch(["abc b"]).ids, 1]]
    assert translator.encode_sources(["12 3"]) == batch["inputs"].tolist()
    assert "276 and 280 ids" in repr(translator)
    # A search scores its own output as teacher forcing does: both read the source with the same ids.
    (outputs,) = translator.generate_chunk([Line("12 3 45")])
    best = outputs.outputs[0]
    maps = attention_maps(translator, "12 3 45")
    assert maps.source == source.tokens(translator.encode_sources(["12 3 45"])[0])
    assert maps.predicted == target.tokens(best.ids)
    batch = {"inputs": jnp.array(translator.encode_sources(["12 3 45"])), "decoder_inputs": [[3, *best.ids[:-1]]]}
    batch = {name: jnp.asarray(ids, jnp.int32) for name, ids in batch.items()}
    module = ARCHITECTURES["encoder_decoder"].module(translator.config.model)
    logits = module.apply({"params": translator.params}, batch)
    found = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits))[0], np.array(best.ids)[:, None], 1)[:, 0]
    np.testing.assert_allclose(found, best.log_probs, atol=1e-4)


def test_embeddings_have_the_tokenizer_of_their_side(folder):
    loaded = load(folder / "run")
    for side, size in (("source", 276), ("target", 280)):
        found = embeddings(loaded.params, loaded.tokenizer, side)
        assert (len(found.table), found.tokenizer.vocab_size) == (size, size)


def test_commands(folder, copied, tmp_path, capsys):
    flags = [f"--checkpoint={copied}"]
    assert run_main(["evaluate", *flags, f"--data.dir={folder}", "--splits=test"]) == 0
    assert json.loads((copied / "evaluation" / "test.json").read_text())["tokens"] > 0
    capsys.readouterr()
    assert run_main(["generate", *flags, "--text=12 3", f"--ensemble={copied / 'checkpoints' / '5'}"]) == 0
    assert run_main(["inspect", *[f"--config={copied / 'config.json'}"], "--json"]) == 0
    assert "source_embedding" in capsys.readouterr().out


def test_resuming_and_starting_from_it(folder, tmp_path, capsys):
    shutil.copytree(folder / "run", tmp_path / "run")
    for name in ("tokenizer.model", "source_tokenizer.model"):
        (tmp_path / "run" / name).unlink()
    files = [f"--config={folder / 'tiny.py'}", f"--config.data.dir={folder}"]
    more = [*files, *TWO, f"--workdir={tmp_path / 'run'}", "--config.training.num_train_steps=8"]
    assert run_main(["train", *more]) == 0
    shutil.copy(folder / "run" / "tokenizer.model", tmp_path / "run" / "source_tokenizer.model")
    assert run_main(["train", *more]) == 2
    assert re.search(r"source_tokenizer\.model is not the tokenizer of checkpoint 8", capsys.readouterr().err)
    new = [*files, *TWO, f"--workdir={tmp_path / 'new'}", f"--config.training.init_from={folder / 'run'}"]
    assert run_main(["train", *new, "--config.training.num_train_steps=1"]) == 0
    for name in ("tokenizer.model", "source_tokenizer.model"):
        assert (tmp_path / "new" / name).read_bytes() == (folder / "run" / name).read_bytes()
    assert "training the source tokenizer" not in capsys.readouterr().err


def without_source_tokenizer(checkpoint):
    """Make a checkpoint that never had the file; if it is only deleted, the checkpoint is damaged."""
    (checkpoint / "source_tokenizer.model").unlink()
    lines = (checkpoint / SUMS).read_text().splitlines(keepends=True)
    (checkpoint / SUMS).write_text("".join(line for line in lines if "source_tokenizer" not in line))


def test_a_checkpoint_without_its_source_tokenizer(folder, copied, tmp_path, capsys):
    checkpoint = copied / "checkpoints" / "8"
    (checkpoint / "source_tokenizer.model").rename(tmp_path / "aside")
    generate = ["generate", f"--checkpoint={checkpoint}", "--text=1"]
    assert run_main(generate) == 2
    assert "source_tokenizer.model is missing" in capsys.readouterr().err
    (tmp_path / "aside").rename(checkpoint / "source_tokenizer.model")
    without_source_tokenizer(checkpoint)
    assert run_main(generate) == 2
    assert "source_tokenizer.model is missing" in capsys.readouterr().err
    files = [f"--config={folder / 'tiny.py'}", f"--config.data.dir={folder}"]
    start = [*files, f"--workdir={tmp_path / 'new'}", f"--config.training.init_from={checkpoint}"]
    assert run_main(["train", *start, *TWO]) == 2
    message = r"8: source_tokenizer\.model is missing, which data\.separate_tokenizers=true needs"
    assert re.search(message, capsys.readouterr().err)


def test_a_start_from_it_with_one_tokenizer_is_refused(folder, tmp_path, capsys):
    files = [f"--config={folder / 'tiny.py'}", f"--config.data.dir={folder}", "--config.model.share_embeddings=false"]
    same = ["--config.model.vocab_size=280", "--config.model.source_vocab_size=276"]
    start = [*files, f"--workdir={tmp_path / 'new'}", f"--config.training.init_from={folder / 'run'}"]
    assert run_main(["train", *start, *same]) == 2
    assert "set data.separate_tokenizers=true" in capsys.readouterr().err


def test_conversion_in_both_directions(folder, copied, tmp_path, capsys):
    theirs, back = tmp_path / "theirs", tmp_path / "back"
    assert run_main(["convert", f"--checkpoint={copied}", f"--to={theirs}"]) == 0
    settings, config = (json.loads((theirs / name).read_text()) for name in ("tokenizer_config.json", "config.json"))
    assert settings["separate_vocabs"] is True
    sizes = {name: config[name] for name in ("vocab_size", "decoder_vocab_size", "share_encoder_decoder_embeddings")}
    assert sizes == {"vocab_size": 276, "decoder_vocab_size": 280, "share_encoder_decoder_embeddings": False}
    assert len(json.loads((theirs / "vocab.json").read_text())) == 276
    assert len(json.loads((theirs / "target_vocab.json").read_text())) == 280
    assert (theirs / "source.spm").read_bytes() == (copied / "source_tokenizer.model").read_bytes()
    assert run_main(["convert", f"--from={theirs}", f"--workdir={back}"]) == 0
    one, other = load(copied), load(back)
    assert other.config.data.separate_tokenizers
    assert other.tokenizer.sha256 == one.tokenizer.sha256
    jax.tree.map(np.testing.assert_array_equal, other.params, one.params)
    texts = [load_translator(path).translate_all(["12 3", "4"]) for path in (copied, back)]
    assert texts[0] == texts[1]
    capsys.readouterr()
    for name, damage, message in [
        ("a", lambda p: (p / "target_vocab.json").unlink(), r"its Marian tokenizer lacks target_vocab\.json"),
        ("b", lambda p: (p / "source.spm").unlink(), r"its Marian tokenizer lacks source\.spm"),
        ("c", lambda p: add_tokens(p / "vocab.json"), "its source tokenizer has 277 ids, its embedding only 276 rows"),
        ("d", lambda p: add_tokens(p / "target_vocab.json"), "its target tokenizer has 281 ids, .* only 280 rows"),
    ]:
        damage(Path(shutil.copytree(theirs, tmp_path / name)))
        with pytest.raises(CheckpointError, match=message):
            from_pretrained(tmp_path / name)


def add_tokens(file):
    ids = json.loads(file.read_text())
    file.write_text(json.dumps(ids | {"more": len(ids)}))
