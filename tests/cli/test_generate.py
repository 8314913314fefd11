"""The command around the translator: bytes in, lines out, in order, for any content."""

import dataclasses
import io
import itertools
import json
import os
import pathlib
import resource
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from transformer_jax.cli import resumable
from transformer_jax.cli.input_lines import decoded_lines
from transformer_jax.cli.main import main
from transformer_jax.config import DataConfig, DecodeConfig, EvaluationConfig, ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation import fingerprint, loading
from transformer_jax.tasks.trained.lines import Line, LineOutputs, Output


class Shouting:
    """Translates to upper case, two lines at a time; a line with three dots is unfinished."""

    made: ClassVar[list] = []
    seen: ClassVar[list] = []
    fingerprint = "of the model"
    tokenizer, members = None, ()

    def __init__(self, overrides):
        decode = {name.partition(".")[2]: value for name, value in overrides.items() if name.startswith("decode.")}
        self.config = ExperimentConfig(evaluation=EvaluationConfig(), decode=DecodeConfig(**decode))

    @classmethod
    def from_checkpoint(cls, path, overrides=None, ensemble=()):
        cls.made.append((path, overrides, ensemble))
        return cls(overrides or {})

    def check_limit(self):
        pass

    def generate(self, lines, first_number=1):
        numbered = enumerate(lines, start=first_number)
        while chunk := list(itertools.islice(numbered, 2)):
            self.seen.extend(number for number, _ in chunk)
            yield [self.shouted(number, line) for number, line in chunk]

    def shouted(self, number, line):
        problem = line.problem or ("too long" if len(line.text) > 20 else None)
        if problem or not line.text:
            return LineOutputs(number, [], problem)
        text = (line.prompt or "") + line.text.upper()
        return LineOutputs(number, [Output(text, [7, 1], [-0.5, -0.25], -0.75, not line.text.endswith("..."))])


@pytest.fixture(autouse=True)
def translator(monkeypatch, tmp_path):
    monkeypatch.setattr(Shouting, "made", [])
    monkeypatch.setattr(Shouting, "seen", [])
    monkeypatch.setattr(loading, "load_generator", lambda *args: Shouting.from_checkpoint(*args))
    monkeypatch.setattr(fingerprint, "fingerprint", lambda tokenizer, *models: Shouting.fingerprint)
    monkeypatch.setattr("transformer_jax.host.compilation_cache.use_compilation_cache", lambda: None)
    return Shouting


@pytest.fixture
def generate(monkeypatch, capsysbinary):
    """Run the command on bytes: (exit code, stdout, stderr)."""

    def run(data, *argv):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
        code = main(["generate", "--checkpoint=runs/x", *argv])
        captured = capsysbinary.readouterr()
        return code, captured.out, captured.err.decode()

    return run


def warnings(*lines):
    return "".join(f"transformer-jax: warning: {line}\n" for line in lines)


def failed(number):
    return f"lines without an output, which are empty: {number}"


def test_lines_in_their_order(generate, translator):
    assert generate(b"one\ntwo\n") == (0, b"ONE\nTWO\n", "")
    assert translator.made == [(Path("runs/x"), {}, [])]
    flags = ["--evaluation.average_checkpoints=3", "--decode.beam_size=2", "--ensemble=a,b/c"]
    assert generate(b"one\n", *flags) == (0, b"ONE\n", "")
    overrides = {"evaluation.average_checkpoints": 3, "decode.beam_size": 2}
    assert translator.made[-1] == (Path("runs/x"), overrides, [Path("a"), Path("b/c")])


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
def test_unfinished_translations_are_reported(generate, data, told):
    code, out, err = generate(data)
    assert (code, out) == (0, data.upper())
    assert err.startswith(f"transformer-jax: warning: outputs cut off at the length limit: {told}")
    assert err.count("\n") == 1


def test_json_lines(generate):
    code, out, _ = generate("ä\n\nb...\n".encode() + b"x" * 21 + b"\n", "--output=jsonl")
    assert code == 3
    assert "Ä" in out.decode()  # readable, not escaped
    output = {"ids": [7, 1], "log_probs": [-0.5, -0.25], "score": -0.75}
    assert [json.loads(line) for line in out.splitlines()] == [
        {"line": 1, "outputs": [{"text": "Ä", **output, "finished": True}]},
        {"line": 2, "outputs": []},
        {"line": 3, "outputs": [{"text": "B...", **output, "finished": False}]},
        {"line": 4, "outputs": [], "problem": "too long"},
    ]


@pytest.fixture
def of_tokens(monkeypatch):
    """Let the translator's model be of a corpus of Moses tokens."""

    def from_checkpoint(path, overrides=None, ensemble=()):
        translator = Shouting(overrides or {})
        data = DataConfig(source="text", text_form="moses_bpe", target_locale="de")
        translator.config = dataclasses.replace(translator.config, data=data)
        return translator

    monkeypatch.setattr(Shouting, "from_checkpoint", from_checkpoint)


def test_tokens_are_read_and_text_is_written(generate, of_tokens, tmp_path):
    lines = b"hun@@ de , ( a )\n\na@@\n"
    assert generate(lines) == (0, b"HUNDE, (A)\n\nA\n", "")
    code, out, _ = generate(lines, "--output=jsonl")
    texts = [[output["text"] for output in json.loads(line)["outputs"]] for line in out.splitlines()]
    assert (code, texts) == (0, [["HUNDE, (A)"], [], ["A"]])
    (tmp_path / "prompts").write_text("al@@ \nx\n\n")
    assert generate(lines, f"--prompts={tmp_path}/prompts") == (0, b"alHUNDE, (A)\n\nA\n", "")


def test_bad_lines_are_named_and_the_others_translated(generate):
    data = b"one\nf\xfcnf\ntwo\n" + b"x" * 21 + b"\nthree\n"
    told = warnings("stdin, line 2: not valid UTF-8 (byte 0xfc at column 2)", "stdin, line 4: too long", failed(2))
    assert generate(data) == (3, b"ONE\n\nTWO\n\nTHREE\n", told)


def test_a_byte_order_mark_is_text_anywhere_but_at_the_start():
    lines = [b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfb\n"]
    assert list(decoded_lines(lines, None)) == [Line("a"), Line("\ufeffb")]
    assert list(decoded_lines(lines[:1], None, done=1)) == [Line("\ufeffa")]


def test_prompts(generate, tmp_path):
    prompts = tmp_path / "prompts"
    prompts.write_bytes(b"x: \ny: \n\xff\n")
    told = warnings("stdin, line 3: its prompt is not valid UTF-8 (byte 0xff at column 1)", failed(1))
    assert generate(b"one\ntwo\nthree\n", f"--prompts={prompts}") == (3, b"x: ONE\ny: TWO\n\n", told)


def test_more_prompts_than_lines(generate, tmp_path):
    (tmp_path / "prompts").write_bytes(b"x\ny\n")
    code, _, err = generate(b"one\n", f"--prompts={tmp_path / 'prompts'}")
    assert (code, err) == (
        2,
        "transformer-jax: error: --prompts: has more lines than the input; give one prompt per input line\n",
    )


def test_fewer_prompts_than_lines(generate, tmp_path):
    (tmp_path / "prompts").write_bytes(b"x\n")
    code, _, err = generate(b"one\ntwo\n", f"--prompts={tmp_path / 'prompts'}")
    assert (code, err) == (
        2,
        "transformer-jax: error: --prompts: has 1 lines, but the input has more; give one per input line\n",
    )


def test_split(generate, tmp_path):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b"one\ntwo\n")
    assert generate(b"", f"--input={source}", f"--output_file={target}") == (0, b"", "")
    assert target.read_bytes() == b"ONE\nTWO\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_an_output_is_replaced_only_with_force(generate, tmp_path, translator):
    target = tmp_path / "out"
    target.write_text("precious\n")
    code, _, err = generate(b"one\n", f"--output_file={target}")
    assert code == 2
    assert "exists already; --force replaces it" in err
    assert target.read_text() == "precious\n"
    assert translator.made == []  # reported before a model is loaded
    assert generate(b"one\n", f"--output_file={target}", "--force")[0] == 0
    assert target.read_text() == "ONE\n"


def fail_at(monkeypatch, line):
    """Make the translator fail at a line; return a function that repairs it."""
    shouted = Shouting.shouted

    def broken(self, number, given):
        if number == line:
            raise KeyboardInterrupt
        return shouted(self, number, given)

    monkeypatch.setattr(Shouting, "shouted", broken)
    return lambda: monkeypatch.setattr(Shouting, "shouted", shouted)


LINES = b"a\nb\nc\nd\ne\n"


def test_an_interrupted_file_is_continued(generate, tmp_path, monkeypatch):
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(LINES)
    argv = [f"--input={source}", f"--output_file={target}"]
    mend = fail_at(monkeypatch, 5)
    assert generate(b"", *argv)[0] == 130
    assert not target.exists()
    assert (tmp_path / "out.partial").read_bytes() == b"A\nB\nC\nD\n"
    with (tmp_path / "out.partial").open("ab") as file:
        file.write(b"half of a li")  # as a killed process would leave it
    mend()
    Shouting.seen.clear()
    assert generate(b"", *argv)[0] == 0
    assert Shouting.seen == [5]
    assert target.read_bytes() == LINES.upper()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_a_file_of_a_process_that_died_in_the_first_chunk_is_continued(generate, tmp_path, monkeypatch):
    """It has bytes of the output, and the record does not count them yet."""
    argv = [f"--output_file={tmp_path / 'out'}"]

    def die(name, lines):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(resumable, "kill_point", die)
        assert generate(LINES, *argv)[0] == 130
    assert (tmp_path / "out.partial").stat().st_size
    assert json.loads((tmp_path / "out.partial.json").read_text())["lines"] == 0
    assert generate(LINES, *argv)[0] == 0
    assert (tmp_path / "out").read_bytes() == LINES.upper()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(("name", "old", "new"), [("out.partial", b"C", b"X"), ("out.partial.json", b"4", b"3")])
def test_a_damaged_partial_file_is_not_continued(generate, tmp_path, monkeypatch, name, old, new):
    (tmp_path / "in").write_bytes(LINES)
    argv = [f"--input={tmp_path / 'in'}", f"--output_file={tmp_path / 'out'}"]
    mend = fail_at(monkeypatch, 5)
    assert generate(b"", *argv)[0] == 130
    mend()
    file = tmp_path / name
    file.write_bytes(file.read_bytes().replace(old, new, 1))
    code, _, err = generate(b"", *argv)
    assert code == 2
    assert "one of them is damaged; delete the partial file" in err


def test_prompts_continue_at_the_same_line(generate, tmp_path, monkeypatch):
    (tmp_path / "prompts").write_bytes(b"1\n2\n3\n4\n5\n")
    argv = [f"--prompts={tmp_path / 'prompts'}", f"--output_file={tmp_path / 'out'}"]
    mend = fail_at(monkeypatch, 3)
    assert generate(LINES, *argv)[0] == 130
    mend()
    assert generate(LINES, *argv)[0] == 0
    assert (tmp_path / "out").read_bytes() == b"1A\n2B\n3C\n4D\n5E\n"


@pytest.mark.parametrize(
    ("data", "argv", "fingerprint", "told"),
    [
        (b"a\nB\nc\nd\ne\n", [], "of the model", "was made with another input; delete it"),
        (b"a\n", [], "of the model", "was made with another input; delete it"),
        (LINES, ["--decode.beam_size=2"], "of the model", "was made with another decode; delete it"),
        (LINES, ["--output=jsonl"], "of the model", "was made with another output; delete it"),
        (LINES, [], "of another", "was made with another checkpoint; delete it"),
    ],
)
def test_a_partial_file_of_other_settings_is_not_continued(
    generate, tmp_path, monkeypatch, data, argv, fingerprint, told
):
    target = tmp_path / "out"
    mend = fail_at(monkeypatch, 3)
    generate(LINES, f"--output_file={target}")
    mend()
    monkeypatch.setattr(Shouting, "fingerprint", fingerprint)
    code, _, err = generate(data, f"--output_file={target}", *argv)
    assert code == 2
    assert told in err
    assert (tmp_path / "out.partial").read_bytes() == b"A\nB\n"
    (tmp_path / "out.partial").unlink()  # without it the other file is of no use
    assert generate(data, f"--output_file={target}", *argv)[0] == 0
    assert len(target.read_bytes().splitlines()) == len(data.splitlines())


def test_warnings_from_before_an_interruption_are_repeated(generate, tmp_path, monkeypatch):
    data, argv = b"a...\n\xff\nc\nd...\ne\n", [f"--output_file={tmp_path / 'out'}"]
    mend = fail_at(monkeypatch, 3)
    assert generate(data, *argv)[0] == 130
    mend()
    code, _, err = generate(data, *argv)
    assert code == 3
    assert "cut off at the length limit: 2 (line 1, 4);" in err
    assert failed(1) in err


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_after_an_interruption_of_the_last_rename_nothing_is_translated_again(generate, tmp_path, monkeypatch, before):
    target, replace = tmp_path / "out", pathlib.Path.replace

    def interrupted(path, to):
        if path.name != "out.partial":
            return replace(path, to)
        if not before:
            replace(path, to)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "replace", interrupted)
        assert generate(LINES, f"--output_file={target}")[0] == 130
    assert target.exists() != before
    Shouting.seen.clear()
    assert generate(LINES, f"--output_file={target}")[0] == (0 if before else 2)
    assert Shouting.seen == []
    assert target.read_bytes() == LINES.upper()
    assert generate(b"z\n", f"--output_file={target}", "--force")[0] == 0  # whichever of the two files is left
    assert target.read_bytes() == b"Z\n"


def test_force_replaces_a_file_and_continues_its_replacement(generate, tmp_path, monkeypatch):
    target = tmp_path / "out"
    target.write_text("precious\n")
    mend = fail_at(monkeypatch, 5)
    argv = [f"--output_file={target}", "--force"]
    assert generate(LINES, *argv)[0] == 130
    assert target.read_text() == "precious\n"
    mend()
    Shouting.seen.clear()
    assert generate(LINES, *argv)[0] == 0
    assert Shouting.seen == [5]
    assert target.read_bytes() == LINES.upper()


def test_a_partial_file_without_its_record_is_kept(generate, tmp_path):
    (tmp_path / "out.partial").write_text("precious\n")
    code, _, err = generate(LINES, f"--output_file={tmp_path / 'out'}", "--force")
    assert code == 2
    assert "out.partial exists, but out.partial.json is missing, or one of them is damaged; delete " in err
    assert (tmp_path / "out.partial").read_text() == "precious\n"


def test_a_wrong_checkpoint_keeps_a_partial_file(generate, tmp_path, monkeypatch):
    mend = fail_at(monkeypatch, 5)
    generate(LINES, f"--output_file={tmp_path / 'out'}")
    mend()

    def refuse(path, overrides, ensemble):
        raise ConfigError("no such checkpoint")

    monkeypatch.setattr(Shouting, "from_checkpoint", refuse)
    assert generate(LINES, f"--output_file={tmp_path / 'out'}", "--force")[0] == 2
    assert (tmp_path / "out.partial").read_bytes() == b"A\nB\nC\nD\n"


def test_other_prompts_are_another_output(generate, tmp_path, monkeypatch):
    prompts = tmp_path / "prompts"
    prompts.write_bytes(b"1\n2\n3\n4\n5\n")
    argv = [f"--prompts={prompts}", f"--output_file={tmp_path / 'out'}"]
    mend = fail_at(monkeypatch, 3)
    generate(LINES, *argv)
    mend()
    prompts.write_bytes(b"1\n2\n3\n4\n6\n")
    assert "was made with another prompts; delete it" in generate(LINES, *argv)[2]


def test_several_outputs_need_json_lines(generate):
    for flags in (
        ["--decode.beam_size=3", "--decode.num_best=3"],
        ["--decode.method=sample", "--decode.num_samples=3"],
    ):
        code, out, err = generate(b"one\n", *flags)
        assert (code, out) == (2, b"")
        assert "the decode settings ask for 3; use --output=jsonl to write all" in err
        assert generate(b"one\n", *flags, "--output=jsonl")[0] == 0


def test_a_file_that_another_process_is_writing(generate, tmp_path):
    target = tmp_path / "out"
    script = f"import fcntl, sys; f = open({str(target) + '.partial'!r}, 'ab'); fcntl.flock(f, fcntl.LOCK_EX); "
    script += "print('locked', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        code, _, err = generate(b"one\n", f"--output_file={target}")
        other.communicate("")
    assert code == 2
    assert f"another process is writing {target}.partial" in err


def test_a_full_disk_is_named(generate, tmp_path, monkeypatch):
    """Python does not name the file that it could not write."""
    target, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)

    def translate_on_a_full_disk(self, lines, first_number):
        list(lines)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        yield [LineOutputs(1, [Output("x" * 100, [1], [0.0], 0.0, True)])]

    monkeypatch.setattr(Shouting, "generate", translate_on_a_full_disk)
    try:
        code, out, err = generate(b"one\n", f"--output_file={target}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (code, out, err) == (2, b"", f"transformer-jax: error: --output_file={target}: File too large\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_can_replace_itself(generate, tmp_path):
    file = tmp_path / "text"
    file.write_text("one\n")
    assert generate(b"", f"--input={file}", f"--output_file={file}", "--force")[0] == 0
    assert file.read_text() == "ONE\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--input={}/missing"], "missing: No such file or directory"),
        (["--input={}"], "Is a directory"),
        (["--prompts={}/missing"], "--prompts={}/missing: No such file or directory"),
        (["--output_file={}"], "is a folder"),
        (["--output_file={}/missing/out"], "cannot be written: No such file or directory"),
        (["--output={}/out"], "expected one of text, jsonl; to write a file, use --output_file"),
        (["--output=jsnol"], "expected one of text, jsonl (did you mean 'jsonl'?)"),
    ],
)
def test_split_that_cannot_be_used(generate, tmp_path, translator, argv, message):
    code, out, err = generate(b"one\n", *(arg.format(tmp_path) for arg in argv))
    assert (code, out) == (2, b"")
    assert message.format(tmp_path) in err
    assert translator.made == []
    assert os.listdir(tmp_path) == []


def test_an_invalid_line_of_a_file_names_the_file(generate, tmp_path):
    source = tmp_path / "in"
    source.write_bytes(b"\xff\n")
    assert f"{source}, line 1: not valid UTF-8" in generate(b"", f"--input={source}")[2]
