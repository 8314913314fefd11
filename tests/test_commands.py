"""Every command, benchmark and study starts, and every command line in the documents can be parsed."""

import ast
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from image_support import write_config, write_npz
from run_support import write_own_modules, written_files

from benchmarks import (
    axes,
    decode,
    decode_cost,
    devices,
    explorer,
    input_pipeline,
    optimizers,
    shapes,
    sweep,
    token_cost,
    train_step,
)
from experiments.norm_placement import gradient_norms
from experiments.parallelism import cost
from transformer_jax.builtin import study_folder
from transformer_jax.cli.arguments import parse
from transformer_jax.cli.help import COMMANDS, command_module
from transformer_jax.cli.main import main
from transformer_jax.config import ExperimentConfig, walk
from transformer_jax.config_file import read_config
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.sweeps.search.search import Space
from transformer_jax.sweeps.study import load_study
from transformer_jax.sweeps.trials import grid, groups

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["transformer_jax", "--help"], "usage: transformer-jax COMMAND"),
        (["experiments.norm_placement.gradient_norms", "--help"], "--depths"),
        (["experiments.parallelism.cost", "--help"], "--lengths"),
        (["transformer_jax.sweeps.worker", "--help"], "--trial_axis"),
        (["benchmarks.train_step", "--help"], "--shape {tiny,small,base,gpt_char,gpt_small,"),
        (["benchmarks.axes", "--help"], "--only"),
        (["benchmarks.optimizers", "--help"], "--seconds"),
        (["benchmarks.explorer", "--help"], "--checkpoint"),
        (["benchmarks.decode", "--help"], "--beam_size"),
        (["benchmarks.decode_cost", "--help"], "--figure"),
        (["benchmarks.token_cost", "--help"], "--after"),
        (["benchmarks.sweep", "--help"], "--num_workers"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_every_program_starts(words, text):
    result = python_m(*words)
    assert result.returncode == 0, result.stderr
    assert text in result.stdout


@pytest.mark.parametrize("name", axes.AXES)
def test_a_row_of_the_costs_compares_two_models(name):
    config = train_step.experiment(axes.parser().parse_args([]))
    without, with_it = (axes.changed(config, fields) for fields in axes.AXES[name])
    assert without != with_it
    assert [*without.problems(), *with_it.problems()] == []


def test_a_row_of_the_costs_that_does_not_exist():
    result = python_m("benchmarks.axes", "--only=qk_norms")
    assert result.returncode == 1
    assert "axes: error: --only=qk_norms: expected beginnings of norm_position=post, " in result.stderr


def test_a_benchmark_of_an_unknown_shape():
    result = python_m("benchmarks.train_step", "--shape=huge")
    assert result.returncode == 2
    assert "invalid choice: 'huge'" in result.stderr


@pytest.fixture
def nano(monkeypatch):
    """Add a shape that takes no time."""
    sizes = {"emb_dim": 16, "num_heads": 2, "mlp_dim": 32, "num_encoder_layers": 1, "num_decoder_layers": 1}
    monkeypatch.setitem(shapes.SHAPES, "nano", sizes)
    monkeypatch.setitem(train_step._BATCHES, "nano", (2, 8))
    return "--shape=nano"


def measured(benchmark, capsys, *argv):
    benchmark.main(argv)
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


@pytest.mark.slow
def test_the_training_benchmark_accepts_the_options_of_a_run(nano, capsys):
    flags = ["--dtype=bfloat16", "--remat=full", "--scan_layers", "--loss_chunks=2", "--launcher=shard_map"]
    result = measured(train_step, capsys, nano, "--seconds=0", "--device=cpu", "--batch=4", "--length=6", *flags)
    assert (result["dtype"], result["remat"], result["loss_chunks"]) == ("bfloat16", "full", 2)
    assert (result["launcher"], result["batch"], result["length"], result["mfu"]) == ("shard_map", 4, 6, None)


@pytest.mark.slow
def test_the_training_benchmark_alternates_with_steps_without_dropout(nano, capsys):
    result = measured(train_step, capsys, nano, "--seconds=0", "--against_no_dropout", "--dropout_rate=0.3")
    assert (result["dropout_rate"], result["steps"], result["shape"]) == (0.3, 5, "nano")
    for name in ("target_tokens_per_s", "gflops", "compile_s", "peak_memory_mb", "ms"):
        assert result[name] > 0
    assert result["dropout_cost"] == pytest.approx(result["ms"] / result["ms_without_dropout"] - 1)


@pytest.mark.slow
def test_the_training_benchmark_of_a_decoder_only_model(monkeypatch, capsys):
    sizes = {"vocab_size": 20, "emb_dim": 16, "num_heads": 2, "num_decoder_layers": 2, "decoder_start_id": 0}
    monkeypatch.setitem(shapes.LANGUAGE_MODELS, "gpt_124m", sizes)
    result = measured(train_step, capsys, "--shape=gpt_124m", "--seconds=0", "--batch=2", "--length=8")
    # Tokens, positions, 2 layers of 12 D^2 and 13 D, and the last norm.
    assert result["parameters"] == 20 * 16 + 1024 * 16 + 2 * (12 * 16**2 + 13 * 16) + 2 * 16
    config = shapes.model_config("gpt_124m").resolved()
    flops = ARCHITECTURES["decoder_only"].train_flops(config, 2, {"targets": 8})
    assert result["gflops"] == pytest.approx(flops / (result["ms"] / 1e3) / 1e9)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "layers"), [("bert_small", 1), ("t5_small", 2)])
def test_the_training_benchmark_of_another_family(monkeypatch, capsys, shape, layers):
    sizes = {"vocab_size": 40, "emb_dim": 16, "num_heads": 2, "mlp_dim": 32, "num_encoder_layers": layers}
    sizes |= {"num_decoder_layers": layers} if shape == "t5_small" else {}
    monkeypatch.setitem(shapes.FAMILIES, shape, functools.partial(shapes.FAMILIES[shape], **sizes))
    result = measured(train_step, capsys, f"--shape={shape}", "--seconds=0", "--batch=2", "--length=20")
    assert (result["num_layers"], result["batch"], result["length"]) == (layers, 2, 20)
    arguments = train_step.parser().parse_args([f"--shape={shape}", "--batch=2", "--length=20"])
    run = train_step.Run(train_step.experiment(arguments), *train_step.sizes(arguments))
    assert run._batch["weights"].sum() == (2 * 3 if shape == "bert_small" else 2 * 20)
    places = run._batch.get("places", np.tile(np.arange(20), (2, 1)))
    assert all(len(set(row)) == len(row) for row in places)


@pytest.mark.slow
def test_the_training_benchmark_of_images_and_of_a_recurrent_model(monkeypatch, capsys):
    small = {"image_size": 8, "emb_dim": 16, "num_heads": 2, "mlp_dim": 32, "num_encoder_layers": 1}
    monkeypatch.setitem(shapes.FAMILIES, "vit_tiny", functools.partial(shapes.FAMILIES["vit_tiny"], **small))
    monkeypatch.setitem(train_step._BATCHES, "vit_tiny", (8, 5))
    result = measured(train_step, capsys, "--shape=vit_tiny", "--seconds=0")
    assert (result["batch"], result["length"]) == (8, 5)
    assert result["images_per_s"] == pytest.approx(8 / (result["ms"] / 1e3))
    with pytest.raises(SystemExit, match="--length=7: the length of vit_tiny follows from its images"):
        train_step.main(["--shape=vit_tiny", "--length=7"])
    small = {"vocab_size": 40, "source_vocab_size": 40, "emb_dim": 16, "hidden_dim": 8}
    monkeypatch.setitem(shapes.FAMILIES, "gru_attention", functools.partial(shapes.FAMILIES["gru_attention"], **small))
    result = measured(train_step, capsys, "--shape=gru_attention", "--seconds=0", "--batch=2", "--length=6")
    assert result["target_tokens_per_s"] == pytest.approx(12 / (result["ms"] / 1e3))


@pytest.mark.slow
def test_a_missing_device():
    result = python_m("benchmarks.decode", "--shape=tiny", "--device=tpu")
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, "--device=tpu: JAX sees none")


def test_peaks_are_found_by_the_kind_of_a_device():
    assert devices.peak_flops("NVIDIA H200") == devices.peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert devices.peak_flops("cpu") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [["--beam_size=1"], ["--beam_size=2"], ["--uncached"], ["--dtype=bfloat16"]],
)
def test_the_decoding_benchmark_measures(nano, capsys, flags):
    result = measured(decode, capsys, nano, "--seconds=0", "--batch=2", "--length=5", *flags)
    assert result["cached"] == ("--uncached" not in flags)
    assert result["tokens_per_s"] == pytest.approx(2 * 5 / (result["ms"] / 1e3))
    assert result["ms_per_token"] == pytest.approx(result["ms"] / 5)
    assert result["runs"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["nano", "gpt_char"])
def test_the_benchmark_decodes_as_many_tokens_as_it_says(nano, shape, monkeypatch):
    monkeypatch.setitem(shapes.LANGUAGE_MODELS["gpt_char"], "num_decoder_layers", 1)
    config = shapes.model_config(shape, max_length=decode.SOURCE_LENGTH + 9).resolved()
    for beam_size in (1, 3):
        assert (decode.make_decoder(config, 4, 9, beam_size)().lengths == 9).all()
    cached = decode.make_decoder(config, 4, 9, 1)()
    uncached = decode.make_uncached_decoder(config, 4, 9)()
    assert uncached.shape == (4, 9)
    assert (cached.ids[:, 0, 0] == uncached[:, 0]).all()


@pytest.mark.slow
def test_the_costs_of_decoding_are_measured(nano, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(decode_cost, "median_seconds", lambda run, seconds: (run(), (0.25, 1))[1])
    result = measured(decode_cost, capsys, nano, "--batch=1", "--limit=256", "--repeats=1")
    assert set(result["ms_per_token"]) == {"128", "256"}
    assert set(result["ms_per_token_uncached"].values()) == {62.5}
    assert result["fit"]["largest_error"] < 1e-6  # two stages are always on a line


@pytest.mark.slow
def test_the_cost_of_a_token_is_measured_for_every_mixer(capsys, monkeypatch):
    monkeypatch.setitem(shapes.LANGUAGE_MODELS["gpt_char"], "num_decoder_layers", 1)
    monkeypatch.setattr(token_cost, "STEPS", 2)
    result = measured(token_cost, capsys, "--shape=gpt_char", "--after", "3", "5", "--repeats=1")
    for mixer, of_length in result["ms_per_token"].items():
        assert of_length.keys() == {"3", "5"}
        assert result["longest_to_shortest"][mixer] == pytest.approx(of_length["5"] / of_length["3"])


def test_costs_need_two_stages(nano, capsys):
    for limit in ("128", "300"):
        with pytest.raises(SystemExit):
            decode_cost.main([nano, f"--limit={limit}"])
        assert f"--limit={limit}: expected 256, 512, 1024" in capsys.readouterr().err


def test_an_uncached_beam_is_refused(nano, capsys):
    with pytest.raises(SystemExit):
        decode.main([nano, "--uncached", "--beam_size=2"])
    assert "--uncached is greedy" in capsys.readouterr().err


@pytest.mark.slow
def test_the_input_benchmark_of_images(tmp_path, capsys):
    write_npz(tmp_path)
    flag = write_config(tmp_path, "npz_config", f"{str(tmp_path)!r}, crop_padding=1, rand_augment=1")
    result = measured(input_pipeline, capsys, "--measure=images", flag, "--seconds=0.001")
    assert result["images_per_batch"] == 8
    assert result["ratio"] == pytest.approx(result["batches_per_s"] / result["steps_per_s"])
    assert result["plain_batches_per_s"] > 0


@pytest.mark.parametrize("steps", [20, sweep.parser().get_default("steps")])
def test_the_study_of_the_sweep_benchmark_is_valid(tmp_path, steps):
    study = sweep.write_study(tmp_path, "tiny", trials=12, steps=steps)
    trials = grid(load_study(study)).trials
    assert len(trials) == 12
    assert len(list(groups(trials))) == 1  # otherwise `vmap` would need several programs


# Documents.


PROGRAMS = {
    "benchmarks.train_step": train_step,
    "benchmarks.axes": axes,
    "benchmarks.optimizers": optimizers,
    "benchmarks.explorer": explorer,
    "benchmarks.decode": decode,
    "benchmarks.decode_cost": decode_cost,
    "benchmarks.token_cost": token_cost,
    "benchmarks.input_pipeline": input_pipeline,
    "benchmarks.sweep": sweep,
    "experiments.norm_placement.gradient_norms": gradient_norms,
    "experiments.parallelism.cost": cost,
}


FOLDERS = ("docs/*.md", "*/README.md", "experiments/*/README.md")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
PAGES += dict.fromkeys(page for folder in FOLDERS for page in sorted(ROOT.glob(folder)))
PROGRAM = re.compile(r"(?:srun |[A-Z]+=\S+ )?(transformer-jax|python -m (?:experiments|benchmarks)[\w.]+) (.*)")


def page_name(page):
    return str(page.relative_to(ROOT))


def documents():
    yield from PAGES
    yield from sorted(ROOT.glob("configs/*.py"))
    yield from sorted([*ROOT.glob("experiments/*/*.py"), *ROOT.glob("benchmarks/*.py")])
    yield from (ROOT / "transformer_jax" / "cli" / f"{name}.py" for name in COMMANDS)


def fields_in_tables(page):
    """Yield the names in the first column of the tables of fields of a page, with their section if the head has it."""
    section, names = None, None
    for line in page.read_text().splitlines():
        first = line.split("|")[1] if line.startswith("|") else None
        if first is None:
            names = None
        elif names is None:
            names = re.fullmatch(r" fields?(?: of `(\w+)`)? ", first)
            section = names and names[1]
        elif names:
            for name in re.findall(r"`([a-z_0-9.]+)(?:=[^`]*)?`", first):
                yield f"{section}.{name}" if section else name


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_fields_in_tables_exist(page):
    known = {name for name, _, _ in walk(ExperimentConfig())}
    known |= {name.rpartition(".")[2] for name in known} | {name.partition(".")[0] for name in known}
    assert not {*fields_in_tables(page)} - known


def test_there_are_tables_of_fields():
    assert sum(len([*fields_in_tables(page)]) for page in PAGES) > 80


def command_lines(document):
    """Yield the words after the program's name, for every command line of this project in a document's code blocks."""
    text = document.read_text()
    if document.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
        blocks = re.findall(r"^    .*", text, re.M)
    else:
        blocks = [line for block in re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) for line in block.splitlines()]
    for line in blocks:
        words = re.match(r"""(?:"[^"]*"|'[^']*'|.)*?(?=\s[#<>\[]|$)""", line.split("| ")[-1])
        match = PROGRAM.match(words[0].strip()) if words else None
        if match:
            yield match[1].rpartition(" ")[2], shlex.split(match[2])


GENERIC = ("classify", "tag", "answer", "translate", "text", "pictures")
"""Configs that read the user's files while they are read."""
SHOWN = [(document, *shown) for document in documents() for shown in command_lines(document)]


def test_there_are_command_lines():
    assert len(SHOWN) > 20
    assert {words[0] for _, program, words in SHOWN if program == "transformer-jax"} == set(COMMANDS)
    assert {program for _, program, _ in SHOWN} == {"transformer-jax", *PROGRAMS}


def write_tutorial(page, folder):
    """Write the files that the tutorial tells the reader to save, and a config in place of that of its training."""
    for name, text in written_files(page).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "runs" / "dates").mkdir(parents=True)
    (folder / "runs" / "dates" / "config.json").write_text(json.dumps(read_config("translate").to_dict()))


@pytest.mark.parametrize(
    ("document", "program", "words"), SHOWN, ids=[f"{d.parent.name}/{d.name}-{i}" for i, (d, _, _) in enumerate(SHOWN)]
)
def test_command_lines_in_documents_are_valid(document, program, words, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    if document.name == "extending.md":
        write_own_modules(document, tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
    if document.name == "tutorial.md":
        write_tutorial(document, tmp_path)
        monkeypatch.chdir(tmp_path)
    if program == "transformer-jax" and not {"--help", "--helpfull"}.intersection(words):
        arguments = parse(command_module(words[0]), words[0], words[1:])
        if "config" in arguments.flags and arguments.flags.config:
            of_user = ("data.dir", "training.init_from") if arguments.flags.config in GENERIC else ()
            given = {name: value for name, value in arguments.overrides.items() if name not in of_user}
            config = read_config(arguments.flags.config, given)
            assert config == config.resolved()
        elif "study" in arguments.flags and arguments.flags.study:
            study, prefix = load_study(study_folder(arguments.flags.study)), "pretraining."
            given = arguments.overrides
            Space(study, {name: value for name, value in given.items() if not name.startswith(prefix)}).check()
            of_first = {name.removeprefix(prefix): v for name, v in given.items() if name.startswith(prefix)}
            if study.pretraining is not None:
                Space(study.pretraining, of_first).check()
            assert study.pretraining is not None or not of_first
        elif words[0] != "list":
            assert arguments.positionals or {"checkpoint", "dataset", "cluster", "workdir"}.intersection(
                arguments.flags.flag_values_dict()
            )
    elif program == "transformer-jax":
        assert words[0] in COMMANDS
    else:
        PROGRAMS[program].parser().parse_args(words)


def heading_anchors(page):
    """Return the anchors that GitHub makes of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_of_a_page_leads_somewhere(page):
    broken = []
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in heading_anchors(file)):
            broken.append(target)
    assert broken == []


def test_the_readme_is_short_and_leads_to_the_documents():
    """docs/README.md lists every page: `test_docs.test_every_page_is_on_one_path_and_has_its_title`."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 100
    assert "(docs/README.md#" in "\n".join(lines)
