"""Checkpoints of ViT as big_vision and vision_transformer (vit_jax) write them: one .npz file, in.

Names are paths of Flax modules. Of three generations of names, all are read: positions are `pos_embedding`, or within
`Transformer`, or `Transformer/posembed_input`; layers are `encoderblock_0`, `encoderblock_1`, ..., or one
`encoderblock` with stacked arrays. The file holds arrays alone; these models scale pixels to -1 ... 1, use the tanh
form of GELU, and an epsilon of 1e-6. Without positions in the file they are those of `sinusoidal_2d`, for 224 pixels.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.checkpoints.checksums import by_path, tree_of
from transformer_jax.checkpoints.finite import check_finite
from transformer_jax.config import ModelConfig, TaskConfig
from transformer_jax.convert.folder import Advance, Folder, Pretrained
from transformer_jax.convert.folder_config import listing
from transformer_jax.convert.tables import Family
from transformer_jax.data.tokenizers import NoText
from transformer_jax.errors import CheckpointError
from transformer_jax.readers.arrays import open_npz

SUFFIX = ".npz"
_PIXELS = 224
_POSITIONS = ("pos_embedding", "Transformer/pos_embedding", "Transformer/posembed_input/pos_embedding")
_BLOCK = re.compile(r"Transformer/encoderblock(?:_(\d{1,6}))?/(.+)")
_PARTS = {  # of a layer: ours by theirs, without the numbers that differ between generations
    r"LayerNorm_0/(scale|bias)": "self_attention_residual/norm/{}",
    r"MultiHeadDotProductAttention_\d/(query|key|value|out)/(kernel|bias)": "self_attention/{}/{}",
    r"LayerNorm_[12]/(scale|bias)": "feed_forward_residual/norm/{}",
    r"MlpBlock_\d/Dense_0/(kernel|bias)": "feed_forward/hidden/{}",
    r"MlpBlock_\d/Dense_1/(kernel|bias)": "feed_forward/out/{}",
}
_OUTSIDE = {  # of layers
    r"embedding/(kernel|bias)": "embedding/projection/{}",
    r"Transformer/encoder_norm/(scale|bias)": "encoder/final_norm/{}",
    r"pre_logits/(kernel|bias)": "head/pooler/{}",
    r"head/(kernel|bias)": "head/output/{}",
}


_TABLE = "encoder/position_embedding/learned/embedding"
_RANKS = {
    "embedding/projection/kernel": 4,
    "encoder/layers/self_attention/query/kernel": 4,
    "encoder/layers/feed_forward/hidden/kernel": 3,
    "head/output/kernel": 2,
    _TABLE: 2,
}
"""Number of sizes of the arrays that say how large the model is."""


class NpzArrays(NamedTuple):
    """Arrays of a file in place of `TensorFiles`: ours by path. nbytes: their size."""

    ours: Mapping[str, np.ndarray]
    nbytes: int


@dataclasses.dataclass(frozen=True)
class BigVisionFile(Folder):
    """A file whose arrays have been read and named as ours."""

    def load(self, advance: Advance = lambda nbytes: None) -> Pretrained:
        """Return the model; raises CheckpointError if arrays are missing, unknown or of another shape."""
        assert isinstance(self.files, NpzArrays)
        ours, shapes = self.files.ours, {path: leaf.shape for path, leaf in by_path(self.shapes()).items()}
        problems = [
            f"{path}: {ours[path].shape if path in ours else 'is missing'}, expected {shape}"
            for path, shape in shapes.items()
            if path not in ours or ours[path].shape != shape
        ]
        problems += [f"{path}: this model has no such array" for path in ours.keys() - shapes.keys()]
        if problems:
            raise CheckpointError(listing(f"{self.path}: does not fit the model of its sizes", problems))
        check_finite(ours, str(self.path))
        advance(self.files.nbytes)
        params = tree_of({path: jnp.asarray(ours[path], jnp.float32) for path in shapes})
        return Pretrained(self.config, params, self.tokenizer, self.task, self.labels, self.ignored)


def open_big_vision(path: Path) -> BigVisionFile:
    """Read a file and the sizes of its model; raises CheckpointError if it cannot be read, or is another model."""
    try:
        with open_npz(path) as stored:
            arrays = {name: stored.read(name) for name in stored.names}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as an .npz file: {error}") from error
    ignored: dict[str, str] = {}
    if any(name.startswith("params/") for name in arrays):
        ignored = dict.fromkeys((n for n in arrays if not n.startswith("params/")), "of training, not of the model")
        arrays = {name.removeprefix("params/"): x for name, x in arrays.items() if name.startswith("params/")}
    if others := [name for name, x in arrays.items() if x.dtype.kind not in "fiu" or not x.size]:
        raise CheckpointError(listing(f"{path}: has arrays without numbers", others))
    ours = _named(path, arrays)
    missing = [name for name in ("embedding/projection/kernel", "head/output/kernel") if name not in ours]
    missing += [name for name in _RANKS if name.startswith("encoder/layers") and name not in ours]
    if missing:
        raise CheckpointError(f"{path}: is not a ViT of big_vision with a head: lacks {', '.join(missing)}")
    for name, rank in _RANKS.items():
        if name in ours and ours[name].ndim != rank:
            raise CheckpointError(f"{path}: {name} has the shape {ours[name].shape}, expected {rank} sizes")
    config, task = _sizes(path, ours)
    family = Family(
        name="big_vision",
        label="big_vision's ViT",
        class_name="",
        architecture="encoder_only",
        tasks=("images",),
        keys=(),
        tensors=(),
        fixed={},
        task_fields={"pooling": task.pooling, "pooler": task.pooler},
        has_labels=True,
    )
    labels = tuple(f"LABEL_{id}" for id in range(task.num_labels))
    files = NpzArrays(ours, sum(x.nbytes for x in arrays.values()))
    return BigVisionFile(path, family, config, files, NoText(), task, labels, ignored)


def _named(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays by our paths, those of layers stacked; raises CheckpointError for names that we do not know."""
    ours: dict[str, np.ndarray] = {}
    layers: dict[str, dict[int, np.ndarray]] = {}
    problems = []
    for name, x in arrays.items():
        if name in (*_POSITIONS, "cls") and (x.ndim != 3 or len(x) != 1):
            problems.append(f"{name}: has the shape {x.shape}, expected one row of tokens")
            continue
        block = _BLOCK.fullmatch(name)
        table, rest = (_PARTS, block[2]) if block else (_OUTSIDE, name)
        found = next(
            (form.format(*m.groups()) for pattern, form in table.items() if (m := re.fullmatch(pattern, rest))), None
        )
        if name in _POSITIONS:
            ours[_TABLE] = x[0]
        elif name == "cls":
            ours["embedding/class_token"] = x[0, 0]
        elif found is None:
            problems.append(f"{name}: unknown array")
        elif block and block[1] is not None:
            layers.setdefault(found, {})[int(block[1])] = x
        else:
            ours[f"encoder/layers/{found}" if block else found] = x
    if problems:
        raise CheckpointError(listing(f"{path}: cannot be converted as a ViT of big_vision", problems))
    count = max((len(by_layer) for by_layer in layers.values()), default=0)
    for name, by_layer in layers.items():
        if sorted(by_layer) != [*range(count)]:
            raise CheckpointError(f"{path}: {name} has the layers {sorted(by_layer)}, expected 0 to {count - 1}")
        if len({x.shape for x in by_layer.values()}) > 1:
            raise CheckpointError(f"{path}: {name} has different shapes in different layers")
        ours[f"encoder/layers/{name}"] = np.stack([by_layer[i] for i in range(count)])
    if "embedding/class_token" in ours and _TABLE in ours:
        table = ours[_TABLE]
        if math.isqrt(len(table)) ** 2 == len(table):  # newer files add positions to the patches alone
            ours[_TABLE] = np.concatenate([np.zeros_like(table[:1]), table])
    return ours


def _sizes(path: Path, ours: Mapping[str, np.ndarray]) -> tuple[ModelConfig, TaskConfig]:
    """Return the model and the task that arrays of these shapes belong to."""
    patch, _, channels, width = ours["embedding/projection/kernel"].shape
    num_layers, _, heads, head_dim = ours["encoder/layers/self_attention/query/kernel"].shape
    table, has_class = ours.get(_TABLE), "embedding/class_token" in ours
    count = (_PIXELS // patch) ** 2 if table is None else len(table) - has_class
    if math.isqrt(count) ** 2 != count:
        raise CheckpointError(f"{path}: has positions for {count} patches; this number must be a square")
    config = ModelConfig(
        architecture="encoder_only",
        inputs="patches",
        image_size=math.isqrt(count) * patch,
        image_channels=channels,
        patch_size=patch,
        class_token=has_class,
        emb_dim=width,
        num_heads=heads,
        head_dim=head_dim,
        mlp_dim=ours["encoder/layers/feed_forward/hidden/kernel"].shape[-1],
        num_encoder_layers=num_layers,
        norm_position="pre",
        norm_epsilon=1e-6,
        position_encoding="sinusoidal_2d" if table is None else "learned",
        activation="gelu_tanh",
        dropout_rate=0.0,
    ).resolved()
    return config, TaskConfig(
        name="images",
        num_labels=ours["head/output/kernel"].shape[-1],
        pooling="first" if has_class else "mean",
        pooler="head/pooler/kernel" in ours,
    )
