"""Shared by the tests of models and blocks: tiny configs, parameters without zeros, batches, comparisons."""

import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import ModelConfig
from transformer_jax.models.architecture import ARCHITECTURES, init_params

# All sizes differ, so that no axis can be mistaken for another.
TINY = {
    "vocab_size": 19,
    "emb_dim": 16,
    "num_heads": 4,
    "mlp_dim": 24,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "max_length": 12,
    # So few buckets that short distances share them, in the encoder differently from the decoder.
    "relative_num_buckets": 6,
    "relative_max_distance": 5,
    "dropout_rate": 0.0,
}


def choices(field: str) -> tuple[str, ...]:
    return tuple(ModelConfig.__dataclass_fields__[field].metadata["choices"])


# Every field that changes the model's computation, with at most three of its values unless they differ in how they are
# decoded and packed; the first is the default. Other activations are functions of numbers: see test_feed_forward.py.
OPTIONS: dict[str, tuple[Any, ...]] = {
    # For the others see test_image_encoder.py and ATTENTIONS.
    "position_encoding": tuple(name for name in choices("position_encoding") if name not in ("sinusoidal_2d", "alibi")),
    "activation": ("relu", "gelu", "swiglu"),
    "num_kv_heads": (None, 2, 1),
    "norm_position": ("post", "pre"),  # others: STREAMS
    "norm": ("layernorm", "rmsnorm", "none"),
    "head_dim": (None, 6),
    "value_head_dim": (None, 3),
    "use_bias": (True, False),
    "qkv_bias": (None, True, False),
    "attention_scale": (True, False),
    "share_embeddings": (True, False),
    "tie_output": (True, False),
    "output_bias": (False, True),
    "scale_embeddings": (True, False),
    "scale_logits": (False, True),
    "embedding_norm": (False, True),
    "token_types": (0, 3),
    "scan_layers": (False, True),
    "qk_norm": ("none", "rms"),  # for the others see ATTENTIONS
    "feed_forward": choices("feed_forward"),
    "layer_kinds": ("", "A: attention_window=3, rotary_base=50; B: attention_rotates=false"),
}


ATTENTIONS: tuple[dict[str, Any], ...] = (
    {
        **{"position_encoding": "rotary", "rotary_fraction": 0.5, "qk_norm": "rms_full", "num_kv_heads": 2},
        **{"qk_norm_after_rotation": True, "attention_sink": "learned", "attention_logit_cap": 0.5},
        **{"attention_scale": False, "attention_multiplier": 0.3, "norm_position": "pre", "norm_scale": "offset"},
        "scan_layers": True,
    },
    {
        **{"position_encoding": "alibi", "qk_norm": "l2", "attention_sink": "zero", "scan_layers": True},
        **{"num_heads": 6, "num_kv_heads": 3, "head_dim": 5, "layer_kinds": "A: attention_window=3; B:"},
    },
    {"position_encoding": "rotary", "qk_norm": "layernorm", "attention_logit_cap": 1.0, "use_bias": False},
)
"""Options of attention that act in one place of its code, several in each model."""


HYBRIDS: tuple[dict[str, Any], ...] = (
    {
        "num_decoder_layers": 5,
        "layer_pattern": "GA",
        "layer_kinds": "G: mixer=gated_delta; A: attention_window=3",
        "position_encoding": "rotary",
        "norm_position": "pre",
    },
    {
        "num_decoder_layers": 3,
        "layer_pattern": "A|GG",
        "layer_kinds": "G: mixer=gated_delta; A:",
        "value_head_dim": 3,
        "use_bias": False,
        "scan_layers": True,
        "qk_norm": "rms",
    },
    {
        "num_decoder_layers": 5,
        "layer_pattern": "AEGX",
        "layer_kinds": "A:; E: feed_forward=experts; G: mixer=gated_delta; X: mixer=gated_delta, feed_forward=experts",
        "num_experts": 3,
        "activation": "swiglu",
    },
)
"""Decoders with layers of two structures: a state between, and before, layers with keys and values."""


OUTPUT_NUMBERS: dict[str, Any] = {
    **{"scale_embeddings": False, "embedding_multiplier": 3.0, "logits_multiplier": 0.5, "output_logit_cap": 2.0},
    **{"tie_output": False, "output_bias": True},
}
"""The numbers of embeddings and logits, all on."""

STREAMS: tuple[dict[str, Any], ...] = (
    {
        **{"architecture": "encoder_decoder", "norm_position": "peri", "norm_scale": "offset", "qk_norm": "rms"},
        **{"residual_lambdas": True, "residual_multiplier": 0.7, "num_decoder_layers": 3, "scan_layers": True},
        **OUTPUT_NUMBERS,
    },
    {
        **{"architecture": "encoder_decoder", "norm_position": "deepnorm", "residual_scale": "vector"},
        **{"num_encoder_layers": 1, "position_encoding": "rotary"},
    },
    {
        **{
            "architecture": "decoder_only",
            "norm_position": "pre",
            "parallel": "one_norm",
            "norm": "dyt",
            "embedding_norm": True,
        },
        **{"residual_lambdas": True, "residual_scale": "scalar", "num_decoder_layers": 3},
        **{"layer_pattern": "AB", "layer_kinds": "A: attention_window=3; B:"},
    },
    {
        **{"architecture": "decoder_only", "norm_position": "output", "norm": "rmsnorm", "norm_scale": "none"},
        **{"use_bias": False, "residual_multiplier": 1.3, "position_encoding": "learned"},
        **OUTPUT_NUMBERS,
    },
    {
        **{"architecture": "encoder_only", "norm_position": "pre", "parallel": "two_norms", "residual_scale": "vector"},
        **{"residual_lambdas": True, "scan_layers": True},
        **OUTPUT_NUMBERS,
    },
)
"""Models with other places and gains of norms, and other residual streams, and numbers of the output in some.

Each has the architecture that it is for.
"""


def tiny(**fields: Any) -> ModelConfig:
    """Return a tiny config; with `layer_kinds` alone, layers are A, B, A, B, ..."""
    pattern = {"layer_pattern": "AB"} if fields.get("layer_kinds") else {}
    return ModelConfig(**{**TINY, **pattern, **fields}).resolved()


def scanned(**fields: Any) -> ModelConfig:
    """Return a tiny config that loops over layers: it compiles faster than unrolled layers and computes the same."""
    return tiny(**fields, scan_layers=True)


def covering_set(**further: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return few combinations of OPTIONS in which every pair of values of two fields occurs together; greedy.

    further: more fields and their values, such as the architectures that a test deals the combinations out to.
    """
    options = OPTIONS | further
    names = list(options)
    missing = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in options[a] for y in options[b]}
    rng = np.random.default_rng(0)
    rows = []
    while missing:
        best: tuple[int, dict[str, Any]] = (-1, {})
        for _ in range(20):
            (seed_a, seed_b) = sorted(missing, key=str)[rng.integers(len(missing))]
            row = dict([seed_a, seed_b])
            for name in rng.permutation([n for n in names if n not in row]):
                gains = [sum(_pair(names, (name, v), kv) in missing for kv in row.items()) for v in options[name]]
                row[str(name)] = options[name][int(np.argmax(gains))]
            row = {name: row[name] for name in names}
            gain = sum(pair in missing for pair in itertools.combinations(row.items(), 2))
            best = max(best, (gain, row), key=lambda pair: pair[0])
        rows.append(best[1])
        missing -= set(itertools.combinations(best[1].items(), 2))
    for row in rows:
        if row["qk_norm"] != "none" and not row["attention_scale"]:
            row["attention_multiplier"] = 0.4  # without one this pair is refused
    return rows


def covering_params(**further: tuple[Any, ...]) -> list[Any]:
    """Return the covering set as parameters of a test."""
    return [pytest.param(row, id=label(row)) for row in covering_set(**further)]


def slow_but(fast: Any, values: Iterable[Any]) -> list[Any]:
    """Return the values as parameters of a test, all slow but one."""
    found = list(values)
    assert fast in found
    marks = {True: (), False: pytest.mark.slow}
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=marks[v == fast]) for v in found]


def _pair(names: list[str], a: tuple[str, Any], b: tuple[str, Any]) -> tuple:
    return (a, b) if names.index(a[0]) < names.index(b[0]) else (b, a)


def label(fields: dict[str, Any]) -> str:
    """Return a test id with the values of OPTIONS that differ from the default."""
    return "-".join(f"{k}={v}" for k, v in fields.items() if v != OPTIONS.get(k, ("",))[0]) or "default"


def random_params(config: ModelConfig, seed: int = 0, head: Any = None) -> Any:
    """Return parameters without a zero bias or a scale of one, so that an unread parameter is noticed."""
    rng = np.random.default_rng(seed)

    def value(path: Any, leaf: Any) -> jax.Array:
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        name = path[-1].key
        if name == "scale":
            return jnp.asarray(1 + 0.3 * noise)
        if name == "bias":
            return jnp.asarray(0.3 * noise)
        return jnp.asarray(noise * config.emb_dim**-0.5)

    return jax.tree_util.tree_map_with_path(value, shapes(config, head))


@functools.cache
def shapes(config: ModelConfig, head: Any = None) -> Any:
    return jax.eval_shape(lambda: init_params(config, 0, head))


def shift_right(targets: Any, start_id: int = 3, segment_ids: Any = None) -> np.ndarray:
    """Return the decoder's inputs for targets: the start id, then targets without their last token, per segment."""
    shifted = np.pad(np.asarray(targets)[:, :-1], ((0, 0), (1, 0)), constant_values=start_id)
    if segment_ids is not None:
        previous = np.pad(np.asarray(segment_ids)[:, :-1], ((0, 0), (1, 0)))
        shifted = np.where(np.asarray(segment_ids) == previous, shifted, start_id)
    return shifted.astype(np.int32)


def as_batch(start_id: int = 3, **arrays: Any) -> dict[str, Any]:
    """Return a batch of ids in which 0 is padding, with masks, weights and decoder inputs.

    Args:
      arrays: `inputs` [B, S] (not for a model without an encoder), `targets` [B, T], and others, kept as they are.
    """
    batch = {name: jnp.asarray(array) for name, array in arrays.items()}
    if "inputs" in batch:
        batch["inputs_mask"] = batch["inputs"] != 0
    if "targets" in batch:
        batch["weights"] = (batch["targets"] != 0).astype(jnp.float32)
        batch["decoder_inputs"] = jnp.asarray(shift_right(batch["targets"], start_id, batch.get("targets_segment_ids")))
    return batch


def make_batch(
    rows: int = 3, source: int = 7, target: int = 5, vocab_size: int = 19, seed: int = 1, start_id: int = 3
) -> dict[str, Any]:
    """Return a batch without padding."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(4, vocab_size, (rows, source)).astype(np.int32)
    targets = rng.integers(4, vocab_size, (rows, target)).astype(np.int32)
    return as_batch(start_id, inputs=inputs, targets=targets)


@functools.partial(jax.jit, static_argnames="config")
def forward(config: ModelConfig, params: Any, batch: Any, dropout: Any = None) -> Any:
    """Return logits, compiled once per config and shape."""
    return ARCHITECTURES[config.architecture].module(config).apply({"params": params}, batch, dropout)


def assert_close(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Check that the largest difference, relative to the largest expected magnitude or 1, is below tolerance."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape
    assert np.isfinite(actual).all()
    error = np.max(np.abs(actual - expected), initial=0.0) / max(1.0, np.max(np.abs(expected), initial=0.0))
    assert error <= tolerance, f"largest error {error:.3g} > {tolerance:.3g}"


def binomial_bound(n: float, sigmas: float = 5.0) -> float:
    """Return a bound on the mean of n fair signs that fails by chance once in millions."""
    return sigmas / math.sqrt(n)
