"""Shared by the tests of images: tiny corpora as files, and configs for them."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from transformer_jax.config import (
    DataConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)

LABELS = ("dark", "light", "striped")
MODEL = {
    **{"architecture": "encoder_only", "inputs": "patches", "image_size": 8, "image_channels": 1, "patch_size": 4},
    **{"emb_dim": 16, "num_heads": 2, "mlp_dim": 24, "num_encoder_layers": 1, "dropout_rate": 0.0},
    **{"norm_position": "pre", "position_encoding": "learned"},
}
SPLITS = {"train_split": "train[:24]", "valid_split": "train[24:]"}


def pictures(count: int, seed: int = 0, size: int = 8, channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return images [count, size, size, channels] and labels 0, 1, 2, 0, ...: dark, light and striped ones."""
    rng, labels = np.random.default_rng(seed), np.arange(count) % 3
    stripes = np.arange(size) % 2 * 255
    bases = np.stack([np.full((size, size), 40), np.full((size, size), 215), np.broadcast_to(stripes, (size, size))])
    noise = rng.integers(-40, 41, (count, size, size, channels))
    return np.clip(bases[labels][..., None] + noise, 0, 255).astype(np.uint8), labels


def write_npz(folder: Path, **changed: Any) -> Path:
    """Write images.npz with 36 images for training and 9 for the test."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = dict(zip(("train_x", "train_y", "test_x", "test_y"), (*pictures(36), *pictures(9, 1)), strict=True))
    arrays = {name: array for name, array in (arrays | changed).items() if array is not None}
    np.savez(folder / "images.npz", **arrays)
    return folder / "images.npz"


def write_folder(folder: Path, size: int = 8, channels: int = 1) -> Path:
    """Write FOLDER/SET/LABEL/N.png for three sets of 9 images; one file of each set is a JPEG."""
    for number, name in enumerate(("train", "valid", "test")):
        images, labels = pictures(9, number, size, channels)
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = folder / name / LABELS[label] / f"{index}.{'jpg' if index == 0 else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[..., 0] if channels == 1 else image).save(path)
    return folder


def config(
    data: dict[str, Any], model: dict[str, Any] | None = None, training: dict[str, Any] | None = None, **task: Any
) -> ExperimentConfig:
    """Return the config of a tiny ViT."""
    steps = {"num_train_steps": 4, "log_every_steps": 2, "eval_every_steps": 4, "checkpoint_every_steps": 2}
    return ExperimentConfig(
        model=ModelConfig(**MODEL | (model or {})),
        task=TaskConfig(**{"name": "images", "num_labels": 3} | task),
        data=DataConfig(**{"batching": "rows", "rows_per_batch": 8, "row_multiple": 4} | data),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=3e-3),
        training=TrainingConfig(**{"label_smoothing": 0.0} | steps | (training or {})),
        evaluation=EvaluationConfig(tokens_per_batch=64),
    ).resolved()


def npz_config(path: Path, model: dict[str, Any] | None = None, **fields: Any) -> ExperimentConfig:
    """Return the config for a file of `write_npz`; fields as in `config`."""
    return config({"source": "npz", "dir": str(path), **SPLITS, **fields.pop("data", {})}, model, **fields)


_RUN = """
from image_support import {maker}


def get_config(arg=""):
    return {maker}({arguments}).to_config_dict()
"""


def write_config(folder: Path, maker: str, arguments: str) -> str:
    """Write tiny.py, whose config is MAKER(ARGUMENTS) of this module, and return the flag that names it."""
    (folder / "tiny.py").write_text(_RUN.format(maker=maker, arguments=arguments))
    return f"--config={folder / 'tiny.py'}"
