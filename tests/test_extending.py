"""The modules of docs/extending.md work as a user would write them: a source, a metric and a measure of one's own.

test_outside_parts.py has those of examples/parts, which the page shows.
"""

import json
import re
from pathlib import Path

import pytest
from run_support import run_main, write_own_modules

from transformer_jax.builtin import parts
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.sweeps.study import load_study

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
SMALL = [
    *("--config=quickstart", "--config.model.emb_dim=16", "--config.model.num_heads=2", "--config.model.mlp_dim=16"),
    *("--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=1"),
    *("--config.data.source=reversed_letters:ReversedLetters", "--config.data.tokenizer=words"),
    *("--config.model.vocab_size=12", "--config.training.num_train_steps=2", "--config.optimizer.warmup_steps=1"),
    "--config.task.name=lengths:WithLengthRatio",
]


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder with the modules of the page, in which Python and the commands run."""
    write_own_modules(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_page_shows_the_examples(modules):
    shown = {path.stem: path.read_text() for path in modules.glob("*.py")}
    assert parts().keys() <= shown.keys()
    for name, path in parts().items():
        assert shown[name] == path.read_text(), f"docs/extending.md and {path} differ"
        assert re.search(rf"[=,]{name}:", PAGE.read_text()), f"docs/extending.md has no command with {name}"


@pytest.mark.slow
def test_a_source_a_metric_and_a_measure(modules, capsys):
    run = modules / "run"
    assert run_main(["train", *SMALL, f"--workdir={run}"]) == 0
    evaluate = ["evaluate", f"--checkpoint={run}", "--splits=test"]
    assert run_main(evaluate) == 2
    assert "--trust=lengths,reversed_letters" in capsys.readouterr().err
    assert run_main([*evaluate, "--trust=lengths,reversed_letters"]) == 0
    assert "length ratio" in capsys.readouterr().out
    scores = json.loads((run / "evaluation" / "test.json").read_text())
    outputs = (run / "evaluation" / "test.txt").read_text().splitlines()
    assert len(outputs) == 100
    import reversed_letters

    references = reversed_letters.ReversedLetters(None).split("test").features["targets"]
    ratio = sum(len(line.split()) for line in outputs) / sum(len(line.split()) for line in references)
    assert scores["length_ratio"] == pytest.approx(ratio)

    (modules / "own").mkdir()
    (modules / "study.py").rename(modules / "own" / "study.py")
    study = load_study(modules / "own")
    numbers = study.measure(Scorer.from_checkpoint(run))
    named = {metric.name for metric in study.metrics}
    assert set(numbers) == named - {"test/loss"}
    assert numbers["embeddings/norm"] != numbers["embeddings/norm_at_start"] > 0
