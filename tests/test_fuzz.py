"""A part of the cases of fuzz.py."""

import pytest
from fuzz import fuzz_damage, fuzz_inputs


@pytest.mark.slow
@pytest.mark.parametrize(("fuzz", "cases"), [(fuzz_inputs, 60), (fuzz_damage, 40)])
def test_wrong_inputs_and_damaged_files(tmp_path, monkeypatch, fuzz, cases):
    monkeypatch.chdir(tmp_path)
    bad = [(what, outcome.words, problem) for what, outcome, problem in fuzz(tmp_path, cases, seed=0) if problem]
    assert bad == []
