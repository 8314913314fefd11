"""ViT in and out: preprocessor_config.json, the command, and big_vision's files."""

import json
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_support import run_main
from support import assert_close, random_params, tiny

from transformer_jax.checkpoints.checksums import by_path
from transformer_jax.config import TaskConfig
from transformer_jax.convert.big_vision import open_big_vision
from transformer_jax.convert.folder import describe_folder, from_pretrained, save_pretrained
from transformer_jax.convert.preprocessor import preprocessor, read_preprocessor
from transformer_jax.errors import CheckpointError
from transformer_jax.evaluation.loading import load
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.task import TASKS

FIELDS = {
    **{"architecture": "encoder_only", "inputs": "patches", "image_size": 8, "patch_size": 4, "activation": "gelu"},
    **{"norm_position": "pre", "position_encoding": "learned", "emb_dim": 8, "num_heads": 2},
}
TASK = TaskConfig(name="images", num_labels=3)
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)


def written(folder, **fields):
    config = tiny(**FIELDS | fields)
    params = random_params(config, head=TASKS["images"].head(TASK, config))
    save_pretrained(folder, config, params, task=TASK, labels=("a", "b", "c"))
    return folder


def edit(file, **values):
    found = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in found.items() if value is not ...}))


# preprocessor_config.json


def test_the_file_of_the_preprocessor(tmp_path):
    folder = written(tmp_path / "a", pixel_mean="0.5", pixel_std="0.1,0.2,0.3")
    assert json.loads((folder / "preprocessor_config.json").read_text()) == {
        **{"do_normalize": True, "do_rescale": True, "do_resize": True, "image_processor_type": "ViTImageProcessor"},
        **{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.1, 0.2, 0.3], "resample": 2, "rescale_factor": 1 / 255},
        "size": {"height": 8, "width": 8},
    }
    assert not {"tokenizer.json", "special_tokens_map.json"} & {path.name for path in folder.iterdir()}
    edit(folder / "preprocessor_config.json", size=8, do_rescale=..., do_resize=...)  # as older versions write it
    config = from_pretrained(folder).config
    assert (config.pixel_mean, config.pixel_std) == ("0.5", "0.1,0.2,0.3")
    edit(folder / "preprocessor_config.json", do_normalize=False)
    config = from_pretrained(folder).config
    assert (config.pixel_mean, config.pixel_std) == ("0.0", "1.0")
    (folder / "preprocessor_config.json").unlink()
    assert from_pretrained(folder).config.pixel_std == "0.5"
    assert describe_folder(folder)["tokenizer"] == "none"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"size": {"height": 8, "width": 9}}, "size={'height': 8, 'width': 9} differs from image_size=8"),
        ({"size": {"shortest_edge": 7}}, "differs from image_size=8 of config.json"),
        ({"size": {"shortest_edge": 8}}, "size={'shortest_edge': 8} without do_center_crop: images would not become"),
        ({"size": 8, "default_to_square": False}, "size=8 without do_center_crop: images would not become squares"),
        ({"size": {"shortest_edge": 9}, "do_center_crop": True, "crop_size": 8}, "differs from image_size=8"),
        ({"size": {"height": 9, "width": 9}, "do_center_crop": True, "crop_size": 8}, "differs from image_size=8"),
        ({"size": {"height": 8}}, "size={'height': 8} differs from image_size=8"),
        ({"size": [8, 9]}, "size=[8, 9] differs from image_size=8"),
        ({"size": True}, "size=True differs from image_size=8"),
        ({"do_resize": False, "do_center_crop": True, "crop_size": 8}, "do_center_crop=True with do_resize=False"),
        ({"do_center_crop": True, "crop_size": {"height": 8, "width": 7}}, "crop_size={'height': 8, 'width': 7} diff"),
        ({"do_resize": "no"}, "do_resize='no': expected true or false"),
        ({"do_pad": True}, "do_pad=True: transformer_jax does not pad images"),
        ({"rescale_factor": 0.0}, "rescale_factor=0.0: expected a number above 0"),
        ({"rescale_factor": "1/255"}, "rescale_factor='1/255': expected a number above 0"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std=[0.5, 0.0, 0.5]: expected one number above 0, or 3 of them"),
        ({"image_mean": [0.5, 0.5, float("nan")]}, "image_mean=[0.5, 0.5, nan]: expected one number, or 3 of them"),
        (
            {"image_processor_type": "CLIPImageProcessor", "size": ..., "image_std": ...},
            "add its values of size, image_std",
        ),
        (
            {"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.9},
            "crop_pct=0.9: unknown key of 'ConvNextImageProcessor'",
        ),
        ({"image_mean": [0.5, 0.5]}, "image_mean=[0.5, 0.5]: expected one number, or 3 of them"),
        ({"image_std": "x"}, "image_std='x': expected one number above 0, or 3 of them"),
        ({"do_center_crop": True}, "crop_size=None differs from image_size=8"),
    ],
)
def test_a_preprocessor_that_we_cannot_be(tmp_path, values, problem):
    config, file = tiny(**FIELDS), tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(preprocessor(config)))
    edit(file, **values)
    with pytest.raises(CheckpointError) as raised:
        read_preprocessor(file, config)
    assert problem in str(raised.value)


HALF = ("0.5", "0.5")


@pytest.mark.parametrize(
    ("values", "mean_std", "resize", "ignored"),
    [
        ({}, HALF, "squash", {"image_processor_type"}),
        ({"size": 8}, HALF, "squash", {"image_processor_type"}),
        ({"size": [8, 8], "resample": 3, "crop_size": 7}, HALF, "squash", {"resample", "crop_size"}),
        ({"size": {"shortest_edge": 8}, "do_center_crop": True, "crop_size": 8}, HALF, "crop", set()),
        ({"size": 8, "default_to_square": False, "do_center_crop": True, "crop_size": [8, 8]}, HALF, "crop", set()),
        ({"do_center_crop": True, "crop_size": {"height": 8, "width": 8}}, HALF, "squash", set()),
        ({"do_resize": False, "size": 99, "resample": 0}, HALF, "none", set()),
        ({"do_convert_rgb": True, "do_pad": False, "do_center_crop": None, "crop_size": None}, HALF, "squash", set()),
        ({"do_normalize": False}, ("0.0", "1.0"), "squash", set()),
        ({"do_normalize": False, "rescale_factor": 2.0 / 255}, ("0.0", "0.5"), "squash", set()),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": 1.0}, HALF, "squash", set()),
        ({"rescale_factor": 0.00392156862745098}, HALF, "squash", set()),
        ({"do_rescale": False, "image_mean": [127.5] * 3, "image_std": [51.0] * 3}, ("0.5", "0.2"), "squash", set()),
        ({"image_processor_type": "ViTImageProcessorFast", "data_format": "channels_first"}, HALF, "squash", set()),
        ({"image_processor_type": "CLIPImageProcessor"}, HALF, "squash", set()),
        ({"crop_pct": 0.9, "note": {"a": 1}}, HALF, "squash", {"crop_pct", "note"}),
        ({"feature_extractor_type": "ViTFeatureExtractor", "image_processor_type": ...}, HALF, "squash", set()),
    ],
)
def test_the_steps_of_a_preprocessor(tmp_path, values, mean_std, resize, ignored):
    """bytes * factor, minus the mean, divided by the deviation, is what the two fields of the model say."""
    config, file = tiny(**FIELDS), tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(preprocessor(config) | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    edit(file, **values)
    found = read_preprocessor(file, config)
    assert found.resize == resize
    assert ignored <= {*found.ignored}
    for name, text in zip(("pixel_mean", "pixel_std"), mean_std, strict=True):
        assert float(found.model[name]) == pytest.approx(float(text), rel=1e-12)


@pytest.mark.parametrize("resize", ["squash", "crop"])
def test_the_way_there_and_back_of_a_preprocessor(tmp_path, resize):
    config, file = tiny(**FIELDS, pixel_mean="0.1,0.2,0.3", pixel_std="0.5"), tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(preprocessor(config, resize)))
    found = read_preprocessor(file, config)
    assert found[:2] == ({"pixel_mean": "0.1,0.2,0.3", "pixel_std": "0.5"}, resize)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"qkv_bias": False}, "attention.query.bias: unknown tensor"),
        ({"image_size": [8, 9]}, "image_size=[8, 9]: images and patches must be square"),
        ({"patch_size": 3}, "patch_size, read as model.patch_size: patch_size=3 does not divide image_size=8"),
        ({"architectures": ["ViTMAEModel"]}, "of ViT, transformer_jax converts ViTForImageClassification, ViTModel"),
    ],
)
def test_a_config_that_we_cannot_be(tmp_path, values, problem):
    folder = written(tmp_path / "a")
    edit(folder / "config.json", **values)
    with pytest.raises(CheckpointError) as raised:
        from_pretrained(folder)
    assert problem in str(raised.value)


# The command.


def test_a_folder_becomes_a_checkpoint_and_again_a_folder(tmp_path, capsys):
    folder, run = written(tmp_path / "theirs", image_channels=1), tmp_path / "run"
    assert run_main(["convert", f"--from={folder}", f"--workdir={run}"]) == 0
    loaded = load(run)
    assert (loaded.labels, loaded.config.data.resize) == (("a", "b", "c"), "squash")
    assert run_main(["convert", f"--checkpoint={run}", f"--to={tmp_path / 'ours'}"]) == 0
    for name in ("model.safetensors", "config.json", "preprocessor_config.json"):
        assert (tmp_path / "ours" / name).read_bytes() == (folder / name).read_bytes()
    capsys.readouterr()
    assert run_main(["inspect", f"--folder={folder}"]) == 0
    assert "family: ViT" in capsys.readouterr().out


# big_vision.


class Block(nn.Module):
    generation: str

    @nn.compact
    def __call__(self, x):
        old = self.generation == "vit_jax"
        y = nn.LayerNorm(name="LayerNorm_0")(x)
        x = x + nn.MultiHeadDotProductAttention(2, name=f"MultiHeadDotProductAttention_{int(old)}")(y, y)
        y = nn.LayerNorm(name="LayerNorm_2" if old else "LayerNorm_1")(x)
        return x + MLP(name="MlpBlock_3" if old else "MlpBlock_0")(y)


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.gelu(nn.Dense(12)(x))
        return nn.Dense(x.shape[-1])(hidden)


class Encoder(nn.Module):
    generation: str

    @nn.compact
    def __call__(self, x):
        if self.generation == "vit_jax":
            x = x + Positions(name="posembed_input")(x.shape[1])
        for layer in range(2):
            x = Block(self.generation, name=f"encoderblock_{layer}")(x)
        return nn.LayerNorm(name="encoder_norm")(x)


class Positions(nn.Module):
    @nn.compact
    def __call__(self, length):
        return self.param("pos_embedding", nn.initializers.normal(), (1, length, 8))


class Reference(nn.Module):
    """A ViT with Flax's own modules and the names of the checkpoints."""

    generation: str
    has_class: bool
    sines: bool = False

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(8, (4, 4), (4, 4), "VALID", name="embedding")(images / 127.5 - 1.0).reshape(len(images), -1, 8)
        if self.sines:
            places = [(p // 2, p % 2) for p in range(4)]
            waves = [[f(v * w) for v in (c, r) for f in (math.sin, math.cos) for w in (1, 1e-4)] for r, c in places]
            x = x + jnp.array(waves)[None]
        elif self.generation == "big_vision":
            x = x + self.param("pos_embedding", nn.initializers.normal(), (1, 4, 8))
        if self.has_class:
            first = self.param("cls", nn.initializers.normal(), (1, 1, 8))
            x = jnp.concatenate([jnp.tile(first, (len(x), 1, 1)), x], 1)
        x = Encoder(self.generation, name="Transformer")(x)
        x = x[:, 0] if self.has_class else x.mean(1)
        if self.generation == "vit_jax":
            x = jnp.tanh(nn.Dense(8, name="pre_logits")(x))
        return nn.Dense(5, name="head")(x)


def saved(path, params, prefix=""):
    rng = np.random.default_rng(0)
    noisy = {name: np.asarray(x) + 0.3 * rng.standard_normal(x.shape) for name, x in by_path(params).items()}
    np.savez(path, **{prefix + name: x.astype(np.float32) for name, x in noisy.items()})
    tree = jax.tree.unflatten(jax.tree.structure(params), [noisy[name] for name in by_path(params)])
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


@pytest.mark.parametrize(("generation", "has_class"), [("vit_jax", True), ("big_vision", True), ("big_vision", False)])
def test_files_of_big_vision(tmp_path, generation, has_class):
    reference, images = Reference(generation, has_class), jnp.asarray(IMAGES, jnp.float32)
    params = saved(tmp_path / "a.npz", reference.init(jax.random.key(0), images)["params"])
    model = open_big_vision(tmp_path / "a.npz").load()
    module = ARCHITECTURES["encoder_only"].module(model.config, TASKS["images"].head(model.task, model.config))
    logits = jax.jit(module.apply)({"params": model.params}, {"inputs": jnp.asarray(IMAGES)})
    assert_close(logits, jax.jit(reference.apply)({"params": params}, images))
    assert (model.config.image_size, model.config.class_token, model.task.num_labels) == (8, has_class, 5)


def test_a_file_of_big_vision_without_positions_and_with_the_optimizer(tmp_path):
    """It has two-dimensional sinusoids, for 224 pixels."""
    reference = Reference("big_vision", False, sines=True)
    params = reference.init(jax.random.key(0), jnp.asarray(IMAGES, jnp.float32))["params"]
    saved(tmp_path / "a.npz", params, "params/")
    with np.load(tmp_path / "a.npz") as arrays:
        np.savez(tmp_path / "b.npz", **arrays, **{"opt/0/count": np.zeros(1)})
    assert run_main(["convert", f"--from={tmp_path / 'b.npz'}", f"--workdir={tmp_path / 'run'}"]) == 0
    model = open_big_vision(tmp_path / "b.npz").load()
    assert (model.config.position_encoding, model.config.image_size) == ("sinusoidal_2d", 224)
    assert model.ignored == {"opt/0/count": "of training, not of the model"}
    assert load(tmp_path / "run").config.task.pooling == "mean"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"MAPHead_0/probe": np.zeros(1)}, "MAPHead_0/probe: unknown array"),
        ({"head/kernel": None}, "lacks head/output/kernel"),
        ({"head/bias": np.zeros(4, np.float32)}, "head/output/bias: (4,), expected (5,)"),
        ({"Transformer/encoderblock_1/LayerNorm_0/bias": None}, "has the layers [0], expected 0 to 1"),
        ({"pos_embedding": np.zeros((1, 6, 8))}, "positions for 5 patches; this number must be a square"),
        ({"pos_embedding": np.zeros(8)}, "pos_embedding: has the shape (8,), expected one row of tokens"),
        ({"cls": np.zeros((2, 1, 8))}, "cls: has the shape (2, 1, 8)"),
        ({"cls": np.array(1.0)}, "cls: has the shape ()"),
        ({"embedding/kernel": np.zeros(8)}, "embedding/projection/kernel has the shape (8,), expected 4 sizes"),
        ({"head/kernel": np.zeros(8)}, "head/output/kernel has the shape (8,), expected 2 sizes"),
        ({"head/kernel": np.zeros((8, 0))}, "has arrays without numbers"),
        ({"head/bias": np.array(["a"] * 5)}, "has arrays without numbers"),
        ({"head/bias": np.array([None] * 5)}, "it holds Python objects"),
        ({"Transformer/encoderblock_1/LayerNorm_0/bias": np.zeros(3)}, "has different shapes in different layers"),
        ({"head/bias": np.array([0, 0, np.inf, 0, 0])}, "head/output/bias: 1 of 5 numbers, the first is inf at [2]"),
    ],
)
def test_bad_files_of_big_vision(tmp_path, changed, problem):
    saved(tmp_path / "a.npz", Reference("big_vision", True).init(jax.random.key(0), jnp.zeros((1, 8, 8, 3)))["params"])
    with np.load(tmp_path / "a.npz") as arrays:
        np.savez(tmp_path / "b.npz", **{n: x for n, x in (dict(arrays) | changed).items() if x is not None})
    with pytest.raises(CheckpointError) as raised:
        open_big_vision(tmp_path / "b.npz").load()
    assert problem in str(raised.value)
    (tmp_path / "c.npz").write_bytes(b"no zip")
    with pytest.raises(CheckpointError, match="cannot be read as an"):
        open_big_vision(tmp_path / "c.npz")
