"""Every command, benchmark and study starts, and every command line that the documents show can be parsed."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import train_step
from transformer_jax.cli.arguments import parse
from transformer_jax.cli.help import COMMANDS, command_module
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_config

ROOT = Path(__file__).parent.parent


def python_m(*words):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "--helpfull"])
def test_help_of_every_command(capsys, name, flag):
    assert main([name, flag]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: transformer-jax {name} [flags]")
    assert captured.err == ""


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["transformer_jax", "--help"], "usage: transformer-jax COMMAND"),
        (["experiments.run", "--help"], "python -m experiments.run norm_placement"),
        (["benchmarks.train_step", "--help"], "--shape {tiny,small,base}"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_every_program_starts(words, text):
    result = python_m(*words)
    assert result.returncode == 0, result.stderr
    assert text in result.stdout


def test_a_benchmark_of_an_unknown_shape():
    result = python_m("benchmarks.train_step", "--shape=huge")
    assert result.returncode == 2
    assert "invalid choice: 'huge'" in result.stderr


def test_the_benchmark_measures(monkeypatch, capsys):
    # emb_dim, num_heads, mlp_dim, layers; sentences, length.
    monkeypatch.setattr(train_step, "_SHAPES", {"nano": ((16, 2, 32, 1), 2, 8)})
    monkeypatch.setattr(train_step, "_VOCAB_SIZE", 32)
    monkeypatch.setattr(sys, "argv", ["train_step", "--shape=nano", "--seconds=0"])
    train_step.main()
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert (result["shape"], result["dtype"], result["scan_layers"]) == ("nano", "float32", False)
    assert result["steps"] == 5
    for name in ("target_tokens_per_s", "gflops", "compile_s", "peak_memory_mb", "ms"):
        assert result[name] > 0
    assert result["target_tokens_per_s"] == pytest.approx(2 * 8 / (result["ms"] / 1e3))


# Documents.


def documents():
    yield ROOT / "README.md"
    yield from sorted(ROOT.glob("*/README.md"))
    yield from sorted(ROOT.glob("experiments/*/README.md"))
    yield from sorted(ROOT.glob("configs/*.py"))
    yield from sorted([*ROOT.glob("experiments/*.py"), *ROOT.glob("benchmarks/*.py")])
    yield from (ROOT / "transformer_jax" / "cli" / f"{name}.py" for name in COMMANDS)


def command_lines(document):
    """(words after the program's name) of every line of a code block or docstring that calls one of our programs."""
    text = document.read_text()
    if document.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
        blocks = re.findall(r"^    .*", text, re.M)
    else:
        blocks = [line for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    for line in blocks:
        line = re.split(r"\s#|\s<|\s>|\s\[", line.split("| ")[-1])[0].strip()
        match = re.match(r"(transformer-jax|python -m (?:experiments\.run|benchmarks\.train_step)) (.*)", line)
        if match:
            yield match[1].rpartition(" ")[2], shlex.split(match[2])


SHOWN = [(document, *shown) for document in documents() for shown in command_lines(document)]


def test_there_are_command_lines():
    assert len(SHOWN) > 20
    assert {words[0] for _, program, words in SHOWN if program == "transformer-jax"} == set(COMMANDS)
    assert {program for _, program, _ in SHOWN} == {"transformer-jax", "experiments.run", "benchmarks.train_step"}


@pytest.mark.parametrize(
    ("document", "program", "words"), SHOWN, ids=[f"{d.parent.name}/{d.name}-{i}" for i, (d, _, _) in enumerate(SHOWN)]
)
def test_a_command_line_that_is_shown_can_be_used(document, program, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    if program == "transformer-jax" and not {"--help", "--helpfull"}.intersection(words):
        arguments = parse(command_module(words[0]), words[0], words[1:])
        if "config" in arguments.flags and arguments.flags.config:
            config = read_config(arguments.flags.config, arguments.overrides)
            assert config == config.resolved()
        else:
            assert arguments.flags.checkpoint
    elif program == "transformer-jax":
        assert words[0] in COMMANDS
    elif program == "experiments.run":
        from experiments.run import STUDIES, _arguments

        study, workdir, _ = _arguments(words)
        assert study in STUDIES
        assert workdir.parts[0] == "runs"
    else:
        assert words[:1] == ["--shape"]
        assert words[1] in train_step._SHAPES


def test_every_link_in_the_readme_leads_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text())
    assert len(targets) >= 3
    assert [target for target in targets if not (ROOT / target).exists()] == []
