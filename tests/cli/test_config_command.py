"""The command `config`, and the line of `train` on derived defaults that flags move."""

import json

import pytest

from transformer_jax.cli import train
from transformer_jax.cli.config import differences, field_table
from transformer_jax.cli.config_notes import say_moved_defaults
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_with_sources
from transformer_jax.host.files import json_text, with_checksum
from transformer_jax.training.loop import TrainResult


def output(capsys, *words):
    assert main(["config", *words]) == 0
    return capsys.readouterr()


@pytest.mark.parametrize(
    "lines",
    [
        "  seed=0                                          default\n        determines initial parameters, data order",
        "\nmodel: The model. ",
        "  model.emb_dim=128                               file\n        model width (the paper's d_model)\n",
        "  model.norm_position=pre                         file\n",
        "  model.use_bias=true                             default\n",
        "  model.head_dim=32                               derived from model.emb_dim and model.num_heads\n",
        "  optimizer.warmup_steps=100                      flag\n        steps of linear warm-up from 0 to the peak\n",
        "  parallel.num_devices=None                       default\n",
        " (jit | shard_map | pmap)\n",
    ],
)
def test_every_field_with_value_source_and_meaning(capsys, monkeypatch, lines):
    monkeypatch.setenv("COLUMNS", "100")  # where lines break depends on the terminal
    assert lines in output(capsys, "quickstart", "--config.optimizer.warmup_steps=100").out


def test_fields_that_are_not_read_are_left_out(capsys):
    shown, everything = output(capsys, "quickstart"), output(capsys, "quickstart", "--all")
    assert "model.cell=" not in shown.out
    assert "  model.cell=lstm                                 default; not read\n" in everything.out
    hidden = everything.out.count("; not read\n")
    assert shown.err == f"{hidden} fields that this config does not read are left out; --all shows them\n"
    assert everything.err == ""


def test_json(capsys):
    report = json.loads(output(capsys, "quickstart", "--json", "--config.model.num_heads=2").out)
    fields = report["fields"]
    assert report["config"] == "quickstart"
    assert fields["model.num_heads"] == {"value": 2, "source": "flag", "meaning": "attention heads", "read": True}
    assert fields["model.head_dim"]["value"] == 64
    assert fields["model.head_dim"]["derived_from"] == ["model.emb_dim", "model.num_heads"]
    assert fields["parallel.num_devices"]["value"] is None
    assert "model.cell" not in fields


def test_the_fields_that_differ(capsys):
    lines = output(capsys, "wmt14:base", "wmt14:big", "--config.training.num_train_steps=7").out.splitlines()
    assert lines[0].split() == ["field", "wmt14:base", "wmt14:big"]
    rows = {words[0]: words[1:] for words in map(str.split, lines[1:])}
    assert rows["model.emb_dim"] == ["512", "1024"]
    assert "training.num_train_steps" not in rows
    assert "model.norm" not in rows
    assert output(capsys, "quickstart", "quickstart").out == "no field differs between quickstart and quickstart\n"


def test_a_field_that_one_config_does_not_read(capsys):
    """It differs, even if both configs have the same value."""
    words = ["quickstart", "language_model"]
    lines = output(capsys, *words).out.splitlines()
    assert ["model.num_encoder_layers", "2", "(not", "read)"] in map(str.split, lines)
    values = json.loads(output(capsys, *words, "--json").out)["fields"]["model.num_encoder_layers"]["values"]
    assert values == [{"value": 2, "source": "file"}, None]
    tables = [field_table(read_with_sources(name)) for name in words]
    assert "model.share_embeddings" in differences(tables, unread=False)
    assert "model.share_embeddings" not in differences(tables, unread=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "NAME is missing: transformer-jax config NAME [OTHER ...]"),
        (["quickstrat"], "(did you mean 'quickstart'?)"),
        (
            ["quickstart", "--config.model.num_head=3"],
            "model.num_head: no such field (did you mean 'model.num_heads'?)",
        ),
        (["quickstart", "--config.model.num_heads=3"], "num_heads=3 does not divide emb_dim=128"),
        (["quickstart:big"], "argument 'big': this config has none"),
        (
            ["--config=quickstart"],
            "unknown flag --config; --config.FIELD=VALUE overrides a field, and NAME is given without a flag; see",
        ),
    ],
)
def test_errors(capsys, words, message):
    assert main(["config", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({}, ""),
        ({"optimizer.learning_rate": "0.001"}, ""),
        (
            {"training.num_train_steps": "950", "model.dropout_rate": "0.1"},
            "model.embedding_dropout_rate=0.1 follows from model.dropout_rate (0 in the file); "
            "optimizer.decay_steps=950 follows from training.num_train_steps (1900 in the file)\n",
        ),
    ],
)
def test_train_says_in_one_line_which_defaults_move(capsys, overrides, line):
    say_moved_defaults(read_with_sources("quickstart", overrides))
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("words", [["--config=quickstart"], []], ids=["new", "resumed"])
def test_train_says_it_before_it_starts(capsys, monkeypatch, tmp_path, words):
    """Without --config, the file is that of the work directory."""
    if not words:
        (tmp_path / "config.json").write_text(
            json_text(with_checksum(read_with_sources("quickstart").config.to_dict()))
        )
    monkeypatch.setattr(train, "_train", lambda *args: TrainResult(8, "finished", {}))
    assert main(["train", *words, f"--workdir={tmp_path}", "--config.model.num_kv_heads=2", "--config.seed=1"]) == 0
    assert "follows from" not in capsys.readouterr().err
    assert main(["train", *words, f"--workdir={tmp_path}", "--config.training.num_train_steps=950"]) == 0
    said = "optimizer.decay_steps=950 follows from training.num_train_steps (1900 in the file)"
    assert capsys.readouterr().err.splitlines()[-2:] == [f"training in {tmp_path}", said]
