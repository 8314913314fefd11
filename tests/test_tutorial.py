"""docs/tutorial.md from its first line to its last, in an empty folder, with smaller sizes; and its twin, the notebook.

`test_commands.test_command_lines_in_documents_are_valid` checks all its commands with the sizes that the page has.
"""

import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from run_support import run_main, tutorial_blocks, written_files

from transformer_jax.config_file import read_config

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
SMALL_MODEL = [
    *("--config.model.emb_dim=16", "--config.model.mlp_dim=24", "--config.model.num_heads=2"),
    *("--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=1"),
    "--config.decode.max_extra_length=0",
]
SMALL = {
    "train": [
        *SMALL_MODEL,
        *("--config.training.num_train_steps=8", "--config.training.eval_every_steps=4"),
        *("--config.training.checkpoint_every_steps=4", "--config.data.num_buckets=1"),
    ],
    "sweep": SMALL_MODEL,
}
FEWER = {"lines[:2_000]": "lines[:200]", "lines[2_000:]": "lines[2_360:]"}
"""Lines of the two files that the page makes, and those of the test."""


def commands():
    """Return the command lines of the page, in order."""
    return [line for language, text in tutorial_blocks(PAGE) if not language for line in text.splitlines()]


def test_every_block_of_the_page_is_a_file_a_command_or_an_output():
    files = written_files(PAGE)
    assert sorted(files) == ["make_dates.py", "paper.json", "pre_or_post/study.py"]
    blocks = tutorial_blocks(PAGE)
    assert {language for language, _ in blocks} == {"", "python", "json", "text", "tex"}
    assert len(files) == sum(language in ("python", "json") for language, _ in blocks)
    programs = ("mkdir", "python3 -m venv", "source", "pip install", "python", "head", "transformer-jax")
    assert all(line.startswith(programs) for line in commands())


def shell(line):
    """Run a line that is no command of the package; return its output."""
    line = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", line)
    return subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout


def interrupted(words):
    """Start a command and stop it as Ctrl-C does, once its first trial runs; return its exit code and messages."""
    command = [sys.executable, "-m", "transformer_jax", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        messages = []
        for line in process.stderr:
            messages.append(line)
            if line.endswith(": running\n") and len(messages) == 1:
                process.send_signal(signal.SIGINT)
    return process.returncode, "".join(messages)


@pytest.mark.slow
def test_the_page_from_its_first_line_to_its_last(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files, shown, swept = written_files(PAGE), {}, []
    for full, small in FEWER.items():
        assert full in files["make_dates.py"]
        files["make_dates.py"] = files["make_dates.py"].replace(full, small)
    lines = commands()
    del lines[: lines.index("python make_dates.py")]  # the installation; `test_wheel` has it
    for name in ("make_dates.py", "paper.json"):
        Path(name).write_text(files[name])
    for line in lines:
        if not line.startswith("transformer-jax"):
            shown[line] = shell(line)
            if line == "mkdir pre_or_post":
                Path("pre_or_post/study.py").write_text(files["pre_or_post/study.py"])
            continue
        words = shlex.split(line)[1:]
        given = SMALL.get(words[0], [])
        replaced = {flag.partition("=")[0] for flag in given}
        words = [word for word in words if word.partition("=")[0] not in replaced] + given
        if words[0] == "sweep" and "--dry_run" not in words and not swept:
            code, messages = interrupted(words)
            assert code == 130
            assert "run the same command again to resume" in messages
        swept += [words] if words[0] == "sweep" and "--dry_run" not in words else []
        assert run_main(words) == 0, line
        shown[line] = capsys.readouterr().out

    def output(*parts):
        (text,) = (text for line, text in shown.items() if all(part in line for part in parts))
        return text

    (head,) = (text for _, text in tutorial_blocks(PAGE) if text.startswith("Friday, April 1"))
    assert output("head -n 3") == head
    assert [len(Path(f"dates/{name}.tsv").read_text().splitlines()) for name in ("train", "test")] == [200, 40]
    assert "exact match %" in output("evaluate")
    assert len(output("generate").splitlines()) == 1
    assert "10 trials of 2 variants" in output("--dry_run")
    answer = output("report", "--workdir=runs/pre_or_post --output")
    assert "**Answer:**" in answer
    assert re.search(r"ahead of \w+-LN by \S+ ± \S+|undecided, \S+ ± \S+", answer)
    assert answer.count("5 finished") == 2
    for name in named_files():
        assert Path(name).stat().st_size, name
    assert all(path.read_bytes().startswith(b"%PDF") for path in Path("paper/figures").glob("*.pdf"))
    assert "Pre-LN" in Path("paper/figures/1_validation_loss.svg").read_text()
    assert r"\begin{tabular}" in Path("paper/tables.tex").read_text()
    results = {path: path.stat().st_mtime_ns for path in Path("runs/pre_or_post/trials").glob("*/result.json")}
    assert len(results) == 10
    assert run_main(swept[0]) == 0
    assert results == {path: path.stat().st_mtime_ns for path in results}


def named_files():
    """Return the files that the page says the commands have written."""
    text = PAGE.read_text()
    return set(re.findall(r"`((?:runs|paper|dates)/[\w/.]+\.\w+)`", text)) | {"paper/figures/0_differences.pdf"}


# The notebook.


def test_the_notebook_is_the_twin_of_the_page():
    notebook = nbformat.read(ROOT / "examples" / "tutorial.ipynb", as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    files = dict(re.match(r"%%writefile (\S+)\n(.*)", text, re.S).groups() for text in sources if text[:2] == "%%")
    assert {name: f"{text}\n" for name, text in files.items()} == written_files(PAGE)
    joined = [text.replace(" \\\n  ", " ") for text in sources]
    run = [line[1:] for text in joined for line in text.splitlines() if line.startswith("!")]
    run = [re.sub(r" \{\w+\}$", "", line).replace("mkdir -p", "mkdir") for line in run]
    lines = commands()
    assert run == lines[lines.index("python make_dates.py") :]


def test_the_sizes_that_the_page_names_are_those_of_its_study():
    text = PAGE.read_text()
    names = {"STUDY": None}
    exec(written_files(PAGE)["pre_or_post/study.py"], names)
    assert len(names["STUDY"].seeds) == 5
    assert "the five seeds" in text
    assert read_config("translate").model.norm_position == "pre"
    assert json.loads(written_files(PAGE)["paper.json"])["width"] == 3.3
