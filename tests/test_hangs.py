"""Pipes and devices in place of files: every reader of a folder that others may have made answers at once.

A pipe without a writer would block, and /dev/zero never ends. Each reader must raise a UserError, or go on without the
file; a signal ends a reader that hangs.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from log_support import log_of
from report_support import write_workdir

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import open_workdir, read_stored_config
from transformer_jax.cli.input_lines import num_lines, open_lines
from transformer_jax.cli.resumable import ResumableFile
from transformer_jax.cli.streams import LabelledFile
from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.config_file import read_config as read_config_file
from transformer_jax.convert.big_vision import open_big_vision
from transformer_jax.convert.folder import open_folder
from transformer_jax.data.labels import read_labels
from transformer_jax.data.sources import load_source
from transformer_jax.data.tokenizers import VOCABULARIES, read_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.results import RESULT, SPEC, held
from transformer_jax.sweeps.study import load_study

SECONDS = 20


@contextlib.contextmanager
def soon() -> Iterator[None]:
    """Fail if the body takes long."""

    def hang(number: int, frame: object) -> None:
        raise AssertionError(f"it hangs: more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(kind)


def open_output(folder: Path) -> None:
    ResumableFile(folder / "out", "--output_file=out", force=False).close()


def open_log(folder: Path) -> None:
    with log_of(folder, 0) as log:
        log.write(1, "train", {"loss": 1.0})


def text_source(folder: Path) -> Any:
    return load_source(DataConfig(source="text", dir=str(folder), source_locale="en", target_locale="de")).split(
        "train"
    )


def image_source(folder: Path) -> Any:
    config = DataConfig(source="npz", dir=str(folder / "a.npz"), train_split="train", valid_split="", test_split="")
    return load_source(config).split("train")


def test_an_input_that_the_user_names_may_be_a_pipe_but_must_have_lines():
    read, write = os.pipe()
    os.write(write, b"one\ntwo")
    os.close(write)
    with contextlib.ExitStack() as files, soon():
        lines, name = open_lines("input", f"/dev/fd/{read}", files)
        assert ([*lines], name) == ([b"one\n", b"two"], f"/dev/fd/{read}")
        assert num_lines(name) is None
    os.close(read)
    with contextlib.ExitStack() as files, soon():
        lines, _ = open_lines("input", "/dev/zero", files)
        with pytest.raises(UserError, match="/dev/zero: line 1 has more than 67,108,864 bytes, too many for one line"):
            next(iter(lines))


CONFIG = ExperimentConfig().resolved().to_dict()
READERS: list[tuple[str, Callable[[Path], Any]]] = [
    ("config.json", read_stored_config),
    ("config.json", lambda folder: open_workdir(folder, CONFIG)),
    (".lock", lambda folder: open_workdir(folder, CONFIG)),
    ("c.json", lambda folder: read_config_file(str(folder / "c.json"))),
    ("study.py", load_study),
    ("metrics.jsonl", open_log),
    ("labels.json", lambda folder: read_labels(folder / "labels.json")),
    ("tokenizer.model", lambda folder: read_tokenizer(folder / "tokenizer.model")),
    *(("v", lambda folder, read=read: read(folder / "v", 1000)) for read in VOCABULARIES.values()),
    *(("v.gz", lambda folder, read=read: read(folder / "v.gz", 1000)) for read in VOCABULARIES.values()),
    ("out.partial", open_output),
    ("a.npz", image_source),
    ("a.npz", lambda folder: open_big_vision(folder / "a.npz")),
    ("train.en", text_source),
    ("train.en.gz", text_source),
    ("config.json", open_folder),
    ("model.safetensors.index.json", open_folder),
    ("model.safetensors", open_folder),
    ("checkpoints/3/record.json", lambda folder: CheckpointStore(folder / "checkpoints", read_only=True).open(3)),
    ("checkpoints/3/SHA256SUMS", lambda folder: CheckpointStore(folder / "checkpoints", read_only=True).open(3)),
    ("study.json", collect),
]


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero"])
@pytest.mark.parametrize(("name", "read"), READERS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(READERS)])
def test_a_file_that_is_no_file_is_named_at_once(name, read, kind, tmp_path):
    put(kind, tmp_path / name)
    with soon(), pytest.raises(UserError):
        read(tmp_path)


def test_the_companion_of_a_partial_output(tmp_path):
    (tmp_path / "out.partial").write_bytes(b"a\n")
    put("pipe", tmp_path / "out.partial.json")
    with soon(), pytest.raises(UserError, match="is damaged; delete the partial file"):
        open_output(tmp_path)


@pytest.mark.parametrize("name", [SPEC, RESULT, "metrics.jsonl", "study.json", ".search.json"])
def test_files_of_a_study(name, tmp_path):
    workdir, _ = write_workdir(tmp_path)
    trial = next(iter(sorted((workdir / "trials").iterdir())))
    put("pipe", (workdir if name in ("study.json", ".search.json") else trial) / name)
    with soon(), contextlib.suppress(UserError):
        collect(workdir)


def test_the_lock_of_a_trial(tmp_path):
    put("pipe", tmp_path / ".worker_lock")
    with soon(), pytest.raises(OSError, match="pipe or a device"), held([tmp_path]):
        pass


def test_a_partial_output_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "other").write_bytes(b"mine")
    (tmp_path / "out.partial").symlink_to("other")
    with pytest.raises(UserError, match="it is a link, which is not followed"):
        open_output(tmp_path)
    assert (tmp_path / "other").read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock"])
def test_a_link_in_a_work_directory_is_not_written_through(name, tmp_path):
    """A downloaded work directory could name any file of the user."""
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "run" / name).symlink_to(tmp_path / ("mine" if name == ".lock" else "new"))
    with pytest.raises(UserError, match="it is a link, which is not followed"):
        open_log(tmp_path / "run") if name == "metrics.jsonl" else open_workdir(tmp_path / "run", CONFIG)
    assert (tmp_path / "mine").read_bytes() == b"mine"
    assert not (tmp_path / "new").exists()


def test_links_to_data_of_the_user_are_followed(tmp_path):
    """A folder of texts, images or tensors may consist of links, as in the cache of the Hugging Face hub."""
    (tmp_path / "real").mkdir()
    for name in ("train.en", "train.de", "valid.en", "valid.de", "test.en", "test.de"):
        (tmp_path / "real" / name).write_text("a b\n")
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).symlink_to(tmp_path / "real" / name)
    assert text_source(tmp_path / "data").features["inputs"] == ["a b"]


def test_an_output_that_is_appended_to_is_not_confused_with_a_named_file(tmp_path):
    """`LabelledFile` passes its opener on; without one, a pipe with a reader still works, as stdout does."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with LabelledFile(tmp_path / "pipe", "wb", "x") as file:
        file.write(b"abc")
    assert os.read(reader, 10) == b"abc"
    os.close(reader)
