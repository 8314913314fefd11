"""The commands one after the other on a few pairs of files: each reads the files of the previous ones."""

import io
import json
import random
import sys

import pytest

from transformer_jax.cli.main import main

CONFIG = """
from transformer_jax.config import *

def get_config(arg=""):
    return ExperimentConfig(
        model=ModelConfig(
            vocab_size=300, emb_dim=16, num_heads=2, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1,
            max_length=64, norm_position="pre",
        ),
        data=DataConfig(source="text", tokenizer="bpe", max_length=32, tokens_per_batch=512, num_buckets=1),
        optimizer=OptimizerConfig(warmup_steps=2),
        training=TrainingConfig(num_train_steps=4, checkpoint_every_steps=2, eval_every_steps=2, log_every_steps=1),
    ).to_config_dict()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tiny.py").write_text(CONFIG)
    words = random.Random(0)
    for split, count in (("train", 200), ("valid", 10), ("test", 10)):
        lines = [" ".join(str(words.randrange(100)) for _ in range(words.randint(1, 6))) for _ in range(count)]
        (tmp_path / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / f"{split}.de").write_text("".join(f"{line[::-1]}\n" for line in lines))
    return tmp_path


@pytest.mark.slow
def test_train_evaluate_generate_inspect(folder, monkeypatch, capsys):
    workdir = folder / "run"
    train = ["train", f"--config={folder / 'tiny.py'}", f"--workdir={workdir}", f"--config.data.dir={folder}"]
    assert main(train) == 0
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert main(train) == 0  # nothing is left to do
    assert (workdir / "metrics.jsonl").read_text().splitlines() == lines

    capsys.readouterr()
    assert main([*train, "--config.model.num_heads=4"]) == 2
    assert "model.num_heads: 2 in run, 4 now" in capsys.readouterr().err
    assert main([*train, "--config.data.dir=nowhere"]) == 2  # given twice
    assert main(["inspect", f"--checkpoint={workdir}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config"]["data"]["dir"] == str(folder)

    argv = ["evaluate", f"--checkpoint={workdir}", "--splits=test", "--evaluation.average_checkpoints=2"]
    assert main(argv) == 0
    assert "test" in capsys.readouterr().out
    assert json.loads((workdir / "evaluation" / "test.json").read_text())["sacrebleu"] >= 0
    assert main([argv[0], argv[1], "--splits=tset"]) == 2
    assert "no split 'tset'" in capsys.readouterr().err

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1 2\n\n3 4 5")))
    assert main(["generate", f"--checkpoint={workdir / 'checkpoints' / '4'}"]) == 0
    out = capsys.readouterr().out.split("\n")
    assert len(out) == 4
    assert out[1] == out[3] == ""
