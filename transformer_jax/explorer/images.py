"""Models of images on the page: labels of a picture, and weights of attention and rollout over the picture."""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.images import decoded
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.explorer.encoders import ExploredLabels, Row, Unit
from transformer_jax.explorer.passes import Names, Seen, names_of
from transformer_jax.inspection.attention import mean_entropy
from transformer_jax.inspection.image_attention import maps_of, png_bytes

MAX_IMAGE_BYTES = 8 * 1024 * 1024
"""Bytes of a picture file."""
MAX_IMAGE_PIXELS = 40_000_000
"""Pixels of a picture, all of which are decoded before it is scaled to those that the model reads."""


class ExploredImages(ExploredLabels):
    """A model that predicts the label of a picture; what it reads is a PNG or JPEG file in base64."""

    kind = "image"

    @property
    def reads(self) -> tuple[str, ...]:
        return ("picture",)

    @property
    def config(self) -> ExperimentConfig:
        """A picture of another size than the model reads is cropped, if the config does not say how it is scaled."""
        config = self.trained.config
        if config.data.resize != "none":
            return config
        return dataclasses.replace(config, data=dataclasses.replace(config.data, resize="crop"))

    @functools.cached_property
    def names(self) -> Names:
        """The names of its places; ConfigError for a model without attention, or of pictures of other colours."""
        if self.model.image_channels not in (1, 3):
            raise ConfigError(f"model.image_channels={self.model.image_channels}: the page shows pictures of 1 or 3")
        names = names_of(self.model, self.head)
        if not names.attentions:
            raise ConfigError("a model of images without attention is not shown")
        return names

    def warm_up(self) -> None:
        size, channels = self.model.image_size, self.model.image_channels
        black = png_bytes(np.zeros((size, size, 3 if channels == 3 else 1), np.uint8))
        self.look(base64.b64encode(black).decode())

    def about(self) -> dict[str, Any]:
        return {**super().about(), "most_bytes": MAX_IMAGE_BYTES}

    def row(self, text: str, second: str = "") -> Row:
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise DataError(f"the picture is not in base64: {error}") from error
        if len(data) > MAX_IMAGE_BYTES:
            raise DataError(f"the picture has {len(data):,} bytes; expected at most {MAX_IMAGE_BYTES:,}")
        mode = {1: "L", 3: "RGB"}.get(self.model.image_channels)
        try:
            pixels = self.predictor.features(decoded(data, mode, MAX_IMAGE_PIXELS))["inputs"].load()
        except ValueError as error:
            raise DataError(f"the picture {str(error).removeprefix('the array: ')}") from error
        grid = self.model.image_size // self.model.patch_size
        patches = [f"row {i // grid}, column {i % grid}" for i in range(grid**2)]
        tokens = [*(["class token"] if self.model.class_token else []), *patches]
        batch: dict[str, Any] = {"inputs": pixels[None]}
        return Row(batch, len(tokens), tokens, [Unit("the picture", ())])

    def _shown(self, text: str, row: Row, found: Seen) -> dict[str, Any]:
        """Return also `picture`, the pixels that the model reads, and `rollout` [G][G] over them; no text."""
        shown = super()._shown("", row, found)
        pixels = np.asarray(row.batch["inputs"][0])
        (weights,) = found.weights.values()
        maps = maps_of(self.model, pixels, np.asarray(weights, np.float64))
        shown["picture"] = f"data:image/png;base64,{base64.b64encode(png_bytes(pixels)).decode()}"
        shown["rollout"] = np.round(maps.rollout, 6).tolist()
        (attention,) = shown["attention"].values()
        attention["patches"] = np.round(maps.patches, 6).tolist()
        del shown["text"]
        return shown

    def _weights(self, name: str, layers: Sequence[int], counts: Mapping[str, int], weights: Any) -> dict[str, Any]:
        """Return the weights without those of all pairs of patches, of which there are many."""
        entropy = np.round(mean_entropy(np.asarray(weights, np.float64)), 5).tolist()
        return {"layers": layers, "heads": int(weights.shape[1]), "entropy": entropy}
