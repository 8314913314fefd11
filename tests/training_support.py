"""Shared by the tests of training and launchers: a small run with every feature on, uneven batches, distances."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from support import as_batch

from transformer_jax.config import ExperimentConfig, ModelConfig, walk
from transformer_jax.training.hyper import Hyper, StaticConfig, split
from transformer_jax.training.state import TrainState, placed_state
from transformer_jax.training.step import batch_gradient, make_train_step

VOCAB_SIZE = 17

# Tokens per row: unequal in every grouping, and one row is all padding.
LENGTHS = (5, 1, 0, 4, 2, 5, 1, 3)

# Every switch is on, and all rates differ.
SMALL: dict[str, Any] = {
    "seed": 3,
    "model.vocab_size": VOCAB_SIZE,
    "model.emb_dim": 16,
    "model.num_heads": 2,
    "model.mlp_dim": 24,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.max_length": 12,
    "model.dropout_rate": 0.1,
    "model.embedding_dropout_rate": 0.15,
    "model.attention_dropout_rate": 0.2,
    "model.activation_dropout_rate": 0.25,
    "model.final_dropout_rate": 0.05,
    "data.max_length": 12,
    "data.tokens_per_batch": 512,
    "data.row_multiple": 16,
    "optimizer.schedule": "linear",
    "optimizer.learning_rate": 1e-3,
    "optimizer.warmup_steps": 2,
    "optimizer.decay_steps": 20,
    "optimizer.end_fraction": 0.1,
    "optimizer.weight_decay": 0.01,
    "optimizer.clip_norm": 1.0,
    "optimizer.layer_decay": 0.9,
    "training.label_smoothing": 0.1,
    "training.ema_decay": 0.3,
}

OF_TRANSFORMERS = ("num_heads", "mlp_dim", "attention_dropout_rate", "activation_dropout_rate")
SMALL_RECURRENT: dict[str, Any] = {f"model.{name}": None for name in OF_TRANSFORMERS} | {
    "model.architecture": "recurrent",
    "model.num_decoder_layers": 2,
    "model.attention": "general",
    "model.input_feeding": True,
    "model.bridge": "tanh",
    "model.teacher_forcing_rate": 0.7,
    "optimizer.layer_decay": 1.0,
}
"""Overrides of SMALL; None leaves a field out."""


def small_config(overrides: Mapping[str, Any] | None = None) -> ExperimentConfig:
    """Return SMALL with fields replaced by their dotted names, validated and resolved."""
    nested: dict[str, Any] = {}
    for name, value in {**SMALL, **(overrides or {})}.items():
        if value is None and name in SMALL_RECURRENT and SMALL_RECURRENT[name] is None:
            continue
        section = nested
        *sections, field = name.split(".")
        for part in sections:
            section = section.setdefault(part, {})
        section[field] = value
    return ExperimentConfig.from_config_dict(nested)


def split_for(architecture: str, overrides: Mapping[str, Any] | None = None) -> tuple[StaticConfig, Hyper]:
    """Split a small config and replace its architecture without validation: any task may have any architecture.

    A recurrent model is that of SMALL_RECURRENT with teacher forcing; overrides that it does not read are left out.
    """
    if architecture == "recurrent":
        read = {name: value for name, value in (overrides or {}).items() if _is_read_by_recurrent(name)}
        return split(small_config({**SMALL_RECURRENT, "model.teacher_forcing_rate": 1.0, **read}))
    static, hyper = split(small_config(overrides))
    return dataclasses.replace(static, model=dataclasses.replace(static.model, architecture=architecture)), hyper


def _is_read_by_recurrent(name: str) -> bool:
    section, _, field = name.partition(".")
    if section != "model":
        return True
    readers = ModelConfig.__dataclass_fields__[field].metadata.get("read_by", {}).get("model.architecture")
    return readers is None or "recurrent" in readers


def read_by(architecture: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch without arrays that the architecture does not read."""
    unread = "inputs" if architecture == "decoder_only" else "-"
    return {name: array for name, array in batch.items() if not name.startswith(unread)}


def hyper_fields() -> dict[str, Any]:
    """Return the dataclass field of every setting marked `hyper`, by its dotted name."""
    return {name: field for name, field, _ in walk(ExperimentConfig()) if field.metadata.get("hyper")}


def uneven_batch(
    lengths: Sequence[int] = LENGTHS, seed: int = 0, source: int = 6, target: int = 5
) -> dict[str, np.ndarray]:
    """Return a batch with one row per length.

    A row has so many target tokens and one source token more; the row of length 0 is all padding.
    """
    rng = np.random.default_rng(seed)
    tokens = np.asarray(lengths)[:, None]
    inputs = rng.integers(4, VOCAB_SIZE, (len(tokens), source))
    targets = rng.integers(4, VOCAB_SIZE, (len(tokens), target))
    inputs = np.where(np.arange(source) < tokens + (tokens > 0), inputs, 0)
    targets = np.where(np.arange(target) < tokens, targets, 0)
    row_ids = 100 + np.arange(len(tokens), dtype=np.int32)
    batch = as_batch(inputs=inputs.astype(np.int32), targets=targets.astype(np.int32), row_ids=row_ids)
    return {name: np.array(array) for name, array in batch.items()}  # copies are writable


def start(static: StaticConfig, hyper: Hyper) -> TrainState:
    return placed_state(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0]))


@functools.cache
def compiled_gradient(static: StaticConfig) -> Any:
    """Return gradient(params, batch, step, hyper) -> (gradients of the sum, sums)."""
    gradient = jax.jit(functools.partial(batch_gradient, static))
    return lambda params, batch, step, hyper: gradient(params, batch, jnp.int32(step), hyper)[:2]


@functools.cache
def compiled_step(static: StaticConfig) -> Any:
    """Return step(state, batch, hyper) -> (state, metrics)."""
    return jax.jit(make_train_step(static))


def distance(actual: Any, expected: Any) -> float:
    """Return the largest difference between two trees, relative to the largest magnitude in the expected one."""
    pairs = list(zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True))
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    assert all(np.shape(a) == np.shape(e) for a, e in pairs)
    largest = max(np.abs(np.asarray(e, np.float64)).max(initial=0.0) for _, e in pairs)
    differences = [np.abs(np.asarray(a, np.float64) - np.asarray(e, np.float64)).max(initial=0.0) for a, e in pairs]
    return float(np.max(differences) / largest)  # np.max, unlike max, propagates NaN


def first_moment(state: Any) -> Any:
    [moment] = [part.mu for part in state.opt_state if hasattr(part, "mu")]
    return moment


def moved(after: Any, before: Any, grads: Any, threshold: float) -> Any:
    """Return the update of parameters, except those whose gradient is only rounding: Adam moves them a whole step."""
    largest = max(np.abs(g).max() for g in jax.tree.leaves(grads))
    return jax.tree.map(
        lambda new, old, g: np.where(np.abs(g) > threshold * largest, np.asarray(new) - np.asarray(old), 0),
        after.params,
        before.params,
        grads,
    )


def identical(actual: Any, expected: Any) -> bool:
    """Return whether two trees have the same structure and the same bits."""
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        return False
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    return all(np.asarray(a).dtype == np.asarray(e).dtype and np.array_equal(a, e, equal_nan=False) for a, e in pairs)


def run_on_eight_devices(cases: Mapping[str, Any]) -> dict[str, Any]:
    """Run cases of parallel/eight_devices.py in one process with 8 CPU devices.

    cases: by name, the name of a function of that file and its arguments.
    Returns: results by name.
    """
    tests = Path(__file__).parent
    process = subprocess.run(
        [sys.executable, str(tests / "parallel" / "eight_devices.py")],
        input=json.dumps(cases),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)]), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=1800,  # bounds a hang
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
