"""The commands that look inside a run: their files, tables and errors."""

import csv
import dataclasses

import numpy as np
import pytest
from run_support import run_main, trained_folder
from support import tiny

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.cli.attention import _check_finite
from transformer_jax.cli.main import main
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import DataError
from transformer_jax.evaluation.loading import load
from transformer_jax.inspection.attention import KINDS, capture
from transformer_jax.models.architecture import init_params


@pytest.fixture(scope="module")
def run():
    return trained_folder() / "run"


@pytest.fixture
def refused(capsys):
    """Run a command that must be refused; return its message."""

    def words(*argv):
        assert main(list(argv)) == 2
        return capsys.readouterr().err.removeprefix("transformer-jax: error: ").strip()

    return words


def test_attention(run, tmp_path, capsys):
    flags = [f"--checkpoint={run}", "--text=12 7", "--target=7 <b>", f"--output={tmp_path / 'new' / 'folder'}"]
    assert run_main(["attention", *flags]) == 0
    folder = tmp_path / "new" / "folder"
    pictures = [f"{kind}_layer_0.png" for kind in KINDS]
    assert {path.name for path in folder.iterdir()} == {"attention.html", "attention.npz", *pictures}
    arrays = np.load(folder / "attention.npz")
    loaded = load(run)
    inputs, targets = ([*loaded.tokenizer.encode_batch([text]).ids.tolist(), 1] for text in ("12 7", "7 <b>"))
    batch = {"inputs": np.array([inputs], np.int32), "decoder_inputs": np.array([[3, *targets[:-1]]], np.int32)}
    for kind, weights in capture(loaded.config.model, loaded.params, batch)[1].items():
        np.testing.assert_array_equal(arrays[kind], weights[:, 0])
    assert arrays["source"].tolist() == loaded.tokenizer.tokens(inputs)
    assert arrays["predicted"].tolist() == loaded.tokenizer.tokens(targets)
    out = capsys.readouterr().out
    assert "text: 12 7\ntarget: 7 <b>\n" in out
    weights = arrays["encoder_self_attention"][0, 1].astype(np.float64)
    entropy = -(weights * np.log(weights)).sum(-1).mean()
    (line,) = [line for line in out.splitlines() if "Encoder self-attention" in line]
    assert line.replace("│", "").split()[-2] == f"{entropy:.3f}"


@pytest.mark.slow
def test_attention_of_a_translation_goes_to_the_run(tmp_path, run, capsys):
    linked = tmp_path / "run"
    linked.mkdir()
    (linked / "checkpoints").symlink_to(run / "checkpoints")
    for path, folder in ((linked, "attention"), (linked / "checkpoints" / "8", "attention/step_8")):
        flags = [f"--checkpoint={path}", "--text=12 7", "--layer=0", "--head=1", "--decode.beam_size=2"]
        assert run_main(["attention", *flags]) == 0
        assert (linked / folder / "attention.html").exists()
        out = capsys.readouterr().out
        assert "translation: " in out
        assert "head 1" in out
        assert "head 0" not in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--text=... is missing: the source sentence"),
        (["--text="], "--text is empty; give a sentence"),
        (["--text= "], "--text is empty; give a sentence"),
        (["--text=1", "--target="], "--target is empty; give a sentence"),
        (
            ["--text=1", "--layer=1"],
            "--layer=1: the model has layers 0 to 0 of the encoder, layers 0 to 0 of the decoder",
        ),
        (["--text=1", "--head=2"], "--head=2: the model has heads 0 to 1"),
        (["--text=1", "--head=-1"], "--head=-1: expected at least 0"),
        (["--text=1", "--output=/dev/null/x"], "--output=/dev/null/x: cannot be made: Not a directory"),
        (["--text=" + "1 2 " * 60], "a picture shows at most 120"),
    ],
)
def test_attention_that_cannot_be_shown(run, refused, flags, message):
    assert message in refused("attention", f"--checkpoint={run}", *flags)
    assert not (run / "attention" / "attention.html").exists()


@pytest.mark.slow
def test_attention_of_a_model_without_an_encoder(tmp_path, refused):
    config = ExperimentConfig(model=tiny()).resolved()
    params = init_params(dataclasses.replace(config.model, architecture="decoder_only"), 0)
    with CheckpointStore(tmp_path / "checkpoints") as store:
        record = {"config": config.to_dict(), "corpus": None}
        store.save(1, {"params": params}, record, {"tokenizer.model": b"words\na\n"})
    message = refused("attention", f"--checkpoint={tmp_path}", "--text=a")
    assert message.startswith(f"{tmp_path}/checkpoints/1: ")
    assert "arrays differ from those of this config" in message


def test_plot_of_a_config(tmp_path, capsys):
    flags = ["--config=configs/quickstart.py", "--config.model.position_encoding=learned"]
    assert main(["plot", *flags, f"--output={tmp_path}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"learning_rate.png", "masks.png"}
    out = capsys.readouterr().out
    assert f"{tmp_path / 'learning_rate.png'}: cosine, warm-up 200 of 1,900 steps, highest rate 0.003\n" in out
    assert "position_encoding=learned: to draw the learned table, pass --checkpoint=WORKDIR" in out


def test_plot_of_a_recurrent_model(tmp_path, capsys):
    assert main(["plot", "--config=configs/recurrent.py", f"--output={tmp_path}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"learning_rate.png"}
    assert "model.architecture=recurrent: there are no positions and no masks to draw" in capsys.readouterr().out


def test_plot_of_a_checkpoint(tmp_path, run, capsys):
    assert run_main(["plot", f"--checkpoint={run}", f"--output={tmp_path}"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"learning_rate.png", "masks.png", "positions_sinusoidal.png"}
    assert "constant, warm-up 2 of 8 steps, highest rate 0.01" in capsys.readouterr().out


def test_a_diagram_of_a_config(tmp_path, capsys):
    flags = ["plot", "--diagram", "--config=quickstart"]
    for ending in ("svg", "pdf", "png"):
        file = tmp_path / "new" / f"a.{ending}"
        assert main([*flags, f"--output={file}"]) == 0
        assert capsys.readouterr().out.startswith(f"{file}: Diagram of a model. encoder: token embedding (2,000")
    assert {path.name for path in file.parent.iterdir()} == {"a.svg", "a.pdf", "a.png"}
    before = (tmp_path / "new" / "a.svg").read_text()
    other = tmp_path / "b.svg"
    assert main([*flags, f"--output={other}", "--config.model.norm=rmsnorm", "--config.model.num_heads=2"]) == 0
    after = other.read_text()
    assert before.count(">layernorm<") == after.count(">rmsnorm<") == 7
    assert before.count(">4 heads, d_k = 32<") == after.count(">2 heads, d_k = 64<") == 3


def test_a_diagram_of_a_checkpoint(run, capsys):
    assert run_main(["plot", "--diagram", f"--checkpoint={run}"]) == 0
    file = run / "plots" / "diagram.svg"
    assert capsys.readouterr().out.startswith(f"{file}: Diagram of a model. encoder: ")
    assert file.read_bytes().startswith(b"<svg")
    file.unlink()
    file.parent.rmdir()


def test_a_diagram_of_an_architecture_from_outside(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from transformer_jax.config import ExperimentConfig\n"
        "from outside.pulse import PulseConfig\n"
        "def get_config(arg=''):\n"
        "    model = PulseConfig(architecture='outside.pulse:PulseArchitecture', vocab_size=300)\n"
        "    return ExperimentConfig(model=model).to_config_dict()\n"
    )
    file = tmp_path / "a.svg"
    assert main(["plot", "--diagram", f"--config={tmp_path / 'mine.py'}", f"--output={file}"]) == 0
    assert ">outside.pulse:PulseArchitecture</text>" in file.read_text()
    assert ">leak = 0.5</text>" in file.read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--diagram"], "plot takes one of --config=FILE.py and --checkpoint=WORKDIR"),
        (["--diagram", "--config=quickstart"], "--output=... is missing"),
        (["--diagram", "--config=quickstart", "--output=a.jpg"], "--output=a.jpg: expected a file that ends in .svg"),
        (["--diagram", "--config=quickstart", "--output=folder"], "--output=folder: expected a file that ends in"),
        (["--diagram", "--config=quickstart", "--output=/dev/null/a.svg"], "--output=/dev/null: cannot be made"),
        (
            ["--diagram", "--config=quickstart", "--output=a.svg", "--config.model.num_heads=3"],
            "num_heads=3 does not divide",
        ),
        (
            ["--diagram", "--config=quickstart", "--output=a.svg", "--config.model.architecture=outside.none:Missing"],
            "model.architecture='outside.none:Missing': No module named",
        ),
        ([], "plot takes one of --config=FILE.py and --checkpoint=WORKDIR"),
        (["--config=configs/quickstart.py", "--checkpoint=x"], "plot takes one of"),
        (["--config=configs/quickstart.py"], "--output=... is missing"),
        (["--checkpoint=x", "--config.seed=1"], "those of a checkpoint cannot be overridden"),
        (["--config=configs/quickstart.py", "--output=/dev/null/x"], "--output=/dev/null/x: cannot be made"),
        (["--config=configs/quickstart.py", "--output=x", "--config.model.num_heads=3"], "num_heads=3 does not divide"),
    ],
)
def test_plots_that_are_refused(refused, flags, message):
    assert message in refused("plot", *flags)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_embeddings(tmp_path, run, capsys):
    flags = [f"--checkpoint={run}", f"--output={tmp_path}", "--count=3"]
    assert run_main(["embeddings", *flags, "--neighbours=12,7", "--analogy=1:2::3, 4:5::6"]) == 0
    out = capsys.readouterr().out
    neighbours, analogies = rows_of(tmp_path / "neighbours.csv"), rows_of(tmp_path / "analogies.csv")
    assert [(row["word"], row["rank"]) for row in neighbours] == [(w, r) for w in ("12", "7") for r in "123"]
    assert [row["question"] for row in analogies] == ["1:2::3"] * 3 + ["4:5::6"] * 3
    loaded = load(run)
    table = np.asarray(loaded.params["embedding"]["embedding"], np.float64)
    everything = rows_of(tmp_path / "embeddings.csv")
    assert [row["token"] for row in everything] == loaded.tokenizer.tokens(int(row["id"]) for row in everything)
    ids = [int(row["id"]) for row in everything]
    points = np.array([[float(row["component_1"]), float(row["component_2"])] for row in everything])
    shares = (points**2).sum(0) / ((table[ids] - table[ids].mean(0)) ** 2).sum()
    assert f"explain {shares[0]:.1%} and {shares[1]:.1%} of the variance" in out
    for row in (*neighbours, *analogies):
        assert f"{float(row['similarity']):.3f}" in out
    assert "nearest to 12 = " in out
    assert (tmp_path / "embeddings.png").exists()

    assert run_main(["embeddings", *flags, "--side=target"]) == 0  # another question: the earlier answers are removed
    assert {path.name for path in tmp_path.iterdir()} == {"embeddings.png", "embeddings.csv"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--neighbours=a,,b"], "--neighbours=a,,b: expected different names, separated by commas"),
        (["--analogy=a:b"], "--analogy=a:b: 'a:b' is not a:b::c"),
        (["--count=0"], "--count=0: expected at least 1"),
        (["--side=both"], "--side=both"),
        (["--output=/dev/null/x"], "--output=/dev/null/x: cannot be made"),
    ],
)
def test_embeddings_that_cannot_be_shown(run, refused, flags, message):
    assert message in refused("embeddings", f"--checkpoint={run}", *flags)


def test_a_word_that_the_vocabulary_lacks(tmp_path, refused):
    config = ExperimentConfig(model=tiny(vocab_size=8)).resolved()
    params = init_params(config.model, 0)
    with CheckpointStore(tmp_path / "checkpoints") as store:
        record = {"config": config.to_dict(), "corpus": None}
        store.save(1, {"params": params}, record, {"tokenizer.model": b"words\none\ntwo\nthree\nfour\n"})
    message = refused("embeddings", f"--checkpoint={tmp_path}", "--neighbours=thre")
    assert message == "the vocabulary has no 'thre' (did you mean 'three'?)"
    assert not (tmp_path / "embeddings").exists()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_attention_weights_that_are_not_finite_are_not_drawn(bad):
    weights = {"cross_attention": np.full((1, 1, 2, 2), 0.5), "decoder_self_attention": np.array([0.5, bad])}
    with pytest.raises(DataError, match="decoder_self_attention: an attention weight is NaN or infinite; the model"):
        _check_finite(weights)
    _check_finite({"cross_attention": weights["cross_attention"]})
