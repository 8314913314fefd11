"""Test sets that are not part of the corpus: named ones of the config, and files given on the command line."""

import gzip
import json
import shutil

import pytest
from run_support import copy_of_trained, run_main, trained_folder, translated

from transformer_jax.cli.main import main
from transformer_jax.config import DataConfig
from transformer_jax.config.data import parse_test_sets
from transformer_jax.data import sources
from transformer_jax.data.sources import load_source, open_test_set
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks.translation import Translation

OF_PLACE = {"split", "corpus", "input", "reference", "checksum"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A trained run; its model translates by repeating the source."""

    def outputs(task, evaluator, params, split):
        return translated(evaluator.data.text(split).features["inputs"])

    monkeypatch.setattr(Translation, "outputs", outputs)
    return copy_of_trained(tmp_path / "copy") / "run"


def scores_of(run, *flags):
    """Evaluate with flags; return the scores that do not depend on the place of the test set."""
    before = set((run / "evaluation").glob("*.json"))
    assert run_main(["evaluate", f"--checkpoint={run}", *flags]) == 0
    [file] = set((run / "evaluation").glob("*.json")) - before
    scores = json.loads(file.read_text())
    assert scores["split"] == file.stem
    return file.stem, {name: value for name, value in scores.items() if name not in OF_PLACE}


def test_files_are_scored_like_a_split_and_without_the_corpus(run, tmp_path):
    split = scores_of(run, "--splits=test")
    assert split[0] == "test"
    here = tmp_path / "here"
    here.mkdir()
    sides = [(trained_folder() / f"test.{locale}").read_text() for locale in ("en", "de")]
    pairs = list(zip(*(side.splitlines() for side in sides), strict=True))
    for locale, side in zip(("en", "de"), sides, strict=True):
        (here / f"flickr.{locale}").write_text(side)
    (here / "table.tsv").write_text("".join(f"{target}\t-\t{source}\n" for source, target in pairs))
    lines = "".join(json.dumps({"en": source, "de": target}) + "\n" for source, target in pairs)
    (here / "lines.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    nowhere = f"--data.dir={tmp_path / 'nowhere'}"
    for name, flags in {
        "flickr": [f"--input={here / 'flickr.en'}", f"--reference={here / 'flickr.de'}"],
        "2017-a": [f"--input={here / 'flickr.en'}", f"--reference={here / 'flickr.de'}", "--name=2017-a"],
        "table": [f"--input={here / 'table.tsv'}", "--columns=3,1"],
        "lines": [f"--input={here / 'lines.jsonl.gz'}"],
    }.items():
        assert scores_of(run, nowhere, *flags) == (name, split[1])
        assert (run / "evaluation" / f"{name}.txt").read_text() == (run / "evaluation" / "test.txt").read_text()


def test_named_test_sets_of_the_corpus_s_folder(run, tmp_path):
    """They change neither the corpus nor the scores of its splits."""
    _, of_valid = scores_of(run, "--splits=valid")
    sets = "--data.test_sets=other=valid, both=test,valid"
    assert scores_of(run, sets, "--splits=other") == ("other", of_valid)
    _, of_both = scores_of(run, sets, "--splits=both")
    assert of_both["tokens"] == scores_of(run, "--splits=test")[1]["tokens"] + of_valid["tokens"]
    data = {"source": "text", "dir": str(trained_folder())}
    plain, more = (load_source(DataConfig(**data, test_sets=text)) for text in ("", "other=valid"))
    assert more.split_names == (*plain.split_names, "other")
    assert more.fingerprint() == plain.fingerprint() == more.fingerprint("valid") != more.fingerprint("other")


@pytest.mark.parametrize("unit", ["line", "blank_line"])
def test_a_task_without_targets_reads_documents_alone(tmp_path, unit):
    """As in training; lines if that read something else. A reference would not be read."""
    file = tmp_path / "more.txt"
    file.write_text("one\ntwo\n\nthree\n")
    documents = DataConfig(source="text", dir="nowhere", format="documents", documents=unit)
    expected = {"line": ["one", "two", "", "three"], "blank_line": ["one\ntwo", "three"]}
    for config, texts in ((documents, expected[unit]), (DataConfig(), expected["line"])):
        source = open_test_set(config, sources.TestFiles("more", str(file)), has_targets=False)
        assert source.split("more").features == {"inputs": texts}
        assert source.num_examples("more") == len(texts)
        assert len(source.fingerprint("more")["sha256"]) == 64
    (tmp_path / "more.jsonl").write_text('{"en": "one"}\n')
    source = open_test_set(DataConfig(), sources.TestFiles("more", str(tmp_path / "more.jsonl")), has_targets=False)
    assert source.split("more").features == {"inputs": ["one"]}
    with pytest.raises(ConfigError, match=r"--reference=y: the task reads no targets; leave it out"):
        open_test_set(documents, sources.TestFiles("more", str(file), "y"), has_targets=False)
    with pytest.raises(DataError, match="nearest in that folder: more"):
        open_test_set(documents, sources.TestFiles("mroe", str(tmp_path / "mroe.txt")), has_targets=False)


def test_another_file_of_the_same_name_is_scored_anew(run, tmp_path):
    flags = [f"--input={tmp_path / 'mine.en'}", f"--reference={tmp_path / 'mine.de'}"]
    for locale in ("en", "de"):
        shutil.copy(trained_folder() / f"test.{locale}", tmp_path / f"mine.{locale}")
    scores_of(run, *flags)
    (tmp_path / "mine.de").write_text((tmp_path / "mine.en").read_text())
    assert run_main(["evaluate", f"--checkpoint={run}", *flags]) == 0
    assert json.loads((run / "evaluation" / "mine.json").read_text())["exact_match"] == 100


def test_compare_takes_them_too(run, tmp_path, capsys):
    other = copy_of_trained(tmp_path / "other") / "run"
    files = [f"--input={trained_folder() / 'valid.en'}", f"--reference={trained_folder() / 'valid.de'}", "--name=mine"]
    assert run_main(["compare", str(run), str(other), *files, "--samples=20"]) == 0
    assert "mine, 13 pairs" in capsys.readouterr().out
    assert (other / "evaluation" / "mine.txt").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input={0}/test.en"], "needs --reference=FILE, the translations"),
        (["--input={0}/test.tsv", "--reference={0}/test.de"], "has both sides; leave --reference out"),
        (["--reference={0}/test.de"], "--reference is for a test set of your own and needs --input=FILE"),
        (["--input={0}/a.tsv", "--splits=test"], "--splits names splits of the corpus"),
        (["--input={0}/a.tsv", "--columns=1"], "--columns=1: expected two, INPUT,TARGET"),
        (["--input={0}/test.en", "--reference={0}/test.de", "--columns=1,2"], "--columns is for TSV, JSONL and TFDS"),
        (["--input={0}/test.en", "--reference={0}/test.de", "--name=a/b"], "--name=a/b: expected a name of letters"),
        (["--input={0}/test.en", "--reference={0}/test.de"], "--name=test: is a split of the corpus"),
        (["--input={0}/tset.en", "--reference={0}/test.de"], "tset.en or tset.en.gz; nearest in that folder: test.en"),
        (["--input={0}/test.en", "--reference={0}/valid.de", "--name=m"], "test.en has 11 lines but"),
        (["--input=tfds:wmt", "--name=m"], "expected tfds:DATASET:SPLIT"),
        (["--data.test_sets=valid=test"], "'valid' is a split of the corpus"),
        (["--data.test_sets=a=nothing"], "no file"),
        (["--data.test_sets=a"], "expected NAME=SPLIT,NAME=SPLIT"),
    ],
)
def test_bad_test_sets(flags, message, capsys):
    folder = trained_folder()
    assert main(["evaluate", f"--checkpoint={folder / 'run'}", *(flag.format(folder) for flag in flags)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_parsing():
    assert parse_test_sets(" 2017=test_2017, coco=a,b,x=test[:50%] ") == {
        "2017": "test_2017",
        "coco": "a,b",
        "x": "test[:50%]",
    }
    assert parse_test_sets("") == {}
    for text in ("a=1,a=2", "a=", "=b", "a b=c", "test=x", "a,b=c"):
        with pytest.raises(ValueError, match=r"twice|a split of the corpus|expected NAME"):
            parse_test_sets(text)
