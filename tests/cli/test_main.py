import errno
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import transformer_jax
from transformer_jax.__main__ import program
from transformer_jax.cli import train
from transformer_jax.cli.help import COMMANDS
from transformer_jax.cli.main import main
from transformer_jax.config_file import leaf_types
from transformer_jax.errors import CheckpointError, DataError, TrainingError
from transformer_jax.host import exit_codes


def stub(monkeypatch, action):
    """Make `train` do something else."""
    monkeypatch.setattr(train, "run", action)


def raising(error):
    def run(arguments):
        raise error

    return run


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["help"]])
def test_help_names_every_command(capsys, argv):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: transformer-jax COMMAND")
    for command in COMMANDS:
        assert out.count(f"\n  {command} ") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_names_its_flags(capsys, command):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: transformer-jax {command} [flags]")
    assert "--[no]debug" in out
    assert ("--config=..." in out) == (command in ("train", "convert", "inspect", "plot", "quickstart", "sweep"))
    assert "--config.model.num_heads=" not in out


def test_full_help_has_every_field_with_default_choices_and_meaning(capsys):
    assert main(["train", "--helpfull"]) == 0
    out = capsys.readouterr().out
    for name in leaf_types():
        assert f"\n  --config.{name}=" in out
    assert "--config.model.num_heads=8\n        attention heads\n" in out
    assert "--config.model.head_dim=\n" in out
    assert "--config.model.use_bias=true\n" in out
    assert "(post | pre | sandwich | output | peri | deepnorm | MODULE:OBJECT)" in " ".join(out.split())
    assert "\nparallel: Settings for several devices" in out


def test_full_help_of_evaluate_has_only_what_it_accepts(capsys):
    assert main(["evaluate", "--helpfull"]) == 0
    out = capsys.readouterr().out
    assert "\n  --evaluation.average_checkpoints=1\n" in out
    assert "--data.dir=\n" in out
    assert "num_heads" not in out


def test_help_is_given_whatever_else_is_wrong(capsys):
    assert main(["train", "--confg=x", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage:")


def test_help_and_bad_usage_do_not_import_jax():
    helps = [["--help"], ["train", "--help"], ["inspect", "--helpfull"], ["--version"], ["compare", "--help"]]
    refused = [["train", "--config=nope.py", "--workdir=x"], ["compare", "a"]]
    refused += [["compare", "a", "b", flag] for flag in ("--samples=0", "--splits=")]
    code = (
        "import sys; from transformer_jax.cli.main import main\n"
        f"codes = [main(argv) for argv in {helps + refused}]\n"
        "print([name in sys.modules for name in ('jax', 'sacrebleu')], codes)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == f"[False, False] {[0] * len(helps) + [2] * len(refused)}"


def test_version(capsys):
    assert main(["--version"]) == 0
    out = capsys.readouterr().out
    assert transformer_jax.__version__ in out
    assert importlib.metadata.version("jax") in out


def test_no_command_shows_the_usage_on_stderr(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("usage:")
    assert captured.out == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "unknown command 'trian' (did you mean 'train'?); commands are train, evaluate"),
        (["--versoin"], "unknown flag '--versoin' (did you mean '--version'?)"),
        (["train", "--workdri=x"], "unknown flag --workdri (did you mean '--workdir'?)"),
    ],
)
def test_bad_usage_is_one_message(capsys, argv, message):
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"transformer-jax: error: {message}")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("error", [DataError, CheckpointError, TrainingError])
def test_a_user_error_is_a_message_and_a_traceback_only_with_debug(monkeypatch, capsys, error):
    stub(monkeypatch, raising(error("file x: line 3")))
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "transformer-jax: error: file x: line 3\n"
    assert main(["train", "--debug"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("transformer-jax: error: file x: line 3\n")


def test_a_defect_keeps_its_traceback(monkeypatch):
    """The interpreter then prints it and exits with 1."""
    assert exit_codes.DEFECT == 1
    stub(monkeypatch, raising(KeyError("x")))
    with pytest.raises(KeyError):
        main(["train"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_a_refusal_by_the_operating_system_is_a_user_error(monkeypatch, capsys, number):
    stub(monkeypatch, raising(OSError(number, "the reason", "some/file")))
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "transformer-jax: error: some/file: the reason\n"
    stub(monkeypatch, raising(OSError(number, "the reason")))
    assert main(["train"]) == 2
    assert capsys.readouterr().err == "transformer-jax: error: the reason\n"


def test_another_os_error_is_a_defect(monkeypatch):
    stub(monkeypatch, raising(FileNotFoundError(errno.ENOENT, "no", "x")))
    with pytest.raises(FileNotFoundError):
        main(["train"])


def test_ctrl_c(monkeypatch, capsys):
    stub(monkeypatch, raising(KeyboardInterrupt()))
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "transformer-jax: interrupted\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_closes_the_pipe_is_not_an_error(unbuffered):
    code = (
        "import sys; from transformer_jax.cli import train, main\n"
        "def run(arguments):\n    for _ in range(100_000): print('x' * 100)\n    return 0\n"
        "train.run = run; sys.exit(main.main(['train']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == exit_codes.BROKEN_PIPE


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["print('x')", "print('x' * 100_000)", "sys.stdout.buffer.write(b'x' * 9000)"])
def test_a_full_disk_behind_stdout_is_an_error_that_names_it(words, unbuffered):
    """Also when it fails only at the end; Python does not report it again at exit."""
    code = (
        "import sys; from transformer_jax.cli import train, main\n"
        f"train.run = lambda arguments: {words} and 0 or 0; sys.exit(main.main(['train']))"
    )
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    message = "transformer-jax: error: stdout: No space left on device\n"
    assert (result.returncode, result.stderr) == (exit_codes.USER_ERROR, message)


def test_a_full_disk_behind_stdout_does_not_hide_another_error():
    code = (
        "import sys; from transformer_jax.cli import train, main; from transformer_jax.errors import DataError\n"
        "def run(arguments):\n    print('x')\n    raise DataError('line 3')\n"
        "train.run = run; sys.exit(main.main(['train']))"
    )
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr) == (exit_codes.USER_ERROR, "transformer-jax: error: line 3\n")


@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("trian", 2)])
def test_a_closed_stdout_changes_no_exit_code(words, code):
    shell = f'exec "$0" -m transformer_jax {words} >&-'
    result = subprocess.run(["sh", "-c", shell, sys.executable], stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert ("stdout is closed, so the output of this command is lost" in result.stderr) == (code == 0)


def test_descriptors_of_closed_streams_are_not_given_to_other_files():
    code = (
        "import os, sys; from transformer_jax.cli import train, main\n"
        "def run(arguments):\n"
        "    with open(os.devnull) as file: print(file.fileno() > 2, file=sys.__stdout__ or open(sys.argv[1], 'w'))\n"
        "    return 0\n"
        "train.run = run; main.main(['train'])"
    )
    with tempfile.TemporaryDirectory() as folder:
        shell = f'exec "$0" -c "$1" {folder}/out <&- >&- 2>&-'
        subprocess.run(["sh", "-c", shell, sys.executable, code], check=True)
        assert (Path(folder) / "out").read_text() == "True\n"


def test_a_closed_stdin_is_named(tmp_path):
    for command in ("generate", "predict", "score"):
        shell = f'exec "$0" -m transformer_jax {command} --checkpoint={tmp_path} <&-'
        result = subprocess.run(["sh", "-c", shell, sys.executable], stderr=subprocess.PIPE, text=True, check=False)
        assert (result.returncode, "Traceback" in result.stderr) == (2, False)
        assert "stdin is closed; pass --input=FILE" in result.stderr


def test_tables_into_a_closed_pipe():
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "transformer_jax", "inspect", "--config=configs/quickstart.py"]
    root = Path(__file__).parent.parent.parent
    result = subprocess.run(command, cwd=root, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (result.returncode, result.stderr) == (exit_codes.BROKEN_PIPE, "")


def test_another_broken_pipe_is_a_defect(monkeypatch):
    for error in (BrokenPipeError(errno.EPIPE, "no one there"), BrokenPipeError(errno.EPIPE, "no", "a socket")):
        stub(monkeypatch, raising(error))
        with pytest.raises(BrokenPipeError):
            main(["train"])


def test_warnings_look_like_errors_and_come_once(monkeypatch, capsys):
    def run(arguments):
        logging.getLogger("transformer_jax.somewhere").warning("mind the %s", "gap")
        return 0

    stub(monkeypatch, run)
    for _ in range(2):
        assert main(["train"]) == 0
        assert capsys.readouterr().err == "transformer-jax: warning: mind the gap\n"


def test_a_stream_that_cannot_show_a_character_does_not_stop_a_command():
    code = "from transformer_jax.cli import train, main\ntrain.run = lambda a: print('fünf') or 0\nmain.main(['train'])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"}
    )
    assert result.stdout == b"f\\xfcnf\n"


def test_both_entry_points_are_one():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="transformer-jax")
    assert script.load() is program
    result = subprocess.run([sys.executable, "-m", "transformer_jax", "trian"], capture_output=True, text=True)
    assert result.returncode == 2
    assert "did you mean 'train'" in result.stderr
