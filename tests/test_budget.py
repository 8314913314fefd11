"""The count of compiled programs, which `.ci/run` compares with tests/budget.json."""

from types import SimpleNamespace

import budget
import jax
import jax.numpy as jnp
import pytest


def test_programs_are_compiled_functions_but_not_single_operations(request):
    counter = request.config.pluginmanager.get_plugin("budget")
    before = counter.programs(budget.file_of(request.node))
    jnp.add(jnp.arange(7.0), 3.0) * 2  # compiled by themselves, each once per process
    jax.random.normal(jax.random.key(0), (3, 7))
    assert counter.programs(budget.file_of(request.node)) == before

    def a_function(x):
        return x * 2 + 1

    jax.jit(a_function)(jnp.arange(7.0))
    jax.lax.scan(lambda carry, x: (carry + x, x), 0.0, jnp.arange(7.0))
    assert counter.programs(budget.file_of(request.node)) == before + 2


def test_budget_is_for_the_sum_and_names_the_folders():
    recorded = {"tests/nn/test_a.py": 100, "tests/nn/test_b.py": 100, "tests/test_c.py": 10}
    assert budget.by_folder(recorded) == {"tests/nn": 200, "tests": 10}
    moved = {"tests/nn/test_new.py": 190, "tests/cli/test_d.py": 16, "tests/test_c.py": 10}  # 3 % more in all
    assert budget.excess(moved, recorded) == []
    lines = budget.excess({"tests/nn/test_a.py": 250, "tests/test_c.py": 4, "tests/cli/test_d.py": 5}, recorded)
    assert lines == [
        "all folders: 259 compiled programs, 210 in the budget",
        "tests/cli: 5 compiled programs, 0 in the budget",
        "tests/nn: 250 compiled programs, 200 in the budget",
    ]


@pytest.mark.parametrize(("compiled", "status"), [(100, 0), (200, 1)])
def test_a_session_above_the_budget_fails(compiled, status, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FILE", tmp_path / "budget.json")
    config = SimpleNamespace(option=SimpleNamespace(budget="default", renew_budget=True))
    for number in (100, compiled):  # the first session writes the budget, the second is compared with it
        counter = budget.Budget(config)
        counter.pytest_testnodedown(
            SimpleNamespace(
                workeroutput={"programs": {"tests/nn/test_a.py": number}, "seconds": {"tests/nn/test_a.py": 2.0}}
            ),
            None,
        )
        session = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
        counter.pytest_sessionfinish(session)
        config.option.renew_budget = False
    assert session.exitstatus == status
