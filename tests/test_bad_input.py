"""Mistakes of a user on the command line: one message that names the mistake, exit code 2, and nothing is lost."""

import gzip
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from log_support import fill_disk
from run_support import (
    ROOT,
    argv,
    at,
    copy_of_trained,
    metric_lines,
    run_main,
    saved_steps,
    snapshot,
    subprocess_main,
    train,
    trained_folder,
    write_corpus,
)

from transformer_jax.checkpoints import store as store_module
from transformer_jax.data import token_cache
from transformer_jax.data.tokenizers import TOKENIZER_FILE
from transformer_jax.host import files
from transformer_jax.training import loop
from transformer_jax.training.metric_log import MetricLog

FULL = OSError(28, "No space left on device")


def refused(words, capsys, *messages):
    """The command fails with one readable message."""
    capsys.readouterr()
    assert run_main(words) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.count("transformer-jax: error: ") == 1
    for message in messages:
        assert message in err.partition("transformer-jax: error: ")[2]


@pytest.fixture
def folder(tmp_path):
    return write_corpus(tmp_path / "corpus")


# The config.

BAD_FIELDS = {
    "model.num_head=2": ["num_head", "did you mean 'model.num_heads'"],
    "modle.num_heads=2": ["modle.num_heads", "model.num_heads"],
    "model.num_heads=two": ["model.num_heads=two: expected an integer"],
    "data.tokens_per_batch=16": ["data.tokens_per_batch=16 cannot hold"],
    "parallel.num_devices=3": ["parallel.num_devices=3, but JAX sees 1"],
    "parallel.tensor=2": ["parallel.fsdp=1 x parallel.tensor=2 do not divide 1 devices"],
    "model.vocab_size=100000": ["model.vocab_size=100000", "at most"],
    "model.vocab_size=100": ["model.vocab_size=100", "at least"],
    "model.emb_dim=0 seed=-1": ["config: 2 problems", "model.emb_dim=0", "seed=-1"],
}
"""Fields, and parts of the message: one of each kind; test_config.py has all relations."""


@pytest.mark.parametrize("fields", BAD_FIELDS)
def test_bad_fields(folder, capsys, fields):
    words = [f"--config.{field}" for field in fields.split()]
    refused(argv("train", folder, *words), capsys, *BAD_FIELDS[fields])
    assert not (folder / "run" / "config.json").exists()


def test_a_config_file_that_is_not_a_config(folder, capsys):
    (folder / "tiny.py").write_text("def get_config(arg=''):\n    return 1 / 0\n")
    refused(argv("train", folder), capsys, f"{folder / 'tiny.py'}: get_config('') raised ZeroDivisionError", "line 2")


# Text files.


def replace(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def missing(folder):
    (folder / "valid.de").unlink()
    return ["valid.de", str(folder), "nearest"]


def shorter(folder):
    replace(folder, "test.de", lambda data: data[: data.rindex(b"\n", 0, -1) + 1])
    return ["test.en has 11 lines but", "test.de has 10"]


def not_utf8(folder):
    replace(folder, "train.de", lambda data: data.replace(b"\n", b"\n\xe9t\xe9\n", 4)[:-2])
    return [f"{folder / 'train.de'}, line 2: not UTF-8", "0xe9"]


def empty(folder):
    replace(folder, "valid.en", lambda data: b"")
    return [f"{folder / 'valid.en'} is empty"]


def empty_line(folder):
    replace(folder, "train.en", lambda data: b"1\n\n" + data.split(b"\n", 2)[2])
    return [f"{folder / 'train.en'} has empty lines (line 2)"]


def a_million_characters(folder):
    replace(folder, "train.en", lambda data: b"1\n" + b"x" * 1_000_000 + b"\n" + data.split(b"\n", 2)[2])
    return [f"{folder / 'train.en'}, line 2 has 1000000 characters"]


def too_long_to_evaluate(folder):
    replace(folder, "valid.en", lambda data: b"1\n" + b"1234567890 " * 8000 + b"\n" + data.split(b"\n", 2)[2])
    return ["split 'valid', example 2: ", "evaluation.tokens_per_batch=8192"]


def damaged_gzip(folder):
    data = gzip.compress((folder / "train.en").read_bytes())
    (folder / "train.en").unlink()
    (folder / "train.en.gz").write_bytes(data[:-9])
    return ["train.en.gz: it is damaged or incomplete: "]


def a_folder(folder):
    (folder / "train.en").unlink()
    (folder / "train.en").mkdir()
    return ["train.en is a folder"]


def everything_too_long(folder):
    for name in ("train.en", "train.de"):
        (folder / name).write_text("".join(f"{i} {i} {i} {i} {i}\n" for i in range(150)))
    replace(folder, "tiny.py", lambda data: data.replace(b"max_length=16", b"max_length=3"))
    return ["all 150 training examples are longer than data.max_length=3"]


TEXT = [
    missing,
    shorter,
    not_utf8,
    empty,
    empty_line,
    a_million_characters,
    too_long_to_evaluate,
    damaged_gzip,
    a_folder,
    everything_too_long,
]


@pytest.mark.parametrize("spoil", TEXT)
def test_bad_text_files(folder, capsys, spoil):
    messages = spoil(folder)
    refused(argv("train", folder), capsys, *messages)
    # The folder stays free: the next attempt may have another config.
    assert not (folder / "run" / "config.json").exists()
    assert not list((folder / "run").glob("checkpoints/*"))


@pytest.mark.slow
@pytest.mark.parametrize("spoil", [missing, not_utf8])
def test_bad_text_files_do_not_harm_a_run(tmp_path, capsys, spoil):
    """Neither resuming nor evaluating."""
    folder = write_corpus(tmp_path)
    shutil.copytree(trained_folder() / "run" / "checkpoints" / "5", folder / "run" / "checkpoints" / "5")
    messages = spoil(folder)
    before = snapshot(folder)
    # The checkpoint has another data.dir, which is refused before the files are read.
    refused(argv("train", folder), capsys, "another config is in use here", "data.dir", " in checkpoint 5, ")
    refused(argv("train", folder, "--allow_config_change"), capsys, *messages)
    refused(argv("evaluate", folder, f"--data.dir={folder}"), capsys, *messages)
    assert snapshot(folder) == before


def test_a_missing_folder(tmp_path, capsys):
    folder = write_corpus(tmp_path)
    words = [word for word in argv("train", folder) if "data.dir" not in word]
    refused(words, capsys, "data.dir is not set")
    refused([*words, f"--config.data.dir={folder}/corpsu"], capsys, f"data.dir='{folder}/corpsu' does not exist")
    assert not (folder / "run" / "config.json").exists()


# Work directories and checkpoints.


def test_a_work_directory_that_is_a_file(folder, capsys):
    (folder / "run").write_text("precious")
    refused(argv("train", folder), capsys, f"{folder / 'run'}: cannot be a work directory")
    assert (folder / "run").read_text() == "precious"


@pytest.mark.slow
def test_a_partial_checkpoint(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    checkpoints = folder / "run" / "checkpoints"
    (checkpoints / "5").rename(checkpoints / "5.saving")
    shutil.rmtree(checkpoints / "8")
    before = snapshot(folder)
    refused(argv("evaluate", folder), capsys, "no complete checkpoint, only an unfinished save: 5.saving")
    refused(
        ["generate", f"--checkpoint={checkpoints / '5.saving'}"],
        capsys,
        "not a checkpoint, but the remains of an interrupted save",
    )
    assert snapshot(folder) == before


@pytest.mark.parametrize("name", ["record.json", "SHA256SUMS", "tokenizer.model"])
@pytest.mark.parametrize("command", ["evaluate", "generate"])
def test_a_checkpoint_that_lacks_a_file(tmp_path, capsys, monkeypatch, command, name):
    folder = copy_of_trained(tmp_path / "copy")
    (folder / "run" / "checkpoints" / "8" / name).unlink()
    before = snapshot(folder)
    words = [command, f"--checkpoint={folder / 'run' / 'checkpoints' / '8'}"]
    refused(words, capsys, f"checkpoints/8: {name} is missing")
    assert snapshot(folder) == before


def test_a_damaged_newest_checkpoint_is_reported_once(tmp_path):
    """In its own process, where libraries print warnings too."""
    folder = copy_of_trained(tmp_path / "x")
    (folder / "run" / "checkpoints" / "8" / "record.json").write_text("{}")
    result = subprocess_main(argv("generate", folder), input="1 2\n")
    assert (result.returncode, result.stdout.count("\n")) == (0, 1)
    assert result.stderr.count("DAMAGED CHECKPOINT") == 1, result.stderr


def test_all_checkpoints_are_damaged(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    for step in (5, 8):
        (folder / "run" / "checkpoints" / str(step) / "tokenizer.model").unlink()
    before = snapshot(folder)
    original = trained_folder()
    files = [f"--config={original / 'tiny.py'}", f"--config.data.dir={original}", f"--workdir={folder / 'run'}"]
    refused(["train", *files], capsys, "no valid checkpoint in it", "tokenizer.model is missing")
    assert snapshot(folder) == before


def test_a_work_directory_in_use(folder, capsys):
    (folder / "run").mkdir()
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "run" / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        holder.stdout.readline()
        refused(argv("train", folder), capsys, f"{folder / 'run'}: in use by")
    finally:
        holder.communicate(b"\n")


# stdin.


def generate(monkeypatch, data, *flags):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    return run_main(argv("generate", trained_folder(), *flags))


def test_stdin_with_empty_lines(monkeypatch, capfdbinary):
    assert generate(monkeypatch, b"\n1 2\n\n  \n3\n\n") == 0
    lines = capfdbinary.readouterr().out.split(b"\n")
    assert len(lines) == 7
    assert [bool(line) for line in (lines[0], lines[2], lines[3], lines[5], lines[6])] == [False] * 5


def test_stdin_without_a_line(monkeypatch, capfdbinary):
    assert generate(monkeypatch, b"") == 0
    assert capfdbinary.readouterr().out == b""


def test_stdin_that_is_not_utf8(monkeypatch, capsys):
    assert generate(monkeypatch, b"1 2\n3\xff\n") == 3
    err = capsys.readouterr().err
    assert "stdin, line 2: not valid UTF-8 (byte 0xff at column 2)" in err
    assert "Traceback" not in err


def test_a_line_of_a_million_characters_on_stdin(monkeypatch, capsys):
    assert generate(monkeypatch, b"1 2\n\n" + b"12 " * 333_334 + b"\n") == 3
    err = capsys.readouterr().err
    assert "warning: stdin, line 3: " in err
    assert "tokens with end-of-sequence are too many: evaluation.tokens_per_batch=8192" in err
    assert "Traceback" not in err


# A full disk.


def full(*args, **kwargs):
    raise FULL


def no_room_for(name):
    """Return a patch under which writing files called `name` fails."""

    def fsync(descriptor):
        if f".{name}-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise FULL
        os.fsync(descriptor)

    return mock.patch.object(files, "os", SimpleNamespace(**{**vars(os), "fsync": fsync}))


def test_no_room_for_the_tokenizer(folder, capsys):
    with no_room_for("tokenizer.model"):
        refused(
            argv("train", folder), capsys, f"{folder / 'run'}: cannot write tokenizer.model: No space left on device"
        )
    assert not (folder / "run" / "config.json").exists()
    assert train(folder, "--config.training.num_train_steps=1") == 0


def test_no_room_for_the_token_cache(folder, capsys):
    with mock.patch.object(token_cache, "_write_arrays", full):
        refused(argv("train", folder), capsys, "cannot write the token cache of split 'train': No space left on device")
    assert TOKENIZER_FILE in os.listdir(folder / "run")


def test_no_room_for_metrics(folder, capsys, monkeypatch):
    write = MetricLog.write

    def full_at_6(log, step, split, metrics):
        if step == 6:
            fill_disk(log, "jsonl")
        write(log, step, split, metrics)

    monkeypatch.setattr(MetricLog, "write", full_at_6)
    refused(argv("train", folder), capsys, "run/metrics.jsonl: could not be written: No space left on device")
    assert saved_steps(folder) == [5]
    assert [line["step"] for line in metric_lines(folder / "run")] == [3, 4]


def test_no_room_for_the_config(folder, capsys):
    with no_room_for("config.json"):
        refused(argv("train", folder), capsys, "run/config.json: could not be written: No space left on device")
    assert sorted(os.listdir(folder / "run")) == [".lock", "checkpoints", "token_cache", "tokenizer.model"]


def test_no_room_for_a_checkpoint(folder, capsys, monkeypatch):
    monkeypatch.setattr(store_module, "seal", full)
    refused(argv("train", folder), capsys, "checkpoints/5: could not be saved: No space left on device")
    assert saved_steps(folder) == []


def test_no_room_for_scores(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    (folder / "run" / "evaluation").mkdir()
    words = argv("evaluate", folder, "--splits=test", "--nogenerate")
    with no_room_for("test.json"):
        refused(words, capsys, "evaluation/test.json: could not be written: No space left on device")
    assert os.listdir(folder / "run" / "evaluation") == []


SMALL_DISK = """
mount -t tmpfs -o size=$1 tmpfs $2 || exit 99
cd $3
shift 3
"$@"
code=$?
find $RUN -name '*.json*' -o -name '[0-9]*' -prune >&2
exit $code
"""


def on_a_small_disk(folder: Path, size: str) -> subprocess.CompletedProcess[str]:
    """Train in FOLDER/run, on a separate file system of this size."""
    (folder / "run").mkdir()
    command = ["unshare", "-rm", "sh", "-c", SMALL_DISK, "sh", size, str(folder / "run"), str(ROOT)]
    words = [
        sys.executable,
        "-m",
        "transformer_jax",
        *argv("train", folder, "--config.training.checkpoint_every_steps=1"),
    ]
    words += ["--config.training.keep_last=100"]
    environment = {**os.environ, "RUN": str(folder / "run"), "JAX_PLATFORMS": "cpu"}
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=600, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["8k", "24k", "100k", "800k"])
def test_a_disk_that_is_full(folder, size):
    """A real file system without room for the tokenizer, the token cache, the first or the second checkpoint."""
    result = on_a_small_disk(folder, size)
    if (result.returncode in (1, 99) and "mount" in result.stderr + result.stdout) or "unshare" in result.stderr:
        pytest.skip("not allowed to mount a disk here")
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert "No space left on device" in result.stderr
    assert result.stderr.count("transformer-jax: error: ") == 1
    assert str(folder / "run") in result.stderr.partition("error: ")[2]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(folder, capsys):
    (folder / "run").mkdir(mode=0o500)
    refused(argv("train", folder), capsys, f"{folder / 'run'}: cannot be written: Permission denied")


def test_a_defect_of_the_package_keeps_its_traceback(folder, monkeypatch):
    def fail():
        raise RuntimeError("a defect")

    monkeypatch.setattr(loop, "kill_point", at("after_batch", 1, fail))
    with pytest.raises(RuntimeError, match="a defect"):
        train(folder)
