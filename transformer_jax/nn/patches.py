"""Images as sequences of patches (Dosovitskiy et al. 2021, section 3.1), and the table of what an encoder reads."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float, UInt8

from transformer_jax.config import ModelConfig
from transformer_jax.config.model import parse_pixel_values
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.embeddings import TokenEmbedding
from transformer_jax.nn.initialisation import kernel_init
from transformer_jax.nn.linear import Linear
from transformer_jax.typing import Activations, Array

Images = UInt8[Array, "B height width channels"]


def normalised_pixels(config: ModelConfig, images: Images) -> Float[Array, "B height width channels"]:
    """Return (x / 255 - pixel_mean) / pixel_std in float32."""

    def of_channels(text: str) -> Array | float:
        values = parse_pixel_values(text, config.image_channels)
        return values[0] if len({*values}) == 1 else jnp.array(values).reshape(1, 1, 1, -1)

    return (images.astype(jnp.float32) / 255.0 - of_channels(config.pixel_mean)) / of_channels(config.pixel_std)


def patches(images: Float[Array, "B height width channels"], size: int) -> Float[Array, "B patches size size channels"]:
    """Return the patches of each image, row by row: [B, height width / size^2, size, size, channels].

    A product with a kernel [size, size, channels, D] is then the convolution with this stride.

    Args:
      size: height and width of a patch; divides those of the images.
    """
    rows, height, width, channels = images.shape
    parts = images.reshape(rows, height // size, size, width // size, size, channels).swapaxes(2, 3)
    return parts.reshape(rows, (height // size) * (width // size), size, size, channels)


class PatchEmbedding(nn.Module):
    """Owns `projection`, with a kernel [size, size, channels, D], and with `model.class_token` also `class_token` [D].

    That vector begins as zeros, as in the code of Dosovitskiy et al. 2021.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        patch = (config.patch_size, config.patch_size, config.image_channels)
        self.projection = Linear(patch, (config.emb_dim,), config.use_bias, kernel_init(config))
        self.class_token = (
            self.param("class_token", nn.initializers.zeros, (config.emb_dim,)) if config.class_token else None
        )

    def __call__(self, images: Images) -> Activations:
        """Map images to the class token, if there is one, and their patches, row by row.

        Returns: [B, T, D] in `config.dtype`.
        """
        config = self.config
        x = self.projection(patches(normalised_pixels(config, images), config.patch_size).astype(config.dtype))
        if self.class_token is None:
            return x
        first = self.class_token.astype(x.dtype).reshape(1, 1, -1)
        return jnp.concatenate([jnp.broadcast_to(first, (x.shape[0], 1, x.shape[2])), x], axis=1)


PARAMETER_AXES = {
    "embedding/projection/kernel": Axes((None, None, None), ("emb",)),
    "embedding/projection/bias": Axes((), (None,)),
    "embedding/class_token": Axes((), (None,)),
}
"""Axes of the parameters of `PatchEmbedding`, by the names that models give them."""

INPUTS = {"tokens": TokenEmbedding, "patches": PatchEmbedding}
"""Modules that make vectors [B, T, D] of what an encoder reads, by the values of `model.inputs`."""
