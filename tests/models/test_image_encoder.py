"""The encoder of images: with patches that stand for tokens it is the encoder of text, for every field."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from support import OPTIONS, assert_close, covering_set, label, random_params, slow_but, tiny

from transformer_jax.inspection.places import run_with
from transformer_jax.models.architecture import ARCHITECTURES, init_params, parameter_axes
from transformer_jax.nn.heads import SequenceHead
from transformer_jax.parallel.rules import shardings

# A patch of 4 x 4 pixels with one white pixel stands for one of 16 ids: its product with the kernel is a row of it.
OF_TOKENS = {"share_embeddings", "tie_output", "output_bias", "scale_embeddings", "scale_logits", "token_types"}
PIXELS = {"pixel_mean": "0", "pixel_std": "1"}
IMAGES = {"inputs": "patches", "image_size": 12, "patch_size": 4, "image_channels": 1, "class_token": False, **PIXELS}


def configs(fields):
    """Return the same encoder for ids and for images of 3 x 3 patches."""
    fields = {name: value for name, value in fields.items() if name not in OF_TOKENS}
    of_text = tiny(**fields, architecture="encoder_only", vocab_size=16, max_length=9, scale_embeddings=False)
    return of_text, tiny(**fields, architecture="encoder_only", **IMAGES)


def drawn(ids):
    """Return images [B, 12, 12, 1] of ids [B, 9]."""
    patches = (np.eye(16, dtype=np.uint8) * 255)[np.asarray(ids)].reshape(len(ids), 3, 3, 4, 4)
    return jnp.asarray(patches.swapaxes(2, 3).reshape(len(ids), 12, 12, 1))


@pytest.mark.parametrize("fields", slow_but(covering_set()[0], covering_set()), ids=label)
def test_images_of_ids_are_read_like_ids(fields):
    of_text, of_images = configs(fields)
    params = random_params(of_text)
    kernel = jnp.reshape(params["embedding"]["embedding"], (4, 4, 1, -1))
    projection = {"kernel": kernel} | ({"bias": jnp.zeros(kernel.shape[-1])} if of_images.use_bias else {})
    of_image_params = {"embedding": {"projection": projection}, "encoder": params["encoder"]}
    shapes = jax.eval_shape(lambda: init_params(of_images, 0))
    assert jax.tree.map(jnp.shape, of_image_params) == jax.tree.map(jnp.shape, shapes)
    ids = np.random.default_rng(0).integers(0, 16, (2, 9)).astype(np.int32)
    found = []
    for config, tree, inputs in ((of_text, params, jnp.asarray(ids)), (of_images, of_image_params, drawn(ids))):
        found.append(run_with(config, tree, {"inputs": inputs}, ["encoder/output", "*/weights"]).places)
    assert len(found[0]) == 1 + of_text.num_encoder_layers
    for name, value in found[0].items():
        assert_close(found[1][name], value)


def test_every_option_is_of_both_or_of_tokens():
    assert set(OPTIONS) > OF_TOKENS


def test_flops_and_memory_of_images():
    """Those of the layers are those of text; the ends are the product with the patches, and no vocabulary."""
    of_text, of_images = configs({})
    architecture = ARCHITECTURES["encoder_only"]
    text, images = (architecture.train_flops(config, 2, {"inputs": 9}) for config in (of_text, of_images))
    assert text - images == 3 * 2 * 2 * 16 * (9 * 16 - 12 * 12)
    text, images = (architecture.activation_bytes(config, 2, {"inputs": 9}) for config in (of_text, of_images))
    assert text - images == 12 * 2 * 9 * 16
    assert architecture.attention_kinds(of_images) == {"encoder self-attention": "none"}


def test_the_axes_of_parameters():
    config = tiny(**IMAGES | {"class_token": True}, architecture="encoder_only", position_encoding="learned")
    shapes = jax.eval_shape(lambda: init_params(config, 0, SequenceHead(config, 3)))
    placed = shardings(shapes, parameter_axes(config), AbstractMesh((1, 2, 1), ("data", "fsdp", "tensor")))
    assert placed["embedding"]["projection"]["kernel"].spec == PartitionSpec(None, None, None, "fsdp")
    assert placed["embedding"]["class_token"].spec == placed["embedding"]["projection"]["bias"].spec == PartitionSpec()
    assert placed["encoder"]["position_embedding"]["learned"]["embedding"].spec == PartitionSpec(None, "fsdp")
