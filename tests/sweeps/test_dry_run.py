"""`sweep --dry_run`: what a study would train, and how long that takes."""

import re

import pytest
from run_support import run_main, write_corpus

from transformer_jax.sweeps.dry_run import Cost, Program
from transformer_jax.sweeps.study import Metric, Study, over
from transformer_jax.sweeps.trials import grid

TEXT = """
from transformer_jax.sweeps.study import Axis, Metric, Study, over

STUDY = Study(
    question="?",
    baseline="tiny.py",
    axes=(over("model.norm_position", "pre", "post"), over("decode.beam_size", 1, 2)),
    metrics=(Metric("test/loss"),),
    seeds=(0, 1, 2),
    settings={"optimizer.warmup_steps": 3},
)
"""


def test_minutes():
    cost = Cost(parameters=10, operations=1e9, of_optimizer=150, num_shapes=3, compile_seconds=20.0, step_seconds=0.5)
    assert cost.minutes(120) == pytest.approx(2.0)
    study = Study("?", "quickstart", (over("model.num_heads", 1, 2),), (Metric("test/loss"),), seeds=(0, 1))
    trials = grid(study, {"training.num_train_steps": "120", "optimizer.warmup_steps": "9"}).trials
    assert Program(tuple(trials[:3]), cost).minutes == pytest.approx(6.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "trials"), [([], "12 trials of 4 variants, 6 of them trained"), (["--search=tpe", "--num_trials=1"], "")]
)
def test_a_dry_run_measures_each_program_and_writes_nothing(tmp_path, monkeypatch, capsys, flags, trials):
    folder = write_corpus(tmp_path)
    (folder / "study.py").write_text(TEXT)
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "--dry_run", f"--study={folder}", f"--config.data.dir={folder}", *flags]
    assert run_main(command) == 0
    out = capsys.readouterr().out
    programs = 1 if flags else 2
    assert f"{trials}" in out
    assert re.search(rf"in {programs} programs; about \d+ minutes of training", out)
    shared = "norm_position=pre,beam_size=2 is trained by norm_position=pre,beam_size=1\n"
    assert (shared in out) == (not flags)
    [first, *_] = re.findall(
        r"norm_position=\w+,beam_size=\d +│ +(\d) +│ +(\d) +│ +([\d,]+) │ +(\S+) │ +(\S+) │ +8 ", out
    )
    assert first[:2] == ("3", "1")
    assert int(first[2].replace(",", "")) > 5000
    assert float(first[3]) > 1e5
    assert 10 < float(first[4]) / int(first[2].replace(",", "")) < 30  # of Adam and clipping, per parameter
    assert sorted(folder.rglob("*")) == before
