"""Every file in configs/ is a valid config and can train."""

import ast
import re
from pathlib import Path

import jax
import pytest

from transformer_jax.config_file import load_config_dict, read_config
from transformer_jax.errors import ConfigError
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").glob("*.py"))
# Arguments that a file accepts after its name.
ARGUMENTS = {
    "wmt14": ["base", "big"],
    "shakespeare_char": ["gpu", "tuned"],
    "mnist": ["short"],
    "recurrent": ["none", "luong", "lm", "tagger"],
    "scan": ["simple", "length"],
    "scitldr": ["decoder"],
    "multi30k_rnn": ["lstm", "gru", "attention", "transformer"],
    **{name: ["wikitext2"] for name in ("masked_lm", "span_corruption", "denoising")},
}
SPECS = [f"{file}{arg and ':' + arg}" for file in FILES for arg in ["", *ARGUMENTS.get(file.stem, [])]]


GENERIC = {file.stem for file in FILES if "fit = fit_to_data" in file.read_text()}
"""Configs that read the folder in data.dir while they are read; tests/fitting tests them with files."""


def read(spec, **overrides):
    if load_config_dict(spec).data.source in ("text", "npz") and Path(spec.partition(":")[0]).stem not in GENERIC:
        overrides["data.dir"] = "some/folder"
    return read_config(spec, overrides)


def name(spec):
    return Path(spec).name


def test_there_are_configs():
    assert {"quickstart", "multi30k", "wmt14"} <= {file.stem for file in FILES}
    assert set(ARGUMENTS) <= {file.stem for file in FILES}
    assert {"classify", "tag", "answer", "translate", "text", "pictures"} == GENERIC


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_builds_and_validates(spec):
    config = read(spec)
    assert config == config.resolved()
    training = config.training  # keeps as many checkpoints as are averaged
    assert training.num_train_steps >= training.checkpoint_every_steps * config.evaluation.average_checkpoints


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_a_step_of_its_full_size_can_be_traced(spec):
    config = read(spec)
    static, hyper = split(config)
    state = jax.eval_shape(lambda h: init_state(static, h), hyper)
    rows, length = config.data.row_multiple, config.data.max_length
    batch = TASKS[config.task.name].batch_template(config, rows, TASKS[config.task.name].widths(config, length))
    after, metrics = jax.eval_shape(make_train_step(static), state, batch, hyper)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    assert metrics["loss"].shape == ()


@pytest.mark.parametrize("file", FILES, ids=name)
def test_refuses_an_unknown_argument(file):
    with pytest.raises(
        ConfigError, match=rf"{file.name}: argument 'qqq': .*{'|'.join(ARGUMENTS.get(file.stem, ['none']))}"
    ):
        load_config_dict(f"{file}:qqq")


@pytest.mark.parametrize("file", FILES, ids=name)
def test_its_docstring_names_command_hardware_and_result(file):
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    assert docstring is not None
    assert "Hardware: " in docstring
    assert re.search(r"Result: .*\d", docstring, re.S)
    commands = re.findall(r"^ +transformer-jax train .*--config=(\w+)(?::(\w+))? .*--workdir=", docstring, re.M)
    assert commands, docstring
    assert {stem for stem, _ in commands} == {file.stem}
    for _, arg in commands:
        read(f"{file}:{arg}")


def test_the_argument_changes_the_config():
    base, same, big = (read(f"{ROOT}/configs/wmt14.py{arg}") for arg in ("", ":base", ":big"))
    assert base == same
    assert (base.model.emb_dim, base.evaluation.average_checkpoints) == (512, 5)
    assert (big.model.emb_dim, big.evaluation.average_checkpoints) == (1024, 20)


def test_wmt14_trains_at_the_papers_rate():
    config = read(f"{ROOT}/configs/wmt14.py")
    assert config.optimizer.learning_rate == pytest.approx(512**-0.5 * 4000**-0.5)
    assert (config.optimizer.beta1, config.optimizer.beta2, config.optimizer.epsilon) == (0.9, 0.98, 1e-9)
    assert config.training.label_smoothing == 0.1
