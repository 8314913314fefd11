"""A run on a dataset of TFDS, from its preparation to the evaluation on another machine."""

import shutil
import sys

import pytest
from run_support import run_main

from transformer_jax.cli.main import main

DATASET = "embedded_translate/en-de-300-10"
CONFIG = """
from transformer_jax.config import *


def get_config(arg=""):
    return ExperimentConfig(
        model=ModelConfig(
            vocab_size=400, emb_dim=16, num_heads=2, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=1,
            max_length=128,
        ),
        data=DataConfig(tokenizer="bpe", tokens_per_batch=2048, num_buckets=1),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-2, warmup_steps=2),
        training=TrainingConfig(num_train_steps=2, eval_every_steps=2, checkpoint_every_steps=1),
    ).to_config_dict()
"""


@pytest.mark.slow
def test_prepare_train_resume_and_evaluate_a_copy(tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)  # from tests without TensorFlow
    (tmp_path / "nano.py").write_text(CONFIG)
    prepared, run = tmp_path / "prepared", tmp_path / "run"
    assert main(["prepare", f"--dataset={DATASET}", f"--data_dir={prepared}"]) == 0
    capsys.readouterr()
    train = ["train", f"--config={tmp_path / 'nano.py'}", f"--workdir={run}", "--config.data.source=tfds"]
    train += [f"--config.data.dataset={DATASET}", f"--config.data.dir={prepared}"]
    assert run_main(train) == 0
    assert "300 training examples" in capsys.readouterr().err
    assert run_main([*train, "--config.training.num_train_steps=3", "--allow_config_change"]) == 0
    assert "resuming" in capsys.readouterr().err
    copy = tmp_path / "elsewhere" / "corpus"
    shutil.copytree(prepared / DATASET / "1.0.0", copy)
    shutil.rmtree(prepared)
    evaluate = ["evaluate", f"--checkpoint={run}", "--splits=test", "--generate=false"]
    assert main([*evaluate, f"--data.dir={copy}"]) == 0
    assert "test" in capsys.readouterr().out
    assert main(evaluate) == 2
    assert "is not prepared in" in capsys.readouterr().err
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--config.data.valid_split="], "data.valid_split is empty, but training needs it; name a split"),
        (["--config.decode.prefix_ids=1"], "decode.prefix_ids=1 must not contain padding (0) or end-of-sequence (1)"),
        (["--config.data.train_split="], "train_split is empty"),
    ],
)
def test_missing_data_is_reported_before_anything_slow_starts(tmp_path, capsys, flags, problem):
    (tmp_path / "nano.py").write_text(CONFIG)
    for name in ("train", "valid", "test"):
        for suffix in (".en", ".de", ""):
            (tmp_path / f"{name}{suffix}").write_text("one\n" * 5)
    words = ["train", f"--config={tmp_path / 'nano.py'}", f"--workdir={tmp_path / 'run'}", "--config.data.source=text"]
    assert main([*words, f"--config.data.dir={tmp_path}", *flags]) == 2
    message = capsys.readouterr().err
    assert problem in message
    assert "training the tokenizer" not in message
