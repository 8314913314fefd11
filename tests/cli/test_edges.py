"""Command lines, files and streams that nobody means: one message, exit code 2, no traceback."""

import os
import subprocess
import sys

import pytest
from log_support import log_of
from run_support import ROOT, write_corpus

from transformer_jax.checkpoints import workdir
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_config
from transformer_jax.data.tokenizers import load_tokenizer, read_tokenizer
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.host.terminal import printable
from transformer_jax.metrics_file import read_lines
from transformer_jax.sweeps.results import read_result, read_spec

INSPECT = ["inspect", "--config=quickstart"]
LONG = "x" * 300


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(words, capsys):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("transformer-jax: error: ")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--nodebug=1"], "--nodebug=1 does not take an argument"),
        (["list", "--flagfile=binary"], "--flagfile: is not a text file"),
        (["list", "--flagfile=none"], "Unable to open flagfile"),
        ([*INSPECT, "--config.model.vocab_size=99999999999999999999999"], "expected at most 2147483647"),
        ([*INSPECT, "--config.optimizer.learning_rate=1e308"], "expected at most 3.403e+38, the largest float32"),
        (["inspect", f"--config={LONG}.py"], "File name too long"),
        (["inspect", f"--config={LONG}"], "File name too long"),
        (["sweep", "--study=norm_placement", "--workdir=/proc/nope"], "--workdir=/proc/nope: cannot be made"),
        (["attention", "--checkpoint=none", "--text=\udcff"], r"argument '--text=\\udcff' is not UTF-8"),
    ],
)
def test_bad_words(here, capsys, words, message):
    (here / "binary").write_bytes(bytes([0xC4, 0xFF, 0x00]))
    assert message in refused(words, capsys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(0)\n", r"raised SystemExit: 0 \(line 2\)"),
        ("def get_config(arg=''):\n    raise SystemExit(3)\n", r"get_config\(''\) raised SystemExit: 3 \(line 2\)"),
        (
            "import ml_collections\ndef get_config(arg=''):\n    return ml_collections.ConfigDict({'model': 5})\n",
            "model=5: expected a section of fields",
        ),
    ],
)
def test_configs_that_end_the_program_or_are_no_config(here, text, message):
    (here / "c.py").write_text(text)
    for overrides in ({}, {"model.num_heads": "3"}):
        with pytest.raises(ConfigError, match=message):
            read_config("c.py", overrides)


def test_a_study_that_ends_the_program(here, capsys):
    (here / "study.py").write_text("import sys\nsys.exit(0)\n")
    assert "raised SystemExit: 0 (line 2)" in refused(["sweep", f"--study={here}", "--workdir=w"], capsys)


@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
def test_a_corpus_file_that_never_ends(here, capsys, kind):
    folder = write_corpus(here / "corpus")
    (folder / "train.en").unlink()
    if kind == "pipe":
        os.mkfifo(folder / "train.en")
    else:
        (folder / "train.en").symlink_to("/dev/zero")
    words = ["train", f"--config={folder / 'tiny.py'}", f"--config.data.dir={folder}", "--workdir=run"]
    assert main(words) == 2
    assert "train.en is a pipe or a device, not a text file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "read", "error"),
    [
        ("tokenizer.model", read_tokenizer, DataError),
        ("metrics.jsonl", read_lines, DataError),
        ("metrics.jsonl", lambda file: log_of(file.parent, 1), CheckpointError),
        ("config.json", lambda file: workdir.read_stored_config(file.parent), CheckpointError),
        ("trial.json", lambda file: read_spec(file.parent), DataError),
        ("result.json", lambda file: read_result(file.parent), DataError),
    ],
)
def test_files_of_a_run_or_a_study_that_never_end(tmp_path, name, read, error):
    os.mkfifo(tmp_path / name)
    with pytest.raises(error, match=f"{name}: .*it is a pipe or a device, not a file"):
        read(tmp_path / name)


def test_a_tokenizer_with_a_damaged_text():
    """SentencePiece raises UnicodeDecodeError for some damaged bytes, RuntimeError for others."""
    for data in (b"\x0a\x06\x0a\x02\xff\xfe\x15\x00", b"\x00" * 40, b"\xff" * 40):
        with pytest.raises(DataError):
            load_tokenizer(data)


def test_control_characters_are_escaped():
    assert printable("a\x1b[31mb\r\n\tc\x9b\u202e") == r"a\x1b[31mb\r" + "\n\tc" + r"\x9b\u202e"
    assert printable("Österreich — 東京") == "Österreich — 東京"


def test_control_characters_of_a_name_do_not_reach_the_terminal(here, capsys):
    err = refused(["inspect", "--config=\x1b[2Jx.py"], capsys)
    assert "\x1b" not in err
    assert r"\x1b[2Jx.py" in err


@pytest.mark.slow
def test_closed_streams():
    """Without a stderr, stdout has only what belongs there."""
    for closed in ("<&-", "2>&-"):
        command = f'"{sys.executable}" -m transformer_jax list --json {closed}'
        done = subprocess.run(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0
        assert done.stdout.startswith("{")
    command = f'"{sys.executable}" -m transformer_jax inspect --config=nothing_of_this_name 2>&-'
    done = subprocess.run(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
