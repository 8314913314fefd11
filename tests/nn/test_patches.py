"""Patches of images: their order, their normalisation, and their positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, random_params

from transformer_jax.config import ModelConfig
from transformer_jax.models.encoder_only import EncoderOnly
from transformer_jax.nn.patches import PatchEmbedding, normalised_pixels, patches
from transformer_jax.nn.positions import LearnedPositions, resized_table, sinusoidal_2d

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (2, 6, 6, 3)).astype(np.uint8)


def config(**fields):
    sizes = {"architecture": "encoder_only", "inputs": "patches", "image_size": 6, "patch_size": 2, "emb_dim": 16}
    return ModelConfig(**sizes | {"num_heads": 2, "num_encoder_layers": 1, "dropout_rate": 0.0} | fields).resolved()


def test_patches_are_in_rows():
    images = IMAGES.astype(np.float32)
    expected = [
        [image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] for row in range(3) for column in range(3)]
        for image in images
    ]
    np.testing.assert_array_equal(patches(jnp.asarray(images), 2), expected)


def test_the_product_with_patches_is_a_convolution():
    kernel = RNG.standard_normal((2, 2, 3, 5)).astype(np.float32)
    images = jnp.asarray(IMAGES, jnp.float32) / 255
    convolved = jax.lax.conv_general_dilated(
        images, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert_close(jnp.tensordot(patches(images, 2), kernel, 3), convolved.reshape(2, 9, 5))


@pytest.mark.parametrize(
    ("mean", "std", "of_black", "of_white"),
    [("0.5", "0.5", [-1, -1, -1], [1, 1, 1]), ("0.1,0.2,0.3", "1,0.5,0.25", [-0.1, -0.4, -1.2], [0.9, 1.6, 2.8])],
)
def test_normalisation(mean, std, of_black, of_white):
    images = jnp.asarray([[[[0, 0, 0], [255, 255, 255]]]], jnp.uint8)
    assert_close(normalised_pixels(config(pixel_mean=mean, pixel_std=std), images), [[[of_black, of_white]]])


def test_the_class_token_is_first_and_begins_as_zeros():
    module = PatchEmbedding(config())
    params = module.init(jax.random.key(0), jnp.asarray(IMAGES))["params"]
    assert not params["class_token"].any()
    params = {**params, "class_token": jnp.arange(16.0)}
    x = module.apply({"params": params}, jnp.asarray(IMAGES))
    assert x.shape == (2, 10, 16)
    np.testing.assert_array_equal(x[:, 0], np.tile(np.arange(16.0), (2, 1)))
    without = PatchEmbedding(config(class_token=False))
    np.testing.assert_array_equal(
        x[:, 1:], without.apply({"params": {"projection": params["projection"]}}, jnp.asarray(IMAGES))
    )


@pytest.mark.parametrize("class_token", [True, False])
def test_sinusoids_of_rows_and_columns(class_token):
    """Position 5 of 3 x 3 patches is in row 1, column 2."""
    settings = config(class_token=class_token)
    found = sinusoidal_2d(settings, jnp.arange(9 + class_token)[None])[0]
    rates = [10_000 ** (-i / 3) for i in range(4)]
    expected = [
        [f(place * w) for place in (patch % 3, patch // 3) for f in (np.sin, np.cos) for w in rates]
        for patch in range(9)
    ]
    assert_close(found[class_token:], expected)
    assert not class_token or not found[0].any()


def test_a_learned_table_has_a_row_per_patch_and_one_for_the_class_token():
    for class_token, rows in ((True, 10), (False, 9)):
        settings = config(class_token=class_token)
        shapes = jax.eval_shape(LearnedPositions(settings).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
        assert shapes["params"]["embedding"].shape == (rows, 16)


def test_positions_for_images_of_another_size():
    """A table that is linear in row and column stays so, away from the edges; the class token keeps its row."""
    of_patches = np.array([[row, column] for row in range(4) for column in range(4)], np.float32)
    table = jnp.asarray(np.concatenate([[[7.0, 9.0]], of_patches]))
    resized = resized_table(table, 8, True)
    assert resized.shape == (65, 2)
    np.testing.assert_array_equal(resized[0], [7, 9])
    inner = resized[1:].reshape(8, 8, 2)[1:-1, 1:-1]
    expected = np.stack(np.meshgrid(*2 * [np.arange(1, 7) / 2 - 0.25], indexing="ij"), -1)
    assert_close(inner, expected)
    np.testing.assert_array_equal(resized_table(table, 4, True), table)


@pytest.mark.parametrize("position_encoding", ["learned", "none"])
def test_images_see_positions_only_through_the_encoding(position_encoding):
    """Without positions, exchanged patches only exchange their vectors."""
    settings = config(position_encoding=position_encoding)
    module = EncoderOnly(settings)
    params = random_params(settings)
    exchanged = IMAGES.copy()
    exchanged[:, :2], exchanged[:, 2:4] = IMAGES[:, 2:4], IMAGES[:, :2]
    one, other = (module.apply({"params": params}, {"inputs": jnp.asarray(x)}) for x in (IMAGES, exchanged))
    back = jnp.concatenate([other[:, :1], other[:, 4:7], other[:, 1:4], other[:, 7:]], 1)
    same = np.abs(back - one).max() < 1e-5
    assert same == (position_encoding == "none")
    assert one.shape == (2, 10, 16)
