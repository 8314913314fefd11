"""A training state with every kind of leaf, and helpers to save it, damage it and use it in another process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from transformer_jax.checkpoints.store import CheckpointStore

ROOT = Path(__file__).parents[2]
TOKENIZER = bytes(range(256)) * 3


class TrainState(NamedTuple):
    step: Any
    params: Any
    opt_state: Any


def make_state(step: int, width: int = 8) -> TrainState:
    """Return a small state whose every leaf depends on the step."""
    key = jax.random.key(step)
    params = {
        "encoder": {"kernel": jax.random.normal(key, (4, width)), "bias": jnp.full((3,), 0.1 + step, jnp.bfloat16)},
        "decoder": {"kernel": jax.random.normal(key, (width, 2))},
    }
    transform = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    _, opt_state = transform.update(jax.tree.map(lambda x: x * 0.5, params), transform.init(params), params)
    tables = {"bytes": jnp.arange(5, dtype=jnp.uint8) + step, "flags": jnp.array([True, False, step % 2 == 0])}
    return TrainState(jnp.asarray(step, jnp.int32), params, (opt_state, tables))


def bits(tree: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    return [(x.dtype.name, x.shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(tree)]


def fill(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        store.save(step, make_state(step), {"config": {"seed": step}}, {"tokenizer.model": TOKENIZER})
    store.wait()


def run_python(code: str, *args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, with the names of this file in scope."""
    prelude = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\nfrom conftest import *\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + code, *map(str, args)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


class Helpers(NamedTuple):
    """The functions above as a fixture, since tests cannot import a conftest."""

    make_state: Callable[..., TrainState] = staticmethod(make_state)
    bits: Callable[..., Any] = staticmethod(bits)
    fill: Callable[..., None] = staticmethod(fill)
    run_python: Callable[..., subprocess.CompletedProcess[str]] = staticmethod(run_python)
    tokenizer: bytes = TOKENIZER


@pytest.fixture(scope="session")
def helpers() -> Helpers:
    return Helpers()


@pytest.fixture(scope="session")
def template() -> TrainState:
    return jax.eval_shape(lambda: make_state(0))


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")
