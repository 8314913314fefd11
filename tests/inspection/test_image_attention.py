"""Attention of images: maps of the class token, rollout, pictures, the page and the command."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from image_support import pictures, write_config, write_npz
from PIL import Image
from run_support import run_main
from support import assert_close, random_params, tiny

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.inspection.image_attention import (
    ImageMaps,
    image_maps,
    image_page,
    image_selection,
    layer_figure,
    rollout,
)
from transformer_jax.inspection.positions import patch_table, similarities, write_positions
from transformer_jax.nn.positions import sinusoidal_2d

FIELDS = {"architecture": "encoder_only", "inputs": "patches", "image_size": 8, "patch_size": 4, "image_channels": 1}
IMAGE = pictures(1)[0][0]


def test_rollout_is_the_product_of_half_attention_and_half_identity():
    weights = np.array(
        [[[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]], [[[0.2, 0.8], [0.6, 0.4]]] * 2], np.float32
    )
    first = np.array([[0.75, 0.25], [0.25, 0.75]])
    second = np.array([[0.6, 0.4], [0.3, 0.7]])
    assert_close(rollout(weights), second @ first)
    assert_close(rollout(weights).sum(-1), np.ones(2))


@pytest.mark.parametrize("class_token", [True, False])
def test_maps_are_the_weights_of_the_model(class_token):
    """Of the class token for every patch, row by row; without one, the means over all queries."""
    config = tiny(**FIELDS, class_token=class_token)
    maps = image_maps(config, random_params(config), IMAGE)
    assert maps.weights.shape == (2, 4, 4 + class_token, 4 + class_token)
    assert_close(maps.weights.sum(-1), np.ones((2, 4, 4 + class_token)))
    expected = maps.weights[:, :, 0, 1:] if class_token else maps.weights.mean(2)
    np.testing.assert_array_equal(maps.patches, expected.reshape(2, 4, 2, 2))
    assert maps.rollout.shape == (2, 2)


def test_the_selection():
    config = ModelConfig(**FIELDS, num_encoder_layers=3, emb_dim=8, num_heads=2)
    assert image_selection(config) == ([0, 1, 2], [0, 1])
    assert image_selection(config, 2, 0) == ([2], [0])
    with pytest.raises(ConfigError, match="--layer=3: the model has layers 0 to 2"):
        image_selection(config, 3)
    with pytest.raises(ConfigError, match="--head=2: the model has heads 0 to 1"):
        image_selection(config, None, 2)


def maps_of(pixels):
    rng = np.random.default_rng(0)
    weights = rng.random((1, 2, 5, 5)).astype(np.float32)
    return ImageMaps(pixels, weights, weights[:, :, 0, 1:].reshape(1, 2, 2, 2), rng.random((2, 2)))


def test_the_picture_shows_the_weights_over_the_image():
    maps = maps_of(IMAGE)
    figure = layer_figure(maps, 0, [1, 0])
    axes = [a for a in figure.axes if a.images]
    assert [a.get_title() for a in axes] == ["head 1", "head 0"]
    for one, head in zip(axes, (1, 0), strict=True):
        image, weights = one.images
        np.testing.assert_array_equal(image.get_array(), IMAGE[..., 0])
        np.testing.assert_array_equal(weights.get_array(), maps.patches[0, head])
        assert [*image.get_extent()] == [*weights.get_extent()] == [0, 8, 8, 0]


def test_the_page_has_the_picture_and_all_weights():
    maps = maps_of(np.repeat(IMAGE, 3, -1))
    page = image_page(
        maps, image_selection(ModelConfig(**FIELDS, num_encoder_layers=1, emb_dim=8, num_heads=2)), {"a": "</script>"}
    )
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])
    assert data["about"] == [["a", "</script>"]]
    assert data["picture"].startswith("data:image/png;base64,")
    assert_close(data["weights"], maps.patches, 1e-6)
    assert_close(data["rollout"], maps.rollout, 1e-6)
    assert "http" not in page.replace("http-equiv", "")


def test_similarities_of_positions(tmp_path):
    table = np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0], [1.0, 1.0]])
    half = np.sqrt(0.5)
    assert_close(similarities(table)[0, 0], [[1, 0], [-1, half]])
    assert_close(similarities(table)[1, 1], [[half, half], [-half, 1]])
    config = tiny(**FIELDS, position_encoding="sinusoidal_2d")
    np.testing.assert_array_equal(patch_table(config, None), sinusoidal_2d(config, jnp.arange(5))[1:])
    learned = tiny(**FIELDS, position_encoding="learned")
    params = random_params(learned)
    np.testing.assert_array_equal(
        patch_table(learned, params), params["encoder"]["position_embedding"]["learned"]["embedding"][1:]
    )
    for settings in (config, learned):
        assert [path.name for path in write_positions(settings, params, tmp_path)] == ["positions_of_patches.png"]
    assert write_positions(learned, None, tmp_path) == {}
    (path,) = write_positions(tiny(**FIELDS, position_encoding="rotary"), params, tmp_path)
    assert path.name == "positions_rotary.png"


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    path = write_npz(tmp_path)
    flag = write_config(tmp_path, "npz_config", repr(str(path)))
    run = tmp_path / "run"
    assert run_main(["train", flag, f"--workdir={run}"]) == 0
    Image.fromarray(IMAGE[..., 0]).save(tmp_path / "a.png")
    capsys.readouterr()
    assert run_main(["attention", f"--checkpoint={run}", f"--image={tmp_path / 'a.png'}"]) == 0
    assert "prediction: " in capsys.readouterr().out
    files = {"attention.html", "attention.npz", "layer_0.png", "rollout.png"}
    assert {file.name for file in (run / "attention").iterdir()} == files
    with np.load(run / "attention" / "attention.npz") as arrays:
        np.testing.assert_array_equal(arrays["pixels"], IMAGE)
        assert arrays["patches"].shape == (1, 2, 2, 2)
    assert run_main(["plot", f"--checkpoint={run}"]) == 0
    assert (run / "plots" / "positions_of_patches.png").exists()
    for flags, problem in (
        (["--text=a"], "reads images; use --image=FILE"),
        (["--image=a.png", "--text=a"], "--image and --text: give one of them"),
        ([f"--image={tmp_path / 'none.png'}"], "cannot be read: No such file"),
    ):
        assert run_main(["attention", f"--checkpoint={run}", *flags]) == 2
        assert problem in capsys.readouterr().err
