"""The list of deliberate errors in tests/mutants.py fits the package."""

from collections import Counter

import mutants


def test_every_mutation_has_its_place_and_its_tests():
    assert mutants.problems() == []


def test_every_entry_of_the_table_is_read():
    names = [line.split(":")[0] for line in (mutants.ROOT / "tests" / "mutants.txt").read_text().splitlines() if line]
    names = [name for name in names if name[0] not in "#-+" and not name.startswith("the fragment")]
    assert list(mutants.MUTATIONS) == names


def test_every_area_has_several_mutations():
    counts = Counter(map(mutants.area_of, mutants.MUTATIONS))
    assert set(counts) == set(mutants.AREAS)
    assert min(counts.values()) >= 3
    assert sum(counts.values()) >= 80


def test_what_only_the_first_results_killed(tmp_path, capsys, monkeypatch):
    for name, second in (("old", "killed"), ("new", "survived")):
        lines = [
            mutants.Result("nn/a", "killed", "tests/x.py::y", 1.0),
            mutants.Result("nn/b", second, "", 1.0),
            mutants.Result("nn/c", "survived", "", 1.0),
        ]
        (tmp_path / name).write_text("".join(f"{mutants.json.dumps(line._asdict())}\n" for line in lines))
    for arguments, status, text in ((("old", "new"), 1, "nn/b"), (("new", "old"), 0, "nothing is lost")):
        monkeypatch.setattr("sys.argv", ["mutants.py", "--compare", *(str(tmp_path / name) for name in arguments)])
        assert mutants.main() == status
        assert capsys.readouterr().out == f"{text}\n"
