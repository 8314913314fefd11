import io
import itertools
import resource
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from transformer_jax.cli.generate import decoded_lines
from transformer_jax.cli.main import main
from transformer_jax.errors import DataError
from transformer_jax.evaluation import translate
from transformer_jax.evaluation.translate import Translations


class Shouting:
    """Translates by shouting, two lines at a time; a line with three dots does not come to its end."""

    made: ClassVar[list] = []

    @classmethod
    def from_checkpoint(cls, path, overrides=None):
        cls.made.append((path, overrides))
        return cls()

    def translate(self, lines):
        numbered = enumerate(lines, start=1)
        while chunk := list(itertools.islice(numbered, 2)):
            for number, line in chunk:
                if len(line) > 20:
                    raise DataError(f"line {number}: too long")
            unfinished = [number for number, line in chunk if line.endswith("...")]
            yield Translations([line.upper() for _, line in chunk], unfinished)


@pytest.fixture(autouse=True)
def translator(monkeypatch):
    monkeypatch.setattr(Shouting, "made", [])
    monkeypatch.setattr(translate, "Translator", Shouting)
    return Shouting


@pytest.fixture
def generate(monkeypatch, capsysbinary):
    """Runs the command on bytes: (exit code, stdout, stderr)."""

    def run(data, *argv):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
        code = main(["generate", "--checkpoint=runs/x", *argv])
        captured = capsysbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return run


def test_lines_in_their_order(generate, translator):
    assert generate(b"one\ntwo\n") == (0, b"ONE\nTWO\n", "")
    assert translator.made == [(Path("runs/x"), {})]
    assert generate(b"one\n", "--evaluation.average_checkpoints=3") == (0, b"ONE\n", "")
    assert translator.made[-1] == (Path("runs/x"), {"evaluation.average_checkpoints": 3})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", b""),
        (b"\n", b"\n"),
        (b"a\n\n\nb\n", b"A\n\n\nB\n"),
        (b"a\nb", b"A\nB\n"),
        (b"a\r\nb\r\n", b"A\nB\n"),
        ("fünf\u2028straße\n".encode(), "FÜNF STRASSE\n".encode()),
        (b"\xef\xbb\xbfa\n", b"A\n"),
        (b"a\x0bb\x0cc\n", b"A B C\n"),
    ],
)
def test_every_line_gives_one_line_of_utf8_whatever_the_locale(generate, data, expected):
    assert generate(data) == (0, expected, "")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"a\nb...\nc\n", "1 (line 2)"),
        (b"...\na\nb...\nc...\n", "3 (line 1, 3, 4)"),
        (b"...\n" * 7, "7 (line 1, 2, 3, 4, 5, ...)"),
    ],
)
def test_translations_that_are_cut_are_told(generate, data, told):
    code, out, err = generate(data)
    assert (code, out) == (0, data.upper())
    assert err.startswith(f"transformer-jax: warning: translations that reached the length limit and end there: {told}")
    assert err.count("\n") == 1


def test_invalid_utf8_is_named(generate):
    code, _, err = generate(b"fine\nf\xfcnf\n")
    assert code == 2
    assert err.startswith("transformer-jax: error: stdin, line 2: not valid UTF-8 (byte 0xfc at column 2)")


def test_a_byte_order_mark_is_text_anywhere_but_at_the_start():
    assert list(decoded_lines([b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfb\n"], "x")) == ["a", "\ufeffb"]


def test_a_line_that_is_too_long_is_named(generate):
    code, _, err = generate(b"fine\n" + b"x" * 21 + b"\n")
    assert (code, err) == (2, "transformer-jax: error: line 2: too long\n")


def test_files(generate, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"one\ntwo\n")
    assert generate(b"", f"--input={source}", f"--output={target}") == (0, b"", "")
    assert target.read_bytes() == b"ONE\nTWO\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_an_output_is_replaced_by_force_only(generate, tmp_path, translator):
    target = tmp_path / "out"
    target.write_text("precious\n")
    code, _, err = generate(b"one\n", f"--output={target}")
    assert code == 2
    assert "exists already; --force replaces it" in err
    assert target.read_text() == "precious\n"
    assert translator.made == []  # told before a model is loaded
    assert generate(b"one\n", f"--output={target}", "--force")[0] == 0
    assert target.read_text() == "ONE\n"


def test_a_failure_leaves_the_output_as_it_was(generate, tmp_path):
    target = tmp_path / "out"
    target.write_text("precious\n")
    assert generate(b"one\n" + b"x" * 21, f"--output={target}", "--force")[0] == 2
    assert target.read_text() == "precious\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_is_named(generate, tmp_path, monkeypatch):
    """Python does not say which file it could not write."""
    target, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)

    def translate_on_a_full_disk(self, lines):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        yield Translations(["x" * 100], [])

    monkeypatch.setattr(Shouting, "translate", translate_on_a_full_disk)
    try:
        code, out, err = generate(b"one\n", f"--output={target}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, out, err) == (2, b"", f"transformer-jax: error: --output={target}: File too large\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_can_replace_itself(generate, tmp_path):
    file = tmp_path / "text"
    file.write_text("one\n")
    assert generate(b"", f"--input={file}", f"--output={file}", "--force")[0] == 0
    assert file.read_text() == "ONE\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--input={}/missing"], "missing: No such file or directory"),
        (["--input={}"], "Is a directory"),
        (["--output={}"], "is a folder"),
        (["--output={}/missing/out"], "cannot be written: No such file or directory"),
    ],
)
def test_files_that_cannot_be_used(generate, tmp_path, translator, argv, message):
    code, out, err = generate(b"one\n", *(arg.format(tmp_path) for arg in argv))
    assert (code, out) == (2, b"")
    assert message in err
    assert translator.made == []


def test_an_invalid_line_of_a_file_names_the_file(generate, tmp_path):
    source = tmp_path / "in"
    source.write_bytes(b"\xff\n")
    assert f"{source}, line 1: not valid UTF-8" in generate(b"", f"--input={source}")[2]
