"""A trial that a search prunes: its worker ends it and records this."""

import os
import signal
from unittest import mock

import pytest
from run_support import at, write_corpus

from transformer_jax.config_file import read_config
from transformer_jax.errors import DataError
from transformer_jax.sweeps.results import PRUNED, mark_pruned, pruned_because, read_result, write_spec
from transformer_jax.sweeps.study import Metric
from transformer_jax.sweeps.trials import Trial
from transformer_jax.sweeps.worker import run_trials
from transformer_jax.training import loop


@pytest.fixture
def folder(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    values = {"data.dir": str(corpus), "data.cache_dir": str(tmp_path / "cache")}
    trial = Trial({"rate": "slow"}, 0, read_config(str(corpus / "tiny.py"), values))
    write_spec(tmp_path / "trial", trial, [Metric("test/loss", "min")])
    return tmp_path / "trial"


def test_pruned_before_it_starts(folder):
    assert pruned_because(folder) is None
    mark_pruned(folder, "median: valid/loss 3 at step 4")
    assert run_trials([folder]) == 0
    result = read_result(folder)
    assert (result.status, result.why, result.steps) == ("pruned", "median: valid/loss 3 at step 4", 0)
    assert result.metrics == {}
    assert result.parameters > 0
    assert not (folder / "checkpoints").exists()


def test_the_reason_is_checked(tmp_path):
    why = "median: valid/loss 3 at step 4\nü"
    mark_pruned(tmp_path, why)
    file = tmp_path / PRUNED
    data = file.read_bytes()
    assert pruned_because(tmp_path) == why
    for damaged in (data.replace(b"loss 3", b"loss 8"), b"", b"\xff", data[:-9], data.replace(b"median", b""), b"a"):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{file}: (is damaged; delete it|cannot be read)"):
            pruned_because(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pruned", [True, False])
def test_pruned_while_it_trains(folder, pruned):
    """The worker gets SIGTERM, which without the mark only makes it save."""

    def stop():
        if pruned:
            mark_pruned(folder, "others did better")
        os.kill(os.getpid(), signal.SIGTERM)

    with mock.patch.object(loop, "kill_point", at("after_batch", 5, stop)):
        code = run_trials([folder])
    assert any((folder / "checkpoints").iterdir())
    result = read_result(folder)
    if not pruned:
        assert (code, result) == (143, None)
        return
    assert code == 0
    assert (result.status, result.why, result.metrics) == ("pruned", "others did better", {})
    assert result.steps == 4  # the last logged step
