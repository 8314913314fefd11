"""The figures of docs/figures are those that docs/figures/draw.py draws, and the functions that they name exist."""

import functools
import importlib
import inspect
import re
import sys
from pathlib import Path

import jax
import pytest
from drawing_support import check_layout
from support import make_batch, tiny

from transformer_jax.config import ExperimentConfig
from transformer_jax.config_file import run_file
from transformer_jax.inspection.drawing import svg
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
draw = run_file(FOLDER / "draw.py", "script")


@pytest.mark.parametrize("file", draw.FIGURES)
def test_a_figure_is_what_the_code_draws(file):
    drawing = draw.FIGURES[file]()
    assert (FOLDER / file).read_bytes() == svg(drawing), "run python docs/figures/draw.py"
    check_layout(drawing)


def test_every_figure_is_drawn_by_the_script_and_is_on_a_page():
    assert {path.name for path in FOLDER.glob("*.svg")} == set(draw.FIGURES)
    pages = "".join(path.read_text() for path in (*FOLDER.parent.glob("*.md"), FOLDER.parent.parent / "README.md"))
    shown = dict(re.findall(r"!\[([^\]]+)\]\((?:docs/)?figures/(\w+\.svg)\)", pages))
    assert set(shown.values()) >= set(draw.FIGURES)


def resolved(name):
    """Return the object of a dotted name below the package."""
    parts = name.split(".")
    for number in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(["transformer_jax", *parts[:number]]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[number:], module)
    raise AssertionError(name)


NAMES = [name for functions in draw.WAY_OF_A_BATCH.values() for name in functions]


@pytest.mark.parametrize("name", NAMES)
def test_functions_on_the_way_of_a_batch_exist(name):
    assert callable(resolved(name))


def test_a_training_step_calls_the_functions_in_the_order_of_the_figure():
    expected = list(draw.WAY_OF_A_BATCH[draw.DEVICE])
    names = {}
    for name in expected:
        function = resolved(name)
        function = inspect.unwrap(function.__call__ if inspect.isclass(function) else function)
        names[function.__code__] = name
    loss = "tasks.task.Task.loss"  # the method of the task of this config
    names[importlib.import_module("transformer_jax.tasks.token_prediction").TokenPrediction.loss.__code__] = loss
    called = []

    def record(frame, event, arg):
        name = names.get(frame.f_code)
        if event == "call" and name is not None and name not in called:
            called.append(name)

    config = ExperimentConfig(model=tiny(num_encoder_layers=1, num_decoder_layers=1, scan_layers=True)).resolved()
    static, hyper = split(config)
    state = jax.eval_shape(lambda h: init_state(static, h), hyper)
    batch = make_batch()
    sys.setprofile(record)
    try:
        jax.eval_shape(make_train_step(static), state, batch, hyper)
    finally:
        sys.setprofile(None)
    assert called == expected
