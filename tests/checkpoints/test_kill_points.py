import signal

import pytest

from transformer_jax.errors import ConfigError
from transformer_jax.host import kill_points


def test_kills_this_process_at_that_place_and_step_only(monkeypatch):
    killed = []
    monkeypatch.setattr(kill_points.os, "kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr(kill_points, "_KILL_AT", kill_points.parse_kill_point("inside_save:20"))
    kill_points.kill_point("inside_save", 2)
    kill_points.kill_point("after_batch", 20)
    assert killed == []
    kill_points.kill_point("inside_save", 20)
    assert killed == [(kill_points.os.getpid(), signal.SIGKILL)]


def test_does_nothing_when_unset(monkeypatch):
    monkeypatch.setattr(kill_points, "_KILL_AT", kill_points.parse_kill_point(None))
    monkeypatch.setattr(kill_points.os, "kill", None)
    kill_points.kill_point("inside_save", 20)


@pytest.mark.parametrize(
    "value", ["", "inside_save", "inside_save:", "insidesave:3", "inside_save:-1", "after_batch:3 "]
)
def test_a_kill_point_that_cannot_occur_is_refused(value):
    with pytest.raises(ConfigError, match=r"TRANSFORMER_JAX_KILL_AT=.*expected NAME:STEP with NAME one of after_batch"):
        kill_points.parse_kill_point(value)
